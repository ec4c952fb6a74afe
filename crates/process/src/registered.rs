//! Registered blocks by address: memory of a device that a library registers.
//!
//! - I1  a block is in the table from its allocation to its free, whoever works with it meanwhile.
//!
//! Threads: any. The table is not locked while a block is allocated, used or freed, which may take its time; each block has a lock
//! of its own for that.

use crate::error::Error;
use gapless::DeviceAddr;
use gapless::allocator::RegisteredBlock;
use gapless::driver::Driver;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A block, until it is freed.
type Entry<D> = Arc<Mutex<Option<RegisteredBlock<D>>>>;

/// The registered blocks of one device.
pub(crate) struct RegisteredBlocks<D: Driver> {
    by_address: Mutex<BTreeMap<DeviceAddr, Entry<D>>>,
}

impl<D: Driver> RegisteredBlocks<D> {
    pub fn new() -> Self {
        Self { by_address: Mutex::default() }
    }

    pub fn add(&self, block: RegisteredBlock<D>) -> DeviceAddr {
        let addr = block.addr();
        self.by_address.lock().insert(addr, Arc::new(Mutex::new(Some(block))));
        addr
    }

    /// Takes a block out of the table, once nobody works with it any more.
    pub fn remove(&self, addr: DeviceAddr) -> Result<RegisteredBlock<D>, Error> {
        let entry = self.by_address.lock().remove(&addr).ok_or(Error::NotRegistered(addr))?;
        let block = entry.lock().take();
        block.ok_or(Error::NotRegistered(addr))
    }

    /// Works with a block. Others that want the same one wait: the driver may be asked.
    pub fn with<T>(&self, addr: DeviceAddr, work: impl FnOnce(&mut RegisteredBlock<D>) -> T) -> Result<T, Error> {
        let entry = self.by_address.lock().get(&addr).map(Arc::clone).ok_or(Error::NotRegistered(addr))?;
        let mut block = entry.lock();
        block.as_mut().map(work).ok_or(Error::NotRegistered(addr))
    }
}
