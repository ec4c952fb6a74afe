//! Segments of a fixed size: `cudaMalloc` and `cudaFree` in terms of virtual memory management.

use super::error::is_out_of_memory;
use gapless::driver::{ChunkHandle, Driver, DriverResult};
use gapless::units::{DeviceAddr, round_up};
use std::collections::HashMap;
use std::sync::Arc;

/// The segments of one allocator. Each is one chunk mapped in a reservation of the same size.
pub(super) struct Segments<D: Driver> {
    driver: Arc<D>,
    /// The chunk of each segment and its size in bytes, by the segment's address.
    chunks: HashMap<DeviceAddr, (ChunkHandle, u64)>,
}

impl<D: Driver> Segments<D> {
    pub(super) fn new(driver: Arc<D>) -> Self {
        Self { driver, chunks: HashMap::new() }
    }

    /// `cudaMalloc`. Returns `None` if the device is out of memory.
    pub(super) fn create(&mut self, bytes: u64) -> DriverResult<Option<DeviceAddr>> {
        let page = self.driver.granularity();
        let Some(bytes) = round_up(bytes, page) else { return Ok(None) };
        let driver = &*self.driver;
        let chunk = match driver.create(bytes) {
            Ok(chunk) => chunk,
            Err(error) if is_out_of_memory(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let placed = driver.reserve(bytes, page).and_then(|addr| {
            let mapped = driver.map(addr, bytes, chunk).and_then(|()| {
                driver.set_access(addr, bytes).or_else(|error| driver.unmap(addr, bytes).and(Err(error)))
            });
            mapped.map(|()| addr).or_else(|error| driver.address_free(addr, bytes).and(Err(error)))
        });
        match placed {
            Ok(addr) => {
                self.chunks.insert(addr, (chunk, bytes));
                Ok(Some(addr))
            }
            Err(error) => {
                driver.release(chunk)?;
                if is_out_of_memory(&error) { Ok(None) } else { Err(error) }
            }
        }
    }

    /// `cudaFree`, after the host has waited for the device.
    pub(super) fn destroy(&mut self, addr: DeviceAddr) -> DriverResult<()> {
        let (chunk, bytes) = self.chunks.remove(&addr).expect("the address is the start of a segment");
        self.driver.unmap(addr, bytes)?;
        self.driver.release(chunk)?;
        self.driver.address_free(addr, bytes)
    }

    /// Frees all segments, live or not, after the host has waited for the device.
    pub(super) fn destroy_all(&mut self) {
        for addr in self.chunks.keys().copied().collect::<Vec<_>>() {
            // If the device is lost, the memory is lost with it.
            let _ = self.destroy(addr);
        }
    }
}
