//! Memory of this process's devices. Every front end comes through here, so that pools, the memory history, recordings,
//! sums and reports are about the memory of all of them.
//!
//! What a front end adds is the form of its calls and the words of its failures: `torch`, `cupy`, and for everybody else
//! the functions below. Calls by handle (`functions`) go to the allocator alone, past pools and history.
//!
//! - I1  an allocation is in the history after it was made, a free before it is done: events of one address are in order.
//!
//! Threads: any. Cost: that of `Instance` and `Pools`, and for each call a load of an atomic for the history.

use crate::functions::{CUstream_st, address, device_pointer, stream_id};
use crate::history::HISTORY;
use crate::instance::{Request, is_out_of_memory};
use crate::last_error::guard;
use crate::out::check_out;
use crate::pools::{Past, PoolId, wants_room};
use crate::process::Device;
use crate::status::{
    Answer, Failure, GAPLESS_ERROR_NOT_ALLOCATED, GAPLESS_ERROR_OUT_OF_MEMORY, GAPLESS_ERROR_STREAM, gapless_status,
};
use crate::streams::StreamLives;
use gapless::allocator::{AddressFacts, AllocError, FreeError, LiveAllocation, Snapshot, Stats, StreamError, Trimmed};
use gapless::driver::cuda::{CudaDriver, LEGACY_STREAM, PER_THREAD_STREAM};
use gapless::driver::{DriverError, DriverErrorKind, MemoryDriver, StreamDriver};
use gapless::units::ByteSize;
use gapless::{Allocator, DeviceAddr, StreamId};
use gapless_process::Action;
use gapless_process::notice;
use serde::Serialize;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// Bytes rounded up to whole pages, as far as that is a number.
pub(crate) fn whole_pages(bytes: u64, page: u64) -> u64 {
    bytes.checked_next_multiple_of(page).unwrap_or(bytes)
}

impl Device {
    /// Allocates from the open pool that the request belongs to, else from the device's allocator. `worded` makes of an
    /// error what the front end's callers are told.
    pub fn alloc(&self, request: &Request, worded: impl FnOnce(AllocError) -> Failure) -> Answer<DeviceAddr> {
        let request = &self.laid_out(request);
        let serve = || self.pools.alloc(&self.main, request).unwrap_or_else(|| self.alloc_from_main(request));
        self.alloc_by(request, serve, worded)
    }

    /// As [`alloc`](Self::alloc), from the pool of that name, or from none, whichever are open.
    pub fn alloc_in(
        &self,
        pool: Option<PoolId>,
        request: &Request,
        worded: impl FnOnce(AllocError) -> Failure,
    ) -> Answer<DeviceAddr> {
        let request = &self.laid_out(request);
        let from_pool = || pool.and_then(|id| self.pools.alloc_in(&self.main, id, request));
        self.alloc_by(request, || from_pool().unwrap_or_else(|| self.alloc_from_main(request)), worded)
    }

    /// The request as it is served. A block that is to have its chunks for itself takes whole pages.
    #[inline]
    fn laid_out(&self, request: &Request) -> Request {
        match self.private_page {
            Some(page) if request.bytes >= page => {
                let (bytes, alignment) = (whole_pages(request.bytes, page), request.alignment.max(page));
                Request { bytes, alignment, ..*request }
            }
            _ => *request,
        }
    }

    #[inline]
    fn alloc_by(
        &self,
        request: &Request,
        serve: impl Fn() -> Result<DeviceAddr, AllocError>,
        worded: impl FnOnce(AllocError) -> Failure,
    ) -> Answer<DeviceAddr> {
        self.settle_over();
        let mut outcome = serve();
        if matches!(outcome, Err(AllocError::OutOfMemory(_))) && self.foreign.holds_any() {
            self.settle(self.foreign.wait());
            outcome = serve();
        }
        let outcome = outcome.map_err(|error| self.with_pools(error));
        self.main.note_request(request, &outcome);
        match outcome {
            Ok(addr) => {
                HISTORY.note(Action::Alloc, self.ordinal, addr, request.bytes, request.stream);
                Ok(addr)
            }
            Err(error) => {
                if is_out_of_memory(&error) {
                    let free = error.report().and_then(|report| report.device).map_or(0, |info| info.free);
                    HISTORY.note(Action::Oom, self.ordinal, DeviceAddr(free), request.bytes, request.stream);
                }
                let failure = worded(error);
                if self.report_on_failure {
                    notice(format_args!("{}", failure.text));
                }
                self.log(|| format!("a request of {} failed", ByteSize(request.bytes)));
                Err(failure)
            }
        }
    }

