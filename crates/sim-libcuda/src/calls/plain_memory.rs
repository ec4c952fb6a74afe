//! Memory that is allocated without virtual memory management.

use std::ffi::c_void;
use std::sync::Arc;

use gapless::driver::MemoryDriver;

use super::entry::{Code, INVALID, OK, OUT_OF_MEMORY, begin_current, code_of, find_stream, forbidden_in_capture, put};
use crate::broken;
use crate::state::State;
use crate::streams::Op;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    let (state, device) = begin_current!("cuMemGetInfo_v2");
    match state.accounted(device, MemoryDriver::memory_info) {
        // SAFETY: guaranteed by the driver API's contract.
        // Source: the driver API's page of `cuMemGetInfo`: on integrated devices "free" leaves out what the kernel would give back.
        Ok(info) => match unsafe { put(free, info.free.saturating_sub(state.settings.soft.unwrap_or(0)) as usize) } {
            // SAFETY: guaranteed by the driver API's contract.
            OK => unsafe { put(total, info.total as usize) },
            code => code,
        },
        Err(error) => code_of::<()>(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(addr: *mut u64, bytes: usize) -> Code {
    let (state, device) = begin_current!("cuMemAlloc_v2");
    forbidden_in_capture!(state, "capture_create");
    if bytes == 0 || addr.is_null() {
        return INVALID;
    }
    match state.allocate(device, bytes as u64) {
        // SAFETY: guaranteed by the driver API's contract.
        Ok(at) => unsafe { put(addr, at) },
        Err(error) => code_of::<()>(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(addr: u64) -> Code {
    let (state, device) = begin_current!("cuMemFree_v2");
    forbidden_in_capture!(state, "capture_create");
    if addr == 0 {
        return OK;
    }
    for stream in state.streams.of_device(device) {
        stream.synchronize();
    }
    if state.free(addr) {
        OK
    } else {
        broken::rule("free_twice", INVALID, || format!("no memory of `cuMemAlloc` is at {addr:#x}"))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(addr: *mut u64, bytes: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemAllocAsync");
    if bytes == 0 || addr.is_null() {
        return INVALID;
    }
    let stream = find_stream!(state, stream, device);
    let mut allocated = state.allocate(device, bytes as u64);
    if allocated.is_err() {
        // Memory freed on this stream is available once the stream has completed its work.
        stream.synchronize();
        allocated = state.allocate(device, bytes as u64);
    }
    match allocated {
        // SAFETY: guaranteed by the driver API's contract.
        Ok(at) => unsafe { put(addr, at) },
        Err(error) => code_of::<()>(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(addr: u64, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemFreeAsync");
    let stream = find_stream!(state, stream, device);
    let free = Arc::new(move || {
        State::get().free(addr);
    });
    state.streams.queue(&stream, Op::Run(free));
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(addr: *mut *mut c_void, bytes: usize) -> Code {
    let (state, _) = begin_current!("cuMemAllocHost_v2");
    forbidden_in_capture!(state, "capture_create");
    if bytes == 0 || addr.is_null() {
        return INVALID;
    }
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, at an address that the kernel chooses. What is not written takes no memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return OUT_OF_MEMORY;
    }
    state.pinned.lock().insert(at as u64, bytes);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(addr, at) }
}

/// Says whether an address lies in memory of `cuMemAllocHost`: such memory has no flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetFlags(flags: *mut u32, addr: *mut c_void) -> Code {
    let (state, _) = begin_current!("cuMemHostGetFlags");
    if !state.is_pinned(addr as u64) {
        return INVALID;
    }
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(flags, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(addr: *mut c_void) -> Code {
    let (state, _) = begin_current!("cuMemFreeHost");
    let Some(bytes) = state.pinned.lock().remove(&(addr as u64)) else { return INVALID };
    // SAFETY: mapped by `cuMemAllocHost` with this length, and removed from the table only by this call.
    let freed = unsafe { libc::munmap(addr, bytes) };
    assert_eq!(freed, 0, "a whole mapping can be given back");
    OK
}
