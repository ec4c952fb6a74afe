//! Growable ranges of C: memory of a device at an address that stays, which grows and shrinks at its end.
//!
//! Threads: any.

use crate::abi::{CUstream_st, address, device_pointer, stream_id};
use crate::device::with_hints;
use crate::last_error::guard;
use crate::out::check_out;
use crate::process::device_of;
use crate::status::gapless_status;
use std::ffi::c_void;

/// Reserves bytes of addresses, rounded up to the driver's granularity, for a growable range, and writes the first one to *range.
/// That one names the range in the functions below until gapless_range_close, and does not change. Nothing is mapped yet: no
/// memory is held.
///
/// In a callback of a map listener, the functions on ranges answer GAPLESS_ERROR_IN_USE, of kind GAPLESS_KIND_IN_CALLBACK, and in a
/// forked process GAPLESS_ERROR_DRIVER, of kind GAPLESS_KIND_FORKED: nothing was done.
///
/// Pools, tags, recordings and the memory history are not about ranges; statistics, snapshots and out-of-memory reports are
/// (range_bytes). What a range holds stays awake in gapless_sleep. Ranges are not exported to other processes.
///
/// # Safety
/// range points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_range_reserve(device: i32, bytes: u64, range: *mut *mut c_void) -> gapless_status {
    guard(|| {
        check_out(range, "range")?;
        let addr = device_of(device)?.reserve_range(bytes)?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { range.write(device_pointer(addr)) };
        Ok(())
    })
}

/// Maps at least bytes more at the end of a range, in whole pages, for work on stream; their content is undefined. What the range
/// has stays as it is. 0 bytes: only records that stream uses the range. Every stream whose work uses it has to be recorded, by
/// this function: gapless_range_shrink and gapless_range_close wait for those.
///
/// Where there is too little memory, it takes free memory of the device, after a wait for the streams that used that. On failure
/// the range is as before: GAPLESS_ERROR_OUT_OF_MEMORY with a report, GAPLESS_ERROR_TOO_LARGE where the range has fewer addresses
/// left.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_range_grow(
    device: i32,
    range: *mut c_void,
    bytes: u64,
    stream: *mut CUstream_st,
) -> gapless_status {
    guard(|| {
        let device = device_of(device)?;
        let grown = device.grow_range(address(range), bytes, stream_id(stream));
        grown.map_err(|error| with_hints(device, error.into()))
    })
}

/// Unmaps up to bytes at the end of a range, the whole physical allocations that lie in them, and writes the number of bytes
/// unmapped to *unmapped, unless that is NULL. All allocations of the device may have their memory from then on;
/// gapless_device_trim returns it to the driver.
///
/// The host waits for the work that is queued on the streams that the range was used with: for the whole device where one of them
/// was not kept (gapless_device_keep_stream), which breaks a capture. GAPLESS_ERROR_STREAM of kind GAPLESS_KIND_CANNOT_WAIT where
/// one that was kept is being captured: nothing was done. Where the driver fails, what was unmapped before stays unmapped:
/// gapless_range_size.
///
/// # Safety
/// unmapped is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_range_shrink(
    device: i32,
    range: *mut c_void,
    bytes: u64,
    unmapped: *mut u64,
) -> gapless_status {
    guard(|| {
        let gone = device_of(device)?.shrink_range(address(range), bytes)?;
        if !unmapped.is_null() {
            // SAFETY: not null, so valid for a write (the function's contract).
            unsafe { unmapped.write(gone) };
        }
        Ok(())
    })
}

/// Moves whole physical allocations of up to bytes from the end of the range from to the end of range, contents and all, for
/// work on stream, and writes the number of bytes moved to *moved, unless that is NULL. Their order is kept. The host does not
/// wait: work on stream has to be ordered behind all other work that uses the end of from, by an event for example.
///
/// On failure both are as before: GAPLESS_ERROR_TOO_LARGE where range has fewer addresses left,
/// GAPLESS_ERROR_INVALID_ARGUMENT where both are the same range.
///
/// # Safety
/// moved is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_range_take(
    device: i32,
    range: *mut c_void,
    from: *mut c_void,
    bytes: u64,
    stream: *mut CUstream_st,
    moved: *mut u64,
) -> gapless_status {
    guard(|| {
        let device = device_of(device)?;
        let taken = device.take_from_range(address(range), address(from), bytes, stream_id(stream))?;
        if !moved.is_null() {
            // SAFETY: not null, so valid for a write (the function's contract).
            unsafe { moved.write(taken) };
        }
        Ok(())
    })
}

/// Writes the bytes of a range that may be used, from its start, to *mapped_bytes, and those of its addresses to *address_bytes,
/// unless these are NULL.
///
/// # Safety
/// mapped_bytes and address_bytes are NULL or point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_range_size(
    device: i32,
    range: *mut c_void,
    mapped_bytes: *mut u64,
    address_bytes: *mut u64,
) -> gapless_status {
    guard(|| {
        let (mapped, addresses) = device_of(device)?.range_bytes(address(range))?;
        if !mapped_bytes.is_null() {
            // SAFETY: not null, so valid for a write (the function's contract).
            unsafe { mapped_bytes.write(mapped) };
        }
        if !address_bytes.is_null() {
            // SAFETY: as above.
            unsafe { address_bytes.write(addresses) };
        }
        Ok(())
    })
}

/// Closes a range: its address names it no more, here and in the functions above. Its memory is free for all allocations of the
/// device after a wait as in gapless_range_shrink, and its addresses go back to the driver; while tensors of gapless_range_dlpack
/// live, both stay with them. Where the host cannot wait since a stream is being captured, that happens later, at the latest when
/// memory is wanted. NULL: nothing.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_range_close(device: i32, range: *mut c_void) -> gapless_status {
    guard(|| {
        let device = device_of(device)?;
        if range.is_null() { Ok(()) } else { Ok(device.close_range(address(range))?) }
    })
}
