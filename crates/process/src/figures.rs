//! Sums over a device's allocator and its pools: statistics and reports.
//!
//! Threads: any. Cost: that of the allocators' own reports.

use crate::device::Device;
use crate::driver::DeviceDriver;
use crate::pools::{Pool, PoolId, PoolKind};
use crate::sleep::TagAsleep;
use crate::sums::{add_pool, change, change_counts};
use gapless::DeviceAddr;
use gapless::allocator::{FigureKind, Figures, Snapshot, Stats};
use serde::Serialize;

/// The memory that the allocators of a device hold together, pools included.
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

/// How much a [`DeviceReport`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Sums only.
    Figures,
    /// Every region, block and chunk, too.
    Snapshot,
}

/// A report of what a device's memory is used for.
#[derive(Debug, Serialize)]
pub struct DeviceReport {
    main: Stats,
    pools: Vec<PoolReport>,
    /// Bytes of pools that were released: they go back to the driver when memory is wanted, or with the next trim.
    condemned_bytes: u64,
    /// What is asleep, by tag.
    asleep: Vec<TagAsleep>,
    /// With a snapshot: where the live allocations start that are asleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    asleep_blocks: Option<Vec<DeviceAddr>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<Snapshot>,
}

#[derive(Debug, Serialize)]
struct PoolReport {
    id: PoolId,
    kind: PoolKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    stats: Stats,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<Snapshot>,
}

impl<D: DeviceDriver> Device<D> {
    /// Returns the sums of what the device's allocators hold.
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
    /// that of all of them.
    pub fn stats(&self) -> Stats {
        let (pools, past) = self.pools.all_and_past();
        let main = self.main.allocator.stats();
        let mut sums = main.clone();
        for its in pools.iter().map(|pool| stats_of(pool)) {
            add_pool(&mut sums, &its);
            sums.free_chunk_bytes += its.free_chunk_bytes;
        }
        change_counts(&mut sums, &past.0, u64::wrapping_add);
        // Peaks do not fall when a pool ends.
        change(&mut sums, &past.peaks_with(&main), FigureKind::Peak, u64::max);
        // Several allocators may have refused one request, and another one served it.
        sums.failed_allocs = self.main.out_of_memory();
        let free = |stats: &Stats| stats.cached_bytes + stats.pending_bytes + stats.idle_bytes;
        let headroom = if !self.pools.none() && self.main.allocator.has_set_budget() {
            sums.budget_bytes = self.pools.whole_budget();
            sums.budget_bytes.saturating_sub(sums.reserved_bytes)
        } else {
            main.fragmentation.free_bytes - free(&main)
        };
        sums.fragmentation.free_bytes = free(&sums) + headroom;
        self.shown.note(&mut sums);
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

    /// The figures of the device's allocator and its pools together, or of one pool. `None` when there is no such pool.
    pub fn figures(&self, wanted: Option<PoolId>) -> Option<Figures> {
        let Some(id) = wanted else { return Some(self.stats().figures()) };
        Some(stats_of(&*self.pools.named(id)?).figures())
    }

    /// As [`figures`](Self::figures), but the device's counts are those since [`reset_counts`](Self::reset_counts).
    pub fn figures_since_reset(&self, wanted: Option<PoolId>) -> Option<Figures> {
        let mut values = self.figures(wanted)?.values();
        if wanted.is_none() {
            let at_reset = self.at_reset.lock().values();
            for ((figure, value), at_reset) in Stats::FIGURES.iter().zip(&mut values).zip(at_reset) {
                if figure.kind == FigureKind::Count {
                    // Another thread may have reset them since the figures were taken.
                    *value = value.saturating_sub(at_reset);
                }
            }
        }
        Some(Figures::of_values(values))
    }

    /// Lets the counts of [`figures_since_reset`](Self::figures_since_reset) start again from 0.
    pub fn reset_counts(&self) {
        let now = self.stats().figures();
        *self.at_reset.lock() = now;
    }

    /// Figures of the device's allocator and of its pools.
    pub fn report(&self, contents: Contents) -> DeviceReport {
        let wanted = contents == Contents::Snapshot;
        let (main, snapshot) = (self.main.allocator.stats(), wanted.then(|| self.main.allocator.snapshot()));
        let pools = self.pools.all().into_iter().map(|pool| PoolReport {
            id: pool.id,
            kind: pool.kind(),
            tag: pool.tag(),
            stats: pool.allocator.stats(),
            snapshot: wanted.then(|| pool.allocator.snapshot()),
        });
        DeviceReport {
            main,
            pools: pools.collect(),
            condemned_bytes: self.pools.condemned_bytes(),
            asleep: self.asleep(),
            asleep_blocks: wanted.then(|| self.asleep_blocks()),
            snapshot,
        }
    }

    /// Resets the peaks of the device's allocator and of its pools to current values.
    pub fn reset_peaks(&self) {
        self.main.allocator.reset_peaks();
        self.pools.reset_peaks();
        self.shown.reset();
    }
}

/// The statistics of a pool. One for graphs keeps all that it has while it is alive.
fn stats_of<D: DeviceDriver>(pool: &Pool<D>) -> Stats {
    let mut stats = pool.allocator.stats();
    if pool.kind() == PoolKind::Graph {
        stats.free_chunk_bytes = 0;
    }
    stats
}
