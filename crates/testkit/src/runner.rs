//! Runner: puts operations to an allocator and the oracle's questions to both.

use crate::device::{Device, World};
use crate::op::{Failure, Misuse, Op};
use crate::oracle::{Block, Oracle, Subject, fitting_block};
use crate::show::PrintOnPanic;
use crate::witness::Witness;
use gapless::Allocator;
use gapless::allocator::{AddressFacts, AllocError, FreeError, Stats, StreamError, VirtualRange};
use gapless::driver::{DriverCall, DriverError, Fault, FaultDriver, HoldStreams, StreamDriver, WorkDriver};
use gapless::heap::GRANULE;
use gapless::units::{DeviceAddr, StreamId};
use std::sync::Arc;

/// What a sequence came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Operations.
    pub ops: u64,
    /// Allocations that ended in the out-of-memory report.
    pub out_of_memory: u64,
    /// Injected failures that struck.
    pub faults: u64,
    /// Bytes verified on the device.
    pub verified_bytes: u64,
    /// The allocator's figures before it was closed.
    pub stats: Stats,
}

impl Summary {
    /// Takes in what another sequence came to.
    pub fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.out_of_memory += other.out_of_memory;
        self.faults += other.faults;
        self.verified_bytes += other.verified_bytes;
        let (sum, more) = (&mut self.stats, &other.stats);
        sum.allocs += more.allocs;
        sum.frees += more.frees;
        sum.failed_allocs += more.failed_allocs;
        sum.refused_frees += more.refused_frees;
        sum.borrowed += more.borrowed;
        sum.harvested_chunks += more.harvested_chunks;
        sum.reused_views += more.reused_views;
        sum.host_waits += more.host_waits;
        sum.driver_calls += more.driver_calls;
        sum.poisoned += more.poisoned;
        sum.peak_live_bytes = sum.peak_live_bytes.max(more.peak_live_bytes);
        sum.metadata_bytes = sum.metadata_bytes.max(more.metadata_bytes);
    }

    /// # Panics
    /// When the sequences never came to something that they are meant to reach.
    pub fn assert_everything_happened(&self) {
        let stats = &self.stats;
        let figures = [
            ("out of memory", self.out_of_memory),
            ("faults", self.faults),
            ("verified bytes", self.verified_bytes),
            ("refused frees", stats.refused_frees),
            ("borrowed", stats.borrowed),
            ("harvested chunks", stats.harvested_chunks),
            ("reused views", stats.reused_views),
            ("host waits", stats.host_waits),
            ("stream waits", stats.driver_calls[DriverCall::StreamWait]),
            ("unmaps", stats.driver_calls[DriverCall::Unmap]),
            ("releases", stats.driver_calls[DriverCall::Release]),
        ];
        eprintln!("{figures:?}");
        assert!(figures.iter().all(|(_, figure)| *figure > 0), "something never happened: {figures:?}");
    }
}

/// Allocators on a device, and what their callers know.
#[derive(Debug)]
pub struct Runner<D: Device> {
    pub(crate) world: World,
    pub(crate) driver: Arc<FaultDriver<Witness<D>>>,
    pub(crate) seats: Vec<Seat<D>>,
    /// Whose turn it is.
    pub(crate) current: usize,
    streams: Vec<StreamId>,
    armed: Option<Failure>,
    pub(crate) promising: bool,
    /// Nothing has happened since the last check.
    checked: bool,
    next_seed: u64,
    pub(crate) summary: Summary,
}

/// One allocator: handles to it, its raw ranges, and what is known about both. In a panic they are forgotten: tearing a
/// broken allocator down would panic again.
#[derive(Debug)]
pub(crate) struct Seat<D: Device> {
    /// The last one is used.
    pub(crate) handles: Vec<Subject<D>>,
    /// As many as the oracle has.
    pub(crate) ranges: Vec<VirtualRange<FaultDriver<Witness<D>>>>,
    pub(crate) oracle: Oracle,
    pub(crate) lost: bool,
}

