//! A driver that counts the calls made to another one, and the time spent in them.
//!
//! Threads: any. Cost: two clock readings for each call, about 50 ns together with [`Clock::Wall`].

use gapless::driver::{
    ChunkHandle, DriverResult, EventHandle, MemoryDriver, MemoryInfo, Mismatch, StreamDriver, WorkDriver,
};
use gapless::units::{DeviceAddr, StreamId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the time spent in a driver is measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Time that passes: cheap, right for drivers that never block.
    Wall,
    /// Processor time of the calling thread: a system call, right for drivers that block.
    Processor,
}

/// Calls that change memory, by kind; failed ones count too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MemoryCalls {
    /// Addresses reserved.
    pub reserve: u64,
    /// Chunks created.
    pub create: u64,
    /// Chunks mapped.
    pub map: u64,
    /// Access given.
    pub set_access: u64,
    /// Ranges unmapped.
    pub unmap: u64,
    /// Chunks released.
    pub release: u64,
    /// All of the above.
    pub total: u64,
}

/// Passes every call on to `inner`.
pub struct Metered<D> {
    inner: Arc<D>,
    clock: Clock,
    reserve: AtomicU64,
    create: AtomicU64,
    map: AtomicU64,
    set_access: AtomicU64,
    unmap: AtomicU64,
    release: AtomicU64,
    nanoseconds: AtomicU64,
}

impl<D> Metered<D> {
    /// Counts from zero.
    pub fn new(inner: Arc<D>, clock: Clock) -> Self {
        Self {
            inner,
            clock,
            reserve: AtomicU64::new(0),
            create: AtomicU64::new(0),
            map: AtomicU64::new(0),
            set_access: AtomicU64::new(0),
            unmap: AtomicU64::new(0),
            release: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        }
    }

    /// The driver behind it.
    pub const fn inner(&self) -> &Arc<D> {
        &self.inner
    }

    /// Calls so far.
    pub fn calls(&self) -> MemoryCalls {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut calls = MemoryCalls {
            reserve: read(&self.reserve),
            create: read(&self.create),
            map: read(&self.map),
            set_access: read(&self.set_access),
            unmap: read(&self.unmap),
            release: read(&self.release),
            total: 0,
        };
        calls.total = self.total();
        calls
    }

    /// Calls so far that [`MemoryCalls`] counts.
    pub fn total(&self) -> u64 {
        [&self.reserve, &self.create, &self.map, &self.set_access, &self.unmap, &self.release]
            .iter()
            .map(|counter| counter.load(Ordering::Relaxed))
            .sum()
    }

    /// Time spent in the driver so far, all threads together.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// Runs `call` and adds its time.
    pub(crate) fn timed<T>(&self, call: impl FnOnce(&D) -> T) -> T {
        let (result, time) = match self.clock {
            Clock::Wall => {
                let start = Instant::now();
                let result = call(&self.inner);
                (result, start.elapsed())
            }
            Clock::Processor => {
                let start = processor_time();
                let result = call(&self.inner);
                (result, processor_time().saturating_sub(start))
            }
        };
        self.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        result
    }

    fn counted<T>(&self, counter: &AtomicU64, call: impl FnOnce(&D) -> T) -> T {
        counter.fetch_add(1, Ordering::Relaxed);
        self.timed(call)
    }
}

impl<D: MemoryDriver> MemoryDriver for Metered<D> {
    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.timed(D::memory_info)
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        self.counted(&self.reserve, |inner| inner.reserve(bytes, alignment))
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.timed(|inner| inner.address_free(addr, bytes))
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        self.counted(&self.create, |inner| inner.create(bytes))
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        self.counted(&self.release, |inner| inner.release(chunk))
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        self.counted(&self.map, |inner| inner.map(addr, bytes, chunk))
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.counted(&self.set_access, |inner| inner.set_access(addr, bytes))
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.counted(&self.unmap, |inner| inner.unmap(addr, bytes))
    }
}

impl<D: StreamDriver> StreamDriver for Metered<D> {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.timed(|inner| inner.check_stream(stream))
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.inner.is_capturing(stream)
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.timed(D::event_create)
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.timed(|inner| inner.event_destroy(event))
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        self.timed(|inner| inner.event_record(event, stream))
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.timed(|inner| inner.event_query(event))
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.timed(|inner| inner.event_synchronize(event))
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        self.timed(|inner| inner.stream_wait(stream, event))
    }
}

impl<D: WorkDriver> WorkDriver for Metered<D> {
    fn create_stream(&self) -> DriverResult<StreamId> {
        self.timed(D::create_stream)
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.timed(|inner| inner.destroy_stream(stream))
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.timed(|inner| inner.fill(stream, addr, bytes, seed))
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.timed(|inner| inner.verify(stream, addr, bytes, seed))
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.timed(|inner| inner.copy(stream, target, source, bytes))
    }

    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        self.timed(|inner| inner.delay(stream, duration))
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.timed(|inner| inner.synchronize(stream))
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        self.inner.take_mismatches()
    }
}

/// Processor time of the calling thread.
pub(crate) fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
