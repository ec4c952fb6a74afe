//! The driver's own allocators, to compare with: `cuMemAlloc` and the stream-ordered `cuMemAllocAsync`.
//!
//! The allocator never calls them.

use super::CudaDriver;
use super::streams::raw_stream;
use crate::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult};
use crate::units::{DeviceAddr, StreamId};

impl CudaDriver {
    /// `cuMemAlloc`.
    ///
    /// # Errors
    /// `OutOfMemory` when no contiguous memory of that size is free; `InvalidValue` for 0 bytes.
    pub fn mem_alloc(&self, bytes: u64) -> DriverResult<DeviceAddr> {
        let _guards = self.context.enter_outside_capture(DriverCall::Create)?;
        let mut addr = 0;
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { self.library.api().cuMemAlloc_v2(&raw mut addr, size(bytes)) };
        self.library.check(DriverCall::Create, "cuMemAlloc", result)?;
        Ok(DeviceAddr(addr))
    }

    /// `cuMemFree`, which waits for the device.
    ///
    /// # Errors
    /// `InvalidValue` for an address that `mem_alloc` did not give.
    pub fn mem_free(&self, addr: DeviceAddr) -> DriverResult<()> {
        let _guards = self.context.enter_outside_capture(DriverCall::Release)?;
        // SAFETY: a number for the driver, which refuses addresses that it has not allocated.
        let result = unsafe { self.library.api().cuMemFree_v2(addr.0) };
        self.library.check(DriverCall::Release, "cuMemFree", result)
    }

    /// `cuMemAllocAsync`, from the device's default pool.
    ///
    /// # Errors
    /// As `mem_alloc`, and `NotSupported` where the driver is too old.
    pub fn mem_alloc_async(&self, bytes: u64, stream: StreamId) -> DriverResult<DeviceAddr> {
        let Ok(function) = &self.library.optional().cuMemAllocAsync else { return Err(too_old("cuMemAllocAsync")) };
        let _current = self.context.enter(DriverCall::Create)?;
        let mut addr = 0;
        // SAFETY: the out-parameter is a valid pointer for the call; the stream is one of this device.
        let result = unsafe { function(&raw mut addr, size(bytes), raw_stream(stream)) };
        self.library.check(DriverCall::Create, "cuMemAllocAsync", result)?;
        Ok(DeviceAddr(addr))
    }

    /// `cuMemFreeAsync`.
    ///
    /// # Errors
    /// As `mem_free`, and `NotSupported` where the driver is too old.
    pub fn mem_free_async(&self, addr: DeviceAddr, stream: StreamId) -> DriverResult<()> {
        let Ok(function) = &self.library.optional().cuMemFreeAsync else { return Err(too_old("cuMemFreeAsync")) };
        let _current = self.context.enter(DriverCall::Release)?;
        // SAFETY: a number for the driver; the stream is one of this device.
        let result = unsafe { function(addr.0, raw_stream(stream)) };
        self.library.check(DriverCall::Release, "cuMemFreeAsync", result)
    }
}

/// More than any device has where the size does not fit.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn too_old(name: &str) -> DriverError {
    DriverError::new(DriverCall::Create, DriverErrorKind::NotSupported, format!("the driver has no {name}"))
}