impl<D: Device> Seat<D> {
    pub(crate) fn open(world: &World, driver: &Arc<FaultDriver<Witness<D>>>) -> Self {
        let mut builder = world.settings(Allocator::builder(Arc::clone(driver)));
        builder = match world.slack_percent {
            0 => builder.slack(f64::INFINITY),
            percent => builder.slack(1.0 + f64::from(percent) / 100.0),
        };
        let allocator = builder.build().expect("the settings of a world are in range");
        let oracle = Oracle { ceiling: world.bytes(), ..Oracle::default() };
        Self { handles: vec![allocator], ranges: Vec::new(), oracle, lost: false }
    }

    pub(crate) fn allocator(&self) -> &Subject<D> {
        self.handles.last().expect("a seat has a handle")
    }
}

impl<D: Device> Drop for Seat<D> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(std::mem::take(&mut self.handles));
            std::mem::forget(std::mem::take(&mut self.ranges));
        }
    }
}

/// A stream that no device has.
const NO_STREAM: StreamId = StreamId(u64::MAX - 7);
/// Largest alignment asked for, as a logarithm.
const TOP_ALIGNMENT: u8 = 20;

impl<D: Device> Runner<D> {
    /// A fresh device, its streams, and an allocator on it.
    pub fn new(world: &World) -> Self {
        let driver = Arc::new(FaultDriver::new(Witness::new(D::open(world))));
        let mut streams = vec![StreamId::DEFAULT];
        streams.extend((1..world.streams).map(|_| driver.create_stream().expect("a simulated device has streams")));
        let seat = Seat::open(world, &driver);
        Self {
            world: *world,
            driver,
            seats: vec![seat],
            current: 0,
            streams,
            armed: None,
            promising: true,
            checked: false,
            next_seed: 1,
            summary: Summary::default(),
        }
    }

    /// The allocator whose turn it is.
    pub fn allocator(&self) -> &Subject<D> {
        self.seat().allocator()
    }

    /// The driver, to arm faults by hand.
    pub fn driver(&self) -> &Arc<FaultDriver<Witness<D>>> {
        &self.driver
    }

    /// Injected failures that struck so far.
    pub fn faults(&self) -> u64 {
        self.summary.faults
    }

    /// Number of live blocks.
    pub fn live(&self) -> usize {
        self.seat().oracle.order.len()
    }

    /// Carries one operation out, then checks everything.
    ///
    /// # Panics
    /// When something is wrong.
    pub fn step(&mut self, op: Op) {
        self.act(op);
        match op {
            // The allocator was not called: its books are as they were at the check before.
            Op::Hold { .. }
            | Op::Complete { .. }
            | Op::Resume { .. }
            | Op::BeginCapture { .. }
            | Op::EndCapture { .. }
            | Op::External { .. }
            | Op::Fail { .. }
            | Op::Thread { .. }
                if self.summary.ops > 0 =>
            {
                Oracle::check_device(self.driver.inner());
            }
            _ => self.check(),
        }
        self.checked = true;
        self.summary.ops += 1;
    }

    /// What must be true of each allocator, and that together they are what the device has.
    fn check(&mut self) {
        let mut sum = (0, 0, 0);
        for seat in &mut self.seats {
            let allocator = seat.handles.last().expect("a seat has a handle");
            let stats = seat.oracle.check(&self.world, allocator);
            sum = (sum.0 + stats.reserved_bytes, sum.1 + stats.chunks, sum.2 + stats.mappings);
            for (range, known) in seat.ranges.iter().zip(&seat.oracle.ranges) {
                let mapped = known.pages.len() as u64 * self.world.page_bytes;
                assert_eq!((range.addr(), range.mapped_bytes()), (known.addr, mapped), "a range changed by itself");
                for (number, page) in known.pages.iter().enumerate() {
                    let addr = known.addr.offset(number as u64 * self.world.page_bytes);
                    let memory = self.driver.inner().memory_at(addr);
                    assert_eq!(memory, Some(page.memory), "page {number} of {:?} has other memory", known.addr);
                }
            }
        }
        let usage = self.driver.inner().inner().usage();
        assert_eq!(sum.0, usage.bytes, "invariant 6: memory that only one side knows of");
        assert_eq!(sum.1, usage.handles as u64, "invariant 6: chunks that only one side knows of");
        assert_eq!(sum.2, usage.mappings as u64, "invariant 6: mappings that only one side knows of");
    }

