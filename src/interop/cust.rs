//! For users of [`cust`]: its `DevicePointer` and `Stream`.
//!
//! `cust` keeps the handle of its `Event` to itself. Order with events all the same: record them on a `Stream` of
//! `cust` and let the other stream wait for them, as ever; gapless needs to know the streams only.
//!
//! A `cust` context is the device's primary context, and so is gapless's.

use crate::allocator::{AllocError, Allocator, FreeError};
use crate::driver::Driver;
use crate::units::{DeviceAddr, StreamId};
use ::cust::memory::{DeviceCopy, DevicePointer};
use ::cust::stream::Stream;

impl From<&Stream> for StreamId {
    fn from(stream: &Stream) -> Self {
        Self(stream.as_inner() as u64)
    }
}

impl<T: DeviceCopy> From<DevicePointer<T>> for DeviceAddr {
    fn from(pointer: DevicePointer<T>) -> Self {
        Self(pointer.as_raw())
    }
}

/// The allocator's calls in the types of `cust`.
pub trait CustAllocator {
    /// Allocates `count` values for work on `stream`. Their content is undefined: write them before they are read.
    ///
    /// # Errors
    /// As [`Allocator::alloc`]; more bytes than 64 bits count is an allocation of `u64::MAX` bytes, which fails.
    fn alloc_pointer<T: DeviceCopy>(&self, count: usize, stream: &Stream) -> Result<DevicePointer<T>, AllocError>;

    /// Frees what [`alloc_pointer`](Self::alloc_pointer) gave, in the order of the streams that it was used on.
    ///
    /// # Errors
    /// As [`Allocator::free`].
    fn free_pointer<T: DeviceCopy>(&self, pointer: DevicePointer<T>) -> Result<(), FreeError>;

    /// Makes known that work on `stream` uses the memory too.
    ///
    /// # Errors
    /// As [`Allocator::record_stream`].
    fn record_pointer<T: DeviceCopy>(&self, pointer: DevicePointer<T>, stream: &Stream) -> Result<(), FreeError>;
}

impl<D: Driver> CustAllocator for Allocator<D> {
    fn alloc_pointer<T: DeviceCopy>(&self, count: usize, stream: &Stream) -> Result<DevicePointer<T>, AllocError> {
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        let alignment = (align_of::<T>() as u64).max(1);
        Ok(DevicePointer::from_raw(self.alloc_aligned(bytes, alignment, stream.into())?.0))
    }

    fn free_pointer<T: DeviceCopy>(&self, pointer: DevicePointer<T>) -> Result<(), FreeError> {
        self.free(pointer.into())
    }

    fn record_pointer<T: DeviceCopy>(&self, pointer: DevicePointer<T>, stream: &Stream) -> Result<(), FreeError> {
        self.record_stream(pointer.into(), stream.into())
    }
}
