//! The functions that PyTorch's `CUDAPluggableAllocator` calls: PyTorch's own words and forms over the process's memory.
//!
//! PyTorch takes a null pointer for memory, so a failure has to be thrown. C++ exceptions are PyTorch's business: the
//! Python package sets a handler that throws, and [`gapless_torch_malloc`] calls it as the last thing it does, with
//! nothing left to clean up. Without a handler it returns null.
//!
//! The other entry points return nothing, so their first few failures go to stderr.

use super::message;
use crate::abi::{CUstream_st, address, device_pointer, optional_text, stream_id};
use crate::device::budget_hint;
use crate::last_error::{gapless_last_error, guard, report_failure};
use crate::out::write_json;
use crate::process::{PROCESS, device_of};
use crate::sleep::with_asleep;
use crate::status::{Failure, GAPLESS_ERROR_OUT_OF_MEMORY, GAPLESS_OK, gapless_status};
use gapless::allocator::{AddressFacts, AllocError, FreeError};
use gapless::driver::MemoryDriver;
use gapless::driver::cuda::CudaDriver;
use gapless_process::{Contents, Device, Place, PoolKind, Request, StreamLives};
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Called with a text for a person when gapless_torch_malloc fails. May throw a C++ exception instead of returning.
pub type gapless_failure_handler = Option<unsafe extern "C-unwind" fn(text: *const c_char, out_of_memory: i32)>;

static HANDLER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the function that gapless_torch_malloc calls when it fails; NULL for none.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_on_failure(handler: gapless_failure_handler) {
    let pointer = handler.map_or(std::ptr::null_mut(), |handler| handler as *mut c_void);
    // Release: pairs with the load in `fail`; the handler's own data are written before.
    HANDLER.store(pointer, Ordering::Release);
}

/// Allocates for PyTorch. On failure, calls the handler if there is one, and returns NULL.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gapless_torch_malloc(
    size: libc::ssize_t,
    device: i32,
    stream: *mut CUstream_st,
) -> *mut c_void {
    let mut pointer = std::ptr::null_mut();
    let status = guard(|| {
        let bytes = u64::try_from(size).map_err(|_| Failure::argument(format!("a request of {size} bytes")))?;
        let (device, request) = (
            device_of(device)?,
            Request { bytes, alignment: 1, stream: stream_id(stream), lives: StreamLives::AsLongAsTheProcess },
        );
        let addr = device.alloc_worded(Place::OpenPool, &request, |error| worded(device, bytes, error))?;
        pointer = device_pointer(addr);
        Ok(())
    });
    if status != GAPLESS_OK {
        // SAFETY: the last error was just set on this thread.
        unsafe { fail(status == GAPLESS_ERROR_OUT_OF_MEMORY) };
    }
    pointer
}

/// # Safety
/// The handler is null or a function of its type (only `gapless_torch_on_failure` sets it).
unsafe fn fail(out_of_memory: bool) {
    // Acquire: pairs with the store in `gapless_torch_on_failure`.
    let handler = HANDLER.load(Ordering::Acquire);
    if handler.is_null() {
        return;
    }
    // SAFETY: set from a function of this type, which is not null here.
    let handler = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(text: *const c_char, out_of_memory: i32)>(
            handler,
        )
    };
    // SAFETY: the handler's contract; the text stays valid until the next failure on this thread.
    unsafe { handler(gapless_last_error(), i32::from(out_of_memory)) };
}

/// A failed request in PyTorch's words, which log scrapers and tests look for, and then gapless's. PyTorch has one failure for a
/// lack of memory and of addresses.
pub(crate) fn worded(device: &Device<CudaDriver>, bytes: u64, error: AllocError) -> Failure {
    let explanation = match &error {
        AllocError::OutOfMemory(report) => report.explanation().to_string(),
        AllocError::TooLarge { .. } => device.explain_too_large(bytes, &error),
        _ => return Failure::from(error),
    };
    let info = match error.report() {
        Some(report) => report.device,
        // SAFETY: it is asked how much memory it has.
        None => unsafe { device.allocator().driver_unchecked() }.memory_info().ok(),
    };
    let headline = message::headline(device.ordinal(), bytes, info, device.memory_use());
    let failure = Failure::caused(GAPLESS_ERROR_OUT_OF_MEMORY, format!("{headline}\n{explanation}"), &error);
    let mut failure = with_asleep(device, failure);
    if let Some(hint) = budget_hint(&failure) {
        failure.text = format!("{}\n{hint}", failure.text);
    }
    failure
}

/// Frees for PyTorch.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_free(pointer: *mut c_void, size: usize, device: i32, stream: *mut CUstream_st) {
    if pointer.is_null() {
        return;
    }
    report_failure(&REPORTED_FREE, || Ok(device_of(device)?.free(address(pointer), size as u64, stream_id(stream))?));
}

/// PyTorch's init. Does nothing: a device's allocator is made at its first allocation.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_init(device_count: i32) {
    let _ = device_count;
}

/// PyTorch's reset, which is torch.cuda.empty_cache: returns free memory of all devices to the driver.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_reset() {
    report_failure(&REPORTED_RESET, || {
        for device in PROCESS.devices() {
            device.trim(0)?;
        }
        Ok(())
    });
}

/// PyTorch's memory fraction: sets the budget of a device to a fraction of its memory.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_memory_fraction(fraction: f64, device: i32) {
    report_failure(&REPORTED_FRACTION, || Ok(device_of(device)?.set_budget_part(fraction)?));
}

/// Sets the budget of a device to a fraction of its memory, from 0 to 1. With 0, nothing more is allocated.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_set_fraction(fraction: f64, device: i32) -> gapless_status {
    guard(|| Ok(device_of(device)?.set_budget_part(fraction)?))
}