    pub(crate) fn seat(&self) -> &Seat<D> {
        &self.seats[self.current]
    }

    pub(crate) fn seat_mut(&mut self) -> &mut Seat<D> {
        &mut self.seats[self.current]
    }

    /// Carries one operation out.
    pub fn act(&mut self, op: Op) {
        self.checked = false;
        match op {
            Op::Alloc { bytes, align, stream } => self.alloc(u64::from(bytes), align, self.stream(stream)),
            Op::Free { block } => self.free(block),
            Op::Record { block, stream } => {
                if let Some(block) = self.seat().oracle.block(block).cloned() {
                    self.record(block.addr, self.stream(stream));
                }
            }
            Op::Write { block, stream } => self.launch(block, self.stream(stream), true),
            Op::Read { block, stream } => self.launch(block, self.stream(stream), false),
            Op::Hold { stream } => self.driver.hold(self.stream(stream)),
            Op::Complete { stream } => self.driver.complete(self.stream(stream)),
            Op::Resume { stream } => self.driver.resume(self.stream(stream)),
            Op::BeginCapture { stream } => self.set_capturing(self.stream(stream), true),
            Op::EndCapture { stream } => self.set_capturing(self.stream(stream), false),
            Op::ReserveRange { .. }
            | Op::GrowRange { .. }
            | Op::ShrinkRange { .. }
            | Op::TakeRange { .. }
            | Op::WriteRange { .. }
            | Op::ReadRange { .. }
            | Op::DropRange { .. } => self.act_on_ranges(op),
            Op::CopyHandle | Op::DropHandle { .. } | Op::CloseHandle | Op::OpenAllocator | Op::UseAllocator { .. } => {
                self.act_on_handles(op)
            }
            Op::Trim { keep } => {
                let keep_bytes = u64::from(keep) * self.world.page_bytes;
                let before = self.allocator().reserved_bytes();
                match self.allocator().trim(keep_bytes) {
                    Ok(trimmed) if trimmed.released_bytes + trimmed.held_bytes != before => {
                        panic!("{trimmed:?} of {before} bytes")
                    }
                    // A chunk whose release fails stays, and the others go.
                    Ok(_) if self.struck() || !self.is_promising() => {}
                    Ok(trimmed) => self.seat().oracle.check_trimmed(&self.world, self.allocator(), keep_bytes, trimmed),
                    Err(AllocError::Driver(error)) => self.expect_injected(&error),
                    Err(other) => panic!("trim answered {other}"),
                }
            }
            Op::Budget { pages } => {
                let bytes = u64::from(pages) % (2 * self.world.pages + 1) * self.world.page_bytes;
                match self.allocator().set_budget(bytes) {
                    Ok(()) => {}
                    Err(AllocError::Driver(error)) => self.expect_injected(&error),
                    Err(other) => panic!("set_budget answered {other}"),
                }
            }
            Op::External { pages } => {
                let bytes = u64::from(pages) % self.world.pages * self.world.page_bytes;
                self.driver.inner().inner().set_external(bytes);
            }
            Op::Fail { nth, kind } => {
                self.driver.arm(Fault::nth(u64::from(nth), kind.kind()));
                self.armed = Some(kind);
            }
            Op::Thread { .. } => {}
            Op::Bad { misuse, block } => self.misuse(misuse, block),
        }
        if self.armed.is_some() && self.driver.fired() > 0 {
            self.summary.faults += 1;
            self.disarm();
        }
    }

    /// As [`step`](Self::step) where some memory is out of use for good: an out-of-memory report breaks no promise, and a
    /// trim may leave some.
    ///
    /// # Panics
    /// When something else is wrong.
    pub fn step_loosely(&mut self, op: Op) {
        let promising = std::mem::replace(&mut self.promising, false);
        self.step(op);
        self.promising = promising;
    }