    /// A failure of one of the device's allocators, with what the others hold.
    #[cold]
    fn with_pools(&self, mut error: AllocError) -> AllocError {
        if let AllocError::OutOfMemory(report) = &mut error {
            let held = self.main.allocator.reserved_bytes() + self.pools.held_bytes();
            report.add_elsewhere(held.saturating_sub(report.reserved_bytes));
            if self.main.allocator.has_set_budget() {
                report.budget_bytes = self.pools.whole_budget(&self.main);
            }
        }
        error
    }

    /// What the device's allocators hold together.
    pub fn memory_use(&self) -> MemoryUse {
        let pools = self.pools.all();
        let live_in_pools = pools.iter().map(|pool| pool.allocator.live_bytes()).sum();
        let main = &self.main.allocator;
        MemoryUse {
            live: main.live_bytes() + live_in_pools,
            live_in_pools,
            reserved: main.reserved_bytes() + self.pools.held_bytes(),
            set_budget: main.has_set_budget().then(|| self.pools.whole_budget(&self.main)),
        }
    }

    /// Why a request that is larger than the addresses of a region fails: most of the time the device is far smaller.
    #[cold]
    pub fn explain_too_large(&self, bytes: u64, error: &AllocError) -> String {
        match self.main.allocator.driver().memory_info() {
            Ok(device) if bytes > device.total => {
                format!("No allocator could have served this: the device has {} in all.", ByteSize(device.total))
            }
            _ => error.to_string(),
        }
    }

    /// Sets the budget of the main allocator and of all pools together.
    pub fn set_budget(&self, bytes: u64) -> Answer<()> {
        self.pools.set_budget(&self.main, bytes)
    }

    #[inline]
    fn alloc_from_main(&self, request: &Request) -> Result<DeviceAddr, AllocError> {
        let outcome = request.serve(&self.main.allocator);
        if wants_room(&outcome) { self.alloc_in_room(request, outcome) } else { outcome }
    }

    /// A request that the main allocator has refused: once more with what the pools give back, then from a pool that lends.
    #[cold]
    fn alloc_in_room(
        &self,
        request: &Request,
        mut outcome: Result<DeviceAddr, AllocError>,
    ) -> Result<DeviceAddr, AllocError> {
        if self.pools.make_room(&self.main, request) {
            outcome = request.serve(&self.main.allocator);
        }
        if wants_room(&outcome) { self.pools.alloc_lent(request).unwrap_or(outcome) } else { outcome }
    }

    /// Whether an address cannot be that of a pool's allocation.
    fn is_of_main(&self, addr: DeviceAddr) -> bool {
        self.pools.none() || self.main.allocator.contains(addr)
    }

    /// Frees an allocation. `bytes` and `stream` are for the history: those of the allocation, or 0 where the front end
    /// does not know them. The allocator knows on which streams the memory was used.
    pub fn free(&self, addr: DeviceAddr, bytes: u64, stream: StreamId) -> Result<(), FreeError> {
        self.settle_over();
        self.expect_not_held(addr)?;
        if HISTORY.is_on() && self.live_around(addr).is_some_and(|(_, live)| live.addr == addr) {
            HISTORY.note(Action::Free, self.ordinal, addr, bytes, stream);
        }
        self.main.note_free(addr);
        if self.foreign.hold_back(addr) { Ok(()) } else { self.free_now(addr) }
    }

    fn free_now(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        if self.is_of_main(addr) {
            return self.main.allocator.free(addr);
        }
        self.pools.free(addr).unwrap_or_else(|| self.main.allocator.free(addr))
    }

    /// Frees blocks that were held back, whose foreign uses are over.
    fn settle(&self, over: Vec<DeviceAddr>) {
        for addr in over {
            // It was live when it was held back, and nobody else frees what is held back.
            let _ = self.free_now(addr);
        }
    }

    /// Counts and records an allocation that was made again at its address.
    pub fn note_again(&self, addr: DeviceAddr, bytes: u64) {
        let stream = self.live_around(addr).map_or(StreamId::DEFAULT, |(_, live)| live.stream);
        self.main.note_again(addr, bytes, stream);
        HISTORY.note(Action::Alloc, self.ordinal, addr, bytes, stream);
    }

    /// Frees the blocks that are held back for streams of other devices, after a wait for these.
    pub fn settle_foreign(&self) {
        if self.foreign.holds_any() {
            self.settle(self.foreign.wait());
        }
    }

