//! Allocators of either kind behind one trait: with virtual memory management, and without.

use super::Allocator;
use super::error::{AllocError, FreeError};
use super::plain::PlainAllocator;
use super::reports::Stats;
use super::sealed::Sealed;
use crate::driver::Driver;
use crate::units::{DeviceAddr, StreamId};

/// What every allocator of a device can do, by address, so that a program need not know which one it has.
///
/// ```
/// use gapless::allocator::DeviceAllocator;
/// use gapless::driver::ModelDriver;
/// use gapless::{Allocator, StreamId};
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let allocator: Arc<dyn DeviceAllocator> = Arc::new(Allocator::builder(Arc::new(ModelDriver::default())).build()?);
/// let addr = allocator.alloc_raw(1 << 20, StreamId::DEFAULT)?;
/// assert_eq!(allocator.stats().live_bytes, 1 << 20);
/// allocator.free(addr)?;
/// # Ok(())
/// # }
/// ```
///
/// Nobody else implements it: it may get methods in any release.
pub trait DeviceAllocator: Sealed + Send + Sync {
    /// Allocates `bytes` for work on `stream`, at a multiple of [`GRANULE`](super::GRANULE) bytes, for the caller to free.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed.
    fn alloc_raw(&self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, AllocError>;

    /// Frees an allocation, which work that was queued before may still use.
    ///
    /// # Errors
    /// [`FreeError`] when no live allocation starts at `addr`; nothing has changed.
    fn free(&self, addr: DeviceAddr) -> Result<(), FreeError>;

    /// Records that `stream` also uses the allocation.
    ///
    /// # Errors
    /// As [`free`](Self::free), and [`FreeError::Stream`].
    fn record_stream(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), FreeError>;

    /// Figures.
    fn stats(&self) -> Stats;

    /// Whether free memory is mapped where a request needs it. Where it is not, a request fails that finds no contiguous memory.
    fn remaps(&self) -> bool;
}

impl<D: Driver> DeviceAllocator for Allocator<D> {
    fn alloc_raw(&self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, AllocError> {
        Self::alloc_raw(self, bytes, stream)
    }

    fn free(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        Self::free(self, addr)
    }

    fn record_stream(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), FreeError> {
        Self::record_stream(self, addr, stream)
    }

    fn stats(&self) -> Stats {
        Self::stats(self)
    }

    fn remaps(&self) -> bool {
        true
    }
}

impl DeviceAllocator for PlainAllocator {
    fn alloc_raw(&self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, AllocError> {
        Self::alloc_raw(self, bytes, stream)
    }

    fn free(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        Self::free(self, addr)
    }

    fn record_stream(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), FreeError> {
        Self::record_stream(self, addr, stream)
    }

    fn stats(&self) -> Stats {
        Self::stats(self)
    }

    fn remaps(&self) -> bool {
        false
    }
}
