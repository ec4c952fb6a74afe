//! Oracle: a plain map of live blocks and ranges, and the checks that an allocator must pass after every operation (the
//! numbered invariants of the design).

use crate::device::{Device, World};
use crate::kept::KeptBytes;
use crate::own::Elsewhere;
use crate::promise::Promise;
use crate::witness::Witness;
use gapless::GRANULE;
use gapless::allocator::BlockState;
use gapless::allocator::{Allocator, BlockSnapshot, LiveAllocation, OutOfMemory, Stats, StreamUse, Trimmed};
use gapless::driver::{ChunkHandle, FaultDriver, PER_THREAD_STREAM};
use gapless::units::{DeviceAddr, StreamId, round_up};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The allocator under test, with all layers between it and the device.
pub type Subject<D> = Allocator<FaultDriver<Witness<D>>>;

/// What the owner of a live block knows about it.
#[derive(Clone, Debug)]
pub struct Block {
    pub addr: DeviceAddr,
    pub bytes: u64,
    /// The stream that it was allocated on; `None` once that has been destroyed.
    pub home: Option<StreamId>,
    /// The streams that were recorded on it.
    pub recorded: Vec<StreamId>,
    /// The streams that its allocator was not told of.
    pub foreign: Vec<StreamId>,
    /// Number of chunks that had been created on the device when it was asked for.
    pub since: u64,
    /// The stream of the last work on it.
    pub last_user: StreamId,
    /// The seed of its content. `None` for a block of a pool, while nothing says what it holds.
    pub content: Option<u64>,
    /// The capture or graph that wrote it last, and the seed that it wrote.
    pub graph: Option<(u64, u64)>,
}

impl Block {
    /// Returns `true` if a stream allocated, recorded or used it.
    pub fn uses(&self, stream: StreamId) -> bool {
        self.is_known(stream) || self.last_user == stream || self.foreign.contains(&stream)
    }

    /// Returns `true` if the allocator knows that a stream uses it.
    fn is_known(&self, stream: StreamId) -> bool {
        self.home == Some(stream) || self.recorded.contains(&stream)
    }

    /// Notes that a stream was waited for: what comes next need not run there.
    pub fn was_waited_for(&mut self, stream: StreamId) {
        if self.last_user == stream && !self.is_known(stream) {
            self.last_user = self.home.unwrap_or(StreamId::DEFAULT);
        }
    }

    /// Forgets a stream that is destroyed. The default stream runs behind it.
    pub fn leave(&mut self, stream: StreamId) {
        self.home = self.home.filter(|home| *home != stream);
        self.recorded.retain(|recorded| *recorded != stream);
        self.foreign.retain(|user| *user != stream);
        if self.last_user == stream {
            self.last_user = StreamId::DEFAULT;
        }
    }
}

/// What the owner of a raw range knows about it.
#[derive(Clone, Debug)]
pub struct Range {
    pub addr: DeviceAddr,
    pub reserved_pages: u64,
    /// The mapped pages, from the start of the range.
    pub pages: Vec<RangePage>,
    /// The streams that were recorded on it.
    pub users: Vec<StreamId>,
}

/// A page of a raw range.
#[derive(Clone, Copy, Debug)]
pub struct RangePage {
    /// The seed of its content.
    pub seed: u64,
    /// The stream of the last work on it.
    pub last_user: StreamId,
    /// The chunk and the offset in it. A page keeps them when it moves, or its content would be lost.
    pub memory: (ChunkHandle, u64),
}

/// Returns the free blocks, of any stream and kind, that have `bytes` bytes at a multiple of `alignment`.
pub fn fitting_blocks<D: Device>(
    allocator: &Subject<D>,
    bytes: u64,
    alignment: u64,
) -> impl Iterator<Item = BlockSnapshot> {
    let size = round_up(bytes.max(1), GRANULE).unwrap_or(u64::MAX);
    let blocks = allocator.snapshot().regions.into_iter().flat_map(|region| region.blocks);
    blocks.filter(|block| block.state == BlockState::Free).filter(move |block| {
        let start = round_up(block.addr.0, alignment).and_then(|start| start.checked_add(size));
        start.is_some_and(|end| end <= block.addr.0 + block.bytes)
    })
}