/// PyTorch's base allocation: where the allocation around a pointer starts, and its bytes in *size. NULL when there is
/// none.
///
/// # Safety
/// size is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_base_alloc(pointer: *mut c_void, size: *mut usize) -> *mut c_void {
    let mut base = std::ptr::null_mut();
    report_failure(&REPORTED_BASE, || {
        let addr = address(pointer);
        let live = PROCESS.devices().find_map(|device| device.allocation_around(addr));
        let live = live.ok_or_else(|| Failure::argument(format!("{addr} is in no live allocation")))?;
        if !size.is_null() {
            // SAFETY: not null, so valid for a write (the function's contract).
            unsafe { size.write(live.bytes as usize) };
        }
        base = device_pointer(live.addr);
        Ok(())
    });
    base
}

/// PyTorch's record stream: records that stream, which may be one of another device, also uses the allocation, or that a stream of
/// its device uses the growable range.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_record_stream(pointer: *mut c_void, stream: *mut CUstream_st) {
    report_failure(&REPORTED_RECORD, || {
        let (addr, stream) = (address(pointer), stream_id(stream));
        match PROCESS.owner_of(addr) {
            // PyTorch destroys no stream that it has made.
            Some(device) => Ok(PROCESS.record_stream(device, addr, stream, StreamLives::AsLongAsTheProcess)?),
            None if PROCESS.record_range(addr, stream)? => Ok(()),
            None => Err(FreeError::NotAllocated { addr, facts: AddressFacts::Foreign }.into()),
        }
    });
}

/// PyTorch's name of a pool (c10::cuda::MempoolId_t).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gapless_torch_pool {
    /// The first half of the name.
    pub first: u64,
    /// The second half of the name.
    pub second: u64,
}

/// What a pool is for: one of the GAPLESS_POOL_... numbers.
pub type gapless_pool_kind = i32;

/// Captured graphs, whose replays use its memory at any time: what is mapped stays until the pool is closed.
pub const GAPLESS_POOL_GRAPH: gapless_pool_kind = 0;
/// Memory that a program wants apart: it is remapped and returned as the device's own. No graph may be captured into it.
pub const GAPLESS_POOL_ORDINARY: gapless_pool_kind = 1;

/// Says what a pool is for, one of the GAPLESS_POOL_... numbers, and its tag, NULL for none, before it has memory. The tag may be
/// changed later. What nobody has declared is for captured graphs, with the tag of the thread that makes it (gapless_tag_push).
/// GAPLESS_ERROR_IN_USE for a pool of another kind that is open or has memory.
///
/// # Safety
/// tag is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_declare_pool(
    device: i32,
    pool: gapless_torch_pool,
    kind: gapless_pool_kind,
    tag: *const c_char,
) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let tag = unsafe { optional_text(tag) }?;
        let kind = match kind {
            GAPLESS_POOL_GRAPH => PoolKind::Graph,
            GAPLESS_POOL_ORDINARY => PoolKind::Ordinary,
            _ => return Err(Failure::argument(format!("{kind} is no kind of pool: see GAPLESS_POOL_..."))),
        };
        Ok(device_of(device)?.pools().declare((pool.first, pool.second), kind, tag.as_deref())?)
    })
}

/// PyTorch's begin allocate to pool, when a graph is captured or a MemPool is in use: opens a pool. If the first request then
/// is made on a stream that is being captured, the pool serves the requests of that capture, else those of the calling thread.
/// The filter is not called.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_begin_allocate_to_pool(device: i32, pool: gapless_torch_pool, filter: *mut c_void) {
    let _ = filter;
    report_failure(&REPORTED_POOL, || {
        let device = device_of(device)?;
        Ok(device.pools().begin((pool.first, pool.second))?)
    });
}

/// PyTorch's end allocate to pool: closes a pool to new requests.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_end_allocate_to_pool(device: i32, pool: gapless_torch_pool) {
    report_failure(&REPORTED_POOL, || {
        let device = device_of(device)?;
        device.end_pool((pool.first, pool.second));
        Ok(())
    });
}

/// PyTorch's release pool: the graph or MemPool is gone. Waits for nothing: a replay may be in flight. Once nothing in the pool
/// is live, its memory goes back when it is wanted, or with the next trim, after a wait for the device.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_release_pool(device: i32, pool: gapless_torch_pool) {
    report_failure(&REPORTED_POOL, || {
        let device = device_of(device)?;
        device.pools().release((pool.first, pool.second));
        Ok(())
    });
}

/// Writes statistics of a device's process-wide allocator and of its pools as a JSON object into buffer, as
/// gapless_stats_json does. If snapshot is not 0, adds every region, block and chunk.
///
/// # Safety
/// buffer, capacity and needed are as in gapless_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_report_json(
    device: i32,
    snapshot: i32,
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> gapless_status {
    guard(|| {
        let contents = if snapshot == 0 { Contents::Figures } else { Contents::Snapshot };
        let report = device_of(device)?.report(contents);
        // SAFETY: the same contract.
        unsafe { write_json(&report, buffer, capacity, needed) }
    })
}

static REPORTED_FREE: AtomicU32 = AtomicU32::new(0);
static REPORTED_RESET: AtomicU32 = AtomicU32::new(0);
static REPORTED_FRACTION: AtomicU32 = AtomicU32::new(0);
static REPORTED_BASE: AtomicU32 = AtomicU32::new(0);
static REPORTED_RECORD: AtomicU32 = AtomicU32::new(0);
static REPORTED_POOL: AtomicU32 = AtomicU32::new(0);
