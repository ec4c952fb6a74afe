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

    /// Updates the peak with the current sum, and deals out the distance to the peak in equal parts.
    pub fn deal(&self, states: &mut AllStates<'_>) {
        let sum = live_bytes(states);
        let peak = self.peak.fetch_max(sum, Ordering::Relaxed).max(sum);
        let share = (peak - sum) / (states.len() as u64).max(1);
        for state in states {
            state.live_limit = state.live_bytes + share;
        }
    }

    /// Resets the peak to the current sum.
    pub fn reset(&self, states: &mut AllStates<'_>) {
        self.peak.store(live_bytes(states), Ordering::Relaxed);
        self.deal(states);
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::Stream;
    use super::*;
    use crate::driver::{StreamIdentity, StreamLifetime};
    use crate::stream::{Reach, StreamIndex};
    use crate::units::StreamId;

    #[test]
    fn what_is_left_to_the_peak_is_dealt_out() {
        let streams = [0, 1].map(|number| {
            let handle = StreamId(number);
            let identity = StreamIdentity { key: handle, number, lifetime: StreamLifetime::Owner };
            Stream::new(StreamIndex(number as u32), handle, &identity, Reach::Given)
        });
        let live = |bytes: [u64; 2]| {
            let mut states: AllStates<'_> = streams.iter().map(Stream::lock).collect();
            states.iter_mut().zip(bytes).for_each(|(state, bytes)| state.live_bytes = bytes);
            states
        };
        let limits = |states: &AllStates<'_>| [states[0].live_limit, states[1].live_limit];
        let meter = PeakMeter::default();
        let mut states = live([70, 30]);
        meter.deal(&mut states);
        assert_eq!((meter.peak(), limits(&states)), (100, [70, 30]));
        drop(states);
        let mut states = live([10, 30]);
        meter.deal(&mut states);
        assert_eq!((meter.peak(), limits(&states)), (100, [40, 60]), "60 are left, half of them for each");
        meter.reset(&mut states);
        assert_eq!((meter.peak(), limits(&states)), (40, [10, 30]));
    }
}
