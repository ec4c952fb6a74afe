//! What PyTorch's `CUDAPluggableAllocator` calls, and with it whoever allocates by C function (CuPy, RMM).
//!
//! PyTorch takes a null pointer for memory, so that a failure has to be thrown. C++ exceptions are PyTorch's business: a
//! host sets a handler that throws, and [`gapless_torch_malloc`] calls it with the text last, with nothing of its own
//! left to clean up. Without a handler it returns null.
//!
//! The other entry points return nothing, so their failures go to stderr, once for each kind.

use crate::functions::{CUstream_st, address, check_out, device_pointer, stream_id};
use crate::history::{Action, HISTORY};
use crate::process::Device;
use crate::reports::write_json;
use crate::status::{Answer, Failure, GAPLESS_ERROR_OUT_OF_MEMORY, gapless_last_error, gapless_status, guard};
use gapless::DeviceAddr;
use gapless::allocator::{AllocError, FreeError, OutOfMemory, Snapshot, Stats};
use gapless::driver::MemoryDriver;
use gapless::units::ByteSize;
use serde::Serialize;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Called when gapless_torch_malloc fails, with the text for a person; may throw, and then does not return.
pub type gapless_failure_handler = Option<unsafe extern "C-unwind" fn(text: *const c_char, out_of_memory: i32)>;

static HANDLER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the function that gapless_torch_malloc calls when it fails, or none for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_on_failure(handler: gapless_failure_handler) {
    let pointer = handler.map_or(std::ptr::null_mut(), |handler| handler as *mut c_void);
    // Release: pairs with the load in `fail`; the handler's own data are written before.
    HANDLER.store(pointer, Ordering::Release);
}

/// Allocates for PyTorch. On failure calls the handler, if any, and returns NULL.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gapless_torch_malloc(
    size: libc::ssize_t,
    device: i32,
    stream: *mut CUstream_st,
) -> *mut c_void {
    let (status, pointer) = allocate(size, device, stream);
    if status != crate::status::GAPLESS_OK {
        // SAFETY: the last error was just set on this thread.
        unsafe { fail(status == GAPLESS_ERROR_OUT_OF_MEMORY) };
    }
    pointer
}

/// Allocates; null, with the last error set, where that fails.
pub(crate) fn allocate(size: libc::ssize_t, device: i32, stream: *mut CUstream_st) -> (gapless_status, *mut c_void) {
    let mut pointer = std::ptr::null_mut();
    let status = guard(|| {
        let bytes = u64::try_from(size).map_err(|_| Failure::argument(format!("{size} bytes asked for")))?;
        let (device, stream) = (Device::get(device)?, stream_id(stream));
        let outcome = match device.pools.alloc(&device.heap, bytes, stream) {
            Some(outcome) => {
                if let Ok(addr) = &outcome {
                    device.heap.note_alloc(*addr, bytes, stream);
                }
                outcome
            }
            None => device.heap.alloc(bytes, None, stream),
        };
        match outcome {
            Ok(addr) => {
                HISTORY.note(Action::Alloc, device.ordinal, addr, bytes, stream);
                device.allocated_bytes.fetch_add(bytes, Ordering::Relaxed);
                pointer = device_pointer(addr);
                Ok(())
            }
            Err(error) => {
                let free = error.report().and_then(|report| report.device).map_or(0, |info| info.free);
                let failure = failure_of(device, bytes, error);
                if failure.status == GAPLESS_ERROR_OUT_OF_MEMORY {
                    HISTORY.note(Action::Oom, device.ordinal, DeviceAddr(free), bytes, stream);
                }
                Err(failure)
            }
        }
    });
    (status, pointer)
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

fn failure_of(device: &Device, bytes: u64, error: AllocError) -> Failure {
    let failure = match &error {
        AllocError::OutOfMemory(report) => Failure::new(GAPLESS_ERROR_OUT_OF_MEMORY, scraped(device.ordinal, report)),
        // More than the addresses hold is more than the memory holds.
        AllocError::TooLarge { .. } => Failure::new(
            GAPLESS_ERROR_OUT_OF_MEMORY,
            format!("CUDA out of memory. Tried to allocate {}. {error}", ByteSize(bytes)),
        ),
        _ => Failure::from(error),
    };
    if device.report_on_failure {
        eprintln!("{}", failure.text);
    }
    device.log(|| format!("a request of {} failed", ByteSize(bytes)));
    failure
}

/// The wording of PyTorch's message, which log scrapers look for, then the report.
fn scraped(ordinal: u32, report: &OutOfMemory) -> String {
    let mut text = format!("CUDA out of memory. Tried to allocate {}. ", ByteSize(report.requested_bytes));
    if let Some(info) = report.device {
        text.push_str(&format!(
            "GPU {ordinal} has a total capacity of {} of which {} is free. ",
            ByteSize(info.total),
            ByteSize(info.free)
        ));
    }
    text.push_str(&format!(
        "{} allowed; Of the allocated memory {} is allocated by PyTorch, and {} is reserved by gapless but \
         unallocated.\n{report}",
        ByteSize(report.budget_bytes),
        ByteSize(report.live_bytes),
        ByteSize(report.reserved_bytes.saturating_sub(report.live_bytes)),
    ));
    text
}

/// Frees for PyTorch.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_free(pointer: *mut c_void, size: usize, device: i32, stream: *mut CUstream_st) {
    if pointer.is_null() {
        return;
    }
    tell(&TOLD_FREE, || {
        let device = Device::get(device)?;
        let addr = address(pointer);
        // The allocator knows on which streams it was used; PyTorch's is for the history.
        HISTORY.note(Action::Free, device.ordinal, addr, size as u64, stream_id(stream));
        device.heap.note_free(addr);
        match device.pools.free(&device.heap, addr) {
            Some(outcome) => outcome?,
            None => device.heap.allocator.free(addr)?,
        }
        device.freed_bytes.fetch_add(size as u64, Ordering::Relaxed);
        Ok(())
    });
}

