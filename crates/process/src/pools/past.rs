//! What pools did that are gone: counts since the start must not fall when a pool ends.

use super::pool::Pool;
use crate::driver::DeviceDriver;
use crate::sums::change_counts;
use gapless::allocator::Stats;
use serde::Serialize;
use std::sync::Arc;

/// Counts of pools that were released, closed or not. All that they held counts as returned to the driver.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Past {
    /// Number of allocations.
    pub allocs: u64,
    /// Number of frees.
    pub frees: u64,
    /// Number of chunks created.
    pub created: u64,
    /// Bytes of those chunks.
    pub created_bytes: u64,
    /// Number of times the host waited for a stream.
    pub host_waits: u64,
    /// Highest sum of the pools' peaks of live bytes, at the end of one of them since the peaks were reset.
    pub peak_live_bytes: u64,
    /// The same of bytes held.
    pub peak_reserved_bytes: u64,
    /// The same of chunks held.
    pub peak_chunks: u64,
    /// All counts, as those of one allocator.
    #[serde(skip)]
    pub(crate) counts: Stats,
}

impl Past {
    /// Counts a pool that is going to be closed.
    pub(super) fn add<D: DeviceDriver>(&mut self, pool: &Pool<D>) {
        self.change(pool, u64::wrapping_add);
    }

    /// Takes a pool out again, which was counted before and has not changed since.
    pub(super) fn remove<D: DeviceDriver>(&mut self, pool: &Pool<D>) {
        self.change(pool, u64::wrapping_sub);
    }

    fn change<D: DeviceDriver>(&mut self, pool: &Pool<D>, by: impl Fn(u64, u64) -> u64) {
        change_counts(&mut self.counts, &pool.allocator.stats(), by);
        let counts = &self.counts;
        (self.allocs, self.frees, self.host_waits) = (counts.allocs, counts.frees, counts.host_waits);
        (self.created, self.created_bytes) = (counts.created_chunks, counts.created_bytes);
    }

    /// Keeps the peaks of pools of which one ends.
    pub(super) fn keep_peaks<D: DeviceDriver>(&mut self, pools: &[Arc<Pool<D>>]) {
        let stats: Vec<Stats> = pools.iter().map(|pool| pool.allocator.stats()).collect();
        let highest = |before: u64, peak: fn(&Stats) -> u64| before.max(stats.iter().map(peak).sum());
        self.peak_live_bytes = highest(self.peak_live_bytes, |stats| stats.peak_live_bytes);
        self.peak_reserved_bytes = highest(self.peak_reserved_bytes, |stats| stats.peak_reserved_bytes);
        self.peak_chunks = highest(self.peak_chunks, |stats| stats.peak_chunks);
    }
}
