//! The allocator: ties heaps, segments, chunks and streams together, and is what callers see.
//!
//! ```text
//! hot_path.rs   cached allocations, frees          slow_path/   everything that talks to the driver about memory
//! buffer.rs     allocations that free themselves   reports/     statistics, snapshot, out-of-memory report
//! range.rs      growable ranges, for callers       streams/     what is kept for each stream
//! plain.rs      devices without virtual memory     shared.rs    what hot path and slow path share
//! builder.rs    settings, checked                  request.rs   a request on the slow path
//! error.rs      errors                             geometry.rs, kind.rs   settings for life, kinds of regions
//! marks.rs      streams that use memory of others  rules.rs     what may be done with what is mapped
//! mappings/     which chunk is mapped where        pins.rs, tickets.rs   blocks kept in place, blocks named
//! sleep/        memory given back for a while      stores/      where its bytes are meanwhile
//! host_budget.rs   the host's memory for that
//! ```
//!
//! Threads: any thread may call anything. An allocation or a free of cached memory takes the lock of its stream and
//! nothing else; everything that talks to the driver about mappings runs under the mapper's lock, and never under a
//! stream's. Lock order: mapper, stream clock, stream states in the order of their numbers.

mod buffer;
mod builder;
mod cuda;
mod device_allocator;
mod error;
mod geometry;
mod host_budget;
mod hot_path;
mod kind;
#[cfg(test)]
mod lock_holds;
#[cfg(test)]
mod looks;
#[cfg(test)]
mod many_streams;
mod mappings;
mod marks;
mod pins;
mod plain;
mod range;
mod registered;
mod reports;
mod request;
mod rules;
pub(crate) mod sealed;
mod shared;
mod sleep;
mod slow_path;
mod stores;
mod streams;
mod tickets;

pub use crate::driver::DriverCalls;
pub use crate::heap::{BlockState, GRANULE};
pub use crate::physical::ChunkPolicy;
pub use crate::segment::listeners::{InListener, ListenerId, MapListener, MapListeners, MappedRange, Refusal};
pub use buffer::Buffer;
pub use builder::{Builder, DEFAULT_SLACK};
pub use cuda::CudaAllocator;
pub use device_allocator::DeviceAllocator;
pub use error::{
    AddressFacts, AllocAgainError, AllocError, BackupError, BuildError, CloseError, FreeError, RangeError, SleepError,
    StreamError,
};
pub use host_budget::HostBudget;
pub use kind::{RegionKind, SMALL_BELOW};
pub use marks::{StreamMark, WatchedStream};
pub use pins::Pin;
pub use plain::PlainAllocator;
pub use range::VirtualRange;
pub use registered::RegisteredBlock;
pub use reports::{
    Asleep, BlockSnapshot, ChunkSnapshot, Figure, FigureKind, FigureUnit, Figures, Fragmentation, Holder,
    LiveAllocation, OutOfMemory, Pinned, RegionSnapshot, ShownPeaks, SizeRange, Snapshot, Stats, StreamUse,
};
pub use sleep::{FallingAsleep, Slept, Wake, Waking, Woken};
pub use slow_path::{LeftAwake, PinnedChunk, Trimmed};
pub use stores::{Backup, BackupFileError};
pub use tickets::Ticket;

use crate::driver::{CheckedDriver, Driver};
use crate::sync::{Arc, Mutex};
use crate::units::{DeviceAddr, StreamId};
use shared::Shared;
use slow_path::{Door, Users};
use std::fmt;
use std::path::Path;

/// A GPU memory allocator for one device. Cheap to clone; every clone is the same allocator.
///
/// Dropping the last clone returns everything to the driver, after waiting for the streams that used it;
/// [`close`](Self::close) does the same and reports what failed or leaked. What cannot be waited for stays mapped.
pub struct Allocator<D: Driver> {
    inner: Arc<Inner<D>>,
}

impl<D: Driver> fmt::Debug for Allocator<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator").field("budget", &self.budget()).finish_non_exhaustive()
    }
}

impl<D: Driver> Clone for Allocator<D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

#[derive(Debug)]
struct Inner<D: Driver> {
    shared: Shared<D>,
    door: Door,
    /// Locked by whoever puts to sleep or wakes, before everything else.
    sleeping: Mutex<()>,
    torn_down: bool,
}

impl<D: Driver> Allocator<D> {
    /// Starts building an allocator on `driver`.
    pub fn builder(driver: Arc<D>) -> Builder<D> {
        Builder::new(driver)
    }

    fn assemble(shared: Shared<D>) -> Self {
        let door = Door::new(&shared);
        Self { inner: Arc::new(Inner { shared, door, sleeping: Mutex::new(()), torn_down: false }) }
    }

