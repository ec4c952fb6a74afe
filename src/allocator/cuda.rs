//! An allocator on a GPU, in one call.

use super::error::BuildError;
use super::{Allocator, Builder, DeviceAllocator, PlainAllocator};
use crate::driver::cuda::{CudaBuilder, CudaDriver, OpenError};
use std::sync::Arc;

/// An allocator on a GPU.
pub type CudaAllocator = Allocator<CudaDriver>;

impl CudaAllocator {
    /// Opens device number `ordinal`, counted from 0, and builds an allocator for all of its memory, with the default settings.
    /// [`CudaBuilder::allocator`](crate::driver::cuda::CudaBuilder::allocator) has the others.
    ///
    /// ```no_run
    /// use gapless::{CudaAllocator, StreamId};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let allocator = CudaAllocator::open(0)?;
    /// let buffer = allocator.alloc(1 << 30, StreamId::DEFAULT)?;
    /// println!("{} bytes at {}", buffer.len(), buffer.addr());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BuildError::Open`], which says what to do; [`BuildError::Driver`].
    pub fn open(ordinal: u32) -> Result<Self, BuildError> {
        CudaDriver::builder().device(ordinal).allocator()?.build()
    }
}

impl CudaBuilder {
    /// Opens the device and starts building an allocator on it.
    ///
    /// ```no_run
    /// use gapless::driver::cuda::CudaDriver;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let allocator = CudaDriver::builder().device(1).allocator()?.budget(8 << 30).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn allocator(self) -> Result<Builder<CudaDriver>, OpenError> {
        // SAFETY: only the allocator calls the driver. Safe code does not get it from there.
        let driver = unsafe { self.open() }?;
        Ok(Allocator::builder(Arc::new(driver)))
    }

    /// Opens the device and builds an allocator on it with the default settings: a [`CudaAllocator`], or a [`PlainAllocator`] where
    /// the device has no virtual memory management.
    ///
    /// # Errors
    /// [`BuildError::Open`], [`BuildError::Driver`].
    pub fn device_allocator(self) -> Result<Arc<dyn DeviceAllocator>, BuildError> {
        match self.clone().allocator() {
            Ok(builder) => Ok(Arc::new(builder.build()?)),
            Err(OpenError::NoVmm { .. }) => Ok(Arc::new(PlainAllocator::new(self.open_plain()?))),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_an_error_of_opening() {
        let refused = CudaAllocator::open(u32::MAX).unwrap_err();
        assert!(matches!(refused, BuildError::Open(_)), "{refused}");
    }
}
