//! An allocation that frees itself.

use super::{AllocError, Allocator, FreeError};
use crate::driver::Driver;
use crate::units::{DeviceAddr, StreamId};
use std::fmt;

/// An allocation that is freed when it is dropped, as a `Box` is. Made by [`Allocator::alloc`].
///
/// It keeps its allocator alive. Dropping it does not wait for anything: work queued on its stream, and on the streams that
/// it was recorded on, may still use the memory; see [`Allocator::free`].
///
/// ```
/// use gapless::driver::ModelDriver;
/// use gapless::{Allocator, StreamId};
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let allocator = Allocator::builder(Arc::new(ModelDriver::default())).build()?;
/// let buffer = allocator.alloc(1 << 20, StreamId::DEFAULT)?;
/// assert_eq!((buffer.len(), allocator.stats().live_bytes), (1 << 20, 1 << 20));
/// drop(buffer);
/// assert_eq!(allocator.stats().live_bytes, 0);
/// # Ok(())
/// # }
/// ```
#[must_use = "the memory is freed when the buffer is dropped"]
pub struct Buffer<D: Driver> {
    allocator: Allocator<D>,
    addr: DeviceAddr,
    bytes: u64,
    stream: StreamId,
    owner: Owner,
}

/// The owner of the allocation, who frees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Buffer,
    Caller,
}

impl<D: Driver> Allocator<D> {
    /// Allocates `bytes` for work on `stream`, at a multiple of [`GRANULE`](super::GRANULE) bytes. Dropping the buffer frees them.
    ///
    /// Work queued on `stream` from now on may use the memory. Work on other streams has to be ordered behind it by the
    /// caller, and recorded with [`Buffer::record_stream`]. The content is undefined.
    /// 0 bytes: an address of its own, with one granule behind it.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed.
    pub fn alloc(&self, bytes: u64, stream: StreamId) -> Result<Buffer<D>, AllocError> {
        Ok(self.owned(self.alloc_raw(bytes, stream)?, bytes, stream))
    }

    /// As [`alloc`](Self::alloc), at a multiple of `alignment` bytes, a power of two.
    ///
    /// # Errors
    /// As `alloc`, and [`AllocError::Alignment`].
    pub fn alloc_aligned(&self, bytes: u64, alignment: u64, stream: StreamId) -> Result<Buffer<D>, AllocError> {
        Ok(self.owned(self.alloc_raw_aligned(bytes, alignment, stream)?, bytes, stream))
    }

    fn owned(&self, addr: DeviceAddr, bytes: u64, stream: StreamId) -> Buffer<D> {
        Buffer { allocator: self.clone(), addr, bytes, stream, owner: Owner::Buffer }
    }
}

impl<D: Driver> Buffer<D> {
    /// The address of the first byte, a multiple of [`GRANULE`](super::GRANULE).
    #[must_use]
    pub fn addr(&self) -> DeviceAddr {
        self.addr
    }

    /// The number of bytes requested.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether 0 bytes were requested.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The stream that the buffer was allocated on.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The allocator that the buffer came from.
    #[must_use]
    pub fn allocator(&self) -> &Allocator<D> {
        &self.allocator
    }

    /// Records that `stream` also uses the buffer; see [`Allocator::record_stream`].
    ///
    /// # Errors
    /// [`FreeError::Stream`] when `stream` cannot be used with the allocator.
    pub fn record_stream(&self, stream: StreamId) -> Result<(), FreeError> {
        self.allocator.record_stream(self.addr, stream)
    }

    /// Gives the allocation up without freeing it, and returns its address. [`Allocator::free`] frees it.
    #[must_use = "the memory is leaked unless it is freed by its address"]
    pub fn into_raw(self) -> DeviceAddr {
        let mut buffer = self;
        buffer.owner = Owner::Caller;
        buffer.addr
    }

    /// Makes a buffer of the live allocation of `bytes` that starts at `addr`, which was allocated on `stream`.
    ///
    /// # Safety
    /// `addr` is a live allocation of `allocator`, with `bytes` and `stream` as it was allocated, and nobody else frees it: not by
    /// its address, and not by another buffer. Otherwise dropping the buffer frees what is somebody else's by then.
    pub unsafe fn from_raw(allocator: &Allocator<D>, addr: DeviceAddr, bytes: u64, stream: StreamId) -> Self {
        allocator.owned(addr, bytes, stream)
    }
}

impl<D: Driver> Drop for Buffer<D> {
    fn drop(&mut self) {
        if self.owner == Owner::Buffer {
            // Only an address that was freed elsewhere is refused; the statistics count it.
            let _ = self.allocator.free(self.addr);
        }
    }
}

impl<D: Driver> fmt::Debug for Buffer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("addr", &self.addr)
            .field("bytes", &self.bytes)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{ModelDriver, WorkDriver};
    use std::sync::Arc;

    #[test]
    fn a_buffer_frees_itself_unless_it_is_given_up() {
        let driver = Arc::new(ModelDriver::default());
        let stream = driver.create_stream().unwrap();
        let allocator = Allocator::builder(driver).build().unwrap();
        let buffer = allocator.alloc(1000, stream).unwrap();
        assert_eq!((buffer.len(), buffer.stream(), buffer.is_empty()), (1000, stream, false));
        drop(buffer);
        assert_eq!((allocator.stats().live_bytes, allocator.stats().frees), (0, 1));
        let addr = allocator.alloc(1000, StreamId::DEFAULT).unwrap().into_raw();
        assert_eq!(allocator.stats().live_bytes, 1000);
        // SAFETY: the address was given up by its buffer, and is nobody else's.
        drop(unsafe { Buffer::from_raw(&allocator, addr, 1000, StreamId::DEFAULT) });
        assert_eq!((allocator.stats().live_bytes, allocator.stats().refused_frees), (0, 0));
        allocator.close().expect("no buffer keeps a clone of the allocator");
    }

    #[test]
    fn a_recorded_buffer_waits_for_its_streams() {
        let driver = Arc::new(ModelDriver::default());
        let other = driver.create_stream().unwrap();
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let buffer = allocator.alloc(1 << 20, StreamId::DEFAULT).unwrap();
        buffer.record_stream(other).unwrap();
        drop(buffer);
        assert_eq!(allocator.stats().pending_bytes, 1 << 20);
        allocator.check();
    }

    #[test]
    fn what_was_freed_by_its_address_is_not_freed_twice() {
        let allocator = Allocator::builder(Arc::new(ModelDriver::default())).build().unwrap();
        let buffer = allocator.alloc(0, StreamId::DEFAULT).unwrap();
        assert!(buffer.is_empty());
        allocator.free(buffer.addr()).unwrap();
        drop(buffer);
        assert_eq!((allocator.stats().frees, allocator.stats().refused_frees), (1, 1));
        allocator.check();
    }
}
