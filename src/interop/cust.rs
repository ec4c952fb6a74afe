//! Conversions for users of [`cust`]: its `DevicePointer` and `Stream`.
//!
//! `cust` does not expose the handle of its `Event`, and gapless does not need it: order streams with events of `cust`
//! as usual, and tell gapless about the streams only.
//!
//! Both `cust` and gapless use the device's primary context.

use crate::allocator::sealed::Sealed;
use crate::allocator::{AllocError, Allocator, FreeError};
use crate::driver::Driver;
use crate::units::{DeviceAddr, StreamId};
use ::cust::memory::{DeviceCopy, DevicePointer};
use ::cust::stream::Stream;

/// Returns the stream for calls of gapless.
///
/// # Safety
/// That of [`StreamId::from_raw`]: the value outlives the borrow.
pub unsafe fn stream_id(stream: &Stream) -> StreamId {
    StreamId(stream.as_inner() as u64)
}

impl<T: DeviceCopy> From<DevicePointer<T>> for DeviceAddr {
    fn from(pointer: DevicePointer<T>) -> Self {
        Self(pointer.as_raw())
    }
}

/// The allocator's functions with the types of `cust`. Nobody else implements it: it may get methods in any release.
pub trait CustAllocator: Sealed {
    /// Allocates memory for `count` values of type `T`, for use on `stream`. The memory is uninitialized: write the
    /// values before reading them.
    ///
    /// # Errors
    /// Returns the errors of [`Allocator::alloc_raw_aligned`]. If the size in bytes overflows, it counts as `u64::MAX`
    /// bytes, which always fails.
    fn alloc_pointer<T: DeviceCopy>(&self, count: usize, stream: &Stream) -> Result<DevicePointer<T>, AllocError>;

    /// Frees memory from [`alloc_pointer`](Self::alloc_pointer), in stream order: after the work already submitted to
    /// the streams that use it.
    ///
    /// # Errors
    /// Returns the errors of [`Allocator::free`].
    fn free_pointer<T: DeviceCopy>(&self, pointer: DevicePointer<T>) -> Result<(), FreeError>;

    /// Records that `stream` also uses the allocation.
    ///
    /// # Errors
    /// Returns the errors of [`Allocator::record_stream`].
    fn record_pointer<T: DeviceCopy>(&self, pointer: DevicePointer<T>, stream: &Stream) -> Result<(), FreeError>;
}

impl<D: Driver> CustAllocator for Allocator<D> {
    fn alloc_pointer<T: DeviceCopy>(&self, count: usize, stream: &Stream) -> Result<DevicePointer<T>, AllocError> {
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        let alignment = (align_of::<T>() as u64).max(1);
        // SAFETY: the stream exists during the call, and is not kept.
        let stream = unsafe { stream_id(stream) };
        Ok(DevicePointer::from_raw(self.alloc_raw_aligned(bytes, alignment, stream)?.0))
    }

    fn free_pointer<T: DeviceCopy>(&self, pointer: DevicePointer<T>) -> Result<(), FreeError> {
        self.free(pointer.into())
    }

    fn record_pointer<T: DeviceCopy>(&self, pointer: DevicePointer<T>, stream: &Stream) -> Result<(), FreeError> {
        // SAFETY: the stream exists during the call, and is not kept.
        self.record_stream(pointer.into(), unsafe { stream_id(stream) })
    }
}
