//! Stress test: threads use one allocator at the same time, each with its own random numbers. It checks what can be
//! checked then: no byte has two owners, all uses are ordered, all contents are preserved, and nothing is leaked.
//!
//! Under `cfg(shuttle)`, the threads and the allocator's locks are those of shuttle, which tries different schedules.

mod gate;
mod graphs;
mod kept;
mod shared;
mod sleep;

pub use self::shared::{End, Faults, Progress, Stress};

use self::gate::Gate;
use self::graphs::Graphs;
use self::kept::Kept;
use self::shared::{Block, Random, Shared};
use crate::device::{Device, World};
use crate::op::CurrentContext;
use crate::oracle::{Subject, keep};
use crate::witness::Witness;
use gapless::Allocator;
use gapless::allocator::{AllocError, CloseError, RangeError, Stats, StreamError, VirtualRange};
use gapless::driver::{DriverErrorKind, Fault, FaultDriver, HoldStreams, PER_THREAD_STREAM, StreamDriver, WorkDriver};
use gapless::units::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(shuttle))]
use std::thread;

#[cfg(shuttle)]
use shuttle::thread;

/// A growable range of one thread. All of its pages were last used on one stream.
struct OwnRange<D: Device> {
    range: VirtualRange<FaultDriver<Witness<D>>>,
    seeds: Vec<u64>,
    last_user: StreamId,
}

impl<D: Device> OwnRange<D> {
    fn page(&self, number: usize, page_bytes: u64) -> DeviceAddr {
        self.range.addr().offset(number as u64 * page_bytes)
    }
}

