//! The allocator: ties heaps, segments, chunks and streams together, and is what callers see.
//!
//! Threads: any thread may call anything. An allocation or a free of cached memory takes the lock of its stream and
//! nothing else; everything that talks to the driver about mappings runs under the mapper's lock, and never under a
//! stream's. Lock order: mapper, stream clock, stream states in the order of their numbers.

mod addresses;
mod borrow;
mod check;
mod close;
mod config;
mod directory;
mod error;
mod execute;
mod fences;
mod grow;
mod live;
mod mapper;
mod oom;
mod peak;
mod plain;
mod plan;
mod range;
mod region;
mod snapshot;
mod state;
mod stats;
mod trim;

pub use crate::driver::DriverCalls;
pub use crate::physical::ChunkPolicy;
pub use config::{Builder, DEFAULT_SLACK};
pub use error::{AddressFacts, AllocError, BuildError, CloseError, FreeError, StreamError};
pub use live::LiveAllocation;
pub use oom::{OutOfMemory, Pinned, StreamUse};
pub use plain::PlainAllocator;
pub use range::VirtualRange;
pub use region::{RegionKind, SMALL_BELOW};
pub use snapshot::{BlockSnapshot, ChunkSnapshot, SegmentSnapshot, Snapshot};
pub use stats::{Fragmentation, SizeRange, Stats};
pub use trim::Trimmed;

use crate::driver::{Counted, Driver, DriverError, StreamDriver};
use crate::heap::{GRANULE, NotLive};
use crate::physical::{ChunkPool, ChunkSizes};
use crate::stream::{EventPool, Fence, STREAM_LIMIT, StreamIndex, StreamTable};
use crate::sync::{Arc, AtomicU64, Mutex, OnceLock, Ordering};
use crate::units::{DeviceAddr, StreamId, round_up};
use config::Geometry;
use directory::{Directory, Owner, Place};
use error::facts_of;
use mapper::Mapper;
use peak::PeakMeter;
use region::RegionId;
use state::{AllStates, Pending, Sharers, StreamHeap, StreamState, size_range};

/// A GPU memory allocator for one device. Cheap to clone; every clone is the same allocator.
///
/// Dropping the last clone gives everything back to the driver, after waiting for the streams that used it;
/// [`close`](Self::close) does the same and says what went wrong or was leaked.
#[derive(Debug)]
pub struct Allocator<D: Driver> {
    inner: Arc<Inner<D>>,
}

impl<D: Driver> Clone for Allocator<D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

/// Counters that are not part of a stream's state.
#[derive(Debug, Default)]
struct Counters {
    host_waits: AtomicU64,
    borrowed: AtomicU64,
    failed_allocs: AtomicU64,
    refused_frees: AtomicU64,
    undo_failures: AtomicU64,
}

#[derive(Debug)]
struct Inner<D: Driver> {
    driver: Counted<D>,
    events: EventPool,
    geometry: Geometry,
    budget_bytes: AtomicU64,
    streams: StreamTable<StreamHeap>,
    directory: Directory,
    mapper: Mutex<Mapper>,
    peak: PeakMeter,
    poison: OnceLock<DriverError>,
    counters: Counters,
    torn_down: bool,
    /// The process that built it. A forked one shares the device's memory without knowing what the other does with it,
    /// so nothing that talks to the driver runs there. Not checked where cached memory is handed out.
    process: u32,
}

impl<D: Driver> Allocator<D> {
    /// Starts building an allocator on `driver`.
    pub fn builder(driver: Arc<D>) -> Builder<D> {
        Builder::new(driver)
    }

    fn assemble(driver: Arc<D>, geometry: Geometry, budget: u64) -> Self {
        let mapper = Mapper {
            pool: ChunkPool::new(geometry.page_bytes, budget),
            sizes: ChunkSizes::new(geometry.chunk_policy, geometry.page_bytes),
            segments: Vec::new(),
            left_behind: Vec::new(),
            next_arena_slots: addresses::FIRST_ARENA_SLOTS,
            poisoned: 0,
            harvested_chunks: 0,
            reused_views: 0,
        };
        Self {
            inner: Arc::new(Inner {
                driver: Counted::new(driver),
                events: EventPool::default(),
                geometry,
                budget_bytes: AtomicU64::new(budget),
                streams: StreamTable::default(),
                directory: Directory::default(),
                mapper: Mutex::new(mapper),
                peak: PeakMeter::default(),
                poison: OnceLock::new(),
                counters: Counters::default(),
                torn_down: false,
                process: std::process::id(),
            }),
        }
    }

    /// The driver underneath.
    pub fn driver(&self) -> &Arc<D> {
        self.inner.driver.inner()
    }

