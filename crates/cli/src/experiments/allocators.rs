//! The driver's own allocators, to compare with: `cuMemAlloc`, and `cuMemAllocAsync` in stream order.

use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::raw::raw_stream;
use gapless::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult};
use gapless::{DeviceAddr, StreamId};

/// Calls `cuMemAlloc`.
///
/// # Errors
/// `OutOfMemory` when no contiguous memory of that size is free; `InvalidValue` for 0 bytes.
pub fn mem_alloc(driver: &CudaDriver, bytes: u64) -> DriverResult<DeviceAddr> {
    let raw = driver.raw();
    let _current = raw.enter(DriverCall::Create)?;
    let mut addr = 0;
    // SAFETY: the out-parameter is a valid pointer for the call.
    let result = unsafe { raw.api().cuMemAlloc_v2(&raw mut addr, size(bytes)) };
    raw.check(DriverCall::Create, "cuMemAlloc", result)?;
    Ok(DeviceAddr(addr))
}

/// Calls `cuMemFree`, which waits for the device.
///
/// # Errors
/// `InvalidValue` for an address that [`mem_alloc`] did not return.
pub fn mem_free(driver: &CudaDriver, addr: DeviceAddr) -> DriverResult<()> {
    let raw = driver.raw();
    let _current = raw.enter(DriverCall::Release)?;
    // SAFETY: a number for the driver, which refuses addresses that it has not allocated.
    let result = unsafe { raw.api().cuMemFree_v2(addr.0) };
    raw.check(DriverCall::Release, "cuMemFree", result)
}

/// Calls `cuMemAllocAsync`, which allocates from the device's default pool.
///
/// # Errors
/// As [`mem_alloc`], and `NotSupported` if the driver is too old.
pub fn mem_alloc_async(driver: &CudaDriver, bytes: u64, stream: StreamId) -> DriverResult<DeviceAddr> {
    let raw = driver.raw();
    let Ok(function) = &raw.optional().cuMemAllocAsync else { return Err(too_old("cuMemAllocAsync")) };
    let _current = raw.enter(DriverCall::Create)?;
    let mut addr = 0;
    // SAFETY: the out-parameter is a valid pointer for the call; the stream is one of this device.
    let result = unsafe { function(&raw mut addr, size(bytes), raw_stream(stream)) };
    raw.check(DriverCall::Create, "cuMemAllocAsync", result)?;
    Ok(DeviceAddr(addr))
}

/// Calls `cuMemFreeAsync`.
///
/// # Errors
/// As [`mem_free`], and `NotSupported` if the driver is too old.
pub fn mem_free_async(driver: &CudaDriver, addr: DeviceAddr, stream: StreamId) -> DriverResult<()> {
    let raw = driver.raw();
    let Ok(function) = &raw.optional().cuMemFreeAsync else { return Err(too_old("cuMemFreeAsync")) };
    let _current = raw.enter(DriverCall::Release)?;
    // SAFETY: a number for the driver; the stream is one of this device.
    let result = unsafe { function(addr.0, raw_stream(stream)) };
    raw.check(DriverCall::Release, "cuMemFreeAsync", result)
}

/// The driver's type for sizes: more than any device has if the size does not fit.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn too_old(name: &str) -> DriverError {
    DriverError::new(DriverCall::Create, DriverErrorKind::NotSupported, format!("the driver has no {name}"))
}
