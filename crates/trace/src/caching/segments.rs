//! Segments of a fixed size: `cudaMalloc` and `cudaFree` in terms of virtual memory management.

use super::error::is_out_of_memory;
use gapless::driver::{ChunkHandle, Driver, DriverResult, HostMemory};
use gapless::units::{DeviceAddr, round_up};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes of the segments that slept or woke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentBytes {
    /// Bytes of segments that lost or got memory.
    pub mapped_bytes: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
}

/// A segment that is asleep.
#[derive(Clone, Copy, Debug)]
pub(super) struct AsleepSegment {
    pub bytes: u64,
    /// Its bytes, unless they were discarded.
    pub backup: Option<HostMemory>,
}

/// The segments of one allocator. Each is one chunk mapped in a reservation of the same size.
pub(super) struct Segments<D: Driver> {
    driver: Arc<D>,
    /// The chunk of each segment and its size in bytes, by the segment's address.
    chunks: HashMap<DeviceAddr, (ChunkHandle, u64)>,
    /// The segments that keep their addresses and have no memory.
    asleep: BTreeMap<DeviceAddr, AsleepSegment>,
}

impl<D: Driver> Segments<D> {
    pub(super) fn new(driver: Arc<D>) -> Self {
        Self { driver, chunks: HashMap::new(), asleep: BTreeMap::new() }
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
            let mapped = self.map(addr, bytes, chunk);
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

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        self.driver.map(addr, bytes, chunk)?;
        self.driver.set_access(addr, bytes).or_else(|error| self.driver.unmap(addr, bytes).and(Err(error)))
    }

    /// The segments with memory and their sizes in bytes, in the order of their addresses.
    pub(super) fn awake(&self) -> Vec<(DeviceAddr, u64)> {
        let mut awake: Vec<_> = self.chunks.iter().map(|(addr, (_, bytes))| (*addr, *bytes)).collect();
        awake.sort_unstable();
        awake
    }

    /// The segments without, in the order of their addresses.
    pub(super) fn asleep(&self) -> Vec<(DeviceAddr, AsleepSegment)> {
        self.asleep.iter().map(|(addr, segment)| (*addr, *segment)).collect()
    }

    /// Takes the memory of a segment away, after the host has waited for the device and for the copies.
    pub(super) fn put_to_sleep(&mut self, addr: DeviceAddr, segment: AsleepSegment) -> DriverResult<()> {
        let (chunk, bytes) = self.chunks.remove(&addr).expect("the segment has memory");
        self.asleep.insert(addr, segment);
        self.driver.unmap(addr, bytes)?;
        self.driver.release(chunk)
    }

    /// Gives memory to a segment that is asleep. Returns `false` if the device is out of memory.
    pub(super) fn wake(&mut self, addr: DeviceAddr) -> DriverResult<bool> {
        let bytes = self.asleep.get(&addr).expect("the segment is asleep").bytes;
        let mapped = self.driver.create(bytes).and_then(|chunk| {
            let mapped = self.map(addr, bytes, chunk);
            mapped.map(|()| chunk).or_else(|error| self.driver.release(chunk).and(Err(error)))
        });
        match mapped {
            Ok(chunk) => {
                self.asleep.remove(&addr);
                self.chunks.insert(addr, (chunk, bytes));
                Ok(true)
            }
            Err(error) if is_out_of_memory(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives the addresses of a segment that is asleep back.
    pub(super) fn forget(&mut self, addr: DeviceAddr) -> DriverResult<()> {
        let segment = self.asleep.remove(&addr).expect("the segment is asleep");
        self.driver.address_free(addr, segment.bytes)
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
