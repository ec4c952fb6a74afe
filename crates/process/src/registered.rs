//! Registered blocks by address: memory of a device that a library registers.
//!
//! - I1  a block is in the table from its allocation to its free, but for the time that somebody works with it.
//!
//! Threads: any. The table is not locked while a block is allocated, used or freed, which may take its time.

use crate::error::Error;
use gapless::DeviceAddr;
use gapless::allocator::RegisteredBlock;
use gapless::driver::Driver;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The registered blocks of one device.
pub(crate) struct RegisteredBlocks<D: Driver> {
    by_address: Mutex<BTreeMap<DeviceAddr, RegisteredBlock<D>>>,
}

impl<D: Driver> RegisteredBlocks<D> {
    pub fn new() -> Self {
        Self { by_address: Mutex::default() }
    }

    pub fn add(&self, block: RegisteredBlock<D>) -> DeviceAddr {
        let addr = block.addr();
        self.by_address.lock().insert(addr, block);
        addr
    }

    pub fn remove(&self, addr: DeviceAddr) -> Result<RegisteredBlock<D>, Error> {
        self.by_address.lock().remove(&addr).ok_or(Error::NotRegistered(addr))
    }

    /// Works with a block, which is out of the table meanwhile: the driver may be asked.
    pub fn with<T>(&self, addr: DeviceAddr, work: impl FnOnce(&mut RegisteredBlock<D>) -> T) -> Result<T, Error> {
        let mut block = self.remove(addr)?;
        let outcome = work(&mut block);
        self.add(block);
        Ok(outcome)
    }
}
