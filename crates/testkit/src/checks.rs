//! The checks that an allocator must pass after every operation (the numbered invariants of the design).

use crate::device::{Device, World};
use crate::elsewhere::Elsewhere;
use crate::oracle::{Oracle, Subject};
use crate::promise::Promise;
use crate::witness::Witness;
use gapless::GRANULE;
use gapless::allocator::{LiveAllocation, OutOfMemory, Stats, StreamUse, Trimmed};
use gapless::driver::PER_THREAD_STREAM;
use gapless::units::round_up;
use std::cmp::Reverse;

impl Oracle {
    /// Checks the result of a trim. It must not leave more than `keep_bytes` or the chunks in use.
    ///
    /// # Panics
    /// Panics if the result is wrong.
    pub fn check_trimmed<D: Device>(&self, world: &World, allocator: &Subject<D>, keep_bytes: u64, trimmed: Trimmed) {
        let stats = allocator.stats();
        assert_eq!(trimmed.held_bytes, stats.reserved_bytes, "bytes held after the trim");
        if self.abandoned_bytes + stats.poisoned > 0 {
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
    pub fn check_report<D: Device>(
        &self,
        world: &World,
        allocator: &Subject<D>,
        report: &OutOfMemory,
        promise: &Promise,
    ) {
        let stats = allocator.stats();
        let asleep = self.without_memory(world, allocator.driver().inner());
        let sum = |part: fn(&StreamUse) -> u64| report.streams.iter().map(part).sum::<u64>();
        assert_eq!((report.live_bytes, sum(|part| part.live_bytes)), (self.live_bytes, self.live_bytes));
        assert_eq!(report.live_block_bytes, stats.live_block_bytes);
        assert_eq!((report.cached_bytes, report.pending_bytes), (stats.cached_bytes, stats.pending_bytes));
        assert_eq!(report.cached_bytes, sum(|part| part.cached_bytes));
        // Of no stream is what an exposed block had and the driver was to take back, and did not.
        let of_no_stream = report.pending_bytes.checked_sub(sum(|part| part.pending_bytes));
        let spent = self.spent_bytes(allocator.driver().inner());
        assert!(of_no_stream.is_some_and(|bytes| bytes <= spent), "{of_no_stream:?} of {spent} bytes: {report}");
        assert_eq!(report.budget_bytes, allocator.budget());
        // `None` means that the query of the device's memory failed.
        let Some(device) = report.device else { return };
        assert_eq!(report.others_bytes, (device.total - device.free).saturating_sub(report.reserved_bytes));
        let headroom = report.budget_bytes.saturating_sub(report.reserved_bytes).min(device.free);
        assert_eq!((report.range_bytes, report.registered_bytes), (stats.range_bytes, stats.registered_bytes));
        let awake = report.live_block_bytes - asleep;
        let free = headroom + report.reserved_bytes - awake - report.range_bytes - report.registered_bytes;
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
        let covers = report.free_bytes + self.abandoned_bytes >= report.requested_bytes;
        assert!(!report.stopped_by_capture || covers, "{report}");
        let verdict = if report.stopped_by_capture {
            "captured into a graph, and until that has ended"
        } else if by_budget {
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
        let asleep = self.without_memory(world, driver);
        assert!(asleep <= stats.asleep_bytes, "sleep A1: {asleep} bytes without memory: {stats:?}");
        assert!(stats.live_block_bytes <= stats.reserved_bytes + asleep, "invariant 5: {stats:?}");
        self.ceiling = self.ceiling.max(allocator.budget());
        assert!(stats.reserved_bytes <= self.ceiling, "invariant 5: more is held than was ever allowed: {stats:?}");
        self.ceiling = allocator.budget().max(stats.reserved_bytes);
        // A budget above the memory of the device allows no more than that, unless the driver failed to report how much it is.
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
            let sum = stats.live_block_bytes - asleep + stats.cached_bytes + stats.pending_bytes + stats.idle_bytes;
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
