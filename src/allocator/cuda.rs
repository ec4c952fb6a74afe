//! An allocator on a GPU, in one call.

use super::Allocator;
use super::error::BuildError;
use crate::driver::cuda::CudaDriver;
use std::sync::Arc;

/// An allocator on a GPU.
pub type CudaAllocator = Allocator<CudaDriver>;

impl CudaAllocator {
    /// Opens device number `ordinal`, counted from 0, and builds an allocator for all of its memory, with the default settings.
    /// [`CudaDriver::builder`] and [`Allocator::builder`] have the others.
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
        let driver = CudaDriver::open(ordinal)?;
        Self::builder(Arc::new(driver)).build()
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