/// What callers know about one allocator.
#[derive(Debug, Default)]
pub struct Oracle {
    pub live: BTreeMap<u64, Block>,
    /// Addresses of live blocks in the order of their allocation: the block number of an operation is an index into it.
    pub order: Vec<u64>,
    pub live_bytes: u64,
    pub peak_live_bytes: u64,
    pub allocs: u64,
    pub frees: u64,
    pub freed_bytes: u64,
    pub refused_frees: u64,
    /// Number of requests that ran out of memory.
    pub failed_allocs: u64,
    pub budget: u64,
    /// Most bytes that may be held: the budget, or what was already held when the budget was lowered.
    pub ceiling: u64,
    pub last_freed: Option<u64>,
    pub ranges: Vec<Range>,
    /// Pinned blocks, one entry for each pin.
    pub pinned: Vec<KeptBytes>,
    pub registered: Vec<KeptBytes>,
    /// Bytes of ranges that could not be unmapped when they were dropped. They are unused until memory is short.
    pub abandoned_bytes: u64,
}

impl Oracle {
    /// Adds a block that was just allocated. Checks invariant 1 for addresses.
    ///
    /// # Panics
    /// Panics if the block overlaps a live one.
    pub fn add(&mut self, block: Block) {
        let end = block.addr.0 + block.bytes.max(1);
        if let Some((_, before)) = self.live.range(..end).next_back() {
            let before_end = before.addr.0 + before.bytes.max(1);
            assert!(before_end <= block.addr.0, "invariant 1: {block:?} was allocated over {before:?}");
        }
        self.live_bytes += block.bytes;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        self.allocs += 1;
        self.order.push(block.addr.0);
        self.live.insert(block.addr.0, block);
    }

    pub fn remove(&mut self, addr: u64) -> Block {
        let block = self.live.remove(&addr).expect("the block is live");
        self.order.retain(|other| *other != addr);
        self.live_bytes -= block.bytes;
        self.frees += 1;
        self.freed_bytes += block.bytes;
        self.last_freed = Some(addr);
        self.pinned.iter_mut().filter(|pinned| pinned.addr.0 == addr).for_each(|pinned| pinned.alone = true);
        block
    }

    /// Returns the live block with a number, modulo the number of live blocks.
    pub fn block(&self, number: u16) -> Option<&Block> {
        let index = usize::from(number).checked_rem(self.order.len())?;
        self.live.get(&self.order[index])
    }

    /// Returns the number of bytes mapped in ranges.
    pub fn range_bytes(&self, world: &World) -> u64 {
        self.ranges.iter().map(|range| range.pages.len() as u64 * world.page_bytes).sum()
    }

    /// Returns the number of bytes of registered blocks.
    pub fn registered_bytes(&self) -> u64 {
        self.registered.iter().map(|block| block.bytes).sum()
    }

    /// Checks the result of a trim. It must not leave more than `keep_bytes` or the chunks in use.
    ///
    /// # Panics
    /// Panics if the result is wrong.
    pub fn check_trimmed<D: Device>(&self, world: &World, allocator: &Subject<D>, keep_bytes: u64, trimmed: Trimmed) {
        let stats = allocator.stats();
        assert_eq!(trimmed.held_bytes, stats.reserved_bytes, "bytes held after the trim");
        // A trim does not wait for freed blocks that other streams use.
        if stats.pending_bytes + self.abandoned_bytes + stats.poisoned > 0 {
            return;
        }
        let driver = allocator.driver().inner();
        let in_use = self.held(world, driver).into_keys();
        let used: u64 = in_use.map(|chunk| driver.chunk(chunk).map_or(0, |made| made.bytes)).sum();
        assert!(
            trimmed.held_bytes <= keep_bytes.max(used),
            "{trimmed:?} with {used} bytes in use and {keep_bytes} to keep"
        );
    }

