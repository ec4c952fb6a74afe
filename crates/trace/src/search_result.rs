//! What a search for the smallest devices finds.

/// The result of a search: sizes in bytes, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SearchResult {
    /// The smallest device that survives; with one page less, the replay failed. `None` if no device of up to `MOST_TIMES` times
    /// [`Trace::demand_bytes`](crate::Trace::demand_bytes) survives, or none of up to
    /// [`Device::MOST_BYTES`](crate::Device::MOST_BYTES).
    pub min_capacity_bytes: Option<u64>,
    /// The smallest device that survives together with all larger ones that were tried. `None` if the largest one
    /// failed.
    pub safe_capacity_bytes: Option<u64>,
}