    /// Allocates `bytes` for work on `stream`, at a multiple of [`GRANULE`] bytes.
    ///
    /// The memory may be used by work queued on `stream` from now on; other streams have to be ordered behind it by the
    /// caller, and made known by [`record_stream`](Self::record_stream). Its content is undefined.
    /// 0 bytes: an address of its own, with one granule behind it.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed.
    #[inline]
    pub fn alloc(&self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, AllocError> {
        self.inner.alloc(bytes, GRANULE, stream)
    }

    /// As [`alloc`](Self::alloc), at a multiple of `alignment` bytes, a power of two.
    ///
    /// # Errors
    /// As `alloc`, and [`AllocError::Alignment`].
    pub fn alloc_aligned(&self, bytes: u64, alignment: u64, stream: StreamId) -> Result<DeviceAddr, AllocError> {
        if !alignment.is_power_of_two() {
            return Err(AllocError::Alignment { alignment });
        }
        self.inner.alloc(bytes, alignment.max(GRANULE), stream)
    }

    /// Frees an allocation. Work queued on its stream, and on the streams it was recorded on, may still use it; the
    /// memory is handed out again in that order.
    ///
    /// # Errors
    /// [`FreeError`] when no live allocation starts at `addr`; nothing has changed.
    #[inline]
    pub fn free(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        self.inner.free(addr)
    }

    /// Makes known that work on `stream` uses the allocation at `addr` too: once freed, it is not handed out again
    /// before the work queued there by then has completed.
    ///
    /// # Errors
    /// As [`free`](Self::free), and [`FreeError::Stream`].
    pub fn record_stream(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), FreeError> {
        self.inner.record_stream(addr, stream)
    }

    /// The budget in bytes.
    pub fn budget(&self) -> u64 {
        self.inner.budget_bytes.load(Ordering::Relaxed)
    }

    /// Changes the budget. What is held above the new one and free goes back to the driver now; what is live stays.
    ///
    /// # Errors
    /// The driver's, from giving memory back; the new budget holds all the same. In a forked process nothing is given
    /// back.
    pub fn set_budget(&self, bytes: u64) -> Result<(), AllocError> {
        self.inner.budget_bytes.store(bytes, Ordering::Relaxed);
        self.inner.mapper.lock().pool.set_budget(bytes);
        if self.inner.is_forked() {
            return Ok(());
        }
        self.inner.trim(bytes).map(|_| ())
    }
}

impl StreamState {
    #[inline]
    fn take(&mut self, region: RegionId, size: u64, waste: u16, alignment: u64) -> Option<DeviceAddr> {
        let region = self.region(region)?;
        let offset = if alignment == GRANULE {
            region.heap.alloc(size, waste)?
        } else {
            region.heap.alloc_aligned(size, waste, alignment, region.base.0)?
        };
        let addr = region.base.offset(offset);
        self.count_alloc(size, waste);
        Some(addr)
    }

    #[inline]
    fn count_alloc(&mut self, size: u64, waste: u16) {
        self.live_bytes += size - u64::from(waste);
        self.tally.allocs += 1;
        self.tally.by_size[size_range(size)] += 1;
    }
}

impl<D: Driver> Inner<D> {
    #[inline]
    fn alloc(&self, bytes: u64, alignment: u64, stream: StreamId) -> Result<DeviceAddr, AllocError> {
        let size = round_up(bytes.max(1), GRANULE).filter(|size| *size <= self.geometry.slot_bytes);
        let Some(size) = size else { return Err(self.too_large(bytes, alignment)) };
        // Rounding adds less than a granule, a request of nothing a whole one.
        let waste = (size - bytes) as u16;
        let heap = match self.streams.find(stream) {
            Some(heap) => heap,
            None => self.add_stream(stream)?,
        };
        let mut state = heap.lock();
        let taken = state.take(RegionId::first(RegionKind::of(size)), size, waste, alignment);
        let at_peak = state.live_bytes > state.live_limit;
        drop(state);
        let addr = match taken {
            Some(addr) => addr,
            None => self.alloc_slow(heap, bytes, size, waste, alignment)?,
        };
        if at_peak || taken.is_none() {
            self.peak.deal(&mut self.lock_all());
        }
        Ok(addr)
    }

    #[cold]
    fn too_large(&self, requested: u64, alignment: u64) -> AllocError {
        AllocError::TooLarge { requested, alignment, region_bytes: self.geometry.slot_bytes }
    }

