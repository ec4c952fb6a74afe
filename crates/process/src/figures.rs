//! Sums over a device's allocator and its pools: statistics and reports.
//!
//! Threads: any. Cost: that of the allocators' own reports.

use crate::device::{Device, NO_POOL};
use crate::driver::DeviceDriver;
use crate::pools::{Past, PoolId};
use gapless::allocator::{Snapshot, Stats};
use serde::Serialize;
use std::sync::atomic::Ordering;

/// The device's sums, of its allocator and its pools together, or of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes requested by live allocations.
    pub live_bytes: u64,
    /// The same with rounding.
    pub live_block_bytes: u64,
    /// Highest live_bytes since the peaks were reset.
    pub peak_live_bytes: u64,
    /// Number of live allocations.
    pub live_allocations: u64,
    /// Bytes that were freed and wait for streams.
    pub pending_bytes: u64,
    /// Bytes of all chunks.
    pub reserved_bytes: u64,
    /// Highest reserved_bytes since the peaks were reset.
    pub peak_reserved_bytes: u64,
    /// Bytes of all chunks created since the start.
    pub created_bytes: u64,
    /// Free bytes that a trim would not return to the driver: beside live blocks, or in pools.
    pub kept_free_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Highest chunks since the peaks were reset.
    pub peak_chunks: u64,
    /// Chunks created since the start.
    pub created: u64,
    /// Chunks released since the start.
    pub released: u64,
    /// Allocations since the start.
    pub allocs: u64,
    /// Frees since the start.
    pub frees: u64,
    /// Bytes requested since the start; 0 for a single pool.
    pub allocated_bytes: u64,
    /// Bytes freed since the start; 0 for a single pool.
    pub freed_bytes: u64,
    /// Requests that ran out of memory; 0 for a single pool.
    pub out_of_memory: u64,
    /// How often the host waited for a stream.
    pub host_waits: u64,
    /// Bytes of the largest block that could be served now.
    pub largest_bytes: u64,
}

/// What the allocators of a device hold together, pools included.
#[derive(Clone, Copy, Debug)]
pub struct MemoryUse {
    /// Bytes requested by live allocations.
    pub live: u64,
    /// Those of them in pools.
    pub live_in_pools: u64,
    /// Bytes of all chunks.
    pub reserved: u64,
    /// The budget, if one was set.
    pub set_budget: Option<u64>,
}

/// What a [`DeviceReport`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Sums only.
    Figures,
    /// Every region, block and chunk, too.
    Snapshot,
}

/// What a device's memory is used for.
#[derive(Debug, Serialize)]
pub struct DeviceReport {
    main: Stats,
    pools: Vec<PoolReport>,
    /// Counts of the pools that were released.
    past_pools: Past,
    /// Bytes requested and served since the start.
    allocated_bytes: u64,
    /// Bytes of those that were freed. Never falls.
    freed_bytes: u64,
    /// Requests that ran out of memory.
    out_of_memory: u64,
    /// Bytes of pools that were released: they go back to the driver when memory is wanted, or with the next trim.
    condemned_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<Snapshot>,
}

#[derive(Debug, Serialize)]
struct PoolReport {
    id: PoolId,
    stats: Stats,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<Snapshot>,
}

impl<D: DeviceDriver> Device<D> {
    /// What the device's allocators hold together.
    pub fn memory_use(&self) -> MemoryUse {
        let pools = self.pools.all();
        let live_in_pools = pools.iter().map(|pool| pool.allocator.live_bytes()).sum();
        let main = &self.main.allocator;
        MemoryUse {
            live: main.live_bytes() + live_in_pools,
            live_in_pools,
            reserved: main.reserved_bytes() + self.pools.held_bytes(),
            set_budget: main.has_set_budget().then(|| self.pools.whole_budget()),
        }
    }