    /// Checks the figures of an out-of-memory report, after the call that failed.
    ///
    /// # Panics
    /// Panics if a figure is wrong.
    pub fn check_report<D: Device>(&self, allocator: &Subject<D>, report: &OutOfMemory, promise: &Promise) {
        let stats = allocator.stats();
        let sum = |part: fn(&StreamUse) -> u64| report.streams.iter().map(part).sum::<u64>();
        assert_eq!((report.live_bytes, sum(|part| part.live_bytes)), (self.live_bytes, self.live_bytes));
        assert_eq!(report.live_block_bytes, stats.live_block_bytes);
        assert_eq!((report.cached_bytes, report.pending_bytes), (stats.cached_bytes, stats.pending_bytes));
        assert_eq!((report.cached_bytes, report.pending_bytes), (sum(|p| p.cached_bytes), sum(|p| p.pending_bytes)));
        assert_eq!(report.budget_bytes, allocator.budget());
        // `None` means that the query of the device's memory failed.
        let Some(device) = report.device else { return };
        assert_eq!(report.others_bytes, (device.total - device.free).saturating_sub(report.reserved_bytes));
        let headroom = report.budget_bytes.saturating_sub(report.reserved_bytes).min(device.free);
        assert_eq!((report.range_bytes, report.registered_bytes), (stats.range_bytes, stats.registered_bytes));
        let free =
            headroom + report.reserved_bytes - report.live_block_bytes - report.range_bytes - report.registered_bytes;
        let as_reported = report.free_bytes == free || stats.poisoned > 0 && report.free_bytes < free;
        assert!(as_reported, "{free} bytes are neither in live blocks nor in ranges: {report}");
        assert_eq!(report.satisfiable, report.free_bytes >= report.requested_bytes);
        let size = round_up(report.requested_bytes.max(1), GRANULE).unwrap_or(u64::MAX);
        assert_eq!(report.satisfiable_by_whole_pages, report.obtainable_bytes >= size);
        assert_eq!(report.free_without_budget_bytes, report.free_bytes - headroom + device.free);
        let in_pages = |bytes: u64| bytes - bytes % report.page_bytes;
        let budget = in_pages(report.budget_bytes.min(device.total));
        let creatable = budget.saturating_sub(report.reserved_bytes).min(in_pages(device.free));
        let without_budget = report.obtainable_bytes - creatable + in_pages(device.free);
        let by_budget = allocator.has_set_budget() && report.obtainable_bytes < size && without_budget >= size;
        assert_eq!(report.stopped_by_budget, by_budget, "{report}");
        let verdict = if by_budget {
            "A higher budget (set_budget) would serve it"
        } else if report.free_without_budget_bytes < report.requested_bytes {
            "No allocator could have served this"
        } else if report.satisfiable_by_whole_pages {
            "whole free pages would cover the request"
        } else {
            "There are enough free bytes"
        };
        assert!(report.to_string().contains(verdict), "{report}");
        assert_eq!(report.pinned.by_pending_bytes, report.pending_bytes);
        let rest = report.free_bytes.saturating_sub(report.obtainable_bytes + report.pending_bytes);
        assert_eq!(report.pinned.by_live_bytes, rest);
        let obtainable = promise.obtainable_pages * report.page_bytes;
        assert!(report.obtainable_bytes <= obtainable, "{promise:?}\n{report}");
        assert!(promise.obtainable_pages <= promise.free_pages, "{promise:?}\n{report}");
        let mut largest: Vec<_> = self.live.values().map(|block| (Reverse(block.bytes), block.addr)).collect();
        largest.sort_unstable();
        largest.truncate(report.largest.len().max(8));
        let listed = report.largest.iter().map(|block| (Reverse(block.bytes), block.addr));
        assert_eq!(listed.collect::<Vec<_>>(), largest);
    }

