//! Segments: `cudaMalloc` and `cudaFree` in terms of virtual memory management.

use super::is_out_of_memory;
use gapless::driver::{ChunkHandle, Driver, DriverResult, EventHandle, MemoryInfo};
use gapless::units::{DeviceAddr, StreamId, round_up};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The segments of one allocator. Each is one chunk mapped in a reservation of the same size.
pub(super) struct Segments<D: Driver> {
    driver: Arc<D>,
    /// The chunk of each segment and its size in bytes, by the segment's address.
    chunks: HashMap<DeviceAddr, (ChunkHandle, u64)>,
    /// The streams used so far, each with the event that is recorded on it to wait for the device.
    events: BTreeMap<StreamId, EventHandle>,
}

impl<D: Driver> Segments<D> {
    pub(super) fn new(driver: Arc<D>) -> Self {
        Self { driver, chunks: HashMap::new(), events: BTreeMap::new() }
    }

    pub(super) fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.driver.memory_info()
    }

    /// `cudaMalloc` for use on `stream`. Returns `None` if the device is out of memory.
    pub(super) fn create(&mut self, bytes: u64, stream: StreamId) -> DriverResult<Option<DeviceAddr>> {
        if let std::collections::btree_map::Entry::Vacant(new) = self.events.entry(stream) {
            new.insert(self.driver.event_create()?);
        }
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

    /// `cudaFree`, after [`wait_for_device`](Self::wait_for_device).
    pub(super) fn destroy(&mut self, addr: DeviceAddr) -> DriverResult<()> {
        let (chunk, bytes) = self.chunks.remove(&addr).expect("the address is the start of a segment");
        self.driver.unmap(addr, bytes)?;
        self.driver.release(chunk)?;
        self.driver.address_free(addr, bytes)
    }

    /// Blocks until all work queued on any stream has completed.
    pub(super) fn wait_for_device(&self) -> DriverResult<()> {
        for (&stream, &event) in &self.events {
            self.driver.event_record(event, stream)?;
        }
        self.events.values().try_for_each(|&event| self.driver.event_synchronize(event))
    }
}

/// Frees the remaining segments, live or not, because a device is used for more than one replay.
impl<D: Driver> Drop for Segments<D> {
    fn drop(&mut self) {
        // If the device is lost, the memory is lost with it, and `drop` cannot report an error.
        if self.wait_for_device().is_ok() {
            for addr in self.chunks.keys().copied().collect::<Vec<_>>() {
                let _ = self.destroy(addr);
            }
        }
        for &event in self.events.values() {
            let _ = self.driver.event_destroy(event);
        }
    }
}