    /// The allocator alone, to close it by hand. Ranges and other handles are dropped.
    pub fn into_allocator(mut self) -> Subject<D> {
        let mut seat = self.seats.swap_remove(self.current);
        seat.ranges.clear();
        seat.handles.pop().expect("a seat has a handle")
    }

    /// The stream of a number.
    pub fn stream(&self, number: u8) -> StreamId {
        self.streams[usize::from(number) % self.streams.len()]
    }

    fn set_capturing(&self, stream: StreamId, capturing: bool) {
        self.driver.inner().inner().set_capturing(stream, capturing);
    }

    /// Whether any stream is being captured: memory that waits for it is out of use meanwhile.
    pub(crate) fn is_capturing(&self) -> bool {
        self.streams.iter().any(|stream| self.driver.is_capturing(*stream))
    }

    /// Whether a request for memory that is free must be served.
    pub(crate) fn is_promising(&self) -> bool {
        self.promising && !self.is_capturing()
    }

    /// Orders later work of a stream behind another's, as a caller does. False where a capture forbids it.
    pub(crate) fn order(&self, earlier: StreamId, later: StreamId) -> bool {
        if earlier == later {
            return true;
        }
        if self.driver.is_capturing(earlier) || self.driver.is_capturing(later) {
            return false;
        }
        self.driver.inner().order(earlier, later).expect("a caller can order its streams");
        true
    }

    /// Ends everything and looks at what is left.
    ///
    /// # Panics
    /// When something is wrong, or anything is left.
    pub fn finish(mut self) -> Summary {
        self.driver.disarm();
        if !self.checked {
            self.check();
        }
        for stream in &self.streams {
            self.set_capturing(*stream, false);
        }
        while !self.seats.is_empty() {
            self.current = self.seats.len() - 1;
            for range in 0..self.seat().ranges.len() {
                self.verify_pages(range, 0);
            }
            let seat = self.seats.remove(self.current);
            self.end(seat);
        }
        let summary = self.summary;
        for stream in self.streams.drain(1..) {
            self.driver.inner().destroy_stream(stream).expect("a simulated stream ends");
        }
        let witness = self.driver.inner();
        assert!(witness.take_mismatches().is_empty(), "bytes changed under their owner, before closing");
        assert_eq!(witness.take_observations(), [""; 0], "invariant 4, when closing");
        assert_eq!(witness.inner().broken_rules(), [""; 0], "when closing");
        let usage = witness.inner().usage();
        assert!(usage.is_empty(), "invariant 7: left in the driver: {usage:?}");
        summary
    }

    /// True when the injected failure struck in this operation, which is then over.
    pub(crate) fn struck(&self) -> bool {
        self.armed.is_some() && self.driver.fired() > 0
    }

    pub(crate) fn disarm(&mut self) {
        let lost = self.armed == Some(Failure::Lost) && self.driver.fired() > 0;
        self.seat_mut().lost |= lost;
        self.driver.disarm();
        self.armed = None;
    }

    pub(crate) fn expect_injected(&self, error: &DriverError) {
        let injected = self.struck() && self.armed.is_some_and(|failure| failure.kind() == error.kind);
        let lost = self.seat().lost && error.kind == Failure::Lost.kind();
        assert!(injected || lost, "an error that nobody injected: {error}");
    }

    fn alloc(&mut self, bytes: u64, align: u8, stream: StreamId) {
        let alignment = 1_u64 << (align % (TOP_ALIGNMENT + 1));
        let held = self.allocator().reserved_bytes();
        let error = match self.allocator().alloc_aligned(bytes, alignment, stream) {
            Ok(addr) => return self.take_in(addr, bytes, alignment, stream),
            Err(error) => error,
        };
        if let AllocError::TooLarge { requested, region_bytes, .. } = &error {
            assert_eq!(*requested, bytes);
            assert!(bytes > *region_bytes - GRANULE, "{error}");
            assert!(self.world.region_pages > 0 || *region_bytes > 2 * self.world.bytes(), "{error}");
        }
        if let AllocError::OutOfMemory(report) = &error
            && self.is_promising()
            && !self.struck()
            && !self.seat().lost
        {
            let fitting = fitting_block(self.allocator(), bytes, alignment);
            assert!(fitting.is_none(), "the promise: {fitting:?} was free\n{report}");
        }
        let promised = alignment <= self.world.page_bytes;
        if self.excuse(&error, bytes, held, promised) {
            self.alloc(bytes, align, stream);
        }
    }

