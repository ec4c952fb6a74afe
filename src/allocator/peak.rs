//! Peak of live bytes over all streams, exact as long as streams do not race, without a shared counter on the hot path.
//!
//! Every stream has a *limit*: live bytes up to which it cannot lift the sum over all streams above the peak, whatever
//! the others do within theirs. Only a stream that passes its limit takes all locks, adds up, notes a new peak and deals
//! the distance to the peak out again.
//!
//! - I1  the sum of the limits is at most the peak (after a deal).

use super::state::{AllStates, live_bytes};
use crate::sync::{AtomicU64, Ordering};

/// The peak so far.
#[derive(Debug, Default)]
pub struct PeakMeter {
    peak: AtomicU64,
}

impl PeakMeter {
    /// Highest sum of live bytes noted.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Notes the present sum and deals out the distance to the peak in equal parts.
    pub fn deal(&self, states: &mut AllStates<'_>) {
        let sum = live_bytes(states);
        let peak = self.peak.fetch_max(sum, Ordering::Relaxed).max(sum);
        let share = (peak - sum) / (states.len() as u64).max(1);
        for state in states {
            state.live_limit = state.live_bytes + share;
        }
    }

    /// Makes the present sum the peak.
    pub fn reset(&self, states: &mut AllStates<'_>) {
        self.peak.store(live_bytes(states), Ordering::Relaxed);
        self.deal(states);
    }
}
