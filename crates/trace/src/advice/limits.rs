//! The limit that refused a request although the device had enough memory: a memory fraction, a budget.

use crate::Trace;
use crate::caching::segment_bytes_of;
use std::ops::Range;

/// Returns how much the recorded allocator was allowed to hold, if a limit refused the request that the run failed at: what it held
/// at most, and less than what it held together with the segment for the request.
pub(super) fn of(trace: &Trace) -> Option<Range<u64>> {
    let layout = trace.layout()?;
    let segment = segment_bytes_of(trace.failed_request()?.bytes)?;
    if segment > layout.device_free_bytes {
        return None;
    }
    let held = layout.held_bytes();
    Some(trace.history().held_at_most_bytes.unwrap_or(0).max(held)..held.saturating_add(segment))
}

/// Returns a part of `whole` that lies in `range`: `wanted` if it does, or else one with few digits.
pub(super) fn part_in(range: &Range<u64>, whole: u64, wanted: Option<f64>) -> Option<f64> {
    #[allow(clippy::cast_precision_loss, reason = "devices are far below 2^53 bytes")]
    let [least, whole] = [range.start, whole].map(|bytes| bytes as f64);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part between 0 and 1 stays in range")]
    let lies_in = |part: &f64| *part > 0.0 && *part <= 1.0 && range.contains(&((whole * part) as u64));
    let rounded = (1..=MOST_DIGITS).map(|digits| {
        let unit = 10_f64.powi(digits);
        (least / whole * unit).ceil() / unit
    });
    wanted.into_iter().chain(rounded).find(lies_in)
}

/// Most digits after the point.
const MOST_DIGITS: i32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_few_digits() {
        assert_eq!(part_in(&(300..600), 1000, Some(0.5)), Some(0.5));
        assert_eq!(part_in(&(300..600), 1000, None), Some(0.3));
        assert_eq!(part_in(&(40_000..40_063), 78_000, Some(0.5)), Some(0.513));
        assert_eq!(part_in(&(1000..1001), 1000, None), Some(1.0));
        assert_eq!(part_in(&(5..5), 1000, Some(0.005)), None);
    }
}
