//! Peaks of amounts that nobody follows while they change: the highest that statistics have shown.

use super::Stats;
use crate::sync::{AtomicU64, Ordering};

/// The highest amounts that statistics have shown since the peaks were reset: those of kind
/// [`ShownPeak`](super::FigureKind::ShownPeak).
///
/// Threads: any.
#[derive(Debug, Default)]
pub struct ShownPeaks {
    live_allocations: AtomicU64,
    active_bytes: AtomicU64,
    kept_free_bytes: AtomicU64,
}

impl ShownPeaks {
    /// Notes the amounts of statistics that are about to be shown, and adds the peaks to them.
    pub fn note(&self, stats: &mut Stats) {
        let now = stats.figures();
        // Relaxed: maxima, which order nothing.
        let highest = |peak: &AtomicU64, now: u64| peak.fetch_max(now, Ordering::Relaxed).max(now);
        stats.peak_live_allocations = highest(&self.live_allocations, now.live_allocations);
        stats.peak_active_bytes = highest(&self.active_bytes, now.active_bytes.max(now.peak_live_bytes));
        stats.peak_kept_free_bytes = highest(&self.kept_free_bytes, now.kept_free_bytes);
    }

    /// Lets them start from what is shown next.
    pub fn reset(&self) {
        for peak in [&self.live_allocations, &self.active_bytes, &self.kept_free_bytes] {
            peak.store(0, Ordering::Relaxed);
        }
    }
}