    /// Frees the blocks that were held back for streams of other devices, as far as these are done with them.
    #[inline]
    pub fn settle_over(&self) {
        if self.foreign.holds_any() {
            self.settle(self.foreign.take_over());
        }
    }

    /// Refuses an allocation that was freed and is held back.
    pub fn expect_not_held(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        if self.foreign.holds(addr) {
            return Err(FreeError::NotAllocated { addr, facts: AddressFacts::Freed { pending: true } });
        }
        Ok(())
    }

    /// Records that `stream` also uses an allocation. The stream may be one of another device. A default stream's handle does
    /// not say of which device, so it stands for that of every device in use.
    pub fn record_stream(&self, addr: DeviceAddr, stream: StreamId, lives: StreamLives) -> Answer<()> {
        self.expect_not_held(addr)?;
        match self.record_own_stream(addr, stream, lives) {
            Ok(()) if is_default(stream) => {
                for other in Self::all().filter(|other| other.ordinal != self.ordinal) {
                    self.foreign.record(addr, other, stream, lives)?;
                }
                Ok(())
            }
            Err(FreeError::Stream(StreamError::Foreign { source, .. }))
                if source.kind == DriverErrorKind::InvalidHandle && !is_default(stream) =>
            {
                self.record_foreign(addr, stream, lives, source)
            }
            own => Ok(own?),
        }
    }

    fn record_own_stream(&self, addr: DeviceAddr, stream: StreamId, lives: StreamLives) -> Result<(), FreeError> {
        let record = |allocator: &Allocator<CudaDriver>| {
            if lives == StreamLives::AsLongAsTheProcess {
                allocator.keep_stream(stream)?;
            }
            allocator.record_stream(addr, stream)
        };
        let pool = if self.is_of_main(addr) { None } else { self.pools.owner(addr) };
        match pool {
            Some(pool) => record(&pool.allocator),
            None => record(&self.main.allocator),
        }
    }

    /// Records a stream that is none of this device, as `source` says.
    #[cold]
    fn record_foreign(
        &self,
        addr: DeviceAddr,
        stream: StreamId,
        lives: StreamLives,
        source: DriverError,
    ) -> Answer<()> {
        let allocator = self.allocator_of(addr).unwrap_or_else(|| self.main.allocator.clone());
        allocator.expect_live(addr)?;
        let refused = |error: StreamError| {
            let text = format!("memory of device {} cannot be recorded on {stream:?}: {error}", self.ordinal);
            Failure::caused(GAPLESS_ERROR_STREAM, text, &error)
        };
        let source = match self.main.allocator.driver().device_of_stream(stream) {
            Ok(ordinal) if ordinal != self.ordinal => {
                let other = Self::get(ordinal.cast_signed())?;
                return self.foreign.record(addr, other, stream, lives).map_err(refused);
            }
            // A stream of another context of the same device.
            Ok(_) => source,
            Err(error) => error,
        };
        Err(refused(StreamError::Foreign { stream, source }))
    }

    /// Whether an address is among those of the device's allocator or of a pool.
    pub fn holds(&self, addr: DeviceAddr) -> bool {
        self.main.allocator.contains(addr) || (!self.pools.none() && self.pools.owner(addr).is_some())
    }

    /// The allocator whose addresses an address is among: the main one, or that of a pool.
    pub fn allocator_of(&self, addr: DeviceAddr) -> Option<Allocator<CudaDriver>> {
        if self.main.allocator.contains(addr) {
            return Some(self.main.allocator.clone());
        }
        let pools = self.pools.all();
        pools.iter().map(|pool| pool.allocator.clone()).find(|allocator| allocator.contains(addr))
    }

    /// Frees an allocation whose last use was on `stream`, where a default stream's handle means that of this device. Where the
    /// stream cannot be recorded, the host waits for all devices in use: it may be another one's. Nothing has happened if one
    /// cannot be waited for, since a graph is being captured.
    pub fn free_on(&self, addr: DeviceAddr, bytes: u64, stream: StreamId) -> Answer<()> {
        self.expect_not_held(addr)?;
        let recorded = match is_default(stream) {
            true => self.record_own_stream(addr, stream, StreamLives::Unknown).map_err(Failure::from),
            false => self.record_stream(addr, stream, StreamLives::Unknown),
        };
        match recorded {
            Ok(()) => {}
            Err(failure) if failure.status == GAPLESS_ERROR_NOT_ALLOCATED => return Err(failure),
            Err(_) => Self::all().try_for_each(Self::synchronize)?,
        }
        Ok(self.free(addr, bytes, stream)?)
    }

