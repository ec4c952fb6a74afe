//! The devices of this process: what C calls name by a number.
//!
//! Threads: any.

use crate::last_error::guard;
use crate::registry::{Holder, gapless_allocator, register};
use crate::status::{Answer, Failure};
use gapless::driver::cuda::{CudaDriver, OpenError, Sharing};
use gapless_process::{Device, Error, MOST_DEVICES, Process};
use std::sync::OnceLock;

/// The devices of this process, with the allocators that all front ends share.
pub(crate) static PROCESS: Process<CudaDriver> = Process::new(open);

/// The handles of the devices, once somebody has asked for them.
static HANDLES: [OnceLock<usize>; MOST_DEVICES] = [const { OnceLock::new() }; MOST_DEVICES];

/// The device of that number, with its allocator made now if this is the first use.
#[inline]
pub(crate) fn device_of(ordinal: i32) -> Answer<&'static Device<CudaDriver>> {
    // No device has a number that was negative.
    match PROCESS.used(ordinal.cast_unsigned()) {
        Some(device) => Ok(device),
        None => device_made(ordinal),
    }
}

#[cold]
#[inline(never)]
fn device_made(ordinal: i32) -> Answer<&'static Device<CudaDriver>> {
    match u32::try_from(ordinal) {
        Ok(ordinal) => Ok(PROCESS.device(ordinal)?),
        Err(_) => Err(Failure::argument(format!("{ordinal} is not the number of a device"))),
    }
}

/// The handle of a device: always the same one.
pub(crate) fn handle_of(device: &'static Device<CudaDriver>) -> Answer<*mut gapless_allocator> {
    let ordinal = device.ordinal();
    let handle = HANDLES.get(ordinal as usize).ok_or(Error::NotADevice(ordinal))?;
    let handle = handle.get_or_init(|| register(Holder::Device(device)).addr());
    Ok(std::ptr::without_provenance_mut(*handle))
}

fn open(ordinal: u32, sharing: Sharing) -> Result<CudaDriver, OpenError> {
    // SAFETY: only the process calls it, and this crate, with streams that their callers vouch for.
    let driver = unsafe { CudaDriver::builder().device(ordinal).sharing(sharing).open() }?;
    // SAFETY: the function is extern "C", takes nothing and does not unwind.
    unsafe { libc::atexit(at_exit) };
    Ok(driver)
}

extern "C" fn at_exit() {
    guard(|| {
        PROCESS.end();
        Ok(())
    });
}
