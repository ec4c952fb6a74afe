//! Live allocations as plain data.

use crate::units::{DeviceAddr, StreamId};

/// An allocation that has not been freed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LiveAllocation {
    /// Its address.
    pub addr: DeviceAddr,
    /// Bytes requested.
    pub bytes: u64,
    /// The stream it was allocated on.
    pub stream: StreamId,
    /// Whether a part of it is asleep, or about to be.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asleep: bool,
}
