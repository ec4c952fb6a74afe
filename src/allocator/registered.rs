//! Memory that a library registers, or that other hardware uses: NCCL's user buffers, RDMA.

use super::error::AllocError;
use super::slow_path::GrowableRange;
use super::{Allocator, Inner};
use crate::driver::Driver;
use crate::sync::Arc;
use crate::units::{DeviceAddr, StreamId};
use std::fmt;
use std::os::fd::OwnedFd;

/// One chunk, whole and alone in a mapping of its own, for memory that is registered with a library or used by other hardware.
///
/// Its address and its size are multiples of the driver's granularity, so that a registration covers nothing else, and one handle
/// is behind all of it. Until it is dropped, the mapping stays as it is: the chunk is not taken, moved or released. It can be used
/// by RDMA where chunks of the driver can ([`Sharing`](crate::driver::cuda::Sharing)).
///
/// Dropping it waits for the streams it was used with, and returns the chunk to the allocator, as that of a
/// [`VirtualRange`](super::VirtualRange). End the registration before; a [`MapListener`](super::MapListener) is notified, too.
pub struct RegisteredBlock<D: Driver> {
    inner: Arc<Inner<D>>,
    range: GrowableRange,
}

impl<D: Driver> fmt::Debug for RegisteredBlock<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBlock")
            .field("addr", &self.addr())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Allocator<D> {
    /// Allocates a block of at least `bytes` that can be registered, for work on `stream`. Takes whole pages; where the budget is
    /// used up, free memory goes back to the driver for it, for which the host waits for the streams that used it.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed, except that free memory may have been released.
    pub fn alloc_registered(&self, bytes: u64, stream: StreamId) -> Result<RegisteredBlock<D>, AllocError> {
        let range = self.inner.door.enter(&self.inner.shared, |path| path.alloc_registered(bytes, stream))?;
        Ok(RegisteredBlock { inner: Arc::clone(&self.inner), range })
    }
}

impl<D: Driver> RegisteredBlock<D> {
    /// The first address, a multiple of the driver's granularity.
    #[must_use]
    pub fn addr(&self) -> DeviceAddr {
        self.range.addr
    }

    /// Bytes of the block: those asked for, rounded up to whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.range.mapped.bytes(self.inner.shared.geometry.page_bytes)
    }

    /// Returns a dma-buf of the block, for hardware that reaches it by itself, such as a network card (`ibv_reg_dmabuf_mr`). The
    /// descriptor may be closed once the hardware has it. It has to be detached from the hardware before the block is dropped.
    ///
    /// # Errors
    /// [`AllocError::Driver`], `NotSupported` where the device has no dma-bufs; [`AllocError::Forked`].
    pub fn dma_buf(&self) -> Result<OwnedFd, AllocError> {
        self.inner.door.enter(&self.inner.shared, |path| path.dma_buf(&self.range))
    }

    /// Records that `stream` also uses the block: dropping it waits for that, too.
    ///
    /// # Errors
    /// [`AllocError::Stream`], [`AllocError::Forked`].
    pub fn record_stream(&mut self, stream: StreamId) -> Result<(), AllocError> {
        self.inner.door.enter(&self.inner.shared, |path| path.note_range_user(&mut self.range, stream))
    }
}

impl<D: Driver> Drop for RegisteredBlock<D> {
    fn drop(&mut self) {
        // In a forked process, all of it belongs to the process that built the allocator.
        if !self.inner.shared.is_forked() {
            self.inner.door.drop_range(&self.inner.shared, &mut self.range);
        }
    }
}