    /// Returns the driver that the allocator runs on.
    #[must_use]
    pub fn driver(&self) -> &Arc<D>
    where
        D: CheckedDriver,
    {
        self.inner.shared.streams.driver.inner()
    }

    /// Returns the driver that the allocator runs on.
    ///
    /// # Safety
    /// No call of it gets a handle, a stream or an address that is not valid then, as [`driver`](crate::driver) says, or ends one
    /// that the allocator uses.
    #[must_use]
    pub unsafe fn driver_unchecked(&self) -> &Arc<D> {
        self.inner.shared.streams.driver.inner()
    }

    /// Returns the list of map listeners, to which listeners are added and from which they are removed.
    #[must_use]
    pub fn listeners(&self) -> &Arc<MapListeners> {
        &self.inner.shared.listeners
    }

    /// Returns the budget of the host's memory for backups of what sleeps.
    #[must_use]
    pub fn host_budget(&self) -> &Arc<HostBudget> {
        &self.inner.shared.host_budget
    }

    /// Returns the [directory](Builder::backup_directory) for backups in files, if one was set.
    #[must_use]
    pub fn backup_directory(&self) -> Option<&Path> {
        self.inner.shared.backup_directory.as_deref()
    }

    /// As [`alloc`](Self::alloc), and leaves it to the caller to [`free`](Self::free) the address.
    ///
    /// # Errors
    /// As `alloc`.
    #[inline]
    pub fn alloc_raw(&self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, AllocError> {
        self.inner.alloc(bytes, GRANULE, stream)
    }

    /// As [`alloc_aligned`](Self::alloc_aligned), and leaves it to the caller to [`free`](Self::free) the address.
    ///
    /// # Errors
    /// As `alloc_aligned`.
    pub fn alloc_raw_aligned(&self, bytes: u64, alignment: u64, stream: StreamId) -> Result<DeviceAddr, AllocError> {
        if !alignment.is_power_of_two() {
            return Err(AllocError::Alignment { alignment });
        }
        self.inner.alloc(bytes, alignment.max(GRANULE), stream)
    }

    /// Does the same as [`alloc_raw_aligned`](Self::alloc_raw_aligned), but only with memory that is cached for a
    /// [kept](Self::keep_stream) stream: makes no driver call, and waits for no call that does. For callers that hold a lock of
    /// their own. Returns `None` where no such memory serves the request, and where `alignment` is not a power of two.
    #[inline]
    #[must_use]
    pub fn alloc_raw_cached(&self, bytes: u64, alignment: u64, stream: StreamId) -> Option<DeviceAddr> {
        if !alignment.is_power_of_two() {
            return None;
        }
        self.inner.alloc_cached(bytes, alignment.max(GRANULE), stream)
    }

    /// Allocates `bytes` at `addr`, where memory was handed out before and is free now: for a program that goes back to an earlier
    /// state of its memory, as a captured graph does. Memory that has moved from there to other addresses since, and is free
    /// there, is brought back. No chunk is created. The allocation belongs to the stream that the address was handed out for. Where
    /// that may have been destroyed, the host waits for all that used the memory, since nothing can be ordered behind it any more.
    ///
    /// # Errors
    /// [`AllocAgainError::NotFree`] where a part of the bytes is in use, waits for a stream, or was never mapped there;
    /// [`AllocAgainError::Asleep`] where a part is free memory that sleeps;
    /// [`AllocError::CannotWait`] where the host would have to wait during a capture; and those of the driver. Nothing has changed.
    pub fn alloc_again(&self, addr: DeviceAddr, bytes: u64) -> Result<(), AllocAgainError> {
        self.inner.alloc_again(addr, bytes)
    }

    /// The live allocation that `addr` lies in.
    #[must_use]
    pub fn live_around(&self, addr: DeviceAddr) -> Option<LiveAllocation> {
        self.inner.live_around(addr)
    }

    /// Frees an allocation. Work queued on its stream, and on the streams it was recorded on, may still use it: the memory
    /// is not handed out again before that work is done, or only to work ordered behind it.
    ///
    /// # Errors
    /// [`FreeError`] when no live allocation starts at `addr`; nothing has changed.
    #[inline]
    pub fn free(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        self.inner.free(addr)
    }

    /// Records that `stream` also uses the allocation at `addr`. Once freed, the memory is not handed out again before the
    /// work queued on `stream` at that time has completed.
    ///
    /// # Errors
    /// As [`free`](Self::free), and [`FreeError::Stream`].
    pub fn record_stream(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), FreeError> {
        self.inner.record_stream(addr, stream)
    }

    /// Whether an address is among those that the allocator has reserved for allocations, live or not. Those of growable ranges are
    /// not.
    #[must_use]
    pub fn contains(&self, addr: DeviceAddr) -> bool {
        self.inner.contains(addr)
    }

    /// Checks that a live allocation starts at `addr`.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn expect_live(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        self.inner.expect_live(addr)
    }

