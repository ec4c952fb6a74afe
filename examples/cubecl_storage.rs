//! gapless as the storage of a runtime's memory pools, with the interface of CubeCL's `ComputeStorage`: allocate a
//! handle, resolve it to a resource when work is launched, free it, flush. Runs on the simulated device; a runtime
//! would use `CudaBuilder::device_allocator`, which has an allocator for every GPU.
//!
//! `cargo run --example cubecl_storage`
//!
//! CubeCL's pools use pages of several sizes from such a storage. With gapless, the memory of a freed page can be used
//! for pages of any other size, on any stream, without making the host wait.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use gapless::allocator::{AllocError, DeviceAllocator, FreeError};
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::MIB;
use gapless::{Allocator, DeviceAddr, StreamId};

/// A runtime's handle of an allocation, like CubeCL's `StorageHandle`: an id, and a part of the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StorageHandle {
    id: u64,
    offset: u64,
    size: u64,
}

/// The memory of a handle, as a kernel launch needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resource {
    addr: DeviceAddr,
    size: u64,
}

/// The interface of CubeCL.
trait ComputeStorage {
    type Error;

    fn alignment(&self) -> u64;
    fn get(&mut self, handle: &StorageHandle) -> Resource;
    fn alloc(&mut self, size: u64) -> Result<StorageHandle, Self::Error>;
    fn dealloc(&mut self, id: u64);
    fn flush(&mut self);
}

struct GaplessStorage {
    allocator: Arc<dyn DeviceAllocator>,
    stream: StreamId,
    allocations: HashMap<u64, DeviceAddr>,
    next_id: u64,
    /// Allocations to free at the next flush, as in CubeCL: work that uses them may not have been queued yet.
    freed: Vec<DeviceAddr>,
}

impl GaplessStorage {
    fn new(allocator: Arc<dyn DeviceAllocator>, stream: StreamId) -> Self {
        Self { allocator, stream, allocations: HashMap::new(), next_id: 0, freed: Vec::new() }
    }

    fn free_all(&mut self) -> Result<(), FreeError> {
        self.freed.drain(..).try_for_each(|addr| self.allocator.free(addr))
    }
}

impl ComputeStorage for GaplessStorage {
    type Error = AllocError;

    fn alignment(&self) -> u64 {
        gapless::GRANULE
    }

    fn get(&mut self, handle: &StorageHandle) -> Resource {
        let addr = self.allocations[&handle.id];
        Resource { addr: addr.offset(handle.offset), size: handle.size }
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, AllocError> {
        let addr = self.allocator.alloc_raw(size, self.stream)?;
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
    let mut storage = GaplessStorage::new(Arc::new(allocator.clone()), StreamId::DEFAULT);

    // Fill the device with pages of one size, then free every second one.
    let pages: Vec<StorageHandle> = (0..16).map(|_| storage.alloc(16 * MIB)).collect::<Result<_, _>>()?;
    for page in pages.iter().step_by(2) {
        storage.dealloc(page.id);
    }
    storage.flush();

    // The free memory is used for a page of another size, although no two freed pages are adjacent.
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