    /// Sums over the device's allocator and its pools, or of one pool. `None` when there is no such pool.
    pub fn figures(&self, wanted: Option<PoolId>) -> Option<Figures> {
        // Before the sums: what is allocated meanwhile makes the freed bytes too low for this once, never too high.
        let allocated_bytes = self.main.allocated_bytes();
        let Some(id) = wanted else {
            let (pools, past) = self.pools.all_and_past();
            let mut sums = Figures::default();
            add(&mut sums, NO_POOL, &self.main.allocator.stats());
            let before_pools = sums;
            pools.iter().for_each(|pool| add(&mut sums, pool.id, &pool.allocator.stats()));
            // Peaks do not fall when a pool ends.
            sums.peak_live_bytes = sums.peak_live_bytes.max(before_pools.peak_live_bytes + past.peak_live_bytes);
            sums.peak_reserved_bytes =
                sums.peak_reserved_bytes.max(before_pools.peak_reserved_bytes + past.peak_reserved_bytes);
            sums.peak_chunks = sums.peak_chunks.max(before_pools.peak_chunks + past.peak_chunks);
            sums.allocs += past.allocs;
            sums.frees += past.frees;
            sums.created += past.created;
            sums.released += past.created;
            sums.created_bytes += past.created_bytes;
            sums.host_waits += past.host_waits;
            let freed_now = allocated_bytes.saturating_sub(sums.live_bytes);
            let freed_before = self.freed_bytes.fetch_max(freed_now, Ordering::Relaxed);
            sums.allocated_bytes = allocated_bytes;
            sums.freed_bytes = freed_now.max(freed_before);
            sums.out_of_memory = self.main.out_of_memory();
            return Some(sums);
        };
        let pool = self.pools.named(id)?;
        let mut sums = Figures::default();
        add(&mut sums, id, &pool.allocator.stats());
        Some(sums)
    }

    /// Figures of the device's allocator and of its pools.
    pub fn report(&self, contents: Contents) -> DeviceReport {
        // Before the figures: what is allocated meanwhile makes the freed bytes too low for this once, never too high.
        let allocated_bytes = self.main.allocated_bytes();
        let wanted = contents == Contents::Snapshot;
        let (main, snapshot) = (self.main.allocator.stats(), wanted.then(|| self.main.allocator.snapshot()));
        let (pools, past) = self.pools.all_and_past();
        let pools: Vec<PoolReport> = pools
            .into_iter()
            .map(|pool| PoolReport {
                id: pool.id,
                stats: pool.allocator.stats(),
                snapshot: wanted.then(|| pool.allocator.snapshot()),
            })
            .collect();
        let live = main.live_bytes + pools.iter().map(|pool| pool.stats.live_bytes).sum::<u64>();
        let freed_now = allocated_bytes.saturating_sub(live);
        let freed_before = self.freed_bytes.fetch_max(freed_now, Ordering::Relaxed);
        DeviceReport {
            main,
            pools,
            past_pools: past,
            allocated_bytes,
            freed_bytes: freed_now.max(freed_before),
            out_of_memory: self.main.out_of_memory(),
            condemned_bytes: self.pools.condemned_bytes(),
            snapshot,
        }
    }

    /// Resets the peaks of the device's allocator and of its pools to current values.
    pub fn reset_peaks(&self) {
        self.main.allocator.reset_peaks();
        self.pools.reset_peaks();
    }
}

fn add(sums: &mut Figures, pool: PoolId, stats: &Stats) {
    sums.live_bytes += stats.live_bytes;
    sums.live_block_bytes += stats.live_block_bytes;
    sums.peak_live_bytes += stats.peak_live_bytes;
    sums.live_allocations += stats.live_allocations;
    sums.pending_bytes += stats.pending_bytes;
    sums.reserved_bytes += stats.reserved_bytes;
    sums.peak_reserved_bytes += stats.peak_reserved_bytes;
    sums.created_bytes += stats.created_bytes;
    // A pool keeps all that it has while it is alive.
    let returned = if pool == NO_POOL { stats.free_chunk_bytes } else { 0 };
    sums.kept_free_bytes += stats.cached_bytes.saturating_sub(returned);
    sums.chunks += stats.chunks;
    sums.peak_chunks += stats.peak_chunks;
    sums.created += stats.created_chunks;
    sums.released += stats.created_chunks - stats.chunks;
    sums.allocs += stats.allocs;
    sums.frees += stats.frees;
    sums.host_waits += stats.host_waits;
    sums.largest_bytes = sums.largest_bytes.max(stats.fragmentation.largest_with_remapping_bytes);
}
