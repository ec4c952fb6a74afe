//! How statistics come about.

use super::super::super::reports::{SizeRange, Stats};
use super::super::super::shared::Shared;
use super::super::super::streams::state::{SIZE_RANGES, StreamState};
use super::Holdings;
use crate::driver::Driver;
use crate::heap::GRANULE;
use crate::sync::{AtomicU64, Ordering};

impl Stats {
    /// The figures of all streams at one moment, beside `holdings`.
    pub(super) fn new<D: Driver>(shared: &Shared<D>, holdings: &Holdings) -> Self {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = Self {
            reserved_bytes: holdings.held_bytes,
            peak_reserved_bytes: holdings.peak_held_bytes,
            created_bytes: holdings.created_bytes,
            created_chunks: holdings.created_chunks,
            idle_bytes: holdings.idle_bytes,
            pending_bytes: holdings.unreleased_bytes,
            free_chunk_bytes: holdings.free_chunk_bytes,
            range_bytes: holdings.range_bytes,
            registered_bytes: holdings.registered_bytes,
            budget_bytes: shared.budget_bytes(),
            chunks: holdings.chunks,
            peak_chunks: holdings.peak_chunks,
            mappings: holdings.mappings,
            failed_allocs: load(&shared.counters.failed_allocs),
            refused_frees: load(&shared.counters.refused_frees),
            borrowed: load(&shared.counters.cross_stream_reuses),
            harvested_chunks: holdings.remapped_chunks,
            reused_views: holdings.reused_views,
            host_waits: shared.streams.host_waits(),
            driver_calls: shared.streams.driver.calls(),
            failed_driver_calls: shared.streams.driver.failures(),
            poisoned: holdings.poisoned,
            metadata_bytes: holdings.metadata_bytes,
            asleep_bytes: holdings.asleep_bytes,
            ..Self::default()
        };
        let mut by_size = [0; SIZE_RANGES];
        for state in &shared.streams.lock_all() {
            stats.add_stream(state, &mut by_size);
        }
        // That takes longer than all the rest, and need not be of the same moment.
        stats.metadata_bytes += shared.streams.iter().map(|stream| metadata_bytes(&stream.lock())).sum::<u64>();
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
        // The chunks may have been counted a while ago. What is free of them lies in cached blocks, what waits in pending ones.
        let in_chunks = holdings.free_chunk_bytes + holdings.waiting_chunk_bytes;
        let in_chunks = in_chunks.min(stats.cached_bytes + stats.pending_bytes);
        stats.fragmentation.largest_with_remapping_bytes =
            (in_chunks + obtainable).max(stats.fragmentation.largest_cached_bytes);
        shared.shown.note(&mut stats);
        stats
    }

    fn add_stream(&mut self, state: &StreamState, by_size: &mut [u64; SIZE_RANGES]) {
        self.streams += 1;
        self.live_bytes += state.live_bytes;
        self.allocs += state.tally.allocs;
        self.frees += state.tally.frees;
        self.freed_bytes += state.tally.freed_bytes;
        self.pending_bytes += state.pending_bytes();
        self.open_elsewhere_bytes += state.open_elsewhere_bytes;
        for (sum, count) in by_size.iter_mut().zip(state.tally.by_size) {
            *sum += count;
        }
        for (_, region) in state.regions.iter() {
            let heap = &region.heap;
            self.live_block_bytes += heap.live_block_bytes();
            self.live_allocations += heap.live_count();
            self.cached_bytes += heap.free_bytes();
            self.pending_allocations += heap.pending_count();
            let largest = heap.largest_free().map_or(0, |block| block.size);
            let largest_cached = &mut self.fragmentation.largest_cached_bytes;
            *largest_cached = (*largest_cached).max(largest);
        }
    }
}

/// Bytes of host memory behind the heaps of a stream.
fn metadata_bytes(state: &StreamState) -> u64 {
    state.regions.iter().map(|(_, region)| region.heap.metadata_bytes() + region.bounds.metadata_bytes()).sum()
}