/// PyTorch's init: nothing is taken before the first allocation.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_init(device_count: i32) {
    let _ = device_count;
}

/// PyTorch's reset, which is torch.cuda.empty_cache: free memory of all devices goes back to the driver.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_reset() {
    tell(&TOLD_RESET, || {
        for device in Device::all() {
            let trimmed = device.heap.allocator.trim(0)?;
            device.log(|| {
                format!("gave back {}, {} held", ByteSize(trimmed.released_bytes), ByteSize(trimmed.held_bytes))
            });
        }
        Ok(())
    });
}

/// PyTorch's memory fraction: the budget becomes this part of the device.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_memory_fraction(fraction: f64, device: i32) {
    tell(&TOLD_FRACTION, || set_fraction(fraction, device));
}

fn set_fraction(fraction: f64, device: i32) -> Answer<()> {
    let device = Device::get(device)?;
    let budget = crate::config::Budget::fraction(fraction)?;
    let total = device.heap.allocator.driver().memory_info()?.total;
    device.pools.set_budget(&device.heap, budget.of(total))
}

/// Sets the budget of a device to a part of its memory, above 0 and at most 1.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_set_fraction(fraction: f64, device: i32) -> gapless_status {
    guard(|| set_fraction(fraction, device))
}

/// PyTorch's base allocation: where the allocation around a pointer starts, and its bytes in *size. NULL when there is
/// none.
///
/// # Safety
/// size is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_base_alloc(pointer: *mut c_void, size: *mut usize) -> *mut c_void {
    let mut base = std::ptr::null_mut();
    tell(&TOLD_BASE, || {
        let addr = address(pointer);
        let inside = |leak: &gapless::allocator::LiveAllocation| {
            addr.offset_from(leak.addr).is_some_and(|offset| offset < leak.bytes.max(1))
        };
        let live = Device::all().find_map(|device| {
            let pools = device.pools.allocators();
            let mut all = std::iter::once(&device.heap.allocator).chain(pools.iter().map(|(_, allocator)| allocator));
            all.find_map(|allocator| allocator.live().into_iter().find(inside))
        });
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

/// PyTorch's record stream.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_record_stream(pointer: *mut c_void, stream: *mut CUstream_st) {
    tell(&TOLD_RECORD, || {
        let (addr, stream) = (address(pointer), stream_id(stream));
        let mut last = FreeError::NotAllocated { addr, facts: gapless::allocator::AddressFacts::Foreign };
        for device in Device::all() {
            let outcome = device.pools.record_stream(addr, stream);
            match outcome.unwrap_or_else(|| device.heap.allocator.record_stream(addr, stream)) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    });
}

/// PyTorch's name of a pool (c10::cuda::MempoolId_t).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gapless_torch_pool {
    /// First half.
    pub first: u64,
    /// Second half.
    pub second: u64,
}

/// PyTorch's begin allocate to pool: a graph is being captured, or a MemPool is in use. The filter is not called.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_begin_allocate_to_pool(device: i32, pool: gapless_torch_pool, filter: *mut c_void) {
    let _ = filter;
    tell(&TOLD_POOL, || {
        let device = Device::get(device)?;
        device.pools.begin(&device.heap, (pool.first, pool.second))
    });
}

