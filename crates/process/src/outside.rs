//! Blocks that others use by themselves: pinned, registered, and shared with other processes.
//!
//! Threads: any.

use crate::device::Device;
use crate::driver::DeviceDriver;
use crate::error::Error;
use crate::pools::PoolId;
use gapless::allocator::Holder;
use gapless::driver::{DriverCall, DriverError, DriverErrorKind};
use gapless::{DeviceAddr, StreamId};
use gapless_share::Handle;
use std::os::fd::OwnedFd;
use std::time::Duration;

impl<D: DeviceDriver> Device<D> {
    /// Pins an allocation: until [`unpin`](Self::unpin) has been called as often, its bytes are not handed out again, and what is
    /// mapped there stays, also once it was freed.
    ///
    /// # Errors
    /// [`Error::Free`] or [`Error::Alloc`] where no live allocation starts at the address.
    pub fn pin(&self, addr: DeviceAddr) -> Result<(), Error> {
        self.expect_not_deferred(addr)?;
        let allocator = self.allocator_of(addr).unwrap_or_else(|| self.main.allocator.clone());
        self.pins.add(addr, allocator.pin(addr)?);
        Ok(())
    }

    /// Takes a pin off an allocation, or off what was one when it was pinned.
    ///
    /// # Errors
    /// [`Error::NotPinned`].
    pub fn unpin(&self, addr: DeviceAddr) -> Result<(), Error> {
        drop(self.pins.take(addr).ok_or(Error::NotPinned(addr))?);
        Ok(())
    }

    /// Allocates a block for a library that registers memory: whole pages in a mapping of its own. Pools and the memory history are
    /// not about it.
    ///
    /// # Errors
    /// The allocator's.
    pub fn alloc_registered(&self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, Error> {
        Ok(self.registered.add(self.main.allocator.alloc_registered(bytes, stream)?))
    }

    /// The same for an allocator beside gapless, such as PyTorch's own, which counts the block among what it holds. Freed by
    /// [`free_segment`](Self::free_segment).
    ///
    /// # Errors
    /// The allocator's.
    pub fn alloc_segment(&self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, Error> {
        let lent = self.pools.begin_segment(bytes);
        let block = self.main.allocator.alloc_registered(bytes, stream);
        Ok(self.registered.add(block.inspect_err(|_| self.pools.cancel_segment(bytes, lent))?))
    }

    /// Frees a block of [`alloc_segment`](Self::alloc_segment), after a wait for the streams that it was allocated for and recorded
    /// on. `bytes` are those of its request.
    ///
    /// # Errors
    /// [`Error::NotRegistered`].
    pub fn free_segment(&self, addr: DeviceAddr, bytes: u64) -> Result<(), Error> {
        self.free_registered(addr)?;
        self.pools.end_segment(bytes);
        Ok(())
    }

    /// Records that a stream also uses a registered block: freeing it waits for that stream, too.
    ///
    /// # Errors
    /// [`Error::NotRegistered`], or the allocator's.
    pub fn record_registered(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), Error> {
        Ok(self.registered.with(addr, |block| block.record_stream(stream))??)
    }

    /// A dma-buf of a registered block.
    ///
    /// # Errors
    /// [`Error::NotRegistered`], or [`Error::Alloc`] where the device has no dma-bufs.
    pub fn registered_dma_buf(&self, addr: DeviceAddr) -> Result<OwnedFd, Error> {
        Ok(self.registered.with(addr, |block| block.dma_buf())??)
    }

    /// Frees a registered block, after a wait for the streams that it was allocated for and recorded on.
    ///
    /// # Errors
    /// [`Error::NotRegistered`].
    pub fn free_registered(&self, addr: DeviceAddr) -> Result<(), Error> {
        drop(self.registered.remove(addr)?);
        Ok(())
    }

    /// Offers the live allocation that an address lies in to other processes of the user. Returns its handle, and how many
    /// bytes the address lies behind its start.
    ///
    /// # Errors
    /// [`Error::NotLive`], [`Error::Free`] where its free is deferred, [`Error::Share`], [`Error::Driver`]
    /// where the configuration says `sharing:never`.
    pub fn export(&self, addr: DeviceAddr) -> Result<(Handle, u64), Error> {
        if !self.exports {
            let text = "memory is not sent to other processes: GAPLESS_CONF says sharing:never";
            return Err(DriverError::new(DriverCall::Export, DriverErrorKind::NotSupported, text).into());
        }
        let (_, live) = self.live_around(addr).ok_or(Error::NotLive(addr))?;
        let block = live.addr;
        self.expect_not_deferred(block)?;
        let allocator = self.allocator_of(block).unwrap_or_else(|| self.main.allocator.clone());
        Ok((self.sharing.export(&allocator, block)?, addr.0 - block.0))
    }

    /// The processes that have allocations of the device open, by number; those of other namespaces as one without a number.
    pub fn holders(&self) -> Vec<Holder> {
        self.sharing.holders()
    }

    /// Cuts a process off that has imported allocations: what is freed is not held for it any more, see
    /// [`gapless_share::Exporter::cut_off`].
    pub fn cut_off(&self, process: Option<u32>) {
        self.sharing.cut_off(process);
    }

    /// Maps an allocation of another process for use on this device. Returns its address here and its bytes, rounding included.
    /// Each import is closed once. Waits [`gapless_share::PATIENCE`] for the other process.
    ///
    /// # Errors
    /// [`Error::Share`].
    pub fn import(&self, handle: &Handle) -> Result<(DeviceAddr, u64), Error> {
        self.import_within(handle, gapless_share::PATIENCE)
    }

    /// As [`import`](Self::import), but waits at most so long for the other process.
    ///
    /// # Errors
    /// [`Error::Share`].
    pub fn import_within(&self, handle: &Handle, patience: Duration) -> Result<(DeviceAddr, u64), Error> {
        self.sharing.open(handle, patience)
    }

    /// Closes an import. With the last one of an address the host waits for the device; while a stream may be being captured, which
    /// the wait would break, the block stays open and mapped: until the next import or closing, trim or end of a pool.
    ///
    /// # Errors
    /// [`Error::NotImported`].
    pub fn close_import(&self, addr: DeviceAddr) -> Result<(), Error> {
        self.sharing.close(addr)
    }

    /// Closes a pool to new requests, as [`Pools::end`](crate::Pools::end), and closes the imports that its capture kept open.
    pub fn end_pool(&self, id: PoolId) {
        self.pools.end(id);
        self.sharing.settle();
    }

    /// Keeps up to `bytes` of closed imports mapped, those closed last; 0 keeps none, which is what a device begins with.
    pub fn keep_closed_imports(&self, bytes: u64) {
        self.sharing.keep_closed(bytes);
    }
}
