//! Sharing with other processes: blocks of a device by address, blocks of others by handle.
//!
//! Threads: any. The table is not locked while a block is opened or closed, which may take its time.

use crate::by_address::ByAddress;
use crate::driver::{DeviceDriver, driver_of};
use crate::error::Error;
use crate::pools::Pools;
use gapless::allocator::Holder;
use gapless::driver::Driver;
use gapless::{Allocator, DeviceAddr};
use gapless_share::{Exporter, Handle, Importer, SharedBlock};
use std::sync::Arc;
use std::time::Duration;

/// The memory that one device shares with other processes.
pub(crate) struct Sharing<D: Driver> {
    exporter: Exporter<D>,
    importer: Importer<D>,
    imports: ByAddress<SharedBlock<D>>,
}

impl<D: DeviceDriver> Sharing<D> {
    /// Nothing is shared yet. Imports are not unmapped while a stream may be being captured, of which the pools know. With
    /// `exposes`, what others have opened is not used again once it is freed.
    pub fn new(allocator: &Allocator<D>, pools: Arc<Pools<D>>, exposes: bool) -> Self {
        let importer = Importer::with_captures(Arc::clone(driver_of(allocator)), move || pools.may_be_captured());
        let exporter = if exposes { Exporter::exposing() } else { Exporter::new() };
        Self { exporter, importer, imports: ByAddress::new() }
    }

    /// At the end of the process: nobody else opens anything, and no thread of this crate calls the driver any more.
    pub fn end(&self) {
        self.exporter.end();
    }

    /// Offers a live block of one of the device's allocators.
    pub fn export(&self, allocator: &Allocator<D>, block: DeviceAddr) -> Result<Handle, Error> {
        Ok(self.exporter.export(allocator, block)?)
    }

    /// Opens a block of another process, for which it waits at most so long. Returns its address and its bytes, rounding included.
    pub fn open(&self, handle: &Handle, patience: Duration) -> Result<(DeviceAddr, u64), Error> {
        let block = self.importer.open_within(handle, patience)?;
        let found = (block.addr(), block.bytes());
        self.imports.add(block.addr(), block);
        Ok(found)
    }

    /// Closes one import of the block at an address.
    pub fn close(&self, addr: DeviceAddr) -> Result<(), Error> {
        self.imports.take(addr).map(drop).ok_or(Error::NotImported(addr))
    }

    /// The processes that have blocks of the device open.
    pub fn holders(&self) -> Vec<Holder> {
        self.exporter.holders()
    }

    /// Holds nothing for a process any more.
    pub fn cut_off(&self, process: Option<u32>) {
        self.exporter.cut_off(process);
    }

    /// Unmaps the imports that were closed during a capture, if there is none now.
    pub fn settle(&self) {
        self.importer.settle();
    }

    /// Keeps up to `bytes` of closed imports mapped.
    pub fn keep_closed(&self, bytes: u64) {
        self.importer.keep_closed(bytes);
    }
}