    /// Promises that `stream` lives until it is [forgotten](Self::forget_stream) or the allocator is closed.
    ///
    /// Without the promise, the driver gets the handle of a stream only from calls that bring it: anything else would be
    /// undefined behaviour if its owner had destroyed it meanwhile. What such a stream may still use can be reused on the
    /// stream itself at once, but elsewhere only after its next call, or after the host has waited for the whole device.
    /// So a program with several streams that live long should keep each of them. The default stream always is; the
    /// default stream of a thread cannot be, since other threads cannot name it.
    ///
    /// # Errors
    /// [`StreamError`] when it is no stream of this device, or one too many.
    pub fn keep_stream(&self, stream: StreamId) -> Result<(), StreamError> {
        self.inner.shared.streams.keep(stream)
    }

    /// Ends the promise of [`keep_stream`](Self::keep_stream), right before the stream is destroyed: no work that uses
    /// memory of this allocator is queued on it any more. Memory that was used there is handed out once the work queued by
    /// now has completed, which an event reports; for a stream that is destroyed without this call, only a wait for the whole
    /// device does. Does nothing for a stream that the allocator has not seen.
    ///
    /// # Errors
    /// None so far.
    pub fn forget_stream(&self, stream: StreamId) -> Result<(), StreamError> {
        self.inner.shared.streams.forget(stream)
    }