    #[cold]
    fn add_stream(&self, stream: StreamId) -> Result<&StreamHeap, StreamError> {
        self.driver.check_stream(stream).map_err(|source| StreamError::Foreign { stream, source })?;
        self.streams
            .find_or_add(stream, |index| StreamHeap::new(stream, index))
            .ok_or(StreamError::TooMany { limit: STREAM_LIMIT })
    }

    /// The locks of all streams, in order.
    fn lock_all(&self) -> AllStates<'_> {
        self.streams.iter().map(StreamHeap::lock).collect()
    }

    #[inline]
    fn free(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        let Place::Region(owner, offset) = self.directory.find(addr) else {
            return Err(self.refuse(addr));
        };
        let heap = self.streams.get(owner.stream);
        let mut state = heap.lock();
        let epoch = state.epoch;
        let Some(region) = state.region(owner.region) else { return Err(self.refuse(addr)) };
        match region.heap.free(offset, epoch) {
            Ok(block) => {
                state.live_bytes -= block.size - u64::from(block.waste);
                state.tally.frees += 1;
                state.dirty = true;
                Ok(())
            }
            Err(NotLive::Shared) => {
                drop(state);
                self.free_shared(addr, owner, offset)
            }
            Err(_) => {
                drop(state);
                Err(self.refuse(addr))
            }
        }
    }

    /// Frees a block that other streams use: it becomes pending on all of them.
    #[cold]
    fn free_shared(&self, addr: DeviceAddr, owner: Owner, offset: u64) -> Result<(), FreeError> {
        let heap = self.streams.get(owner.stream);
        let sharers = heap.lock().sharers.get(&(owner.region, offset)).cloned();
        let Some(sharers) = sharers else { return Err(self.refuse(addr)) };
        let mut users = sharers.others;
        if sharers.home != owner.stream {
            users.push(sharers.home);
        }
        // Whatever these streams have queued by now lies before the end of their open epochs.
        let fences: Vec<Fence> = users
            .iter()
            .map(|user| Fence { stream: *user, epoch: self.streams.get(*user).clock.lock().open() })
            .collect();
        let mut state = heap.lock();
        let Some(region) = state.region(owner.region) else { return Err(self.refuse(addr)) };
        let Ok(block) = region.heap.free_later(offset) else {
            drop(state);
            return Err(self.refuse(addr));
        };
        state.live_bytes -= block.size - u64::from(block.waste);
        state.tally.frees += 1;
        state.dirty = true;
        state.sharers.remove(&(owner.region, offset));
        state.pending.push(Pending { region: owner.region, offset, fences });
        drop(state);
        // Record early, so that the event completes as soon as it can; what fails here is tried again when needed.
        for user in users {
            let stream = self.streams.get(user);
            let mut clock = stream.clock.lock();
            if clock.sealed() == 0 {
                let _ = self.seal(stream, &mut clock);
            }
        }
        Ok(())
    }

    fn record_stream(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), FreeError> {
        let Place::Region(owner, offset) = self.directory.find(addr) else {
            return Err(self.refuse(addr));
        };
        let user = match self.streams.find(stream) {
            Some(heap) => heap,
            None => self.add_stream(stream)?,
        };
        let mut state = self.streams.get(owner.stream).lock();
        let shared = state.region(owner.region).map(|region| region.heap.share(offset));
        if !matches!(shared, Some(Ok(()))) {
            drop(state);
            return Err(self.refuse(addr));
        }
        let sharers = state
            .sharers
            .entry((owner.region, offset))
            .or_insert_with(|| Sharers { home: owner.stream, others: Vec::new() });
        if user.index != sharers.home && !sharers.others.contains(&user.index) {
            sharers.others.push(user.index);
        }
        Ok(())
    }

    /// What is known about an address that cannot be freed.
    #[cold]
    fn refuse(&self, addr: DeviceAddr) -> FreeError {
        self.counters.refused_frees.fetch_add(1, Ordering::Relaxed);
        let facts = match self.directory.find(addr) {
            Place::Foreign => AddressFacts::Foreign,
            Place::Unused => AddressFacts::NeverAllocated,
            Place::Region(owner, offset) => {
                let mut state = self.streams.get(owner.stream).lock();
                state
                    .region(owner.region)
                    .and_then(|region| {
                        let block = region.heap.block_around(offset)?;
                        let start = region.base.offset(block.offset);
                        Some(facts_of(block.state, start, block.size, block.offset == offset))
                    })
                    .unwrap_or(AddressFacts::NeverAllocated)
            }
        };
        FreeError::NotAllocated { addr, facts }
    }

    /// True in a process forked from the one that built the allocator.
    fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    fn stream_id(&self, index: StreamIndex) -> StreamId {
        self.streams.get(index).id
    }
}
