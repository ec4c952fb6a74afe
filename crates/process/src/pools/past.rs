//! The figures of pools that are gone: counts since the start and peaks must not fall when a pool ends.

use super::pool::Pool;
use crate::driver::DeviceDriver;
use crate::sums::{change, change_counts};
use gapless::allocator::{FigureKind, Stats};
use std::sync::Arc;

/// Statistics of pools that were released, closed or not. Of their figures there are counts and peaks: all that they held counts as
/// returned to the driver. A peak is the highest sum of the peaks of all pools, at the end of one of them since the peaks were
/// reset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past(pub(crate) Stats);

impl Past {
    /// Counts a pool that is going to be closed.
    pub(super) fn add<D: DeviceDriver>(&mut self, pool: &Pool<D>) {
        change_counts(&mut self.0, &pool.allocator.stats(), u64::wrapping_add);
    }

    /// Takes a pool out again, which was counted before and has not changed since.
    pub(super) fn remove<D: DeviceDriver>(&mut self, pool: &Pool<D>) {
        change_counts(&mut self.0, &pool.allocator.stats(), u64::wrapping_sub);
    }

    /// Keeps the peaks of pools of which one ends.
    pub(super) fn keep_peaks<D: DeviceDriver>(&mut self, pools: &[Arc<Pool<D>>]) {
        let mut sums = Stats::default();
        pools.iter().for_each(|pool| change(&mut sums, &pool.allocator.stats(), FigureKind::Peak, u64::wrapping_add));
        change(&mut self.0, &sums, FigureKind::Peak, u64::max);
    }

    /// Forgets the peaks.
    pub(super) fn reset_peaks(&mut self) {
        change(&mut self.0, &Stats::default(), FigureKind::Peak, |_, none| none);
    }

    /// The peaks together with those of the device's own allocator.
    pub(crate) fn peaks_with(&self, main: &Stats) -> Stats {
        let mut sums = self.0.clone();
        change(&mut sums, main, FigureKind::Peak, u64::wrapping_add);
        sums
    }
}
