//! Sharing with other processes: blocks of a device by address, blocks of others by handle.
//!
//! - I1  an address is in the table of imports as often as it was imported and not closed.
//!
//! Threads: any. The table is not locked while a block is opened or closed, which may take its time.

use crate::error::Error;
use gapless::driver::Driver;
use gapless::{Allocator, DeviceAddr};
use gapless_share::{Exporter, Handle, Importer, SharedBlock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What one device shares with other processes.
pub(crate) struct Sharing<D: Driver> {
    exporter: Exporter<D>,
    importer: Importer<D>,
    imports: Mutex<BTreeMap<DeviceAddr, Vec<SharedBlock<D>>>>,
}

impl<D: Driver + 'static> Sharing<D> {
    pub fn new(allocator: &Allocator<D>) -> Self {
        let importer = Importer::new(Arc::clone(allocator.driver()));
        Self { exporter: Exporter::new(), importer, imports: Mutex::default() }
    }

    /// At the end of the process: nobody else opens anything.
    pub fn remove_socket(&self) {
        self.exporter.remove_socket();
    }

    /// Offers a live block of one of the device's allocators.
    pub fn export(&self, allocator: &Allocator<D>, block: DeviceAddr) -> Result<Handle, Error> {
        Ok(self.exporter.export(allocator, block)?)
    }

    /// Opens a block of another process. Returns its address and its bytes, rounding included.
    pub fn open(&self, handle: &Handle) -> Result<(DeviceAddr, u64), Error> {
        let block = self.importer.open(handle)?;
        let found = (block.addr(), block.bytes());
        self.imports.lock().entry(block.addr()).or_default().push(block);
        Ok(found)
    }

    /// Closes one import of the block at an address.
    pub fn close(&self, addr: DeviceAddr) -> Result<(), Error> {
        drop(self.take(addr)?);
        Ok(())
    }

    /// Keeps up to `bytes` of closed imports mapped.
    pub fn keep_closed(&self, bytes: u64) {
        self.importer.keep_closed(bytes);
    }

    fn take(&self, addr: DeviceAddr) -> Result<SharedBlock<D>, Error> {
        let mut imports = self.imports.lock();
        let none = || Error::NotImported(addr);
        let blocks = imports.get_mut(&addr).ok_or_else(none)?;
        let block = blocks.pop().ok_or_else(none)?;
        if blocks.is_empty() {
            imports.remove(&addr);
        }
        Ok(block)
    }
}