    /// Whether memory for `bytes` may be refused so, when `held` bytes were held before the call. True when an injected
    /// failure is over and the same call has to succeed, unless it would not have succeeded anyway.
    pub(crate) fn excuse(&mut self, error: &AllocError, bytes: u64, held: u64, promised: bool) -> bool {
        let struck = self.struck();
        // A report with an injected failure is two failures: the second may be the giving back itself.
        let second_failure = struck && error.report().is_some();
        let kept = self.allocator().reserved_bytes() > held && !second_failure;
        assert!(!kept, "invariant 6: a failed call kept memory: {error}");
        match error {
            AllocError::OutOfMemory(report) => {
                self.summary.out_of_memory += 1;
                let promise = self.seat().oracle.promise(&self.world, self.allocator(), bytes);
                let promised = promised && self.is_promising() && self.world.chunk_pages == 1 && promise.holds();
                assert!(!promised || struck || self.seat().lost, "the promise: {promise:?}\n{report}");
                assert_eq!(report.requested_bytes, bytes);
                self.seat().oracle.check_report(self.allocator(), report, &promise);
            }
            AllocError::Driver(error) => self.expect_injected(error),
            AllocError::Stream(StreamError::Foreign { source, .. }) => self.expect_injected(source),
            AllocError::TooLarge { .. } | AllocError::RangeFull { .. } => {}
            other => panic!("memory was refused: {other}"),
        }
        if struck {
            self.recover();
        }
        struck && !self.seat().lost
    }

    /// Invariant 6, and the end of an injected failure.
    pub(crate) fn recover(&mut self) {
        self.check();
        self.summary.faults += 1;
        self.disarm();
    }

    fn take_in(&mut self, addr: DeviceAddr, bytes: u64, alignment: u64, stream: StreamId) {
        assert!(addr.is_aligned(alignment), "{addr} is not a multiple of {alignment}");
        let seed = self.fresh_seed();
        self.seat_mut().oracle.add(Block { addr, bytes, home: stream, recorded: Vec::new(), last_user: stream, seed });
        self.driver.inner().fill(stream, addr, bytes, seed).expect("invariant 2: fresh memory can be written");
    }

    pub(crate) fn fresh_seed(&mut self) -> u64 {
        self.next_seed += 1;
        self.next_seed
    }

    fn free(&mut self, number: u16) {
        let Some(block) = self.seat().oracle.block(number).cloned() else { return };
        // On the stream that used it last, so that nothing is ordered that the allocator should have ordered.
        self.verify(&block, block.last_user);
        self.allocator().free(block.addr).expect("a live block can be freed");
        self.seat_mut().oracle.remove(block.addr.0);
    }

    fn verify(&mut self, block: &Block, stream: StreamId) {
        self.summary.verified_bytes += block.bytes;
        let result = self.driver.inner().verify(stream, block.addr, block.bytes, block.seed);
        result.expect("invariant 2: a live block can be read");
    }

    /// True when it is recorded.
    fn record(&mut self, addr: DeviceAddr, stream: StreamId) -> bool {
        match self.allocator().record_stream(addr, stream) {
            Ok(()) => {
                let block = self.seat_mut().oracle.live.get_mut(&addr.0).expect("a live block");
                if block.home != stream && !block.recorded.contains(&stream) {
                    block.recorded.push(stream);
                }
                true
            }
            Err(FreeError::Stream(StreamError::Foreign { source, .. })) => {
                self.expect_injected(&source);
                false
            }
            Err(other) => panic!("record_stream answered {other}"),
        }
    }