    fn synchronize(&self) -> Answer<()> {
        match self.main.allocator.driver().synchronize_device() {
            Err(error) if !error.kind.is_sticky() => Err(error.into()),
            // Nothing runs on a device that is lost.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns free memory to the driver until at most `keep_bytes` are held, after a wait for other devices that use it, and
    /// that of pools that were released. What other pools hold stays, and does not count.
    pub fn trim(&self, keep_bytes: u64) -> Result<Trimmed, AllocError> {
        self.settle_foreign();
        let of_pools = self.pools.close_condemned(&self.main, None);
        let mut trimmed = self.main.allocator.trim(keep_bytes)?;
        trimmed.released_bytes += of_pools;
        self.log(|| format!("released {}, {} held", ByteSize(trimmed.released_bytes), ByteSize(trimmed.held_bytes)));
        Ok(trimmed)
    }

    /// The live allocation that `addr` lies in.
    pub fn allocation_around(&self, addr: DeviceAddr) -> Option<LiveAllocation> {
        let inside =
            |live: &LiveAllocation| addr.offset_from(live.addr).is_some_and(|offset| offset < live.bytes.max(1));
        self.live_around(addr).map(|(_, live)| live).filter(inside)
    }

    /// Figures of the device's allocator and of its pools.
    pub fn report(&self, contents: Contents) -> DeviceReport {
        // Before the figures: what is allocated meanwhile makes the freed bytes too low for this once, never too high.
        let allocated_bytes = self.main.allocated_bytes();
        let wanted = contents == Contents::Snapshot;
        let (main, snapshot) = (self.main.allocator.stats(), wanted.then(|| self.main.allocator.snapshot()));
        let (pools, past) = self.pools.all_and_past();
        let pools: Vec<PoolReport> = pools
            .into_iter()
            .map(|pool| PoolReport {
                id: pool.id,
                stats: pool.allocator.stats(),
                snapshot: wanted.then(|| pool.allocator.snapshot()),
            })
            .collect();
        let live = main.live_bytes + pools.iter().map(|pool| pool.stats.live_bytes).sum::<u64>();
        let freed_now = allocated_bytes.saturating_sub(live);
        let freed_before = self.freed_bytes.fetch_max(freed_now, Ordering::Relaxed);
        DeviceReport {
            main,
            pools,
            past_pools: past,
            allocated_bytes,
            freed_bytes: freed_now.max(freed_before),
            out_of_memory: self.main.out_of_memory(),
            condemned_bytes: self.pools.condemned_bytes(),
            snapshot,
        }
    }
}

/// Whether a handle stands for a default stream, whichever device's.
fn is_default(stream: StreamId) -> bool {
    [StreamId::DEFAULT, LEGACY_STREAM, PER_THREAD_STREAM].contains(&stream)
}

/// What the allocators of a device hold together, pools included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryUse {
    /// Bytes requested by live allocations.
    pub live: u64,
    /// Those of them in pools.
    pub live_in_pools: u64,
    /// Bytes of all chunks.
    pub reserved: u64,
    /// The budget, if one was set.
    pub set_budget: Option<u64>,
}

/// What a [`DeviceReport`] has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    Figures,
    /// Every region, block and chunk, too.
    Snapshot,
}

/// What a device's memory is used for.
#[derive(Serialize)]
pub(crate) struct DeviceReport {
    main: Stats,
    pools: Vec<PoolReport>,
    /// Counts of the pools that were released.
    past_pools: Past,
    /// Bytes requested and served since the start.
    allocated_bytes: u64,
    /// Bytes of those that were freed. Never falls.
    freed_bytes: u64,
    /// Requests that ran out of memory.
    out_of_memory: u64,
    /// Bytes of pools that were released: they go back to the driver when memory is wanted, or with the next trim.
    condemned_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<Snapshot>,
}

#[derive(Serialize)]
struct PoolReport {
    id: PoolId,
    stats: Stats,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<Snapshot>,
}

/// A failed request in words that fit every front end. One that exceeds the addresses of a region counts as out of memory.
fn worded(device: &Device, request: &Request, error: AllocError) -> Failure {
    match &error {
        AllocError::TooLarge { .. } => {
            let explanation = device.explain_too_large(request.bytes, &error);
            let text = format!("GPU out of memory. Tried to allocate {}. {explanation}", ByteSize(request.bytes));
            Failure::caused(GAPLESS_ERROR_OUT_OF_MEMORY, text, &error)
        }
        _ => {
            let mut failure = Failure::from(error);
            if let Some(hint) = budget_hint(&failure) {
                failure.text = format!("{}\n{hint}", failure.text);
            }
            failure
        }
    }
}

