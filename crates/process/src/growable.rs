//! Growable ranges of a process's devices: memory at an address that stays, by which a front end names it.
//!
//! Threads: any.

use crate::device::Device;
use crate::driver::DeviceDriver;
use crate::error::Error;
use crate::pools::wants_room;
use crate::process::Process;
use crate::ranges::RangeHold;
use crate::recorded::Request;
use gapless::allocator::RangeError;
use gapless::{DeviceAddr, StreamId};

impl<D: DeviceDriver> Process<D> {
    /// Records that `stream`, which lives as long as the process, uses the range that starts at an address, of whichever device.
    /// Returns false where there is none.
    ///
    /// # Errors
    /// The allocator's, as for a stream of another device.
    pub fn record_range(&self, addr: DeviceAddr, stream: StreamId) -> Result<bool, Error> {
        let Some(device) = self.devices().find(|device| device.ranges.find(addr).is_ok()) else { return Ok(false) };
        device.keep_stream(stream)?;
        device.grow_range(addr, 0, stream)?;
        Ok(true)
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
        if wants_room(&grown, RangeError::report) && self.pools.make_room(&Request::new(bytes, stream)) {
            grown = range.grow(bytes, stream);
        }
        if wants_room(&grown, RangeError::report) && self.foreign.has_deferred() {
            self.settle_foreign();
            grown = range.grow(bytes, stream);
        }
        // What was created for it, and is in the report, is held no more.
        grown.map_err(|error| match error {
            RangeError::Alloc(error) => self.with_elsewhere(error, |_| self.pools.held_bytes()).into(),
            other => other.into(),
        })
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

    /// Moves whole chunks of up to `bytes` from the end of the range at `from` to the end of the one at `addr`, contents and all,
    /// for work on `stream` that is ordered behind all other work on the end of the former. Their order is kept, and the host does
    /// not wait. Returns the number of bytes moved.
    ///
    /// # Errors
    /// [`Error::NotARange`], [`Error::SameRange`], or the allocator's. Both ranges are as before.
    pub fn take_from_range(
        &self,
        addr: DeviceAddr,
        from: DeviceAddr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<u64, Error> {
        let (taker, giver) = (self.ranges.find(addr)?, self.ranges.find(from)?);
        if addr == from {
            return Err(Error::SameRange(addr));
        }
        // In the order of their addresses, so that of two calls one goes first.
        let (mut taker, mut giver) = if addr < from {
            let taker = taker.lock();
            (taker, giver.lock())
        } else {
            let giver = giver.lock();
            (taker.lock(), giver)
        };
        Ok(taker.take_from(&mut giver, bytes, stream)?)
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
        Ok(RangeHold::new(self.ranges.find(addr)?))
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
