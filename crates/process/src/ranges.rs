//! Growable ranges by address: memory of a device that grows and shrinks at its end.
//!
//! - I1  a range is in the table from its reservation to its removal, whoever works with it meanwhile.
//! - I2  a range has its memory and its addresses as long as it is in the table, or somebody holds it.
//!
//! Threads: any. The table is not locked while a range grows, shrinks or goes, which may take its time; each range has a lock of
//! its own for that.

use crate::error::Error;
use gapless::allocator::{AllocError, MapListeners, VirtualRange};
use gapless::driver::Driver;
use gapless::{DeviceAddr, ProcessIdentity};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keeps a range of a device: also when it is closed, it has its memory and its addresses until the last one of these is dropped.
/// That waits for the streams that the range was used with.
#[derive(Debug)]
pub struct RangeHold<D: Driver>(Arc<Mutex<VirtualRange<D>>>);

impl<D: Driver> RangeHold<D> {
    pub(crate) fn new(range: Arc<Mutex<VirtualRange<D>>>) -> Self {
        Self(range)
    }

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
    process: ProcessIdentity,
    by_address: Mutex<BTreeMap<DeviceAddr, Arc<Mutex<VirtualRange<D>>>>>,
}

impl<D: Driver> Ranges<D> {
    pub fn new() -> Self {
        Self { process: ProcessIdentity::current(), by_address: Mutex::default() }
    }

    pub fn add(&self, range: VirtualRange<D>) -> DeviceAddr {
        let addr = range.addr();
        self.by_address.lock().insert(addr, Arc::new(Mutex::new(range)));
        addr
    }

    pub fn find(&self, addr: DeviceAddr) -> Result<Arc<Mutex<VirtualRange<D>>>, Error> {
        self.expect_usable()?;
        self.by_address.lock().get(&addr).map(Arc::clone).ok_or(Error::NotARange(addr))
    }

    pub fn remove(&self, addr: DeviceAddr) -> Result<Arc<Mutex<VirtualRange<D>>>, Error> {
        self.expect_usable()?;
        self.by_address.lock().remove(&addr).ok_or(Error::NotARange(addr))
    }

    /// Refuses where a lock may be held for ever, or by whoever has called this.
    fn expect_usable(&self) -> Result<(), AllocError> {
        MapListeners::expect_outside()?;
        if !self.process.is_current() {
            return Err(AllocError::Forked { built_in: self.process.number() });
        }
        Ok(())
    }
}
