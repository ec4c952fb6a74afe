//! Statistics: where the bytes are, how often what was done, and how fragmented the free memory is.

use super::super::shared::Shared;
use super::super::streams::state::{AllStates, SIZE_RANGES, StreamState};
use super::Holdings;
use crate::driver::{Driver, DriverCalls};
use crate::heap::GRANULE;
use crate::sync::{AtomicU64, Ordering};

/// Figures of an allocator at one moment. Bytes, unless a name says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes requested by live allocations.
    pub live_bytes: u64,
    /// Highest `live_bytes`; exact while streams do not race.
    pub peak_live_bytes: u64,
    /// Bytes of live allocations, rounding included.
    pub live_block_bytes: u64,
    /// Number of live allocations.
    pub live_allocations: u64,
    /// Bytes that are free and mapped: available without a driver call.
    pub cached_bytes: u64,
    /// Bytes that were freed and wait for other streams.
    pub pending_bytes: u64,
    /// Bytes of chunks that nothing maps.
    pub idle_bytes: u64,
    /// Bytes of chunks of raw ranges, and of dropped ones that could not be unmapped yet.
    pub range_bytes: u64,
    /// Bytes of all chunks held. `live_bytes <= reserved_bytes`.
    pub reserved_bytes: u64,
    /// Highest `reserved_bytes`.
    pub peak_reserved_bytes: u64,
    /// The most bytes that may be held.
    pub budget_bytes: u64,
    /// Number of chunks held.
    pub chunks: u64,
    /// Number of mappings, stale ones included.
    pub mappings: u64,
    /// Number of allocations so far.
    pub allocs: u64,
    /// Number of frees so far.
    pub frees: u64,
    /// Number of allocations that failed.
    pub failed_allocs: u64,
    /// Number of frees that were refused.
    pub refused_frees: u64,
    /// Number of allocations served from a block of another stream.
    pub borrowed: u64,
    /// Number of chunks moved from one place to another.
    pub harvested_chunks: u64,
    /// Number of those that moved to a place where they were still mapped, without a driver call.
    pub reused_views: u64,
    /// Number of times the host waited for a stream.
    pub host_waits: u64,
    /// Driver calls by kind.
    pub driver_calls: DriverCalls,
    /// Number of driver calls that failed.
    pub failed_driver_calls: u64,
    /// Number of driver sequences that could not be undone, so that addresses were taken out of use.
    pub poisoned: u64,
    /// Number of streams seen.
    pub streams: u64,
    /// Bytes of host memory behind all of this.
    pub metadata_bytes: u64,
    /// Number of allocations by size.
    pub sizes: Vec<SizeRange>,
    /// How fragmented the free memory is.
    pub fragmentation: Fragmentation,
}

/// Allocations whose size, rounded up to whole granules, lies in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SizeRange {
    /// Smallest size of the range, in bytes.
    pub from_bytes: u64,
    /// Number of allocations so far.
    pub allocs: u64,
}

/// Fragmentation as numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Fragmentation {
    /// Bytes of the largest block available without a driver call, on the stream where it is cached.
    pub largest_cached_bytes: u64,
    /// Bytes of the largest block available when every completely free chunk is remapped and the budget is used up.
    pub largest_with_remapping_bytes: u64,
    /// All bytes that are free: cached, pending, idle, and not held yet.
    pub free_bytes: u64,
}

impl Stats {
    /// The figures of the moment at which `states` and `holdings` were taken.
    pub fn new<D: Driver>(shared: &Shared<D>, states: &AllStates<'_>, holdings: &Holdings) -> Self {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = Self {
            reserved_bytes: holdings.held_bytes,
            peak_reserved_bytes: holdings.peak_held_bytes,
            idle_bytes: holdings.idle_bytes,
            range_bytes: holdings.range_bytes,
            budget_bytes: shared.budget_bytes(),
            chunks: holdings.chunks,
            mappings: holdings.mappings,
            failed_allocs: load(&shared.counters.failed_allocs),
            refused_frees: load(&shared.counters.refused_frees),
            borrowed: load(&shared.counters.borrowed),
            harvested_chunks: holdings.harvested_chunks,
            reused_views: holdings.reused_views,
            host_waits: shared.streams.host_waits(),
            driver_calls: shared.streams.driver.calls(),
            failed_driver_calls: shared.streams.driver.failures(),
            poisoned: holdings.poisoned,
            metadata_bytes: holdings.metadata_bytes,
            ..Self::default()
        };
        let mut by_size = [0; SIZE_RANGES];
        for state in states {
            stats.add_stream(state, &mut by_size);
        }
        // A block may be handed out and not be counted yet: the peak is never below the current sum.
        stats.peak_live_bytes = shared.streams.peak.peak().max(stats.live_bytes);
        stats.sizes = by_size
            .iter()
            .enumerate()
            .filter(|(_, allocs)| **allocs > 0)
            .map(|(range, allocs)| SizeRange { from_bytes: GRANULE << range, allocs: *allocs })
            .collect();
        let obtainable = holdings.idle_bytes + holdings.headroom_bytes;
        stats.fragmentation.free_bytes = stats.cached_bytes + stats.pending_bytes + obtainable;
        stats.fragmentation.largest_with_remapping_bytes =
            (holdings.free_chunk_bytes + obtainable).max(stats.fragmentation.largest_cached_bytes);
        stats
    }

    fn add_stream(&mut self, state: &StreamState, by_size: &mut [u64; SIZE_RANGES]) {
        self.streams += 1;
        self.live_bytes += state.live_bytes;
        self.allocs += state.tally.allocs;
        self.frees += state.tally.frees;
        for (sum, count) in by_size.iter_mut().zip(state.tally.by_size) {
            *sum += count;
        }
        for (_, region) in state.regions.iter() {
            let heap = &region.heap;
            self.live_block_bytes += heap.live_block_bytes();
            self.live_allocations += heap.live_count();
            self.cached_bytes += heap.free_bytes();
            self.pending_bytes += heap.pending_bytes();
            self.metadata_bytes += heap.metadata_bytes();
            let largest = heap.largest_free().map_or(0, |block| block.size);
            let largest_cached = &mut self.fragmentation.largest_cached_bytes;
            *largest_cached = (*largest_cached).max(largest);
        }
    }
}
