//! Runner: applies operations to allocators on a device, and checks the results with the oracle.

mod again;
mod blocks;
mod contexts;
mod handles;
mod instance;
mod kept;
mod marks;
mod misuse;
mod own;
mod peers;
mod pools;
mod ranges;
mod renew;
mod reset;
mod sleep;

use self::instance::Instance;
use crate::device::{Device, World};
use crate::elsewhere::Elsewhere;
use crate::graphs::{Graphs, Pool};
use crate::kept::Kept;
use crate::op::{CurrentContext, Failure, Op};
use crate::oracle::{Oracle, Subject};
use crate::promise::Promise;
use crate::show::PrintOnPanic;
use crate::summary::Summary;
use crate::witness::Witness;
use gapless::allocator::{AllocError, StreamError};
use gapless::driver::{
    DriverCall, DriverError, DriverErrorKind, Fault, FaultDriver, HoldStreams, PER_THREAD_STREAM, StreamDriver,
    WorkDriver,
};
use gapless::units::{StreamId, TIB};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Half of the addresses that a process has: while fewer are reserved, there is room for any region.
const MOST_ADDRESSES: u64 = 64 * TIB;

/// A device and the allocators on it, with the oracle of each.
#[derive(Debug)]
pub struct Runner<D: Device> {
    pub(crate) world: World,
    pub(crate) driver: Arc<FaultDriver<Witness<D>>>,
    pub(crate) instances: Vec<Instance<D>>,
    /// Index of the allocator that operations are applied to.
    pub(crate) current: usize,
    /// The streams that were created, and the default one.
    pub(crate) streams: Vec<StreamId>,
    /// The handles of streams that were destroyed.
    pub(crate) renewed: BTreeSet<StreamId>,
    pub(crate) elsewhere: Elsewhere,
    /// A stream was captured that may have been destroyed since, for all that the allocators know: so they cannot ask
    /// whether the capture has ended.
    pub(crate) capture_unseen: bool,
    pub(crate) graphs: Graphs,
    armed: Option<Failure>,
    pub(crate) promising: bool,
    /// No operation ran since the last check.
    checked: bool,
    next_seed: u64,
    pub(crate) summary: Summary,
}

impl<D: Device> Runner<D> {
    /// Creates a device with its streams, and an allocator on it.
    pub fn new(world: &World) -> Self {
        let driver = Arc::new(FaultDriver::new(Witness::new(D::open(world))));
        // A sequence that failed may have left another one.
        driver.inner().inner().set_context(CurrentContext::None);
        let mut streams = vec![StreamId::DEFAULT];
        streams.extend((1..world.streams).map(|_| driver.create_stream().expect("the device can create streams")));
        let instance = Instance::open(world, &driver, &streams, None);
        Self {
            world: *world,
            driver,
            instances: vec![instance],
            current: 0,
            streams,
            renewed: BTreeSet::new(),
            elsewhere: Elsewhere::default(),
            capture_unseen: false,
            graphs: Graphs::default(),
            armed: None,
            promising: true,
            checked: false,
            next_seed: 1,
            summary: Summary::default(),
        }
    }

    /// Opens another allocator, which keeps its mappings if it is a pool.
    pub(crate) fn open(&mut self, pool: Option<Pool>) -> Instance<D> {
        Instance::open(&self.world, &self.driver, &self.streams, pool)
    }

    /// Returns the allocator that operations are applied to.
    pub fn allocator(&self) -> &Subject<D> {
        self.instance().allocator()
    }

    /// Returns the driver, which can be made to fail.
    pub fn driver(&self) -> &Arc<FaultDriver<Witness<D>>> {
        &self.driver
    }

    /// Returns the number of injected failures that occurred so far.
    pub fn faults(&self) -> u64 {
        self.summary.faults
    }

    /// Returns whether the current allocator must serve a request of `bytes` bytes.
    pub fn promise(&self, bytes: u64) -> Promise {
        self.instance().oracle.promise(&self.world, self.allocator(), bytes)
    }

    /// Returns the number of live blocks of the current allocator.
    pub fn live(&self) -> usize {
        self.instance().oracle.order.len()
    }

