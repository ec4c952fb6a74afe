//! Launches with attributes.

use std::ffi::c_void;

use gapless::driver::cuda::sys::CUlaunchConfig;

use super::entry::{Code, INVALID};
use super::work::launch;

/// Runs the kernel in stream order. With programmatic dependent launch a device may start it earlier, but its accesses to
/// memory come behind the work ahead of it all the same, since it waits for that work first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    function: *mut c_void,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    // SAFETY: null or valid (the driver API's contract).
    let Some(config) = (unsafe { config.as_ref() }) else { return INVALID };
    let (grid, block) =
        ([config.gridDimX, config.gridDimY, config.gridDimZ], [config.blockDimX, config.blockDimY, config.blockDimZ]);
    if config.numAttrs > 0 && config.attrs.is_null() || grid.contains(&0) || block.contains(&0) {
        return INVALID;
    }
    // SAFETY: the same contract.
    unsafe { launch(function, config.hStream.cast(), parameters) }
}