/// How to raise the budget, where that is what stopped a request.
pub(crate) fn budget_hint(failure: &Failure) -> Option<&'static str> {
    let report = failure.cause.report.as_ref()?;
    report.stopped_by_budget.then_some(
        "Raise it with budget:SIZE in GAPLESS_CONF, gapless_set_budget in C, or in Python \
         gapless.DeviceMemory(device).set_budget(bytes), gapless.torch.enable(budget=...) or \
         torch.cuda.set_per_process_memory_fraction",
    )
}

/// Allocates bytes for work on stream from the process-wide allocator of a device, and writes the device address to
/// *pointer, a multiple of 512. The allocator is made on first use from GAPLESS_CONF.
///
/// PyTorch, CuPy, RMM and Numba allocate through this door, too: pools, the memory history and recordings are about the
/// memory of all of them. A request that exceeds the addresses of a region is out of memory
/// here, of kind GAPLESS_KIND_TOO_LARGE and without a report.
///
/// # Safety
/// pointer points to a pointer; stream is a stream of the device, or null for the default one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_alloc(
    device: i32,
    bytes: u64,
    stream: *mut CUstream_st,
    pointer: *mut *mut c_void,
) -> gapless_status {
    // SAFETY: the same contract.
    unsafe { gapless_device_alloc_aligned(device, bytes, 1, stream, pointer) }
}

/// As gapless_device_alloc, at a multiple of alignment, a power of two.
///
/// # Safety
/// pointer and stream are as in gapless_device_alloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_alloc_aligned(
    device: i32,
    bytes: u64,
    alignment: u64,
    stream: *mut CUstream_st,
    pointer: *mut *mut c_void,
) -> gapless_status {
    guard(|| {
        check_out(pointer, "pointer")?;
        let request = Request { bytes, alignment, stream: stream_id(stream), lives: StreamLives::Unknown };
        let device = Device::get(device)?;
        let addr = device.alloc(&request, |error| worded(device, &request, error))?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { pointer.write(device_pointer(addr)) };
        Ok(())
    })
}

/// Frees an allocation of a device, whichever front end made it. Work queued on its stream, and on the streams it was
/// recorded on, may still use it. NULL: nothing. bytes, as requested, are for the memory history; 0 when not known.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_free(device: i32, pointer: *mut c_void, bytes: u64) -> gapless_status {
    guard(|| {
        let device = Device::get(device)?;
        if pointer.is_null() { Ok(()) } else { Ok(device.free(address(pointer), bytes, StreamId(0))?) }
    })
}

/// Frees an allocation of a device whose last use was on stream, which need not be the one that it was allocated on: the
/// memory is not handed out again before the work that is queued on stream by now has completed. NULL: nothing. bytes is as
/// in gapless_device_free.
///
/// Where stream cannot be recorded, the host waits for all devices that this process allocates on. GAPLESS_ERROR_DRIVER while a
/// graph is being captured and a device cannot be waited for: nothing was done.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_free_on(
    device: i32,
    pointer: *mut c_void,
    bytes: u64,
    stream: *mut CUstream_st,
) -> gapless_status {
    guard(|| {
        let device = Device::get(device)?;
        if pointer.is_null() { Ok(()) } else { device.free_on(address(pointer), bytes, stream_id(stream)) }
    })
}

/// Records that stream also uses an allocation of a device: once freed, the memory is not handed out again before the
/// work that is queued on stream by then has completed. The stream may be one of another device; then the memory counts as
/// live until its work has completed. A default stream's handle stands for
/// the default streams of all devices that this process uses.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_record_stream(
    device: i32,
    pointer: *mut c_void,
    stream: *mut CUstream_st,
) -> gapless_status {
    guard(|| Device::get(device)?.record_stream(address(pointer), stream_id(stream), StreamLives::Unknown))
}

/// Returns free memory of a device's process-wide allocator to the driver until at most keep_bytes are held, and writes
/// the number of bytes released to *released, unless that is null. Memory of pools that were released goes back too, after a
/// wait for the device; that of other pools stays, and does not count.
///
/// # Safety
/// released is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_trim(device: i32, keep_bytes: u64, released: *mut u64) -> gapless_status {
    guard(|| {
        let trimmed = Device::get(device)?.trim(keep_bytes)?;
        if !released.is_null() {
            // SAFETY: not null, so valid for a write (the function's contract).
            unsafe { released.write(trimmed.released_bytes) };
        }
        Ok(())
    })
}
