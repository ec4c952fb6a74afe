//! Runner: puts operations to an allocator and the oracle's questions to both.

use crate::device::{Device, World};
use crate::op::{Failure, Misuse, Op};
use crate::oracle::{Block, Oracle, Subject};
use crate::prove::as_test;
use crate::witness::Witness;
use gapless::Allocator;
use gapless::allocator::{AddressFacts, AllocError, CloseError, FreeError, Stats};
use gapless::driver::{DriverError, Fault, FaultDriver, HoldStreams, WorkDriver};
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
        sum.driver_calls.stream_wait += more.driver_calls.stream_wait;
        sum.driver_calls.unmap += more.driver_calls.unmap;
        sum.driver_calls.release += more.driver_calls.release;
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
            ("stream waits", stats.driver_calls.stream_wait),
            ("unmaps", stats.driver_calls.unmap),
            ("releases", stats.driver_calls.release),
        ];
        eprintln!("{figures:?}");
        assert!(figures.iter().all(|(_, figure)| *figure > 0), "something never happened: {figures:?}");
    }
}

/// An allocator on a device of its own, and what its callers know.
#[derive(Debug)]
pub struct Runner<D: Device> {
    world: World,
    driver: Arc<FaultDriver<Witness<D>>>,
    allocator: Subject<D>,
    streams: Vec<StreamId>,
    oracle: Oracle,
    armed: Option<Failure>,
    lost: bool,
    promising: bool,
    /// Nothing has happened since the last check.
    checked: bool,
    next_seed: u64,
    summary: Summary,
    spared: Spared<D>,
}

/// A clone of an allocator that is forgotten in a panic: tearing a broken allocator down would panic again.
#[derive(Debug)]
struct Spared<D: Device>(Option<Subject<D>>);

