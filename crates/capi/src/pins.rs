//! Pins of C: blocks of a device that stay where they are, by their pointer.
//!
//! Threads: any.

use crate::functions::address;
use crate::last_error::guard;
use crate::process::Device;
use crate::status::{Answer, Failure, GAPLESS_ERROR_NOT_ALLOCATED, gapless_status};
use gapless::DeviceAddr;
use gapless::allocator::Pin;
use gapless::driver::cuda::CudaDriver;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;

/// The pins of one device's blocks.
#[derive(Debug, Default)]
pub(crate) struct DevicePins {
    by_address: Mutex<BTreeMap<DeviceAddr, Vec<Pin<CudaDriver>>>>,
}

impl DevicePins {
    fn add(&self, pin: Pin<CudaDriver>) {
        self.by_address.lock().entry(pin.addr()).or_default().push(pin);
    }

    /// Whether the block at an address is pinned, live or not.
    pub fn holds(&self, addr: DeviceAddr) -> bool {
        self.by_address.lock().contains_key(&addr)
    }

    fn take(&self, addr: DeviceAddr) -> Answer<Pin<CudaDriver>> {
        let mut by_address = self.by_address.lock();
        let none = || Failure::new(GAPLESS_ERROR_NOT_ALLOCATED, format!("no pinned block starts at {addr}"));
        let pins = by_address.get_mut(&addr).ok_or_else(none)?;
        let pin = pins.pop().ok_or_else(none)?;
        if pins.is_empty() {
            by_address.remove(&addr);
        }
        Ok(pin)
    }
}

/// Pins an allocation of a device: until gapless_device_unpin has been called as often, its bytes are not handed out again,
/// and what is mapped there stays, also once it was freed. For memory that another process or other hardware uses; not for
/// registered blocks, which stay anyway.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_pin(device: i32, pointer: *mut c_void) -> gapless_status {
    guard(|| {
        let (device, addr) = (Device::get(device)?, address(pointer));
        device.expect_not_held(addr)?;
        let allocator = device.allocator_of(addr).unwrap_or_else(|| device.main.allocator.clone());
        device.pins.add(allocator.pin(addr)?);
        Ok(())
    })
}

/// Takes a pin off an allocation, or off what was one when it was pinned. What used the memory on account of the pin must have
/// completed.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_unpin(device: i32, pointer: *mut c_void) -> gapless_status {
    guard(|| {
        drop(Device::get(device)?.pins.take(address(pointer))?);
        Ok(())
    })
}
