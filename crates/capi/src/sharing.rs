//! Sharing with other processes in C: blocks of a device by pointer, blocks of others by handle.
//!
//! Threads: any.

use crate::abi::{address, device_pointer};
use crate::last_error::guard;
use crate::out::{check_out, write_json};
use crate::process::{PROCESS, device_of};
use crate::status::{Failure, gapless_status};
use gapless::DeviceAddr;
use gapless_share::{HANDLE_BYTES, Handle, PATIENCE, ShareError};
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// Bytes of a handle of shared memory.
pub const GAPLESS_SHARE_HANDLE_BYTES: usize = 192;
const _: () = assert!(GAPLESS_SHARE_HANDLE_BYTES == HANDLE_BYTES);

thread_local! {
    /// How long the thread waits for the process that shared what it imports.
    static PATIENCE_HERE: Cell<Duration> = const { Cell::new(PATIENCE) };
}

/// Offers the live allocation that pointer lies in, one of a pool too, to other processes of the user: writes a handle of
/// GAPLESS_SHARE_HANDLE_BYTES bytes to handle, and to *offset how far pointer lies behind the start of the allocation. The
/// handle starts with "gapless2", is good until the allocation is freed, and can be sent by whatever means; one
/// allocation has one handle.
///
/// Memory that another process has imported stays as it is until that has closed it, also when it is freed here meanwhile. A thread
/// of this process answers the others over a socket in the folder that GAPLESS_SHARE_DIR names, else in /tmp/gapless-UID.
///
/// # Safety
/// handle points to GAPLESS_SHARE_HANDLE_BYTES bytes, offset to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_export(
    device: i32,
    pointer: *const c_void,
    handle: *mut u8,
    offset: *mut u64,
) -> gapless_status {
    guard(|| {
        check_out(handle, "handle")?;
        check_out(offset, "offset")?;
        let (exported, behind) = device_of(device)?.export(DeviceAddr(pointer.addr() as u64))?;
        let bytes = exported.to_bytes();
        // SAFETY: not null, so as many bytes as a handle has (the function's contract).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), handle, bytes.len()) };
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { offset.write(behind) };
        Ok(())
    })
}

/// Writes to *device the number here of the device that the allocation of a handle of handle_bytes bytes is on, which may have
/// another one in the process that shared it: gapless_device_import takes it, and refuses any other device. -1 where that process
/// does not know. GAPLESS_ERROR_SHARE where this process does not see the device.
///
/// # Safety
/// handle points to handle_bytes bytes, device to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_of_handle(
    handle: *const u8,
    handle_bytes: u64,
    device: *mut i32,
) -> gapless_status {
    guard(|| {
        check_out(device, "device")?;
        // SAFETY: that many bytes, or null (the function's contract).
        let handle = unsafe { read_handle(handle, handle_bytes) }?;
        let found = PROCESS.device_of_handle(&handle)?.and_then(|ordinal| i32::try_from(ordinal).ok());
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { device.write(found.unwrap_or(-1)) };
        Ok(())
    })
}

/// The handle in so many bytes.
///
/// # Safety
/// They are valid for reads, or null.
unsafe fn read_handle(handle: *const u8, handle_bytes: u64) -> Result<Handle, Failure> {
    if handle.is_null() || handle_bytes != HANDLE_BYTES as u64 {
        return Err(ShareError::NoHandle.into());
    }
    // SAFETY: not null, so that many bytes (the function's contract).
    Ok(Handle::from_bytes(unsafe { std::slice::from_raw_parts(handle, HANDLE_BYTES) })?)
}

/// Writes the processes that have allocations of a device open as a JSON list into buffer, as gapless_stats_json does. Each has its
/// number ("process"; null for all of other namespaces), "blocks" and "bytes" that it has open, and "freed_bytes": those of
/// allocations that were freed here, which are held for it alone.
///
/// # Safety
/// buffer, capacity and needed are as in gapless_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_holders_json(
    device: i32,
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> gapless_status {
    guard(|| {
        let holders = device_of(device)?.holders();
        // SAFETY: the same contract.
        unsafe { write_json(&holders, buffer, capacity, needed) }
    })
}

/// Cuts off the process of a number, one that hangs for example: what it has imported from a device is not held for it any more. It
/// is not asked, and may go on to use the memory, so that nobody else gets the chunks that an allocation has for itself: once that
/// is freed here they go back to the driver, and the device has them again when that process has ended. Chunks in which other
/// allocations lie are used on. 0 cuts off all that have no number here, since they are of other namespaces.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_cut_off(device: i32, process: u32) -> gapless_status {
    guard(|| {
        device_of(device)?.cut_off((process != 0).then_some(process));
        Ok(())
    })
}

/// Maps the allocation of a handle of handle_bytes bytes for use on device: writes its address here to *pointer, and its bytes,
/// rounding included, to *bytes. What is imported already costs no call to the driver; each import is closed once.
///
/// Work of the process that shared it has to be ordered before work here, with an event for instance. What is mapped is whole
/// physical allocations: what else they hold, before and behind, is within reach too. GAPLESS_ERROR_GONE where the allocation
/// or its process is gone; GAPLESS_ERROR_SHARE where the process lives and does not answer in time:
/// gapless_import_patience.
///
/// # Safety
/// handle points to handle_bytes bytes, pointer to a pointer, bytes to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_import(
    device: i32,
    handle: *const u8,
    handle_bytes: u64,
    pointer: *mut *mut c_void,
    bytes: *mut u64,
) -> gapless_status {
    guard(|| {
        check_out(pointer, "pointer")?;
        check_out(bytes, "bytes")?;
        // SAFETY: that many bytes, or null (the function's contract).
        let handle = unsafe { read_handle(handle, handle_bytes) }?;
        let (addr, mapped) = device_of(device)?.import_within(&handle, PATIENCE_HERE.get())?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { pointer.write(device_pointer(addr)) };
        // SAFETY: as above.
        unsafe { bytes.write(mapped) };
        Ok(())
    })
}

/// Sets how many milliseconds gapless_device_import waits, in this thread, for a process that does not answer: one that is stopped,
/// or serves as many others as it can. Returns what held before, which is 10,000 at first. A process that has ended is not waited
/// for.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_import_patience(milliseconds: u64) -> u64 {
    let before = PATIENCE_HERE.replace(Duration::from_millis(milliseconds));
    u64::try_from(before.as_millis()).unwrap_or(u64::MAX)
}

/// Closes an import. With the last one of an address the host waits for the device, and what was mapped there is not any more.
/// While a stream of the device may be being captured, which a wait would break, it stays mapped, and open to the process that
/// shared it: until the next import or closing of one, the next trim or the end of the capture's pool.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_close_import(device: i32, pointer: *mut c_void) -> gapless_status {
    guard(|| Ok(device_of(device)?.close_import(address(pointer))?))
}

/// Keeps up to bytes of closed imports of a device mapped, those closed last, for processes that send the same allocations again:
/// to import one that lives still costs no call to the driver then. To the process that shared them they are closed. What that
/// releases to the driver while it is kept here comes back to the device when it is given up here: beyond that many bytes, when
/// its allocation is imported in vain, and for 0, which is what a device begins with.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_keep_closed_imports(device: i32, bytes: u64) -> gapless_status {
    guard(|| {
        device_of(device)?.keep_closed_imports(bytes);
        Ok(())
    })
}
