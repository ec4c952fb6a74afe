//! The functions that CuPy's `CFunctionAllocator` calls. Its parameter is the stream: CuPy passes none of its own, and memory that
//! is freed while another stream works on it must not be handed out before that work has completed.

use crate::abi::{CUstream_st, address, stream_id};
use crate::device::gapless_device_alloc;
use crate::last_error::report_failure;
use crate::process::device_of;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;

/// Allocates for CuPy on a stream. Returns NULL when that fails; the gapless_last_error functions say why. PyTorch's
/// failure handler is not called: nothing in CuPy catches what it throws.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_cupy_malloc(stream: *mut c_void, size: usize, device: i32) -> *mut c_void {
    let mut pointer = null_mut();
    // SAFETY: the out-parameter is valid, and the stream is one of the device (CuPy's promise).
    unsafe { gapless_device_alloc(device, size as u64, stream.cast::<CUstream_st>(), &raw mut pointer) };
    pointer
}

/// Frees for CuPy.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_cupy_free(stream: *mut c_void, pointer: *mut c_void, device: i32) {
    if pointer.is_null() {
        return;
    }
    report_failure(&REPORTED_FREE, || {
        let stream = stream_id(stream.cast::<CUstream_st>());
        // CuPy does not say how large the allocation was.
        Ok(device_of(device)?.free(address(pointer), 0, stream)?)
    });
}

static REPORTED_FREE: AtomicU32 = AtomicU32::new(0);
