//! `cuMemAlloc`, for devices without virtual memory management.

use super::context::Context;
use super::error::OpenError;
use super::library::Library;
use super::soft_memory::with_available;
use super::{CudaBuilder, DeviceInfo};
use crate::driver::{DriverCall, DriverResult, MemoryInfo};
use crate::units::DeviceAddr;

/// A device that is used through `cuMemAlloc` only. It needs no virtual memory management.
#[derive(Debug)]
pub struct PlainDevice {
    library: &'static Library,
    info: DeviceInfo,
    context: Context,
}

impl CudaBuilder {
    /// Opens the device for `cuMemAlloc` only. The settings for peers and sharing have no effect.
    ///
    /// # Errors
    /// [`OpenError`], but never `NoVmm`.
    pub fn open_plain(self) -> Result<PlainDevice, OpenError> {
        let library = self.load()?;
        let count = library.device_count()?;
        if self.ordinal >= count {
            return Err(OpenError::NoSuchDevice { ordinal: self.ordinal, count });
        }
        let info = DeviceInfo::query(library, self.ordinal)?;
        let context = Context::retain(library, library.device(self.ordinal)?)?;
        Ok(PlainDevice { library, info, context })
    }
}

impl PlainDevice {
    /// Returns the properties of the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns the free and total physical bytes of the device.
    ///
    /// # Errors
    /// Only when the device is lost.
    pub fn memory_info(&self) -> DriverResult<MemoryInfo> {
        memory_info(self.library, &self.context, &self.info)
    }

    /// Calls `cuMemAlloc`.
    ///
    /// # Errors
    /// `OutOfMemory` when no contiguous memory of that size is free; `InvalidValue` for 0 bytes.
    pub fn mem_alloc(&self, bytes: u64) -> DriverResult<DeviceAddr> {
        mem_alloc(self.library, &self.context, bytes)
    }

    /// Calls `cuMemFree`, which waits for the device.
    ///
    /// # Errors
    /// `InvalidValue` for an address that [`mem_alloc`](Self::mem_alloc) did not return.
    pub fn mem_free(&self, addr: DeviceAddr) -> DriverResult<()> {
        mem_free(self.library, &self.context, addr)
    }
}

pub(super) fn mem_alloc(library: &Library, context: &Context, bytes: u64) -> DriverResult<DeviceAddr> {
    let _guards = context.enter_outside_capture(DriverCall::Create)?;
    // More than any device has if the size does not fit.
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut addr = 0;
    // SAFETY: the out-parameter is a valid pointer for the call.
    let result = unsafe { library.api().cuMemAlloc_v2(&raw mut addr, bytes) };
    library.check(DriverCall::Create, "cuMemAlloc", result)?;
    Ok(DeviceAddr(addr))
}

pub(super) fn mem_free(library: &Library, context: &Context, addr: DeviceAddr) -> DriverResult<()> {
    let _guards = context.enter_outside_capture(DriverCall::Release)?;
    // SAFETY: a number for the driver, which refuses addresses that it has not allocated.
    let result = unsafe { library.api().cuMemFree_v2(addr.0) };
    library.check(DriverCall::Release, "cuMemFree", result)
}

/// Returns the free and total bytes of the context's device.
pub(super) fn memory_info(library: &Library, context: &Context, info: &DeviceInfo) -> DriverResult<MemoryInfo> {
    let _guards = context.enter_outside_capture(DriverCall::MemoryInfo)?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: both out-parameters are valid pointers for the call.
    let result = unsafe { library.api().cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    library.check(DriverCall::MemoryInfo, "cuMemGetInfo", result)?;
    Ok(with_available(info, MemoryInfo { free: free as u64, total: total as u64 }))
}