    fn launch(&mut self, number: u16, stream: StreamId, write: bool) {
        let Some(block) = self.seat().oracle.block(number).cloned() else { return };
        if block.home != stream && !block.recorded.contains(&stream) && !self.record(block.addr, stream) {
            return;
        }
        if !self.order(block.last_user, stream) {
            return;
        }
        if write {
            let seed = self.fresh_seed();
            self.driver.inner().fill(stream, block.addr, block.bytes, seed).expect("invariant 2: a live block");
            self.seat_mut().oracle.live.get_mut(&block.addr.0).expect("a live block").seed = seed;
        } else {
            self.verify(&block, stream);
        }
        self.seat_mut().oracle.live.get_mut(&block.addr.0).expect("a live block").last_user = stream;
    }

    fn misuse(&mut self, misuse: Misuse, number: u16) {
        let block = self.seat().oracle.block(number).cloned();
        let live = self.seat().oracle.live.len();
        match (misuse, block) {
            (Misuse::FreeInside, Some(block)) if block.bytes > 512 => {
                let error = self.allocator().free(block.addr.offset(512)).expect_err("an address inside a block");
                self.seat_mut().oracle.refused_frees += 1;
                let FreeError::NotAllocated { facts: AddressFacts::Inside { start, .. }, .. } = error else {
                    panic!("an interior address: {error}");
                };
                assert_eq!(start, block.addr);
            }
            (Misuse::FreeTwice | Misuse::RecordFreed, _) => {
                let Some(addr) =
                    self.seat().oracle.last_freed.filter(|addr| !self.seat().oracle.live.contains_key(addr))
                else {
                    return;
                };
                let result = match misuse {
                    Misuse::FreeTwice => self.allocator().free(DeviceAddr(addr)),
                    _ => self.allocator().record_stream(DeviceAddr(addr), self.streams[0]),
                };
                match result.expect_err("freed before") {
                    FreeError::NotAllocated { .. } => self.seat_mut().oracle.refused_frees += 1,
                    FreeError::Stream(StreamError::Foreign { source, .. }) => self.expect_injected(&source),
                    other => panic!("freed before: {other}"),
                }
            }
            (Misuse::FreeForeign, _) => {
                let error = self.allocator().free(DeviceAddr(512)).expect_err("an address of nobody");
                self.seat_mut().oracle.refused_frees += 1;
                assert!(matches!(error, FreeError::NotAllocated { facts: AddressFacts::Foreign, .. }), "{error}");
            }
            (Misuse::RecordForeignStream, Some(block)) => {
                let error = self.allocator().record_stream(block.addr, NO_STREAM).expect_err("no such stream");
                assert!(matches!(error, FreeError::Stream(StreamError::Foreign { .. })), "{error}");
            }
            (Misuse::AllocForeignStream, _) => {
                let error = self.allocator().alloc(1000, NO_STREAM).expect_err("no such stream");
                assert!(matches!(error, AllocError::Stream(StreamError::Foreign { .. })), "{error}");
            }
            (Misuse::AllocTooMuch, _) => {
                for (bytes, alignment) in [(u64::MAX, 512), (u64::MAX - 600, 1), (1 << 62, 1 << 62)] {
                    let error =
                        self.allocator().alloc_aligned(bytes, alignment, self.streams[0]).expect_err("too much");
                    assert!(matches!(error, AllocError::TooLarge { .. }), "{error}");
                }
            }
            (Misuse::AllocOddAlignment, _) => {
                let error = self.allocator().alloc_aligned(512, 3, self.streams[0]).expect_err("not a power of two");
                assert!(matches!(error, AllocError::Alignment { alignment: 3 }), "{error}");
            }
            (Misuse::FreeInside | Misuse::RecordForeignStream, _) => {}
        }
        assert_eq!(self.seat().oracle.live.len(), live);
    }
}

/// Runs a sequence on a fresh device, checking everything after each operation and at the end.
///
/// # Panics
/// When something is wrong; the sequence is printed as a Rust test.
pub fn run<D: Device>(world: &World, ops: &[Op]) -> Summary {
    let _print = PrintOnPanic(world, ops);
    let mut runner = Runner::<D>::new(world);
    for op in ops {
        runner.step(*op);
    }
    runner.finish()
}
