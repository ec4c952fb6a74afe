//! A GPU as a device that a test can hold to account: a small part of it, with books of what is alive there.
//!
//! - I1  what the books have is what calls that succeeded have made and not given back.
//!
//! A GPU's streams cannot be held. A hold makes the stream busy for a moment, so that work is in flight when the
//! allocator asks; nothing that the oracle demands depends on how long.

use crate::device::{Device, World};
use gapless::driver::cuda::{CudaBuilder, CudaDriver, OpenError};
use gapless::driver::{
    ChunkHandle, DriverCall, DriverError, DriverErrorKind, DriverResult, DriverUsage, EventHandle, HoldStreams,
    MemoryDriver, MemoryInfo, Mismatch, StreamDriver, WorkDriver,
};
use gapless::units::{DeviceAddr, MIB, StreamId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::OnceLock;
use std::time::Duration;

/// Part of the GPU that [`open_device`](Self::open_device) has opened.
#[derive(Debug)]
pub struct Cuda {
    driver: &'static CudaDriver,
    capacity: u64,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    chunks: HashMap<ChunkHandle, Chunk>,
    /// Bytes and chunk at an address.
    mappings: BTreeMap<u64, (u64, ChunkHandle)>,
    reservations: HashMap<u64, u64>,
    events: usize,
    streams: HashSet<StreamId>,
    external: u64,
    host_waits: u64,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    bytes: u64,
    handle: bool,
    mappings: usize,
}

/// How long a stream that is held is busy.
const HOLD: Duration = Duration::from_micros(100);
/// One for all: opening takes a while, and its kernels are loaded once.
static DEVICE: OnceLock<CudaDriver> = OnceLock::new();

impl Books {
    fn bytes(&self) -> u64 {
        self.chunks.values().map(|chunk| chunk.bytes).sum()
    }

    /// Forgets a chunk when neither its handle nor a mapping is left.
    fn settle(&mut self, handle: ChunkHandle) {
        if self.chunks.get(&handle).is_some_and(|chunk| !chunk.handle && chunk.mappings == 0) {
            self.chunks.remove(&handle);
        }
    }
}

impl Cuda {
    /// Opens the GPU for every device of this kind in the process; once is enough.
    ///
    /// # Errors
    /// When there is none that can be used.
    pub fn open_device(builder: CudaBuilder) -> Result<(), OpenError> {
        if DEVICE.get().is_none() {
            let _ = DEVICE.set(builder.open()?);
        }
        Ok(())
    }
}

impl Device for Cuda {
    const PAGE_BYTES: u64 = 2 * MIB;

    fn open(world: &World) -> Self {
        let driver = DEVICE.get().expect("Cuda::open_device comes first");
        assert_eq!(driver.granularity(), world.page_bytes, "the world's pages are the GPU's");
        Self { driver, capacity: world.bytes(), books: Mutex::default() }
    }

    fn usage(&self) -> DriverUsage {
        let books = self.books.lock();
        DriverUsage {
            chunks: books.chunks.len(),
            handles: books.chunks.values().filter(|chunk| chunk.handle).count(),
            bytes: books.bytes(),
            mappings: books.mappings.len(),
            reservations: books.reservations.len(),
            reserved_bytes: books.reservations.values().sum(),
            events: books.events,
            streams: books.streams.len(),
        }
    }

    fn broken_rules(&self) -> Vec<String> {
        Vec::new()
    }

    fn set_external(&self, bytes: u64) {
        self.books.lock().external = bytes;
    }
}

impl MemoryDriver for Cuda {
    fn granularity(&self) -> u64 {
        self.driver.granularity()
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        let books = self.books.lock();
        let free = self.capacity.saturating_sub(books.bytes() + books.external);
        Ok(MemoryInfo { free, total: self.capacity })
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        let addr = self.driver.reserve(bytes, alignment)?;
        self.books.lock().reservations.insert(addr.0, bytes);
        Ok(addr)
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.driver.address_free(addr, bytes)?;
        books.reservations.remove(&addr.0);
        Ok(())
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        let mut books = self.books.lock();
        if books.bytes() + books.external + bytes > self.capacity {
            let text = "this part of the GPU is full";
            return Err(DriverError::new(DriverCall::Create, DriverErrorKind::OutOfMemory, text));
        }
        let handle = self.driver.create(bytes)?;
        books.chunks.insert(handle, Chunk { bytes, handle: true, mappings: 0 });
        Ok(handle)
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.driver.release(chunk)?;
        if let Some(known) = books.chunks.get_mut(&chunk) {
            known.handle = false;
        }
        books.settle(chunk);
        Ok(())
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.driver.map(addr, bytes, chunk)?;
        books.mappings.insert(addr.0, (bytes, chunk));
        if let Some(known) = books.chunks.get_mut(&chunk) {
            known.mappings += 1;
        }
        Ok(())
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.driver.set_access(addr, bytes)
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.driver.unmap(addr, bytes)?;
        let gone: Vec<u64> = books.mappings.range(addr.0..addr.0 + bytes).map(|(at, _)| *at).collect();
        for at in gone {
            let (_, chunk) = books.mappings.remove(&at).expect("just seen");
            if let Some(known) = books.chunks.get_mut(&chunk) {
                known.mappings -= 1;
            }
            books.settle(chunk);
        }
        Ok(())
    }
}

impl StreamDriver for Cuda {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        // The driver follows whatever pointer it is given.
        if stream != StreamId::DEFAULT && !self.books.lock().streams.contains(&stream) {
            let text = "no stream of this device";
            return Err(DriverError::new(DriverCall::Stream, DriverErrorKind::InvalidHandle, text));
        }
        self.driver.check_stream(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.driver.is_capturing(stream)
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        let event = self.driver.event_create()?;
        self.books.lock().events += 1;
        Ok(event)
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.driver.event_destroy(event)?;
        self.books.lock().events -= 1;
        Ok(())
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        self.driver.event_record(event, stream)
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.driver.event_query(event)
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.books.lock().host_waits += 1;
        self.driver.event_synchronize(event)
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        self.driver.stream_wait(stream, event)
    }
}

impl WorkDriver for Cuda {
    fn create_stream(&self) -> DriverResult<StreamId> {
        let stream = self.driver.create_stream()?;
        self.books.lock().streams.insert(stream);
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.driver.destroy_stream(stream)?;
        self.books.lock().streams.remove(&stream);
        Ok(())
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.driver.fill(stream, addr, bytes, seed)
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.driver.verify(stream, addr, bytes, seed)
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.driver.copy(stream, target, source, bytes)
    }

    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        self.driver.delay(stream, duration)
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.driver.synchronize(stream)
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        self.driver.take_mismatches()
    }
}

impl HoldStreams for Cuda {
    fn hold(&self, stream: StreamId) {
        self.driver.delay(stream, HOLD).expect("a stream of this device");
    }

    fn complete(&self, stream: StreamId) {
        self.driver.synchronize(stream).expect("a stream of this device");
    }

    fn resume(&self, _stream: StreamId) {}

    fn host_waits(&self) -> u64 {
        self.books.lock().host_waits
    }
}