impl<D: Device> Drop for Spared<D> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(self.0.take());
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
        let mut builder = Allocator::builder(Arc::clone(&driver))
            .budget(world.bytes())
            .chunk_policy(world.chunk_policy())
            .mapping_limit(world.mapping_limit);
        builder = match world.slack_percent {
            0 => builder.slack(f64::INFINITY),
            percent => builder.slack(1.0 + f64::from(percent) / 100.0),
        };
        let allocator = builder.build().expect("the settings of a world are in range");
        let oracle = Oracle { ceiling: world.bytes(), ..Oracle::default() };
        let spared = Spared(Some(allocator.clone()));
        Self {
            spared,
            world: *world,
            driver,
            allocator,
            streams,
            oracle,
            armed: None,
            lost: false,
            promising: true,
            checked: false,
            next_seed: 1,
            summary: Summary::default(),
        }
    }

    /// The allocator.
    pub fn allocator(&self) -> &Subject<D> {
        &self.allocator
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
        self.oracle.order.len()
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
            | Op::External { .. }
            | Op::Fail { .. }
            | Op::Thread { .. }
                if self.summary.ops > 0 =>
            {
                Oracle::check_device(self.driver.inner());
            }
            _ => self.oracle.check(&self.world, &self.allocator),
        }
        self.checked = true;
        self.summary.ops += 1;
    }

    /// Carries one operation out.
    pub fn act(&mut self, op: Op) {
        self.checked = false;
        match op {
            Op::Alloc { bytes, align, stream } => self.alloc(u64::from(bytes), align, self.stream(stream)),
            Op::Free { block } => self.free(block),
            Op::Record { block, stream } => {
                if let Some(block) = self.oracle.block(block).cloned() {
                    self.record(block.addr, self.stream(stream));
                }
            }
            Op::Write { block, stream } => self.launch(block, self.stream(stream), true),
            Op::Read { block, stream } => self.launch(block, self.stream(stream), false),
            Op::Hold { stream } => self.driver.hold(self.stream(stream)),
            Op::Complete { stream } => self.driver.complete(self.stream(stream)),
            Op::Resume { stream } => self.driver.resume(self.stream(stream)),
            Op::Trim { keep } => {
                let result = self.allocator.trim(u64::from(keep) * self.world.page_bytes);
                if let Err(error) = result {
                    match error {
                        AllocError::Driver(error) => self.expect_injected(&error),
                        other => panic!("trim answered {other}"),
                    }
                }
            }
            Op::Budget { pages } => {
                let bytes = u64::from(pages) % (2 * self.world.pages + 1) * self.world.page_bytes;
                if let Err(error) = self.allocator.set_budget(bytes) {
                    self.expect_injected(&error);
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

    /// As [`step`](Self::step) where some memory is out of use for good: an out-of-memory report breaks no promise.
    ///
    /// # Panics
    /// When something else is wrong.
    pub fn step_loosely(&mut self, op: Op) {
        let promising = std::mem::replace(&mut self.promising, false);
        self.step(op);
        self.promising = promising;
    }

    /// The allocator alone, to close it by hand.
    pub fn into_allocator(mut self) -> Subject<D> {
        self.spared.0 = None;
        self.allocator
    }

    /// The stream of a number.
    pub fn stream(&self, number: u8) -> StreamId {
        self.streams[usize::from(number) % self.streams.len()]
    }

    /// Ends everything and looks at what is left.
    ///
    /// # Panics
    /// When something is wrong, or anything is left.
    pub fn finish(mut self) -> Summary {
        self.driver.disarm();
        if !self.checked {
            self.oracle.check(&self.world, &self.allocator);
        }
        let mut summary = self.summary;
        summary.stats = self.allocator.stats();
        let expected = self.oracle.live.len();
        self.spared.0 = None;
        match self.allocator.close() {
            Ok(()) => assert_eq!(expected, 0, "invariant 7: leaks went unnoticed"),
            Err(CloseError::Leaked(leaks)) => assert_eq!(leaks.len(), expected, "invariant 7: {leaks:?}"),
            Err(other) => panic!("close answered {other}"),
        }
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
    fn struck(&self) -> bool {
        self.armed.is_some() && self.driver.fired() > 0
    }

    fn disarm(&mut self) {
        self.lost |= self.armed == Some(Failure::Lost) && self.driver.fired() > 0;
        self.driver.disarm();
        self.armed = None;
    }

    fn expect_injected(&self, error: &DriverError) {
        let injected = self.struck() && self.armed.is_some_and(|failure| failure.kind() == error.kind);
        let lost = self.lost && error.kind == Failure::Lost.kind();
        assert!(injected || lost, "an error that nobody injected: {error}");
    }

    fn alloc(&mut self, bytes: u64, align: u8, stream: StreamId) {
        let alignment = 1_u64 << (align % (TOP_ALIGNMENT + 1));
        let held = self.allocator.reserved_bytes();
        let error = match self.allocator.alloc_aligned(bytes, alignment, stream) {
            Ok(addr) => return self.take_in(addr, bytes, alignment, stream),
            Err(error) => error,
        };
        let struck = self.struck();
        // A report with an injected failure is two failures: the second may be the giving back itself.
        let second_failure = struck && error.report().is_some();
        let kept = self.allocator.reserved_bytes() > held && !second_failure;
        assert!(!kept, "invariant 6: a failed call kept memory: {error}");
        match &error {
            AllocError::OutOfMemory(report) => {
                self.summary.out_of_memory += 1;
                let promise = self.oracle.promise(&self.world, &self.allocator, bytes);
                let promised = self.promising
                    && self.world.chunk_pages == 1
                    && alignment <= self.world.page_bytes
                    && promise.holds();
                assert!(!promised || struck || self.lost, "the promise: {promise:?}\n{report}");
                assert_eq!(report.requested_bytes, bytes);
            }
            AllocError::Driver(error) => self.expect_injected(error),
            AllocError::ForeignStream { source, .. } => self.expect_injected(source),
            AllocError::TooLarge { requested, .. } => {
                assert_eq!(*requested, bytes);
                assert!(bytes > 2 * self.world.bytes(), "{error}");
            }
            other => panic!("alloc answered {other}"),
        }
        if struck {
            // Invariant 6: the same call succeeds, unless it would not have succeeded anyway.
            self.oracle.check(&self.world, &self.allocator);
            self.summary.faults += 1;
            self.disarm();
            if !self.lost {
                self.alloc(bytes, align, stream);
            }
        }
    }

    fn take_in(&mut self, addr: DeviceAddr, bytes: u64, alignment: u64, stream: StreamId) {
        assert!(addr.is_aligned(alignment), "{addr} is not a multiple of {alignment}");
        let seed = self.fresh_seed();
        self.oracle.add(Block { addr, bytes, home: stream, recorded: Vec::new(), last_user: stream, seed });
        self.driver.inner().fill(stream, addr, bytes, seed).expect("invariant 2: fresh memory can be written");
    }

    fn fresh_seed(&mut self) -> u64 {
        self.next_seed += 1;
        self.next_seed
    }

    fn free(&mut self, number: u16) {
        let Some(block) = self.oracle.block(number).cloned() else { return };
        // On the stream that used it last, so that nothing is ordered that the allocator should have ordered.
        self.verify(&block, block.last_user);
        self.allocator.free(block.addr).expect("a live block can be freed");
        self.oracle.remove(block.addr.0);
    }

    fn verify(&mut self, block: &Block, stream: StreamId) {
        self.summary.verified_bytes += block.bytes;
        let result = self.driver.inner().verify(stream, block.addr, block.bytes, block.seed);
        result.expect("invariant 2: a live block can be read");
    }

    /// True when it is recorded.
    fn record(&mut self, addr: DeviceAddr, stream: StreamId) -> bool {
        match self.allocator.record_stream(addr, stream) {
            Ok(()) => {
                let block = self.oracle.live.get_mut(&addr.0).expect("a live block");
                if block.home != stream && !block.recorded.contains(&stream) {
                    block.recorded.push(stream);
                }
                true
            }
            Err(FreeError::ForeignStream { source, .. }) => {
                self.expect_injected(&source);
                false
            }
            Err(other) => panic!("record_stream answered {other}"),
        }
    }

    fn launch(&mut self, number: u16, stream: StreamId, write: bool) {
        let Some(block) = self.oracle.block(number).cloned() else { return };
        if block.home != stream && !block.recorded.contains(&stream) && !self.record(block.addr, stream) {
            return;
        }
        let witness = self.driver.inner();
        if stream != block.last_user {
            witness.order(block.last_user, stream).expect("a caller can order its streams");
        }
        if write {
            let seed = self.fresh_seed();
            self.driver.inner().fill(stream, block.addr, block.bytes, seed).expect("invariant 2: a live block");
            self.oracle.live.get_mut(&block.addr.0).expect("a live block").seed = seed;
        } else {
            self.verify(&block, stream);
        }
        self.oracle.live.get_mut(&block.addr.0).expect("a live block").last_user = stream;
    }

    fn misuse(&mut self, misuse: Misuse, number: u16) {
        let block = self.oracle.block(number).cloned();
        let live = self.oracle.live.len();
        match (misuse, block) {
            (Misuse::FreeInside, Some(block)) if block.bytes > 512 => {
                let error = self.allocator.free(block.addr.offset(512)).expect_err("an address inside a block");
                self.oracle.refused_frees += 1;
                let FreeError::NotAllocated { facts: AddressFacts::Inside { start, .. }, .. } = error else {
                    panic!("an interior address: {error}");
                };
                assert_eq!(start, block.addr);
            }
            (Misuse::FreeTwice | Misuse::RecordFreed, _) => {
                let Some(addr) = self.oracle.last_freed.filter(|addr| !self.oracle.live.contains_key(addr)) else {
                    return;
                };
                let result = match misuse {
                    Misuse::FreeTwice => self.allocator.free(DeviceAddr(addr)),
                    _ => self.allocator.record_stream(DeviceAddr(addr), self.streams[0]),
                };
                match result.expect_err("freed before") {
                    FreeError::NotAllocated { .. } => self.oracle.refused_frees += 1,
                    FreeError::ForeignStream { source, .. } => self.expect_injected(&source),
                    other => panic!("freed before: {other}"),
                }
            }
            (Misuse::FreeForeign, _) => {
                let error = self.allocator.free(DeviceAddr(512)).expect_err("an address of nobody");
                self.oracle.refused_frees += 1;
                assert!(matches!(error, FreeError::NotAllocated { facts: AddressFacts::Foreign, .. }), "{error}");
            }
            (Misuse::RecordForeignStream, Some(block)) => {
                let error = self.allocator.record_stream(block.addr, NO_STREAM).expect_err("no such stream");
                assert!(matches!(error, FreeError::ForeignStream { .. }), "{error}");
            }
            (Misuse::AllocForeignStream, _) => {
                let error = self.allocator.alloc(1000, NO_STREAM).expect_err("no such stream");
                assert!(matches!(error, AllocError::ForeignStream { .. }), "{error}");
            }
            (Misuse::AllocTooMuch, _) => {
                for (bytes, alignment) in [(u64::MAX, 512), (u64::MAX - 600, 1), (1 << 62, 1 << 62)] {
                    let error = self.allocator.alloc_aligned(bytes, alignment, self.streams[0]).expect_err("too much");
                    assert!(matches!(error, AllocError::TooLarge { .. }), "{error}");
                }
            }
            (Misuse::AllocOddAlignment, _) => {
                let error = self.allocator.alloc_aligned(512, 3, self.streams[0]).expect_err("not a power of two");
                assert!(matches!(error, AllocError::Alignment { alignment: 3 }), "{error}");
            }
            (Misuse::FreeInside | Misuse::RecordForeignStream, _) => {}
        }
        assert_eq!(self.oracle.live.len(), live);
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

/// Prints a sequence as a test when it is dropped while panicking.
pub struct PrintOnPanic<'a>(pub &'a World, pub &'a [Op]);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", as_test(self.0, self.1));
        }
    }
}