    /// Checks everything that must hold for the allocator now. Returns its statistics.
    ///
    /// # Panics
    /// Panics if a check fails.
    pub(crate) fn check<D: Device>(&mut self, world: &World, elsewhere: &Elsewhere, allocator: &Subject<D>) -> Stats {
        allocator.check();
        let driver = allocator.driver().inner();
        self.held(world, driver);
        self.pinned.iter().chain(&self.registered).for_each(|kept| kept.check(driver));
        assert_eq!(allocator.budget(), self.budget, "the budget changed without a call");
        Self::check_device(driver);

        let handle = |home| if elsewhere.end_of(home).is_some() { PER_THREAD_STREAM } else { home };
        let mut known: Vec<_> =
            self.live.values().map(|block| (block.addr, block.bytes, block.home.map(handle))).collect();
        // The stream that a block has outlived may have given its place to another.
        let home = |leak: &LiveAllocation| self.live.get(&leak.addr.0)?.home.map(|_| leak.stream);
        let mut live: Vec<_> = allocator.live().iter().map(|leak| (leak.addr, leak.bytes, home(leak))).collect();
        known.sort_unstable();
        live.sort_unstable();
        assert_eq!(live, known, "invariant 6: the live blocks are those that were allocated");

        let stats = allocator.stats();
        assert_eq!(stats.live_bytes, self.live_bytes, "invariant 5: live bytes");
        assert_eq!(allocator.live_bytes(), self.live_bytes, "invariant 5: live bytes");
        assert_eq!(stats.live_allocations, self.live.len() as u64, "invariant 5: live allocations");
        assert_eq!((stats.allocs, stats.frees), (self.allocs, self.frees), "invariant 5: allocations and frees");
        assert_eq!(stats.freed_bytes, self.freed_bytes, "invariant 5: freed bytes");
        assert_eq!(stats.sizes.iter().map(|size| size.allocs).sum::<u64>(), self.allocs, "invariant 5: sizes");
        assert_eq!(stats.refused_frees, self.refused_frees, "invariant 5: refused frees");
        assert_eq!(stats.failed_allocs, self.failed_allocs, "invariant 5: failed allocations");
        assert_eq!(stats.peak_live_bytes, self.peak_live_bytes, "invariant 5: peak of live bytes");
        assert!(stats.live_bytes <= stats.live_block_bytes, "invariant 5: {stats:?}");
        assert!(stats.live_block_bytes <= stats.reserved_bytes, "invariant 5: {stats:?}");
        self.ceiling = self.ceiling.max(allocator.budget());
        assert!(stats.reserved_bytes <= self.ceiling, "invariant 5: more is held than was ever allowed: {stats:?}");
        self.ceiling = allocator.budget().max(stats.reserved_bytes);
        // A budget above the memory of the device allows no more than that, unless the driver failed to tell how much it is.
        let free_within = |allowed: u64| {
            let headroom = (allowed / world.page_bytes * world.page_bytes).saturating_sub(stats.reserved_bytes);
            stats.cached_bytes + stats.pending_bytes + stats.idle_bytes + headroom
        };
        let free = stats.fragmentation.free_bytes;
        let expected = [allocator.budget().min(world.bytes()), allocator.budget()].map(free_within);
        assert!(expected.contains(&free), "invariant 5: {free} free bytes, not {expected:?}: {stats:?}");
        let largest = stats.fragmentation.largest_cached_bytes..=free;
        assert!(largest.contains(&stats.fragmentation.largest_with_remapping_bytes), "invariant 5: {stats:?}");
        assert!(stats.range_bytes >= self.range_bytes(world), "invariant 5: memory of ranges: {stats:?}");
        assert!(stats.registered_bytes >= self.registered_bytes(), "invariant 5: registered blocks: {stats:?}");
        if stats.poisoned == 0 {
            let sum = stats.live_block_bytes + stats.cached_bytes + stats.pending_bytes + stats.idle_bytes;
            let ranges = self.range_bytes(world) + self.registered_bytes();
            let abandoned = stats.reserved_bytes.checked_sub(sum + ranges);
            // An allocator that runs short of memory reclaims abandoned bytes.
            let accounted = abandoned.is_some_and(|bytes| bytes <= self.abandoned_bytes);
            assert!(accounted, "invariant 5: the parts add up: {ranges} + {stats:?}");
            self.abandoned_bytes = abandoned.unwrap_or(0);
        }
        stats
    }

    /// Checks the device and the witness. This is sufficient after operations that do not call the allocator.
    ///
    /// # Panics
    /// Panics if a check fails.
    pub fn check_device<D: Device>(driver: &Witness<D>) {
        let broken = driver.inner().broken_rules();
        assert!(broken.is_empty(), "the driver contract was violated: {broken:#?}");
        let observed = driver.take_observations();
        assert!(observed.is_empty(), "invariants 3 and 4: {observed:#?}");
        let mismatches = gapless::driver::WorkDriver::take_mismatches(driver);
        assert!(mismatches.is_empty(), "the content of live memory changed: {mismatches:#?}");
    }
}