    /// The budget in bytes: the most physical memory that the allocator may hold. Where none was set, the device is the budget:
    /// what is held, and what was free beside it when the allocator looked last, as it does before a request fails.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.inner.shared.budget_bytes()
    }

    /// Whether a budget was set, by [`Builder::budget`] or [`set_budget`](Self::set_budget). Else the device is the budget.
    #[must_use]
    pub fn has_set_budget(&self) -> bool {
        !self.inner.shared.follows_device()
    }

    /// Sets a budget, which from now on holds in place of the device's memory. Free memory above the new budget is released now;
    /// live memory stays.
    ///
    /// # Errors
    /// [`AllocError::InListener`]. The driver's, from releasing memory; the new budget holds all the same. In a forked process
    /// nothing is released.
    pub fn set_budget(&self, bytes: u64) -> Result<(), AllocError> {
        self.inner.door.set_budget(&self.inner.shared, bytes)?;
        if self.reserved_bytes() <= bytes {
            return Ok(());
        }
        match self.trim(bytes) {
            Ok(_) | Err(AllocError::Forked { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Releases free memory to the driver until at most `keep_bytes` are held: idle chunks first, then every completely free
    /// chunk, the largest first. Where that is not enough, what was freed and waits for other streams comes after it. Waits for the
    /// streams that used what is released; for the whole device only if one of them may have been destroyed (see
    /// [`keep_stream`](Self::keep_stream)). What waits for a stream that is being captured stays.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; what was released before stays released. [`AllocError::Forked`].
    pub fn trim(&self, keep_bytes: u64) -> Result<Trimmed, AllocError> {
        // Where a sleep, a wake or a look at a backup is under way, backups stay as they are.
        let alone = self.inner.sleeping.try_lock();
        self.inner.door.enter(&self.inner.shared, |path| {
            if alone.is_some() {
                path.shed_empty_pages();
            }
            path.trim(keep_bytes)
        })
    }

    /// Renews the access to everything that is mapped, with one driver call for each run of adjacent mappings. Needed once the
    /// driver gives access to further devices, as after
    /// [`CudaDriver::add_peers`](crate::driver::cuda::CudaDriver::add_peers). The slow path waits meanwhile; cached memory is
    /// still handed out.
    ///
    /// # Errors
    /// [`AllocError::Driver`]: the runs before the one that the driver refused have their access. Everything else is unchanged,
    /// and the call may be repeated. [`AllocError::Forked`].
    pub fn renew_access(&self) -> Result<(), AllocError> {
        self.inner.door.enter(&self.inner.shared, |path| path.renew_access())
    }

    /// Figures of all streams at one moment: they are locked together while sums are made, so that these agree however many
    /// threads allocate. No stream is locked while its free chunks are counted, but for some of its free blocks at a time.
    ///
    /// Waits for no growth. While one is under way on another thread, what is held and mapped is reported as it was before,
    /// or as it is once the growth is about to hand out its block: `live_bytes` is at most `reserved_bytes + asleep_bytes` in
    /// any case, but the parts need not come to `reserved_bytes`. How many chunks are completely free is then reported as it
    /// was when statistics were taken last.
    /// O(regions + free blocks of a page or more).
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.door.stats(&self.inner.shared)
    }

    /// Resets the peaks to current values.
    pub fn reset_peaks(&self) {
        self.inner.door.reset_peaks(&self.inner.shared);
    }

    /// Requested bytes of live allocations at one moment: [`Stats::live_bytes`] alone, without the cost of the rest. Locks
    /// all streams together: one after the other, a block freed on one stream and allocated again on the next would count
    /// twice.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        streams::state::live_bytes(&self.inner.shared.streams.lock_all())
    }

    /// Bytes of chunks held: [`Stats::reserved_bytes`] alone.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.inner.door.held_bytes()
    }

    /// The live allocations, in address order within each region. What other threads allocate and free meanwhile may be missing.
    /// O(blocks).
    #[must_use]
    pub fn live(&self) -> Vec<LiveAllocation> {
        self.inner.shared.streams.live()
    }

    /// Everything that the allocator holds. Locks the slow path, and one stream after the other for a thousand blocks at a time:
    /// where other threads allocate meanwhile, each such piece is of a moment of its own. O(blocks).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.inner.door.snapshot(&self.inner.shared)
    }

    /// Checks every invariant, down to single bytes' backing. Takes all locks; O(blocks + mappings). For tests.
    ///
    /// # Panics
    /// When an invariant does not hold; the message names it.
    pub fn check(&self) {
        self.inner.door.check(&self.inner.shared);
    }

    /// Waits for the streams that used this allocator's memory, and returns everything to the driver. Where one of them cannot
    /// be waited for, the host waits for the whole device. Every other clone has been dropped.
    ///
    /// # Errors
    /// [`CloseError::Leaked`] lists the allocations that were never freed; their memory is gone all the same.
    /// [`CloseError::Forked`] in a process forked from the one that built it.
    /// [`CloseError::InUse`] when there are other clones: the allocator lives on in them. [`CloseError::Pinned`] when it lives on
    /// in pins alone.
    /// [`CloseError::Driver`] when a driver call failed. While a stream of the device is being captured, the device cannot be
    /// waited for: where that would be needed, nothing is returned, since work may be using it.
    pub fn close(self) -> Result<(), CloseError> {
        self.end(Users::MayBeAtWork)
    }

    /// Whether anything else keeps the allocator, so that [`close`](Self::close) would return [`CloseError::InUse`]: a clone, a
    /// [`Pin`], a [`Buffer`], a [`VirtualRange`], a [`RegisteredBlock`], a [`WatchedStream`] or a [`StreamMark`].
    #[must_use]
    pub fn has_other_owners(&self) -> bool {
        Arc::strong_count(&self.inner) > 1
    }

    /// As [`close`](Self::close), for a caller who has waited for the device since the last work that uses this allocator's
    /// memory was queued. Waits for nothing, so it works during captures too.
    ///
    /// # Errors
    /// As `close`.
    pub fn close_after_wait(self) -> Result<(), CloseError> {
        self.end(Users::AreDone)
    }

    /// Drops this clone. If it is the last one, the driver keeps all that the allocator holds, without a call to it: for a
    /// simulated device that is dropped as well. On a GPU, the memory would be lost until the context ends.
    pub fn abandon(self) {
        if let Some(mut inner) = Arc::into_inner(self.inner) {
            inner.torn_down = true;
        }
    }

    fn end(self, users: Users) -> Result<(), CloseError> {
        let clones = Arc::strong_count(&self.inner);
        let mut inner = Arc::try_unwrap(self.inner).map_err(|inner| {
            let others = clones.saturating_sub(1).max(1);
            let pins: usize = inner.shared.streams.iter().map(|stream| stream.lock().pins()).sum();
            if pins == others { CloseError::Pinned(pins) } else { CloseError::InUse(others) }
        })?;
        if inner.shared.is_forked() {
            // `Drop` leaves everything to the process that built it.
            return Err(CloseError::Forked { built_in: inner.shared.built_in() });
        }
        let leaks = inner.shared.streams.live();
        inner.torn_down = true;
        inner.door.tear_down(&inner.shared, users)?;
        if leaks.is_empty() { Ok(()) } else { Err(CloseError::Leaked(leaks)) }
    }
}

impl<D: Driver> Drop for Inner<D> {
    fn drop(&mut self) {
        if !self.torn_down && !self.shared.is_forked() {
            // There is nobody to return an error to: `close` is for that. What may be in use stays mapped.
            let _ = self.door.tear_down(&self.shared, Users::MayBeAtWork);
        }
    }
}
