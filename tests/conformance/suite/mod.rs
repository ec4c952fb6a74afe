//! The contract of `driver`, sentence by sentence, as functions over any driver. Each gets a new driver and releases
//! everything that it creates.

mod memory;
mod order;

pub use memory::*;
pub use order::*;

use gapless::driver::{DriverErrorKind, DriverResult, DriverUsage, EventHandle, Violation, WorkDriver};
use gapless::units::{DeviceAddr, StreamId};

/// A driver under test, with functions for checks beyond the contract.
pub trait Subject: WorkDriver {
    /// Whether memory has content. Otherwise the driver only keeps state.
    const HAS_BYTES: bool;

    /// Returns the number of objects that exist, if the driver knows it.
    fn usage(&self) -> Option<DriverUsage>;

    /// Returns the violations of the contract since the last call, if the driver records them.
    fn violations(&self) -> Vec<Violation> {
        Vec::new()
    }
}

/// A reservation, and the chunks mapped from its start, with access.
pub struct Mapped<'a, D: WorkDriver> {
    driver: &'a D,
    pub addr: DeviceAddr,
    pub bytes: u64,
    reserved: u64,
}

impl<'a, D: WorkDriver> Mapped<'a, D> {
    /// Maps `chunks` chunks of `pages` pages each in a reservation of twice the size, and releases their handles.
    pub fn new(driver: &'a D, chunks: u64, pages: u64) -> Self {
        let chunk_bytes = pages * driver.granularity();
        let (bytes, reserved) = (chunks * chunk_bytes, 2 * chunks * chunk_bytes);
        let addr = driver.reserve(reserved, driver.granularity()).unwrap();
        for index in 0..chunks {
            let chunk = driver.create(chunk_bytes).unwrap();
            driver.map(addr.offset(index * chunk_bytes), chunk_bytes, chunk).unwrap();
            driver.release(chunk).unwrap();
        }
        driver.set_access(addr, bytes).unwrap();
        Self { driver, addr, bytes, reserved }
    }

    pub fn unmap_all(self) {
        self.driver.unmap(self.addr, self.bytes).unwrap();
        self.driver.address_free(self.addr, self.reserved).unwrap();
    }
}

pub fn kind<T>(outcome: DriverResult<T>) -> Option<DriverErrorKind> {
    outcome.err().map(|error| error.kind)
}

pub fn recorded<D: WorkDriver>(driver: &D, stream: StreamId) -> EventHandle {
    let event = driver.event_create().unwrap();
    driver.event_record(event, stream).unwrap();
    event
}

const MAIN: StreamId = StreamId::DEFAULT;

/// Runs `test` with `driver`, and checks that it left nothing behind and found no wrong byte.
pub fn run<D: Subject>(driver: &D, test: impl FnOnce(&D)) {
    let free = driver.memory_info().unwrap().free;
    test(driver);
    assert_eq!(driver.take_mismatches(), []);
    assert_eq!(driver.violations(), []);
    if let Some(usage) = driver.usage() {
        assert!(usage.is_empty(), "left in the driver: {usage:?}");
        assert_eq!(driver.memory_info().unwrap().free, free);
    }
}
