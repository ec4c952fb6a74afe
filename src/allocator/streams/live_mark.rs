//! Between which live bytes a stream need not tell the meter of the peak.

/// The part of the [`PeakMeter`](super::peak::PeakMeter) that is in a stream's state.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveMark {
    /// Live bytes above which the peak may be exceeded.
    pub(super) limit: u64,
    /// Live bytes below which the stream has to join in: 0 once it has.
    pub(super) floor: u64,
    /// Live bytes at the last visit.
    pub(super) counted: u64,
    /// Whether the stream has joined in since.
    pub(super) joined: bool,
}

impl LiveMark {
    /// Whether so many live bytes, after an allocation, have to be noted.
    #[inline]
    pub fn is_passed(&self, live_bytes: u64) -> bool {
        live_bytes > self.limit
    }

    /// Whether so many live bytes, after a free, have to be noted.
    #[inline]
    pub fn is_left(&self, live_bytes: u64) -> bool {
        live_bytes < self.floor
    }
}
