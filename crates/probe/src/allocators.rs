//! The driver's stream-ordered allocator, `cuMemAllocAsync`, to compare with.

use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::raw::raw_stream;
use gapless::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult};
use gapless::{DeviceAddr, StreamId};

/// Calls `cuMemAllocAsync`, which allocates from the device's default pool.
///
/// # Errors
/// As `cuMemAlloc`, and `NotSupported` if the driver is too old.
pub fn mem_alloc_async(driver: &CudaDriver, bytes: u64, stream: StreamId) -> DriverResult<DeviceAddr> {
    let raw = driver.raw();
    let Ok(function) = &raw.optional().cuMemAllocAsync else { return Err(too_old("cuMemAllocAsync")) };
    let _current = raw.enter(DriverCall::Create)?;
    // More than any device has if the size does not fit.
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut addr = 0;
    // SAFETY: the out-parameter is a valid pointer for the call; the stream is one of this device.
    let result = unsafe { function(&raw mut addr, bytes, raw_stream(stream)) };
    raw.check(DriverCall::Create, "cuMemAllocAsync", result)?;
    Ok(DeviceAddr(addr))
}

/// Calls `cuMemFreeAsync`.
///
/// # Errors
/// As `cuMemFree`, and `NotSupported` if the driver is too old.
pub fn mem_free_async(driver: &CudaDriver, addr: DeviceAddr, stream: StreamId) -> DriverResult<()> {
    let raw = driver.raw();
    let Ok(function) = &raw.optional().cuMemFreeAsync else { return Err(too_old("cuMemFreeAsync")) };
    let _current = raw.enter(DriverCall::Release)?;
    // SAFETY: a number for the driver; the stream is one of this device.
    let result = unsafe { function(addr.0, raw_stream(stream)) };
    raw.check(DriverCall::Release, "cuMemFreeAsync", result)
}

fn too_old(name: &str) -> DriverError {
    DriverError::new(DriverCall::Create, DriverErrorKind::NotSupported, format!("the driver has no {name}"))
}