/// Runs the threads on a new device until they are done or have to stop. Returns the allocator's final statistics.
///
/// # Panics
/// Panics if a check fails.
pub fn run_stress<D: Device>(world: &World, stress: Stress, progress: &Progress) -> Stats {
    let driver = Arc::new(FaultDriver::new(Witness::new(D::open(world))));
    let mut streams = vec![StreamId::DEFAULT];
    streams.extend((1..world.streams).map(|_| driver.create_stream().expect("the device can create streams")));
    let builder = world.settings(Allocator::builder(Arc::clone(&driver)));
    let allocator = builder.build().expect("a world has valid settings");
    let pool = stress.graphs.then(|| {
        let builder = world.settings(Allocator::builder(Arc::clone(&driver)));
        builder.budget(world.bytes() / 4).keep_mappings().build().expect("a quarter of a device is enough")
    });
    if world.kept {
        for stream in &streams {
            allocator.keep_stream(*stream).expect("streams of the device can be kept");
        }
    }
    let shared = Shared {
        world,
        stress,
        allocator,
        streams: &streams,
        owned: Mutex::default(),
        passed_on: Mutex::default(),
        pool,
        owners: Mutex::default(),
        gate: Gate::default(),
        pool_gate: Gate::default(),
        captured: Mutex::default(),
        peers: Mutex::default(),
        refusals: AtomicU64::new(0),
        progress,
    };
    thread::scope(|scope| {
        let shared = &shared;
        let threads: Vec<_> = (0..stress.threads).map(|number| scope.spawn(move || shared.thread(number))).collect();
        // Join each thread explicitly: ThreadSanitizer does not see what the end of a scope waits for.
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    driver.disarm();
    // It closes first, since its memory does not outlive it.
    if let Some(pool) = shared.pool {
        pool.check();
        pool.close().expect("invariant 11: nothing was leaked");
    }
    let allocator = shared.allocator;
    allocator.check();
    if stress.end == End::Reset && driver.inner().inner().has_resets() {
        return end_by_reset(allocator, &driver);
    }
    let stats = allocator.stats();
    assert_eq!((stats.live_bytes, stats.live_allocations), (0, 0), "invariant 5: every block was freed");
    assert_eq!(stats.allocs, stats.frees, "invariant 5");
    assert_eq!(stats.failed_allocs, shared.refusals.into_inner(), "invariant 5");
    assert_eq!(stats.reserved_bytes, driver.inner().inner().usage().bytes, "invariant 6");
    allocator.close().expect("invariant 11: nothing was leaked");
    for stream in streams[1..].iter().chain(&*shared.captured.lock()) {
        driver.inner().destroy_stream(*stream).expect("the stream can be destroyed");
    }
    assert!(driver.inner().take_mismatches().is_empty(), "the content of live memory changed");
    assert_eq!(driver.inner().take_observations(), [""; 0], "invariants 3 and 4");
    assert_eq!(driver.inner().inner().broken_rules(), [""; 0]);
    let usage = driver.inner().inner().usage();
    assert!(usage.is_empty(), "invariant 11: left in the driver: {usage:?}");
    stats
}

/// Resets the device below an allocator whose blocks were freed, and closes it: what survives the reset is given back.
fn end_by_reset<D: Device>(allocator: Subject<D>, driver: &FaultDriver<Witness<D>>) -> Stats {
    let stats = allocator.stats();
    let device = driver.inner();
    device.synchronize_device().expect("nothing is captured");
    assert!(device.take_mismatches().is_empty(), "the content of live memory changed");
    assert_eq!(device.take_observations(), [""; 0], "invariants 3 and 4");
    device.inner().reset();
    let error = allocator.reserve_range(1).map(drop).expect_err("addresses come from the driver");
    assert!(matches!(&error, AllocError::Driver(error) if error.kind == DriverErrorKind::DeviceLost), "{error}");
    if let Err(error) = allocator.close() {
        let lost = matches!(&error, CloseError::Driver(error) if error.kind == DriverErrorKind::DeviceLost);
        assert!(lost, "close returned {error} after a reset");
    }
    let usage = device.inner().usage();
    assert!(usage.is_empty(), "invariant 11: left in the driver after a reset: {usage:?}");
    stats
}

impl<D: Device> Shared<'_, D> {
    fn thread(&self, number: u64) {
        let mut random = Random(self.stress.seed.wrapping_mul(1000).wrapping_add(number));
        let mut blocks: Vec<Block> = Vec::new();
        let mut ranges: Vec<OwnRange<D>> = Vec::new();
        let mut kept = Kept::default();
        // Each thread has its own handle. The allocator lives until the last handle and the last range are dropped.
        let mut handle = self.allocator.clone();
        let mut graphs = self.pool.clone().map(|pool| {
            let stream = self.witness().create_stream().expect("the device can create streams");
            self.captured.lock().push(stream);
            // Whoever waits for the device asks first whether this stream is captured.
            if self.world.kept {
                keep(&self.allocator, stream);
                keep(&pool, stream);
            }
            Graphs::new(pool, &self.owners, &self.pool_gate, self.world.page_bytes, stream)
        });
        for op in 0..self.stress.ops {
            if self.progress.stop.load(Ordering::Relaxed) {
                break;
            }
            self.progress.ops.fetch_add(1, Ordering::Relaxed);
            match random.below(8) {
                _ if self.stress.sleeps && number == 0 && random.below(4) == 0 => match random.below(2) {
                    0 => self.step_sleep_of_pool(&mut random),
                    _ => self.step_sleep(&mut random),
                },
                0 if random.below(4) == 0 => self.step_kept(&mut random, &mut kept, &mut blocks),
                0 => self.step_range(&mut random, &mut ranges),
                1 if random.below(8) == 0 => {
                    let old = std::mem::replace(&mut handle, self.allocator.clone());
                    let refused = matches!(old.close(), Err(CloseError::InUse(others) | CloseError::Pinned(others)) if others >= 2);
                    assert!(refused, "an allocator with other handles was closed");
                }
                2 if graphs.is_some() => {
                    let stream = self.stream(&mut random);
                    let result = graphs.as_mut().map_or(Ok(()), |graphs| graphs.step(&mut random, stream));
                    result.unwrap_or_else(|error| self.expect_injected(&error));
                }
                _ => self.step(&mut random, &mut blocks),
            }
            if op % 64 == 63 {
                self.look();
            }
        }
        if let Some(mut graphs) = graphs {
            graphs.free_all();
            graphs.replay(&mut random, StreamId::DEFAULT);
        }
        self.let_all_move(kept);
        for range in ranges {
            self.drop_range(range);
        }
        for block in blocks {
            self.free(block);
        }
        while let Some(block) = { self.passed_on.lock().pop() } {
            self.free(block);
        }
    }

    /// Checks what can be checked while other threads use the allocator.
    fn look(&self) {
        self.allocator.check();
        let live = self.allocator.live_bytes();
        assert!(
            self.stress.sleeps || live <= self.world.bytes(),
            "invariant 5: more bytes are live than the device has"
        );
        let stats = self.allocator.stats();
        assert_eq!(stats.allocs - stats.frees, stats.live_allocations, "invariant 5, at one moment");
        assert!(stats.live_bytes <= stats.live_block_bytes, "invariant 5, at one moment");
        assert!(stats.live_bytes <= stats.peak_live_bytes, "the peak is below the current value");
        let with_memory = stats.live_block_bytes.saturating_sub(stats.asleep_bytes);
        assert!(with_memory <= stats.reserved_bytes, "invariant 5, at one moment");
        let driver = self.witness();
        assert!(driver.take_mismatches().is_empty(), "the content of live memory changed");
        assert_eq!(driver.take_observations(), [""; 0], "invariants 3 and 4");
        assert_eq!(driver.inner().broken_rules(), [""; 0]);
    }

    fn step(&self, random: &mut Random, blocks: &mut Vec<Block>) {
        let stream = self.stream(random);
        let page = self.world.page_bytes;
        match random.below(40) {
            0..=13 => {
                let bytes = match random.below(4) {
                    0 => random.below(3000),
                    1 => random.below(page),
                    2 => page * (1 + random.below(3)),
                    _ => random.below(self.world.bytes() / 4),
                };
                self.alloc(bytes, stream, random.below(u64::MAX), blocks);
            }
            14..=24 if !blocks.is_empty() => {
                let index = usize::try_from(random.below(blocks.len() as u64)).expect("small");
                self.free(blocks.swap_remove(index));
            }
            25..=28 if !blocks.is_empty() => {
                let index = usize::try_from(random.below(blocks.len() as u64)).expect("small");
                self.use_on(&mut blocks[index], stream, random.below(u64::MAX));
            }
            29..=31 => {
                if let Some(block) = blocks.pop() {
                    self.pass_on(block, random.below(u64::MAX), blocks);
                }
            }
            32..=33 => blocks.extend(self.passed_on.lock().pop()),
            34 => self.witness().hold(stream),
            35 => self.witness().complete(stream),
            36 => self.witness().resume(stream),
            37 => {
                let _ = self.allocator.trim(random.below(self.world.bytes()));
            }
            38 => {
                let _ = self.allocator.set_budget(self.world.bytes() - random.below(self.world.bytes() / 3));
            }
            39 if random.below(4) == 0 => self.change_peers(random.below(3) == 0),
            39 if random.below(2) == 0 => self.visit_another_context(random, blocks),
            _ if self.stress.faults == Faults::Some => {
                let driver = self.allocator.driver();
                self.progress.faults.fetch_add(driver.fired(), Ordering::Relaxed);
                let kinds =
                    [DriverErrorKind::OutOfMemory, DriverErrorKind::InvalidValue, DriverErrorKind::NotSupported];
                let kind = kinds[usize::try_from(random.below(3)).expect("small")];
                driver.arm(Fault::nth(random.below(20), kind));
            }
            _ => {}
        }
    }

    /// Makes another context current on the thread for a while.
    fn visit_another_context(&self, random: &mut Random, blocks: &mut Vec<Block>) {
        let device = self.witness().inner();
        device.set_context(CurrentContext::ALL[usize::try_from(random.below(4)).expect("small")]);
        if device.has_other_default_streams() {
            for stream in [StreamId::DEFAULT, PER_THREAD_STREAM] {
                let refused = self.allocator.alloc_raw(1000, stream).expect_err("a stream of another context");
                assert!(matches!(refused, AllocError::Stream(StreamError::Foreign { .. })), "{refused}");
            }
        }
        // The other streams are as they were.
        if let Some(stream) = self.streams.get(1) {
            self.alloc(random.below(2 * self.world.page_bytes), *stream, random.below(u64::MAX), blocks);
        }
        device.set_context(CurrentContext::None);
    }

    /// Gives the peer access, or takes it away, unless another thread is about to.
    fn change_peers(&self, remove: bool) {
        let Some(_turn) = self.peers.try_lock() else { return };
        let driver = self.witness();
        if driver.inner().peers() == 0 {
            return;
        }
        if remove {
            return driver.remove_peer(0);
        }
        driver.add_peer(0);
        let mut all = [Some(&self.allocator), self.pool.as_ref()].into_iter().flatten();
        match all.try_for_each(Subject::renew_access) {
            Ok(()) => driver.rely_on_peer(0),
            Err(error) => {
                driver.remove_peer(0);
                self.expect_injected(&error);
            }
        }
    }

    /// Runs an operation on one of the thread's own ranges. After a failure, the range itself reports what is mapped.
    fn step_range(&self, random: &mut Random, ranges: &mut Vec<OwnRange<D>>) {
        let page = self.world.page_bytes;
        let stream = self.stream(random);
        let pages = random.below(4);
        match (random.below(8), &mut ranges[..]) {
            (0, [] | [_]) => match self.allocator.reserve_range((1 + random.below(8)) * page) {
                Ok(range) => ranges.push(OwnRange { range, seeds: Vec::new(), last_user: stream }),
                Err(error) => self.expect_injected(&error),
            },
            (1..=3, [first, ..]) => {
                self.witness().order(first.last_user, stream).expect("streams can be ordered");
                match first.range.grow(pages * page, stream) {
                    Ok(()) => {
                        first.last_user = stream;
                        for _ in 0..pages {
                            first.seeds.push(random.below(u64::MAX));
                            let addr = first.page(first.seeds.len() - 1, page);
                            let result = self.witness().fill(stream, addr, page, first.seeds[first.seeds.len() - 1]);
                            result.expect("invariant 2: a range can be written");
                        }
                    }
                    Err(RangeError::Alloc(AllocError::OutOfMemory(_))) => self.note_refusal(),
                    Err(RangeError::Full { .. }) => {}
                    Err(RangeError::Alloc(error)) => self.expect_injected(&error),
                    Err(other) => panic!("grow answered {other}"),
                }
            }
            (4, [first, ..]) => {
                self.verify_range(first);
                if let Err(error) = first.range.shrink(pages * page) {
                    self.expect_injected(&error);
                }
                first.seeds.truncate(usize::try_from(first.range.mapped_bytes() / page).expect("few pages"));
            }
            (5 | 6, [one, two]) => {
                let (to, from) = if random.below(2) == 0 { (one, two) } else { (two, one) };
                for earlier in [to.last_user, from.last_user] {
                    self.witness().order(earlier, stream).expect("streams can be ordered");
                }
                match to.range.take_from(&mut from.range, pages * page, stream) {
                    Ok(0) | Err(RangeError::Full { .. }) => {}
                    Ok(bytes) => {
                        let moved = usize::try_from(bytes / page).expect("few pages");
                        let first = from.seeds.len() - moved;
                        to.seeds.extend(from.seeds.drain(first..));
                        (to.last_user, from.last_user) = (stream, stream);
                        self.verify_range(to);
                    }
                    Err(RangeError::Alloc(error)) => self.expect_injected(&error),
                    Err(other) => panic!("take_from answered {other}"),
                }
            }
            (7, [_, ..]) => {
                let range = ranges.swap_remove(0);
                self.drop_range(range);
            }
            _ => {}
        }
    }

    fn verify_range(&self, range: &OwnRange<D>) {
        let page = self.world.page_bytes;
        assert_eq!(range.range.mapped_bytes(), range.seeds.len() as u64 * page, "a range changed without a call");
        for (number, seed) in range.seeds.iter().enumerate() {
            let result = self.witness().verify(range.last_user, range.page(number, page), page, *seed);
            result.expect("invariant 2: a range can be read");
        }
        self.progress.verified_bytes.fetch_add(range.range.mapped_bytes(), Ordering::Relaxed);
    }

    fn drop_range(&self, range: OwnRange<D>) {
        self.verify_range(&range);
    }
}
