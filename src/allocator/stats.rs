//! Statistics: what is where, how often what was done, and how fragmented the free memory is.

use super::state::{SIZE_RANGES, StreamState, live_bytes};
use super::{Allocator, Inner};
use crate::driver::{Driver, DriverCalls};
use crate::heap::GRANULE;
use crate::sync::Ordering;

/// Figures of an allocator at one moment. Bytes, unless a name says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Asked for by live allocations.
    pub live_bytes: u64,
    /// Highest `live_bytes`; exact while streams do not race.
    pub peak_live_bytes: u64,
    /// Taken by live allocations, rounding included.
    pub live_block_bytes: u64,
    /// Live allocations.
    pub live_allocations: u64,
    /// Free and mapped: to be had without a driver call.
    pub cached_bytes: u64,
    /// Freed, and waiting for other streams.
    pub pending_bytes: u64,
    /// Chunks that nothing maps.
    pub idle_bytes: u64,
    /// Chunks of raw ranges, and of dropped ones that could not be unmapped yet.
    pub range_bytes: u64,
    /// All chunks held. `live_bytes <= reserved_bytes`.
    pub reserved_bytes: u64,
    /// Highest `reserved_bytes`.
    pub peak_reserved_bytes: u64,
    /// The most that may be held.
    pub budget_bytes: u64,
    /// Chunks held.
    pub chunks: u64,
    /// Mappings, stale ones included.
    pub mappings: u64,
    /// Allocations so far.
    pub allocs: u64,
    /// Frees so far.
    pub frees: u64,
    /// Allocations that failed.
    pub failed_allocs: u64,
    /// Frees that were refused.
    pub refused_frees: u64,
    /// Allocations served from a block of another stream.
    pub borrowed: u64,
    /// Chunks moved from one place to another.
    pub harvested_chunks: u64,
    /// Of those, moved to where they were still mapped: without a driver call.
    pub reused_views: u64,
    /// Times the host waited for a stream.
    pub host_waits: u64,
    /// Driver calls by kind.
    pub driver_calls: DriverCalls,
    /// Driver calls that failed.
    pub failed_driver_calls: u64,
    /// Times a driver sequence could not be undone, so that addresses were taken out of use.
    pub poisoned: u64,
    /// Streams seen.
    pub streams: u64,
    /// Host memory behind all of this.
    pub metadata_bytes: u64,
    /// Allocations by size.
    pub sizes: Vec<SizeRange>,
    /// How fragmented the free memory is.
    pub fragmentation: Fragmentation,
}

/// Allocations whose size, rounded up to whole granules, lies in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct SizeRange {
    /// Smallest size.
    pub from_bytes: u64,
    /// Allocations so far.
    pub allocs: u64,
}

/// Fragmentation as numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Fragmentation {
    /// Largest block to be had without a driver call, on the stream where it is cached.
    pub largest_cached_bytes: u64,
    /// Largest block to be had when every completely free chunk is remapped and the budget is used up.
    pub largest_with_remapping_bytes: u64,
    /// All bytes that are free: cached, pending, idle, and not held yet.
    pub free_bytes: u64,
}

impl<D: Driver> Allocator<D> {
    /// Figures of one moment: takes the mapper's lock and those of all streams together, so that sums agree however
    /// many threads allocate. O(regions + chunks + free blocks of a page or more).
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Makes the present the peak of live and reserved bytes.
    pub fn reset_peaks(&self) {
        let mut mapper = self.inner.mapper.lock();
        mapper.pool.reset_peak();
        self.inner.peak.reset(&mut self.inner.lock_all());
    }

    /// Requested bytes of live allocations at one moment: [`Stats::live_bytes`] alone, without the cost of the rest.
    /// Takes the locks of all streams together: one after the other, a block freed on one stream and made again on the
    /// next would count twice.
    pub fn live_bytes(&self) -> u64 {
        live_bytes(&self.inner.lock_all())
    }

    /// Bytes of chunks held: [`Stats::reserved_bytes`] alone.
    pub fn reserved_bytes(&self) -> u64 {
        self.inner.mapper.lock().pool.held_bytes()
    }
}

impl<D: Driver> Inner<D> {
    pub(super) fn stats(&self) -> Stats {
        let mapper = self.mapper.lock();
        let mut stats = Stats::default();
        let mut by_size = [0; SIZE_RANGES];
        let states = self.lock_all();
        for state in &states {
            stats.add_stream(state, &mut by_size);
        }
        let free_pages: u64 =
            super::plan::free_chunks(&mapper, &states).iter().map(|source| u64::from(source.pages)).sum();
        drop(states);
        let page_bytes = self.geometry.page_bytes;
        let budget = self.budget_bytes.load(Ordering::Relaxed);
        let headroom = mapper.pool.headroom_pages() * page_bytes;
        let load = |counter: &crate::sync::AtomicU64| counter.load(Ordering::Relaxed);
        // A block may be handed out and not be noted yet: never a peak below the present.
        stats.peak_live_bytes = self.peak.peak().max(stats.live_bytes);
        stats.reserved_bytes = mapper.pool.held_bytes();
        stats.peak_reserved_bytes = mapper.pool.peak_held_bytes();
        stats.idle_bytes = mapper.pool.idle_bytes();
        stats.range_bytes = mapper.pool.lent_out_bytes();
        stats.budget_bytes = budget;
        stats.chunks = mapper.pool.len() as u64;
        stats.mappings = mapper.mappings() as u64;
        stats.failed_allocs = load(&self.counters.failed_allocs);
        stats.refused_frees = load(&self.counters.refused_frees);
        stats.borrowed = load(&self.counters.borrowed);
        stats.harvested_chunks = mapper.harvested_chunks;
        stats.reused_views = mapper.reused_views;
        stats.host_waits = load(&self.counters.host_waits);
        stats.driver_calls = self.driver.calls();
        stats.failed_driver_calls = self.driver.failures();
        stats.poisoned = mapper.poisoned;
        stats.metadata_bytes += mapper.pool.metadata_bytes()
            + mapper.segments.iter().map(|segment| segment.table.metadata_bytes()).sum::<u64>();
        stats.sizes = by_size
            .iter()
            .enumerate()
            .filter(|(_, allocs)| **allocs > 0)
            .map(|(range, allocs)| SizeRange { from_bytes: GRANULE << range, allocs: *allocs })
            .collect();
        stats.fragmentation.free_bytes = stats.cached_bytes + stats.pending_bytes + stats.idle_bytes + headroom;
        stats.fragmentation.largest_with_remapping_bytes =
            (free_pages * page_bytes + stats.idle_bytes + headroom).max(stats.fragmentation.largest_cached_bytes);
        stats
    }
}

impl Stats {
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
