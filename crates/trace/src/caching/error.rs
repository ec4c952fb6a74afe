//! Errors of the baseline, and its report of a lack of memory.

use gapless::driver::{DriverError, DriverErrorKind};
use gapless::units::{ByteSize, DeviceAddr};
use std::fmt;

/// An error of the baseline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CachingError {
    /// The device is out of memory, even after a flush.
    #[error("{0}")]
    OutOfMemory(CachingOutOfMemory),
    /// The freed address is not the start of a live block.
    #[error("{addr} is not the start of a live block")]
    UnknownAddress {
        /// The address that was passed to [`CachingAllocator::free`](super::CachingAllocator::free).
        addr: DeviceAddr,
    },
    /// Expandable segments were to sleep, which torch_memory_saver and vLLM refuse.
    #[error("expandable segments cannot sleep: torch_memory_saver and vLLM take no memory of them")]
    Expandable,
    /// The driver failed for another reason than a lack of memory.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// The figures of PyTorch's message, in bytes, taken after the flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct CachingOutOfMemory {
    /// Size of the request, without rounding.
    pub requested_bytes: u64,
    /// Memory of the device.
    pub total_bytes: u64,
    /// Memory of the device that is free.
    pub free_bytes: u64,
    /// Total size of the live blocks, "allocated" in the message.
    pub live_bytes: u64,
    /// Total size of the segments.
    pub reserved_bytes: u64,
}

impl fmt::Display for CachingOutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CUDA out of memory. Tried to allocate {}. The device has a total capacity of {} of which {} is free. \
             {} is allocated, and {} is reserved but unallocated.",
            ByteSize(self.requested_bytes),
            ByteSize(self.total_bytes),
            ByteSize(self.free_bytes),
            ByteSize(self.live_bytes),
            ByteSize(self.reserved_bytes - self.live_bytes),
        )
    }
}

/// Returns `true` if the driver reports a lack of memory.
pub(super) fn is_out_of_memory(error: &DriverError) -> bool {
    error.kind == DriverErrorKind::OutOfMemory
}
