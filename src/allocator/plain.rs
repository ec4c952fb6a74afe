//! The plain mode: the allocator's calls on `cuMemAlloc`, for devices without virtual memory management.
//!
//! Nothing is cached, split or remapped: every allocation is a driver call, every free another, which waits for the
//! device, and a request fails when the driver finds no contiguous memory, however much is free. The statistics say so.
//!
//! - I1  `live_bytes` is the sum over `live`.
//!
//! Threads: any; one lock for the table, not held during driver calls.
//! Cost: the driver's, and its wait for all work on the device at every free.

use super::error::{AddressFacts, AllocError, CloseError, FreeError};
use super::reports::{LiveAllocation, OutOfMemory, Pinned, ShownPeaks, Stats};
use crate::driver::cuda::PlainDevice;
use crate::driver::{DriverCall, DriverErrorKind};
use crate::heap::GRANULE;
use crate::sync::Arc;
use crate::sync::unseen::Mutex;
use crate::units::{DeviceAddr, StreamId};
use std::collections::HashMap;

/// An allocator on `cuMemAlloc`; see the module. Cheap to clone; every clone is the same allocator.
#[derive(Debug, Clone)]
pub struct PlainAllocator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: PlainDevice,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    live: HashMap<DeviceAddr, (u64, StreamId)>,
    stats: Stats,
    shown: ShownPeaks,
}

impl PlainAllocator {
    /// An allocator on `device`.
    #[must_use]
    pub fn new(device: PlainDevice) -> Self {
        Self { inner: Arc::new(Inner { device, books: Mutex::default() }) }
    }

    /// Allocates `bytes`; 0 bytes take one granule. Its content is undefined. All streams may use it at once.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] when the driver finds no contiguous memory: its report says whether enough was free.
    pub fn alloc_raw(&self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, AllocError> {
        let outcome = self.inner.device.mem_alloc(bytes.max(GRANULE));
        let mut books = self.inner.books.lock();
        books.stats.driver_calls[DriverCall::Create] += 1;
        match outcome {
            Ok(addr) => {
                books.live.insert(addr, (bytes, stream));
                let stats = &mut books.stats;
                stats.allocs += 1;
                stats.live_allocations += 1;
                stats.live_bytes += bytes;
                stats.peak_live_bytes = stats.peak_live_bytes.max(stats.live_bytes);
                stats.live_block_bytes += bytes.max(GRANULE);
                stats.created_bytes += bytes.max(GRANULE);
                stats.reserved_bytes = stats.live_block_bytes;
                stats.peak_reserved_bytes = stats.peak_reserved_bytes.max(stats.reserved_bytes);
                Ok(addr)
            }
            Err(error) => {
                books.stats.failed_allocs += 1;
                books.stats.failed_driver_calls += 1;
                if error.kind != DriverErrorKind::OutOfMemory {
                    return Err(error.into());
                }
                let stats = books.stats.clone();
                drop(books);
                Err(AllocError::OutOfMemory(Box::new(self.report(bytes, stream, &stats, error.to_string()))))
            }
        }
    }

    /// Frees an allocation. Waits for all work on the device: `cuMemFree` does.
    ///
    /// # Errors
    /// [`FreeError`] when no live allocation starts at `addr`; nothing has changed. What the driver itself refuses is
    /// counted in the statistics: the memory is lost until the process ends.
    pub fn free(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        // Out of the books first: from the moment of the driver's call on, another thread may be given the address.
        let mut books = self.inner.books.lock();
        let Some((bytes, _)) = books.live.remove(&addr) else {
            books.stats.refused_frees += 1;
            return Err(FreeError::NotAllocated { addr, facts: AddressFacts::Foreign });
        };
        let stats = &mut books.stats;
        stats.frees += 1;
        stats.live_allocations -= 1;
        stats.live_bytes -= bytes;
        stats.freed_bytes += bytes;
        stats.live_block_bytes -= bytes.max(GRANULE);
        stats.reserved_bytes = stats.live_block_bytes;
        stats.driver_calls[DriverCall::Release] += 1;
        stats.host_waits += 1;
        drop(books);
        if self.inner.device.mem_free(addr).is_err() {
            let mut books = self.inner.books.lock();
            books.stats.failed_driver_calls += 1;
            books.stats.poisoned += 1;
        }
        Ok(())
    }

    /// Nothing to do for a live allocation: a free waits for all streams.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn record_stream(&self, addr: DeviceAddr, _stream: StreamId) -> Result<(), FreeError> {
        if self.inner.books.lock().live.contains_key(&addr) {
            return Ok(());
        }
        Err(FreeError::NotAllocated { addr, facts: AddressFacts::Foreign })
    }

    /// Figures. Nothing is cached, so what is reserved is what is live; what the driver rounds sizes up to is not known
    /// and not counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let books = self.inner.books.lock();
        let mut stats = books.stats.clone();
        books.shown.note(&mut stats);
        drop(books);
        if let Ok(info) = self.inner.device.memory_info() {
            stats.budget_bytes = info.free + stats.reserved_bytes;
            stats.fragmentation.free_bytes = info.free;
        }
        stats
    }

    /// Releases everything to the driver.
    ///
    /// # Errors
    /// [`CloseError::Leaked`] names the allocations that were never freed; their memory is gone all the same.
    /// [`CloseError::InUse`] when there are other clones.
    pub fn close(self) -> Result<(), CloseError> {
        let clones = Arc::strong_count(&self.inner);
        let mut inner = Arc::try_unwrap(self.inner).map_err(|_| CloseError::InUse(clones.saturating_sub(1).max(1)))?;
        let live = std::mem::take(&mut inner.books.get_mut().live);
        let mut leaks: Vec<LiveAllocation> = live
            .into_iter()
            .map(|(addr, (bytes, stream))| LiveAllocation { addr, bytes, stream, asleep: false })
            .collect();
        leaks.sort_by_key(|leak| leak.addr);
        for leak in &leaks {
            inner.device.mem_free(leak.addr)?;
        }
        if leaks.is_empty() { Ok(()) } else { Err(CloseError::Leaked(leaks)) }
    }

    fn report(&self, requested: u64, stream: StreamId, stats: &Stats, driver_error: String) -> OutOfMemory {
        let device = self.inner.device.memory_info().ok();
        let free = device.map_or(0, |info| info.free);
        OutOfMemory {
            requested_bytes: requested,
            stream,
            satisfiable: free >= requested,
            satisfiable_by_whole_pages: false,
            page_bytes: GRANULE,
            device,
            others_bytes: device.map_or(0, |info| (info.total - info.free).saturating_sub(stats.reserved_bytes)),
            elsewhere_bytes: 0,
            budget_bytes: free + stats.reserved_bytes,
            stopped_by_budget: false,
            stopped_by_capture: false,
            reserved_bytes: stats.reserved_bytes,
            live_bytes: stats.live_bytes,
            live_block_bytes: stats.live_block_bytes,
            cached_bytes: 0,
            pending_bytes: 0,
            open_elsewhere_bytes: 0,
            holders: Vec::new(),
            range_bytes: 0,
            registered_bytes: 0,
            asleep_bytes: 0,
            live_asleep_bytes: 0,
            free_bytes: free,
            free_without_budget_bytes: free,
            obtainable_bytes: 0,
            pinned: Pinned::default(),
            streams: Vec::new(),
            largest: Vec::new(),
            driver_error: Some(driver_error),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for (addr, _) in self.books.get_mut().live.drain() {
            // Where it fails, the context is lost, and the memory with it.
            let _ = self.device.mem_free(addr);
        }
    }
}
