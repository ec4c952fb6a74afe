//! What CuPy's `CFunctionAllocator` calls. Its parameter is the stream: CuPy passes none of its own, and memory that is
//! freed while another stream works on it must not be handed out before that has passed.

use crate::functions::CUstream_st;
use crate::torch::{allocate, gapless_torch_free};
use std::ffi::c_void;

/// Allocates for CuPy on a stream. On failure NULL, and gapless_last_error says why. PyTorch's failure handler is not
/// called: nobody here catches what it throws.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_cupy_malloc(stream: *mut c_void, size: usize, device: i32) -> *mut c_void {
    let size = libc::ssize_t::try_from(size).unwrap_or(-1);
    allocate(size, device, stream.cast::<CUstream_st>()).1
}

/// Frees for CuPy.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_cupy_free(stream: *mut c_void, pointer: *mut c_void, device: i32) {
    gapless_torch_free(pointer, 0, device, stream.cast::<CUstream_st>());
}