    /// Runs one operation, then checks everything.
    ///
    /// # Panics
    /// Panics if a check fails.
    pub fn step(&mut self, op: Op) {
        self.act(op);
        match op {
            // The allocator was not called, so its state is as it was at the last check.
            Op::Hold { .. }
            | Op::Complete { .. }
            | Op::Resume { .. }
            | Op::BeginCapture { .. }
            | Op::EndCapture { .. }
            | Op::CaptureAs { .. }
            | Op::Replay { .. }
            | Op::RemovePeer { .. }
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

    /// Checks each allocator, and that together they account for the objects on the device.
    fn check(&mut self) {
        let mut sum = (0, 0, 0);
        for instance in &mut self.instances {
            let allocator = instance.handles.last().expect("every allocator has a handle");
            if instance.lost {
                // What goes on falling asleep or waking is claimed, and what is freed of it.
                instance.oracle.abandoned_bytes = allocator.reserved_bytes();
            }
            let stats = instance.oracle.check(&self.world, &self.elsewhere, allocator);
            if let Some(pool) = &instance.pool {
                pool.check(self.driver.inner());
            }
            instance.registry.check();
            // A mapping that could not be undone was not reported.
            let all_reported = instance.registry.mappings() == stats.mappings || stats.poisoned > 0;
            assert!(all_reported, "L1: {} mappings were reported of {}", instance.registry.mappings(), stats.mappings);
            sum = (sum.0 + stats.reserved_bytes, sum.1 + stats.chunks, sum.2 + stats.mappings);
            for (range, known) in instance.ranges.iter().zip(&instance.oracle.ranges) {
                let mapped = known.pages.len() as u64 * self.world.page_bytes;
                assert_eq!(
                    (range.addr(), range.mapped_bytes()),
                    (known.addr, mapped),
                    "a range changed without a call"
                );
                for (number, page) in known.pages.iter().enumerate() {
                    let addr = known.addr.offset(number as u64 * self.world.page_bytes);
                    let memory = self.driver.inner().memory_at(addr);
                    assert_eq!(
                        memory,
                        Some(page.memory),
                        "page {number} of {:?} is mapped to other memory",
                        known.addr
                    );
                }
            }
        }
        let usage = self.driver.inner().inner().usage();
        assert_eq!(sum.0, usage.bytes, "invariant 6: bytes held and bytes on the device");
        assert_eq!(sum.1, usage.handles as u64, "invariant 6: chunks held and handles on the device");
        assert_eq!(sum.2, usage.mappings as u64, "invariant 6: mappings known and mappings on the device");
    }

    /// Checks that the allocators' chunks are those of the device, each of one allocator.
    fn check_chunks(&self) {
        let chunks = self.instances.iter().flat_map(|instance| instance.allocator().snapshot().chunks);
        let mut known: Vec<u64> = chunks.map(|chunk| chunk.handle).collect();
        known.sort_unstable();
        assert_eq!(known, self.driver.inner().chunks(), "invariant 6: chunks held and chunks on the device");
    }

    pub(crate) fn instance(&self) -> &Instance<D> {
        &self.instances[self.current]
    }

    pub(crate) fn instance_mut(&mut self) -> &mut Instance<D> {
        &mut self.instances[self.current]
    }

    /// Runs one operation without checking the state afterwards.
    pub fn act(&mut self, op: Op) {
        self.checked = false;
        match op {
            Op::Alloc { bytes, align, stream } => {
                self.alloc(bytes, align, self.stream(stream));
            }
            Op::AllocRest { less, stream } => self.alloc_rest(less, self.stream(stream)),
            Op::Fill { bytes, beside, stream, count, spread } => {
                let step = u16::from(spread);
                self.fill(bytes, beside, (0..count).map(|pair| stream.wrapping_add(pair.wrapping_mul(step))));
            }
            Op::AllocAgain { address, stream } => self.alloc_again(address, self.stream(stream)),
            Op::Thin { every, kept } => self.thin(every, kept),
            Op::Free { block } => self.free(block),
            Op::Record { block, stream } => {
                if let Some(block) = self.instance().oracle.block(block).cloned() {
                    self.record(block.addr, self.stream(stream));
                }
            }
            Op::Write { block, stream } => self.launch(block, self.stream(stream), true),
            Op::Read { block, stream } => self.launch(block, self.stream(stream), false),
            Op::Watch { stream } => self.watch(self.stream(stream)),
            Op::ForeignUse { block, stream } => self.use_as_foreign(block, self.stream(stream)),
            Op::AddPeer { peer } => self.add_peer(peer),
            Op::RemovePeer { peer } => self.remove_peer(peer),
            Op::Hold { stream } => self.driver.hold(self.stream(stream)),
            Op::Complete { stream } => self.driver.complete(self.stream(stream)),
            Op::Resume { stream } => self.driver.resume(self.stream(stream)),
            Op::Renew { stream } => self.renew(stream),
            Op::BeginCapture { stream } => self.begin_capture(self.stream(stream)),
            Op::CaptureAs { mode, elsewhere } => self.driver.inner().inner().capture_as(mode, elsewhere),
            Op::EndCapture { stream } => self.end_capture(self.stream(stream)),
            Op::Replay { graph, stream } => self.replay(usize::from(graph), self.stream(stream)),
            Op::ReserveRange { .. }
            | Op::GrowRange { .. }
            | Op::ShrinkRange { .. }
            | Op::TakeRange { .. }
            | Op::WriteRange { .. }
            | Op::ReadRange { .. }
            | Op::DropRange { .. } => self.act_on_ranges(op),
            Op::Pin { .. }
            | Op::Expose { .. }
            | Op::Unpin { .. }
            | Op::AllocRegistered { .. }
            | Op::FreeRegistered { .. } => self.act_on_kept(op),
            Op::CopyHandle
            | Op::DropHandle { .. }
            | Op::CloseHandle
            | Op::OpenAllocator
            | Op::OpenPool
            | Op::UseAllocator { .. } => self.act_on_handles(op),
            Op::Trim { keep } => {
                let keep_bytes = u64::from(keep) * self.world.page_bytes;
                let before = self.allocator().reserved_bytes();
                match self.allocator().trim(keep_bytes) {
                    Ok(trimmed) if trimmed.released_bytes + trimmed.held_bytes != before => {
                        panic!("{trimmed:?} of {before} bytes")
                    }
                    // A chunk stays if its release fails; the others are released.
                    Ok(_) if self.struck() || !self.is_promising() => {}
                    Ok(trimmed) => {
                        self.instance().oracle.check_trimmed(&self.world, self.allocator(), keep_bytes, trimmed)
                    }
                    Err(AllocError::Driver(error)) => self.expect_injected(&error),
                    Err(other) => panic!("trim returned {other}"),
                }
            }
            Op::Budget { pages } => {
                let bytes = u64::from(pages) % (2 * self.world.pages + 1) * self.world.page_bytes;
                match self.allocator().set_budget(bytes) {
                    Ok(()) => {}
                    Err(AllocError::Driver(error)) => self.expect_injected(&error),
                    Err(other) => panic!("set_budget answered {other}"),
                }
                self.instance_mut().oracle.budget = bytes;
            }
            Op::Sleep { backup } => self.sleep(backup),
            Op::Wake { retain } => self.wake(retain),
            Op::SleepInPart { backup, unmaps } => self.sleep_in_part(backup, unmaps),
            Op::WakeInPart { copies } => self.wake_in_part(copies),
            Op::External { pages } => {
                let bytes = u64::from(pages) % self.world.pages * self.world.page_bytes;
                self.driver.inner().inner().set_external(bytes);
            }
            Op::Fail { nth, kind } => {
                self.driver.arm(Fault::nth(u64::from(nth), kind.kind()));
                self.armed = Some(kind);
            }
            Op::Thread { .. } => {}
            Op::Reset => self.reset(),
            Op::SetContext { context } => self.set_context(context),
            Op::Bad { misuse, block } => self.misuse(misuse, block),
        }
        self.note_fault();
    }

    /// Ends the injection if the failure occurred.
    pub(crate) fn note_fault(&mut self) {
        if self.struck() {
            self.summary.faults += 1;
            self.disarm();
        }
    }

    /// Like [`step`](Self::step), but allows for memory that can no longer be used: an allocation may run out of memory
    /// early, and a trim may leave more.
    ///
    /// # Panics
    /// Panics if another check fails.
    pub fn step_loosely(&mut self, op: Op) {
        let promising = std::mem::replace(&mut self.promising, false);
        self.step(op);
        self.promising = promising;
    }

    /// Returns a handle of the current allocator, to be closed by the caller. Drops its ranges and other handles.
    pub fn into_allocator(mut self) -> Subject<D> {
        let mut instance = self.instances.swap_remove(self.current);
        self.forget_marks(&mut instance);
        instance.ranges.clear();
        instance.kept = Kept::default();
        instance.handles.pop().expect("every allocator has a handle")
    }

    /// Returns the stream with a number, modulo the number of streams. The last one may be the calling thread's own.
    pub fn stream(&self, number: u16) -> StreamId {
        let streams = self.streams.len() + usize::from(self.world.own_streams);
        self.streams.get(usize::from(number) % streams).copied().unwrap_or(PER_THREAD_STREAM)
    }

    pub(crate) fn set_capturing(&self, stream: StreamId, capturing: bool) {
        self.driver.inner().inner().set_capturing(stream, capturing);
    }

    /// Returns `true` if a stream is being captured. Memory that waits for it cannot be used until the capture ends.
    pub(crate) fn is_capturing(&self) -> bool {
        let own = self.world.own_streams && self.driver.is_capturing(PER_THREAD_STREAM);
        own || self.streams.iter().any(|stream| self.driver.is_capturing(*stream))
    }

    /// Returns `true` if a request for memory that is free must succeed. Memory of a pool serves its own stream only.
    pub(crate) fn is_promising(&self) -> bool {
        self.promising && !self.may_be_capturing() && self.instance().pool.is_none()
    }

    /// Returns `true` if a stream is being captured, as far as the allocators know.
    pub(crate) fn may_be_capturing(&self) -> bool {
        self.capture_unseen || self.is_capturing()
    }

    /// Orders later work on one stream after the work queued on another, as a caller does. Returns `false` if a capture
    /// forbids it.
    pub(crate) fn order(&self, earlier: StreamId, later: StreamId) -> bool {
        if earlier == later {
            return true;
        }
        if self.driver.is_capturing(later) {
            return false;
        }
        if let Some(end) = self.elsewhere.end_of(earlier) {
            self.driver.inner().stream_wait(later, end).expect("streams can be ordered");
            return true;
        }
        if self.driver.is_capturing(earlier) {
            return false;
        }
        self.driver.inner().order(earlier, later).expect("streams can be ordered");
        true
    }

    /// Closes all allocators and checks that nothing is left on the device.
    ///
    /// # Panics
    /// Panics if a check fails.
    pub fn finish(mut self) -> Summary {
        self.driver.disarm();
        if !self.checked {
            self.check();
        }
        self.end_captures();
        self.replay_all();
        while !self.instances.is_empty() {
            self.current = self.instances.len() - 1;
            for range in 0..self.instance().ranges.len() {
                self.verify_pages(range, 0);
            }
            let mut instance = self.instances.remove(self.current);
            self.forget_marks(&mut instance);
            self.end(instance);
        }
        self.forget_threads();
        let summary = self.summary;
        for stream in self.streams.drain(1..) {
            self.driver.inner().destroy_stream(stream).expect("the stream can be destroyed");
        }
        let witness = self.driver.inner();
        witness.inner().set_context(CurrentContext::None);
        assert!(witness.take_mismatches().is_empty(), "the content of live memory changed before closing");
        assert_eq!(witness.take_observations(), [""; 0], "invariant 4, when closing");
        assert_eq!(witness.inner().broken_rules(), [""; 0], "when closing");
        let usage = witness.inner().usage();
        assert!(usage.is_empty(), "invariant 11: left in the driver: {usage:?}");
        summary
    }

    /// Returns `true` if the injected failure occurred in this operation.
    pub(crate) fn struck(&self) -> bool {
        self.armed.is_some() && self.driver.fired() > 0
    }

    pub(crate) fn disarm(&mut self) {
        let lost = self.armed == Some(Failure::Lost) && self.driver.fired() > 0;
        self.instance_mut().lost |= lost;
        self.driver.disarm();
        self.armed = None;
    }

    pub(crate) fn expect_injected(&self, error: &DriverError) {
        let injected = self.struck() && self.armed.is_some_and(|failure| failure.kind() == error.kind);
        let lost = self.instance().lost && error.kind == Failure::Lost.kind();
        assert!(injected || lost, "an error that was not injected: {error}");
    }

    /// Whether the driver may say with `error` that there are no addresses for a region: most of them are reserved.
    fn is_out_of_addresses(&self, error: &DriverError) -> bool {
        (error.call, error.kind) == (DriverCall::Reserve, DriverErrorKind::OutOfMemory)
            && self.driver.inner().inner().usage().address_bytes >= MOST_ADDRESSES
    }

    /// Checks that a request of `bytes` bytes may fail with `error`, where `held` bytes were held before the call.
    /// Returns `true` if the reason was an injected failure, so that the same call must be repeated without it.
    pub(crate) fn excuse(&mut self, error: &AllocError, bytes: u64, held: u64, promised: bool) -> bool {
        self.note_refusal(error);
        self.excuse_uncounted(error, bytes, held, promised)
    }

    /// As [`excuse`](Self::excuse), of what is no request.
    pub(crate) fn excuse_uncounted(&mut self, error: &AllocError, bytes: u64, held: u64, promised: bool) -> bool {
        let struck = self.struck();
        // A report after an injected failure has another failure as its cause, possibly that of releasing memory.
        let second_failure = struck && error.report().is_some();
        let kept = self.allocator().reserved_bytes() > held && !second_failure;
        assert!(!kept, "invariant 6: a failed call kept memory: {error}");
        match error {
            AllocError::OutOfMemory(report) => {
                self.summary.out_of_memory += 1;
                self.check_chunks();
                let promise = self.promise(bytes);
                let may_be_promised = promised && self.promising && self.instance().pool.is_none();
                let promised = may_be_promised && !self.may_be_capturing() && promise.holds();
                assert!(!promised || struck || self.instance().lost, "the promise: {promise:?}\n{report}");
                assert_eq!(report.requested_bytes, bytes);
                self.instance().oracle.check_report(&self.world, self.allocator(), report, &promise);
                assert!(!report.stopped_by_capture || self.may_be_capturing(), "no stream is being captured: {report}");
                // What would be served after the capture must not look as if the memory were too small.
                let only_a_capture = may_be_promised && self.may_be_capturing() && promise.holds();
                assert!(
                    !only_a_capture || report.stopped_by_capture || struck || self.instance().lost,
                    "a capture keeps what is free, and the refusal does not say so: {promise:?}\n{report}"
                );
                self.summary.stopped_by_captures += u64::from(report.stopped_by_capture);
            }
            AllocError::Driver(error) if !struck && self.is_out_of_addresses(error) => {
                self.summary.out_of_addresses += 1
            }
            AllocError::Driver(error) | AllocError::OutOfMappings { cause: error, .. } => self.expect_injected(error),
            AllocError::Stream(StreamError::Foreign { cause, .. }) => self.expect_injected(cause),
            AllocError::TooLarge { .. } => {}
            other => panic!("the request failed: {other}"),
        }
        if struck {
            self.recover();
        }
        struck && !self.instance().lost
    }

    /// Counts a request that ran out of memory. Whoever calls the allocator itself says so.
    pub fn note_refusal(&mut self, error: &AllocError) {
        self.instance_mut().oracle.failed_allocs += u64::from(error.report().is_some());
    }

    /// Checks the state after an injected failure (invariant 6) and ends the injection.
    pub(crate) fn recover(&mut self) {
        self.check();
        self.summary.faults += 1;
        self.disarm();
    }

    pub(crate) fn fresh_seed(&mut self) -> u64 {
        self.next_seed += 1;
        self.next_seed
    }
}

/// Runs a sequence on a new device, and checks everything after each operation and at the end.
///
/// # Panics
/// Panics if a check fails. The sequence is printed as a Rust test.
pub fn run<D: Device>(world: &World, ops: &[Op]) -> Summary {
    let _print = PrintOnPanic(world, ops);
    let mut runner = Runner::<D>::new(world);
    for op in ops {
        runner.step(*op);
    }
    runner.finish()
}
