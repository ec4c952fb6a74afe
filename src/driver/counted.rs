//! A driver that counts: passes every call on and keeps how often each was made.

use super::{ChunkHandle, DriverResult, EventHandle, MemoryDriver, MemoryInfo, StreamDriver};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::units::{DeviceAddr, StreamId};

/// Calls made, by kind. Virtual-memory calls only count towards [`total`](Self::total); the others are listed beside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DriverCalls {
    /// Address ranges reserved.
    pub reserve: u64,
    /// Chunks created.
    pub create: u64,
    /// Mappings made.
    pub map: u64,
    /// Access calls (each may cover several mappings).
    pub set_access: u64,
    /// Unmap calls (each may cover several mappings).
    pub unmap: u64,
    /// Chunks released.
    pub release: u64,
    /// Address ranges given back.
    pub address_free: u64,
    /// Events recorded.
    pub event_record: u64,
    /// Events queried.
    pub event_query: u64,
    /// Waits of one stream for another, on the device.
    pub stream_wait: u64,
    /// Waits of the host for an event.
    pub host_wait: u64,
}

impl DriverCalls {
    /// All virtual-memory calls: what a caller pays for on top of events.
    pub const fn total(&self) -> u64 {
        self.reserve + self.create + self.map + self.set_access + self.unmap + self.release + self.address_free
    }
}

#[derive(Debug, Default)]
struct Counters {
    reserve: AtomicU64,
    create: AtomicU64,
    map: AtomicU64,
    set_access: AtomicU64,
    unmap: AtomicU64,
    release: AtomicU64,
    address_free: AtomicU64,
    event_record: AtomicU64,
    event_query: AtomicU64,
    stream_wait: AtomicU64,
    host_wait: AtomicU64,
    failed: AtomicU64,
}

/// Wraps a shared driver; see the module.
#[derive(Debug)]
pub struct Counted<D> {
    driver: Arc<D>,
    counters: Counters,
}

impl<D> Counted<D> {
    /// Counts the calls made through this wrapper, not those of others on the same driver.
    pub fn new(driver: Arc<D>) -> Self {
        Self { driver, counters: Counters::default() }
    }

    /// The driver itself.
    pub fn inner(&self) -> &Arc<D> {
        &self.driver
    }

    /// Calls so far, failed ones included.
    pub fn calls(&self) -> DriverCalls {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        DriverCalls {
            reserve: load(&counters.reserve),
            create: load(&counters.create),
            map: load(&counters.map),
            set_access: load(&counters.set_access),
            unmap: load(&counters.unmap),
            release: load(&counters.release),
            address_free: load(&counters.address_free),
            event_record: load(&counters.event_record),
            event_query: load(&counters.event_query),
            stream_wait: load(&counters.stream_wait),
            host_wait: load(&counters.host_wait),
        }
    }

    /// Calls that failed so far.
    pub fn failures(&self) -> u64 {
        self.counters.failed.load(Ordering::Relaxed)
    }

    #[inline]
    fn count<T>(&self, counter: &AtomicU64, result: DriverResult<T>) -> DriverResult<T> {
        counter.fetch_add(1, Ordering::Relaxed);
        if result.is_err() {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}

impl<D: MemoryDriver> MemoryDriver for Counted<D> {
    fn granularity(&self) -> u64 {
        self.driver.granularity()
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.driver.memory_info()
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        self.count(&self.counters.reserve, self.driver.reserve(bytes, alignment))
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.count(&self.counters.address_free, self.driver.address_free(addr, bytes))
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        self.count(&self.counters.create, self.driver.create(bytes))
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        self.count(&self.counters.release, self.driver.release(chunk))
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        self.count(&self.counters.map, self.driver.map(addr, bytes, chunk))
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.count(&self.counters.set_access, self.driver.set_access(addr, bytes))
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.count(&self.counters.unmap, self.driver.unmap(addr, bytes))
    }
}

impl<D: StreamDriver> StreamDriver for Counted<D> {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.driver.check_stream(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.driver.is_capturing(stream)
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.driver.event_create()
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.driver.event_destroy(event)
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        self.count(&self.counters.event_record, self.driver.event_record(event, stream))
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.count(&self.counters.event_query, self.driver.event_query(event))
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.count(&self.counters.host_wait, self.driver.event_synchronize(event))
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        self.count(&self.counters.stream_wait, self.driver.stream_wait(stream, event))
    }
}
