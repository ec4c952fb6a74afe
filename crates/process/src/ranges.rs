//! Growable ranges by address: memory of a device that grows and shrinks at its end.
//!
//! - I1  a range is in the table from its reservation to its [`close`](Device::close_range), whoever works with it meanwhile.
//! - I2  a range has its memory and its addresses as long as it is in the table, or somebody holds it.
//!
//! Threads: any. The table is not locked while a range grows, shrinks or goes, which may take its time; each range has a lock of its
//! own for that.

use crate::device::Device;
use crate::driver::DeviceDriver;
use crate::error::Error;
use crate::pools::wants_room;
use crate::recorded::Request;
use gapless::allocator::{AllocError, VirtualRange};
use gapless::driver::Driver;
use gapless::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keeps a range of a device: also when it is closed, it has its memory and its addresses until the last one of these is dropped.
/// That waits for the streams that the range was used with.
#[derive(Debug)]
pub struct RangeHold<D: Driver>(Arc<Mutex<VirtualRange<D>>>);

impl<D: Driver> RangeHold<D> {
    /// The first address of the range.
    pub fn addr(&self) -> DeviceAddr {
        self.0.lock().addr()
    }

    /// Bytes of its addresses.
    pub fn address_bytes(&self) -> u64 {
        self.0.lock().address_bytes()
    }
}

/// The growable ranges of one device.
pub(crate) struct Ranges<D: Driver> {
    /// The process that has them. In one that is forked from it, locks may be held for ever by threads that are not there.
    process: u32,
    by_address: Mutex<BTreeMap<DeviceAddr, Arc<Mutex<VirtualRange<D>>>>>,
}

impl<D: Driver> Ranges<D> {
    pub fn new() -> Self {
        Self { process: std::process::id(), by_address: Mutex::default() }
    }

    fn add(&self, range: VirtualRange<D>) -> DeviceAddr {
        let addr = range.addr();
        self.by_address.lock().insert(addr, Arc::new(Mutex::new(range)));
        addr
    }

    fn find(&self, addr: DeviceAddr) -> Result<Arc<Mutex<VirtualRange<D>>>, Error> {
        self.expect_not_forked()?;
        self.by_address.lock().get(&addr).map(Arc::clone).ok_or(Error::NotARange(addr))
    }

    fn remove(&self, addr: DeviceAddr) -> Result<Arc<Mutex<VirtualRange<D>>>, Error> {
        self.expect_not_forked()?;
        self.by_address.lock().remove(&addr).ok_or(Error::NotARange(addr))
    }

    fn expect_not_forked(&self) -> Result<(), AllocError> {
        if std::process::id() != self.process {
            return Err(AllocError::Forked { built_in: self.process });
        }
        Ok(())
    }
}

impl<D: DeviceDriver> Device<D> {
    /// Reserves `bytes` of addresses, rounded up to whole pages, for a growable range. Nothing is mapped yet. Returns the first
    /// address, which names the range until it is [closed](Self::close_range). Pools and the memory history are not about it.
    ///
    /// # Errors
    /// The allocator's.
    pub fn reserve_range(&self, bytes: u64) -> Result<DeviceAddr, Error> {
        Ok(self.ranges.add(self.main.allocator.reserve_range(bytes)?))
    }

    /// Maps at least `bytes` more at the end of a range, in whole pages, for work on `stream`. 0 bytes: only records that `stream`
    /// uses the range. Where there is too little memory, takes what the allocator has free, and what pools give back.
    ///
    /// # Errors
    /// [`Error::NotARange`], or the allocator's; a report of a lack of memory says what all of the device's allocators hold. The
    /// range is as before.
    pub fn grow_range(&self, addr: DeviceAddr, bytes: u64, stream: StreamId) -> Result<(), Error> {
        let range = self.ranges.find(addr)?;
        let mut range = range.lock();
        self.settle_over();
        let mut grown = range.grow(bytes, stream);
        if wants_room(&grown) && self.pools.make_room(&Request::new(bytes, stream)) {
            grown = range.grow(bytes, stream);
        }
        if wants_room(&grown) && self.foreign.has_deferred() {
            self.settle_foreign();
            grown = range.grow(bytes, stream);
        }
        // What was created for it, and is in the report, is held no more.
        Ok(grown.map_err(|error| self.with_elsewhere(error, |_| self.pools.held_bytes()))?)
    }

    /// Unmaps up to `bytes` at the end of a range: the whole chunks that lie in them, whose memory others may have from then on.
    /// Waits for the streams that the range was used with. Returns the number of bytes unmapped.
    ///
    /// # Errors
    /// [`Error::NotARange`], or the allocator's; chunks unmapped before stay unmapped.
    pub fn shrink_range(&self, addr: DeviceAddr, bytes: u64) -> Result<u64, Error> {
        let range = self.ranges.find(addr)?;
        Ok(range.lock().shrink(bytes)?)
    }

    /// The bytes of a range that may be used, from its start, and those of its addresses.
    ///
    /// # Errors
    /// [`Error::NotARange`].
    pub fn range_bytes(&self, addr: DeviceAddr) -> Result<(u64, u64), Error> {
        let range = self.ranges.find(addr)?;
        let range = range.lock();
        Ok((range.mapped_bytes(), range.address_bytes()))
    }

    /// Keeps a range as it is after it was closed, until the result is dropped.
    ///
    /// # Errors
    /// [`Error::NotARange`].
    pub fn hold_range(&self, addr: DeviceAddr) -> Result<RangeHold<D>, Error> {
        Ok(RangeHold(self.ranges.find(addr)?))
    }

    /// Closes a range: its address names none any more. Unless somebody holds it, returns its memory to the allocator after a wait
    /// for the streams that it was used with, and its addresses to the driver. Where one of the streams is being captured, that
    /// happens later.
    ///
    /// # Errors
    /// [`Error::NotARange`].
    pub fn close_range(&self, addr: DeviceAddr) -> Result<(), Error> {
        drop(self.ranges.remove(addr)?);
        Ok(())
    }
}
