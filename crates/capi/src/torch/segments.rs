//! Registered blocks in C, for PyTorch: the segments of a pool that libraries register.
//!
//! Threads: any.

use crate::abi::{CUstream_st, address, device_pointer, stream_id};
use crate::last_error::{guard, report_failure};
use crate::process::device_of;
use crate::status::Failure;
use std::ffi::c_void;
use std::sync::atomic::AtomicU32;

/// A registered block for PyTorch, as a torch.cuda.memory.CUDAPluggableAllocator of a torch.cuda.MemPool: the segments of that pool
/// stay where they are. NULL where there is none, after which PyTorch empties its caches and tries again.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_registered_malloc(
    size: libc::ssize_t,
    device: i32,
    stream: *mut CUstream_st,
) -> *mut c_void {
    let mut pointer = std::ptr::null_mut();
    let _ = guard(|| {
        let bytes = u64::try_from(size).map_err(|_| Failure::argument(format!("a request of {size} bytes")))?;
        pointer = device_pointer(device_of(device)?.alloc_segment(bytes, stream_id(stream))?);
        Ok(())
    });
    pointer
}

/// Frees a segment of such a pool. PyTorch has waited for the work that used it.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_registered_free(
    pointer: *mut c_void,
    size: libc::ssize_t,
    device: i32,
    _stream: *mut CUstream_st,
) {
    static REPORTED: AtomicU32 = AtomicU32::new(0);
    report_failure(&REPORTED, || {
        Ok(device_of(device)?.free_segment(address(pointer), u64::try_from(size).unwrap_or(0))?)
    });
}
