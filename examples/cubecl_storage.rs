//! gapless as the storage under a runtime's memory pools, in the shape of CubeCL's `ComputeStorage`: allocate a handle,
//! resolve it to a resource when work is launched, free it, flush. Runs on the simulated device; a runtime would pass
//! `CudaDriver::open(0)` instead.
//!
//! `cargo run --example cubecl_storage`
//!
//! CubeCL's pools above such a storage hold pages of several sizes. With gapless below them a page costs what it holds: a
//! freed page's memory serves pages of any other size, on any stream, without a wait of the host.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use gapless::allocator::{AllocError, FreeError};
use gapless::driver::{Driver, ModelConfig, ModelDriver};
use gapless::units::MIB;
use gapless::{Allocator, DeviceAddr, StreamId};

/// What a runtime keeps of an allocation, as CubeCL's `StorageHandle`: an id, and a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StorageHandle {
    id: u64,
    offset: u64,
    size: u64,
}

/// What a launch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resource {
    addr: DeviceAddr,
    size: u64,
}

/// The interface, as CubeCL has it.
trait ComputeStorage {
    type Error;

    fn alignment(&self) -> u64;
    fn get(&mut self, handle: &StorageHandle) -> Resource;
    fn alloc(&mut self, size: u64) -> Result<StorageHandle, Self::Error>;
    fn dealloc(&mut self, id: u64);
    fn flush(&mut self);
}

struct GaplessStorage<D: Driver> {
    allocator: Allocator<D>,
    stream: StreamId,
    allocations: HashMap<u64, DeviceAddr>,
    next_id: u64,
    /// Freed at the next flush, as CubeCL has it: work that uses them may not have been queued yet.
    freed: Vec<DeviceAddr>,
}

impl<D: Driver> GaplessStorage<D> {
    fn new(allocator: Allocator<D>, stream: StreamId) -> Self {
        Self { allocator, stream, allocations: HashMap::new(), next_id: 0, freed: Vec::new() }
    }

    fn free_all(&mut self) -> Result<(), FreeError> {
        self.freed.drain(..).try_for_each(|addr| self.allocator.free(addr))
    }
}

impl<D: Driver> ComputeStorage for GaplessStorage<D> {
    type Error = AllocError;

    fn alignment(&self) -> u64 {
        gapless::heap::GRANULE
    }

    fn get(&mut self, handle: &StorageHandle) -> Resource {
        let addr = self.allocations[&handle.id];
        Resource { addr: addr.offset(handle.offset), size: handle.size }
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, AllocError> {
        let addr = self.allocator.alloc(size, self.stream)?;
        let id = self.next_id;
        self.next_id += 1;
        self.allocations.insert(id, addr);
        Ok(StorageHandle { id, offset: 0, size })
    }

    fn dealloc(&mut self, id: u64) {
        if let Some(addr) = self.allocations.remove(&id) {
            self.freed.push(addr);
        }
    }

    fn flush(&mut self) {
        self.free_all().expect("every address was allocated here and is freed once");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let driver = ModelDriver::new(ModelConfig { capacity_bytes: 256 * MIB, ..ModelConfig::default() });
    let allocator = Allocator::builder(Arc::new(driver)).build()?;
    let mut storage = GaplessStorage::new(allocator.clone(), StreamId::DEFAULT);

    // Pages of one size fill the device; every second one is freed.
    let pages: Vec<StorageHandle> = (0..16).map(|_| storage.alloc(16 * MIB)).collect::<Result<_, _>>()?;
    for page in pages.iter().step_by(2) {
        storage.dealloc(page.id);
    }
    storage.flush();

    // What is free serves a page of another size, though no two of the freed ones touch.
    let large = storage.alloc(128 * MIB)?;
    let part = StorageHandle { offset: 64 * MIB, size: MIB, ..large };
    println!("{part:?} is {:?}", storage.get(&part));
    assert!(storage.alloc(MIB).is_err(), "the device is full, to the byte");
    assert!(storage.get(&large).addr.is_aligned(storage.alignment()));

    storage.dealloc(large.id);
    pages.iter().skip(1).step_by(2).for_each(|page| storage.dealloc(page.id));
    storage.flush();
    drop(storage);
    allocator.close()?;
    Ok(())
}
