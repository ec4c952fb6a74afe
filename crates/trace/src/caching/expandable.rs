//! Expandable segments: reservations in which memory is mapped and unmapped in handles of one size.
//!
//! - I1  a handle is either mapped whole at its place or does not exist; none is kept for later.
//! - I2  a mapping that fails leaves nothing behind.

use super::error::is_out_of_memory;
use gapless::driver::{ChunkHandle, Driver, DriverResult};
use gapless::units::DeviceAddr;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// The expandable segments of one allocator.
pub(super) struct ExpandableSegments<D: Driver> {
    driver: Arc<D>,
    /// The segments by their addresses.
    spaces: BTreeMap<DeviceAddr, Space>,
    /// The mapped handles by their addresses.
    handles: HashMap<DeviceAddr, ChunkHandle>,
}

#[derive(Clone, Copy)]
struct Space {
    bytes: u64,
    handle_bytes: u64,
}

impl<D: Driver> ExpandableSegments<D> {
    pub(super) fn new(driver: Arc<D>) -> Self {
        Self { driver, spaces: BTreeMap::new(), handles: HashMap::new() }
    }

    /// Reserves a segment with addresses for 9/8 of the device's memory, in whole handles. Returns its address and size,
    /// or `None` if there are not that many addresses.
    pub(super) fn create(&mut self, handle_bytes: u64) -> DriverResult<Option<(DeviceAddr, u64)>> {
        let total = self.driver.memory_info()?.total;
        let bytes = total.checked_add(total / 8).and_then(|bytes| bytes.checked_next_multiple_of(handle_bytes));
        let Some(bytes) = bytes else { return Ok(None) };
        match self.driver.reserve(bytes, self.driver.granularity()) {
            Ok(addr) => {
                self.spaces.insert(addr, Space { bytes, handle_bytes });
                Ok(Some((addr, bytes)))
            }
            Err(error) if is_out_of_memory(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives back the addresses of a segment in which nothing is mapped.
    pub(super) fn destroy(&mut self, addr: DeviceAddr) -> DriverResult<()> {
        let space = self.spaces.remove(&addr).expect("the address is the start of a segment");
        self.driver.address_free(addr, space.bytes)
    }

    /// Maps memory at `addr`, where a handle begins, for at least `bytes` bytes. Returns how many were mapped, in whole
    /// handles, or `None` if the device is out of memory.
    pub(super) fn map(&mut self, addr: DeviceAddr, bytes: u64) -> DriverResult<Option<u64>> {
        let step = self.space_at(addr).1.handle_bytes;
        let bytes = bytes.next_multiple_of(step);
        let mut created = Vec::new();
        let mapped = self.create_handles(bytes / step, step, &mut created).and_then(|()| {
            let mut done = 0;
            let result =
                self.map_handles(addr, step, &created, &mut done).and_then(|()| self.driver.set_access(addr, bytes));
            if let Err(error) = result {
                (0..done).try_for_each(|index| self.driver.unmap(addr.offset(index * step), step))?;
                return Err(error);
            }
            Ok(())
        });
        match mapped {
            Ok(()) => {
                self.handles.extend((0..).map(|index: u64| addr.offset(index * step)).zip(created));
                Ok(Some(bytes))
            }
            Err(error) => {
                created.into_iter().try_for_each(|handle| self.driver.release(handle))?;
                if is_out_of_memory(&error) { Ok(None) } else { Err(error) }
            }
        }
    }

    fn create_handles(&self, count: u64, bytes: u64, created: &mut Vec<ChunkHandle>) -> DriverResult<()> {
        for _ in 0..count {
            created.push(self.driver.create(bytes)?);
        }
        Ok(())
    }

    /// Maps handles of `step` bytes one after another from `addr` on, and counts them in `done`.
    fn map_handles(&self, addr: DeviceAddr, step: u64, handles: &[ChunkHandle], done: &mut u64) -> DriverResult<()> {
        for &handle in handles {
            self.driver.map(addr.offset(*done * step), step, handle)?;
            *done += 1;
        }
        Ok(())
    }

    /// Returns the part of `bytes` bytes at `addr` that consists of whole handles: an offset from `addr` and a size,
    /// which may be 0.
    pub(super) fn whole_handles(&self, addr: DeviceAddr, bytes: u64) -> (u64, u64) {
        let (start, space) = self.space_at(addr);
        let offset = addr.0 - start.0;
        let Range { start: first, end } =
            offset.next_multiple_of(space.handle_bytes)..(offset + bytes) / space.handle_bytes * space.handle_bytes;
        (first - offset, end.saturating_sub(first))
    }

    /// Unmaps and releases the handles that `bytes` bytes at `addr` consist of, after the host has waited for their
    /// stream.
    pub(super) fn unmap(&mut self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let step = self.space_at(addr).1.handle_bytes;
        for index in 0..bytes / step {
            let addr = addr.offset(index * step);
            let handle = self.handles.remove(&addr).expect("a handle is mapped here");
            self.driver.unmap(addr, step)?;
            self.driver.release(handle)?;
        }
        Ok(())
    }

    /// Gives everything back, live or not, after the host has waited for the device.
    pub(super) fn destroy_all(&mut self) {
        for (addr, handle) in std::mem::take(&mut self.handles) {
            // If the device is lost, the memory is lost with it.
            let _ = self.driver.unmap(addr, self.space_at(addr).1.handle_bytes);
            let _ = self.driver.release(handle);
        }
        for (addr, space) in std::mem::take(&mut self.spaces) {
            let _ = self.driver.address_free(addr, space.bytes);
        }
    }

    fn space_at(&self, addr: DeviceAddr) -> (DeviceAddr, Space) {
        let (&start, &space) = self.spaces.range(..=addr).next_back().expect("the address is in a segment");
        (start, space)
    }
}
