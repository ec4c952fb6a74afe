//! Pins by address: blocks of a device that stay where they are.
//!
//! Threads: any; one lock.

use crate::error::Error;
use gapless::DeviceAddr;
use gapless::allocator::Pin;
use gapless::driver::Driver;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The pins of one device's blocks.
pub(crate) struct DevicePins<D: Driver> {
    by_address: Mutex<BTreeMap<DeviceAddr, Vec<Pin<D>>>>,
}

impl<D: Driver> DevicePins<D> {
    pub fn new() -> Self {
        Self { by_address: Mutex::default() }
    }

    pub fn add(&self, pin: Pin<D>) {
        self.by_address.lock().entry(pin.addr()).or_default().push(pin);
    }

    /// Whether the block at an address is pinned, live or not.
    pub fn holds(&self, addr: DeviceAddr) -> bool {
        self.by_address.lock().contains_key(&addr)
    }

    /// Takes one of the pins of the block at an address out of the table.
    pub fn take(&self, addr: DeviceAddr) -> Result<Pin<D>, Error> {
        let mut by_address = self.by_address.lock();
        let none = || Error::NotPinned(addr);
        let pins = by_address.get_mut(&addr).ok_or_else(none)?;
        let pin = pins.pop().ok_or_else(none)?;
        if pins.is_empty() {
            by_address.remove(&addr);
        }
        Ok(pin)
    }
}