/// PyTorch's end allocate to pool.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_end_allocate_to_pool(device: i32, pool: gapless_torch_pool) {
    tell(&TOLD_POOL, || {
        let device = Device::get(device)?;
        device.pools.end(&device.heap, (pool.first, pool.second));
        Ok(())
    });
}

/// PyTorch's release pool: the graph is gone.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_release_pool(device: i32, pool: gapless_torch_pool) {
    tell(&TOLD_POOL, || {
        let device = Device::get(device)?;
        device.pools.release(&device.heap, (pool.first, pool.second));
        Ok(())
    });
}

#[derive(Serialize)]
struct DeviceReport {
    main: Stats,
    pools: Vec<PoolReport>,
    /// Bytes asked for and freed since the start.
    allocated_bytes: u64,
    freed_bytes: u64,
    out_of_memory: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<Snapshot>,
}

#[derive(Serialize)]
struct PoolReport {
    id: (u64, u64),
    stats: Stats,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<Snapshot>,
}

/// Writes figures of a device's process-wide allocator and of its pools as a JSON object into buffer, as
/// gapless_stats_json does; with snapshot not 0, every segment, chunk and block, too.
///
/// # Safety
/// As gapless_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_report_json(
    device: i32,
    snapshot: i32,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gapless_status {
    guard(|| {
        check_out(needed, "needed")?;
        let device = Device::get(device)?;
        let wanted = snapshot != 0;
        let report = DeviceReport {
            main: device.heap.allocator.stats(),
            pools: device
                .pools
                .allocators()
                .into_iter()
                .map(|(id, allocator)| PoolReport {
                    id,
                    stats: allocator.stats(),
                    snapshot: wanted.then(|| allocator.snapshot()),
                })
                .collect(),
            allocated_bytes: device.allocated_bytes.load(Ordering::Relaxed),
            freed_bytes: device.freed_bytes.load(Ordering::Relaxed),
            out_of_memory: device.heap.failures.load(Ordering::Relaxed),
            snapshot: wanted.then(|| device.heap.allocator.snapshot()),
        };
        // SAFETY: the same contract.
        unsafe { write_json(&report, buffer, capacity, needed) }
    })
}

/// Runs the body of an entry point that cannot say that it failed; the first few failures of its kind go to stderr.
fn tell(told: &AtomicU32, body: impl FnOnce() -> Answer<()>) {
    let status = guard(body);
    if status != crate::status::GAPLESS_OK && told.fetch_add(1, Ordering::Relaxed) < MOST_TOLD {
        // SAFETY: the last error of this thread is a NUL-terminated string.
        let text = unsafe { std::ffi::CStr::from_ptr(gapless_last_error()) };
        eprintln!("gapless: {}", text.to_string_lossy());
    }
}

static TOLD_FREE: AtomicU32 = AtomicU32::new(0);
static TOLD_RESET: AtomicU32 = AtomicU32::new(0);
static TOLD_FRACTION: AtomicU32 = AtomicU32::new(0);
static TOLD_BASE: AtomicU32 = AtomicU32::new(0);
static TOLD_RECORD: AtomicU32 = AtomicU32::new(0);
static TOLD_POOL: AtomicU32 = AtomicU32::new(0);
/// How many failures of a kind are told.
const MOST_TOLD: u32 = 5;
