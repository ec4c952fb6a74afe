//! Pins of C: blocks of a device that stay where they are, by their pointer.
//!
//! Threads: any.

use crate::abi::address;
use crate::last_error::guard;
use crate::process::device_of;
use crate::status::gapless_status;
use std::ffi::c_void;

/// Pins an allocation of a device: until gapless_device_unpin has been called as often, its bytes are not handed out again,
/// and what is mapped there stays, also once it was freed. For memory that another process or other hardware uses; not for
/// registered blocks, which stay anyway.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_pin(device: i32, pointer: *mut c_void) -> gapless_status {
    guard(|| Ok(device_of(device)?.pin(address(pointer))?))
}

/// Takes a pin off an allocation, or off what was one when it was pinned. What used the memory on account of the pin must have
/// completed.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_unpin(device: i32, pointer: *mut c_void) -> gapless_status {
    guard(|| Ok(device_of(device)?.unpin(address(pointer))?))
}
