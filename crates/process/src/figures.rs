//! Sums over a device's allocator and its pools: statistics and reports.
//!
//! Threads: any. Cost: that of the allocators' own reports.

use crate::device::Device;
use crate::driver::DeviceDriver;
use crate::pools::{Past, PoolId};
use crate::sums::{add_amounts, change_counts};
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

    /// Statistics of the device: of its allocator and its pools together, with the counts of pools that are gone. The budget is
    /// that of all of them. A request that several of them have refused counts as often.
    pub fn stats(&self) -> Stats {
        let (pools, past) = self.pools.all_and_past();
        let main = self.main.allocator.stats();
        let mut sums = main.clone();
        for pool in &pools {
            let its = pool.allocator.stats();
            add_amounts(&mut sums, &its);
            change_counts(&mut sums, &its, u64::wrapping_add);
        }
        change_counts(&mut sums, &past.counts, u64::wrapping_add);
        // Peaks do not fall when a pool ends.
        sums.peak_live_bytes = sums.peak_live_bytes.max(main.peak_live_bytes + past.peak_live_bytes);
        sums.peak_reserved_bytes = sums.peak_reserved_bytes.max(main.peak_reserved_bytes + past.peak_reserved_bytes);
        sums.peak_chunks = sums.peak_chunks.max(main.peak_chunks + past.peak_chunks);
        if !self.pools.none() && self.main.allocator.has_set_budget() {
            sums.budget_bytes = self.pools.whole_budget();
            let held = sums.cached_bytes + sums.pending_bytes + sums.idle_bytes;
            sums.fragmentation.free_bytes = held + sums.budget_bytes.saturating_sub(sums.reserved_bytes);
        }
        sums
    }

    /// Every region, block and chunk of the device's allocator and its pools.
    pub fn snapshot(&self) -> Snapshot {
        let mut whole = self.main.allocator.snapshot();
        for pool in self.pools.all() {
            let its = pool.allocator.snapshot();
            whole.regions.extend(its.regions);
            whole.chunks.extend(its.chunks);
        }
        if self.main.allocator.has_set_budget() {
            whole.budget_bytes = self.pools.whole_budget();
        }
        whole
    }

    /// Sums over the device's allocator and its pools, or of one pool. `None` when there is no such pool.
    pub fn figures(&self, wanted: Option<PoolId>) -> Option<Figures> {
        // Before the sums: what is allocated meanwhile makes the freed bytes too low for this once, never too high.
        let allocated_bytes = self.main.allocated_bytes();
        if let Some(id) = wanted {
            // A pool keeps all that it has while it is alive.
            let mut its = self.pools.named(id)?.allocator.stats();
            its.free_chunk_bytes = 0;
            return Some(Figures::of(&its));
        }
        let mut sums = Figures::of(&self.stats());
        sums.allocated_bytes = allocated_bytes;
        sums.freed_bytes = self.freed_bytes(allocated_bytes, sums.live_bytes);
        sums.out_of_memory = self.main.out_of_memory();
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
        let freed_bytes = self.freed_bytes(allocated_bytes, live);
        DeviceReport {
            main,
            pools,
            past_pools: past,
            allocated_bytes,
            freed_bytes,
            out_of_memory: self.main.out_of_memory(),
            condemned_bytes: self.pools.condemned_bytes(),
            snapshot,
        }
    }

    /// Bytes freed since the start, of those that were allocated and the live ones. Never falls.
    fn freed_bytes(&self, allocated: u64, live: u64) -> u64 {
        let now = allocated.saturating_sub(live);
        now.max(self.freed_bytes.fetch_max(now, Ordering::Relaxed))
    }

    /// Resets the peaks of the device's allocator and of its pools to current values.
    pub fn reset_peaks(&self) {
        self.main.allocator.reset_peaks();
        self.pools.reset_peaks();
    }
}

impl Figures {
    /// Those of an allocator, or of several together; what nobody but the device counts is 0.
    fn of(stats: &Stats) -> Self {
        Self {
            live_bytes: stats.live_bytes,
            live_block_bytes: stats.live_block_bytes,
            peak_live_bytes: stats.peak_live_bytes,
            live_allocations: stats.live_allocations,
            pending_bytes: stats.pending_bytes,
            reserved_bytes: stats.reserved_bytes,
            peak_reserved_bytes: stats.peak_reserved_bytes,
            created_bytes: stats.created_bytes,
            kept_free_bytes: stats.cached_bytes.saturating_sub(stats.free_chunk_bytes),
            chunks: stats.chunks,
            peak_chunks: stats.peak_chunks,
            created: stats.created_chunks,
            released: stats.created_chunks - stats.chunks,
            allocs: stats.allocs,
            frees: stats.frees,
            host_waits: stats.host_waits,
            largest_bytes: stats.fragmentation.largest_with_remapping_bytes,
            ..Self::default()
        }
    }
}
