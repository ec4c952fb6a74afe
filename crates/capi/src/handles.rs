//! Calls on a handle: create, allocate, free, trim, record, destroy.

use crate::abi::{CUstream_st, address, device_pointer, stream_id, text};
use crate::config::{Config, gapless_config};
use crate::last_error::guard;
use crate::out::check_out;
use crate::registry::{Holder, find, gapless_allocator, register, remove};
use crate::status::{Answer, gapless_status};
use gapless_process::{Request, StreamLives};
use std::ffi::{c_char, c_void};

/// Makes an allocator and writes its handle to *allocator.
///
/// Retains the device's primary context. No memory is allocated and no addresses are reserved yet.
///
/// # Safety
/// config has as many bytes as its size says, and its pointers are null or valid; allocator points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_create(
    config: *const gapless_config,
    allocator: *mut *mut gapless_allocator,
) -> gapless_status {
    guard(|| {
        check_out(allocator, "allocator")?;
        // SAFETY: the function's contract.
        let own = unsafe { Config::read(config) }?.build()?;
        let handle = register(Holder::own(own));
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { allocator.write(handle) };
        Ok(())
    })
}

/// Waits for the streams that used the allocator's memory, returns all of it to the driver, and makes the handle invalid.
///
/// GAPLESS_ERROR_LEAKED when some allocations were never freed: their memory is gone all the same, and the text lists them.
/// GAPLESS_ERROR_IN_USE when another thread is inside a call on the allocator: nothing was done.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_destroy(allocator: *mut gapless_allocator) -> gapless_status {
    guard(|| Ok(remove(allocator)?.close()?))
}

/// Allocates bytes for work on stream and writes the device address to *pointer, a multiple of 512.
///
/// Work queued on stream from now on may use the memory. 0 bytes: an address that no other live allocation has.
///
/// # Safety
/// pointer points to a pointer; stream is a stream of the device, or null for the default one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_alloc(
    allocator: *mut gapless_allocator,
    bytes: u64,
    stream: *mut CUstream_st,
    pointer: *mut *mut c_void,
) -> gapless_status {
    // SAFETY: the same contract.
    guard(|| unsafe { alloc(allocator, bytes, 1, stream, pointer) })
}

/// As gapless_alloc, at a multiple of alignment bytes, which must be a power of two.
///
/// # Safety
/// pointer and stream are as in gapless_alloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_alloc_aligned(
    allocator: *mut gapless_allocator,
    bytes: u64,
    alignment: u64,
    stream: *mut CUstream_st,
    pointer: *mut *mut c_void,
) -> gapless_status {
    // SAFETY: the same contract.
    guard(|| unsafe { alloc(allocator, bytes, alignment, stream, pointer) })
}

/// # Safety
/// As `gapless_alloc`.
unsafe fn alloc(
    allocator: *mut gapless_allocator,
    bytes: u64,
    alignment: u64,
    stream: *mut CUstream_st,
    pointer: *mut *mut c_void,
) -> Answer<()> {
    check_out(pointer, "pointer")?;
    let addr = find(allocator)?.alloc(&Request {
        bytes,
        alignment,
        stream: stream_id(stream),
        lives: StreamLives::Unknown,
    })?;
    // SAFETY: not null, so valid for a write (the function's contract).
    unsafe { pointer.write(device_pointer(addr)) };
    Ok(())
}

/// Frees an allocation; nothing for NULL. Work that is already queued on its stream, and on the streams it was recorded
/// on, may still use the memory: whoever gets it next is ordered behind that work.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_free(allocator: *mut gapless_allocator, pointer: *mut c_void) -> gapless_status {
    guard(|| {
        let own = find(allocator)?;
        if pointer.is_null() { Ok(()) } else { Ok(own.free(address(pointer))?) }
    })
}

/// Records that stream also uses the allocation: once freed, the memory is not handed out again before the work that is
/// queued on stream by then has completed.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_record_stream(
    allocator: *mut gapless_allocator,
    pointer: *mut c_void,
    stream: *mut CUstream_st,
) -> gapless_status {
    guard(|| Ok(find(allocator)?.allocator().record_stream(address(pointer), stream_id(stream))?))
}

/// Returns free memory to the driver until at most keep_bytes are held, and writes the number of bytes released to
/// *released, unless that is null. Waits for the streams that used the memory, not for the device.
///
/// # Safety
/// released is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_trim(
    allocator: *mut gapless_allocator,
    keep_bytes: u64,
    released: *mut u64,
) -> gapless_status {
    guard(|| {
        let trimmed = find(allocator)?.allocator().trim(keep_bytes)?;
        if !released.is_null() {
            // SAFETY: not null, so valid for a write (the function's contract).
            unsafe { released.write(trimmed.released_bytes) };
        }
        Ok(())
    })
}

/// Changes the budget, the largest number of bytes to hold. Free memory above it is returned to the driver now; live
/// allocations stay.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_set_budget(allocator: *mut gapless_allocator, bytes: u64) -> gapless_status {
    guard(|| match find(allocator)? {
        Holder::Device(device) => Ok(device.set_budget(bytes)?),
        Holder::Own(own) => Ok(own.allocator().set_budget(bytes)?),
    })
}

/// Resets the peaks of live and held bytes to current values.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_reset_peaks(allocator: *mut gapless_allocator) -> gapless_status {
    guard(|| {
        find(allocator)?.reset_peaks();
        Ok(())
    })
}

/// Records every allocation and free from now on into a file that gapless replay reads, compressed when path ends in .gz.
///
/// # Safety
/// path is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_record_start(
    allocator: *mut gapless_allocator,
    path: *const c_char,
) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let path = unsafe { text(path, "path") }?;
        Ok(find(allocator)?.record(path.as_ref())?)
    })
}

/// Marks the end of a step in the recording, if there is one.
///
/// # Safety
/// label is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_record_mark(
    allocator: *mut gapless_allocator,
    label: *const c_char,
) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let label = unsafe { text(label, "label") }?;
        find(allocator)?.mark(&label);
        Ok(())
    })
}

/// Completes the recording. For the process-wide allocators, so does the end of the process.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_record_stop(allocator: *mut gapless_allocator) -> gapless_status {
    guard(|| Ok(find(allocator)?.stop_recording()?))
}
