//! Memory of this process's devices, by their numbers: what every program may call.
//!
//! Pools, the memory history, recordings, sums and reports are about the memory of all front ends. Calls by handle (`handles`)
//! allocate from the device's allocator alone, past pools and history; their figures are those of the device.
//!
//! Threads: any.

use crate::abi::{CUstream_st, address, device_pointer, stream_id, text};
use crate::last_error::guard;
use crate::out::check_out;
use crate::process::{PROCESS, device_of, handle_of};
use crate::registry::gapless_allocator;
use crate::sleep::with_asleep;
use crate::status::{Failure, GAPLESS_ERROR_TOO_LARGE, gapless_status};
use gapless::StreamId;
use gapless::allocator::AllocError;
use gapless::driver::cuda::CudaDriver;
use gapless::units::ByteSize;
use gapless_process::{Conf, Device, Place, Request, StreamLives};
use std::ffi::{c_char, c_void};

/// Checks a configuration in the syntax of GAPLESS_CONF: key:value,key:value. On failure the text names what is wrong.
///
/// # Safety
/// conf is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_check_conf(conf: *const c_char) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let conf = unsafe { text(conf, "configuration") }?;
        Conf::parse(&conf).map(|_| ()).map_err(Failure::argument)
    })
}

/// Uses a configuration in place of GAPLESS_CONF for the process-wide allocators. GAPLESS_ERROR_IN_USE once one of them
/// exists.
///
/// # Safety
/// conf is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_configure(conf: *const c_char) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let conf = unsafe { text(conf, "configuration") }?;
        Ok(PROCESS.configure(&conf)?)
    })
}

/// Writes the handle of a device's process-wide allocator to *allocator, for its statistics and recordings. It is
/// made on first use from GAPLESS_CONF and lives as long as the process; gapless_destroy refuses it.
///
/// Allocate from it with gapless_device_alloc: calls by handle go past the pools of captured graphs, the memory history, and
/// what other devices' streams use. A budget that is set by handle is that of the device, pools included.
///
/// # Safety
/// allocator points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_allocator(
    device: i32,
    allocator: *mut *mut gapless_allocator,
) -> gapless_status {
    guard(|| {
        check_out(allocator, "allocator")?;
        let handle = handle_of(device_of(device)?)?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { allocator.write(handle) };
        Ok(())
    })
}

/// A failed request in words that fit every front end.
fn worded(device: &Device<CudaDriver>, request: &Request, error: AllocError) -> Failure {
    match &error {
        AllocError::TooLarge { .. } => {
            let explanation = device.explain_too_large(request.bytes, &error);
            let text = format!("GPU out of memory. Tried to allocate {}. {explanation}", ByteSize(request.bytes));
            Failure::caused(GAPLESS_ERROR_TOO_LARGE, text, &error)
        }
        _ => with_hints(device, error.into()),
    }
}

/// A failure for lack of memory, with what is asleep on the device, and how to raise the budget.
pub(crate) fn with_hints(device: &Device<CudaDriver>, failure: Failure) -> Failure {
    let mut failure = with_asleep(device, failure);
    if let Some(hint) = budget_hint(&failure) {
        failure.text = format!("{}\n{hint}", failure.text);
    }
    failure
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
/// memory of all of them.
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
        let device = device_of(device)?;
        let addr = device.alloc_worded(Place::OpenPool, &request, |error| worded(device, &request, error))?;
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
        let device = device_of(device)?;
        if pointer.is_null() { Ok(()) } else { Ok(device.free(address(pointer), bytes, StreamId::DEFAULT)?) }
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
        let device = device_of(device)?;
        if pointer.is_null() {
            Ok(())
        } else {
            Ok(PROCESS.free_on(device, address(pointer), bytes, stream_id(stream))?)
        }
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
    guard(|| {
        let device = device_of(device)?;
        Ok(PROCESS.record_stream(device, address(pointer), stream_id(stream), StreamLives::Unknown)?)
    })
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
        let trimmed = device_of(device)?.trim(keep_bytes)?;
        if !released.is_null() {
            // SAFETY: not null, so valid for a write (the function's contract).
            unsafe { released.write(trimmed.released_bytes) };
        }
        Ok(())
    })
}
