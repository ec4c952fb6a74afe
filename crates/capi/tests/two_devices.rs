//! Two devices in one process, over the process-wide allocators: copies between them, and streams of the other device.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::{Gpu, with_devices};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
const MAIN: *mut CUstream_st = null_mut();

fn alloc(device: i32, bytes: usize, stream: *mut CUstream_st) -> *mut c_void {
    let mut pointer = null_mut();
    // SAFETY: the out-parameter is valid.
    let status = unsafe { gapless_device_alloc(device, bytes as u64, stream, &raw mut pointer) };
    assert_eq!(status, GAPLESS_OK, "{}", told());
    pointer
}

fn free(device: i32, pointer: *mut c_void) {
    assert_eq!(gapless_device_free(device, pointer, 0), GAPLESS_OK, "{}", told());
}

/// The text of this thread's last failure.
fn told() -> String {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy().into_owned()
}

/// `t.to("cuda:1")` in PyTorch: a plain copy on the target's stream, and one back.
#[test]
fn a_tensor_moves_to_the_other_device_and_back() {
    let text = with_devices("a_tensor_moves_to_the_other_device_and_back", &[], || {
        let (one, two) = (Gpu::open(0), Gpu::open(1));
        // What was mapped before there was a second device, and what is mapped afterwards.
        let early = alloc(0, 5 * MIB, MAIN);
        one.fill(MAIN, early, 1, 5 * MIB);
        assert_eq!(one.wait(MAIN), 0);
        let there = alloc(1, 5 * MIB, MAIN);
        two.copy(MAIN, there, early, 5 * MIB);
        assert_eq!(two.read(MAIN, there, 5 * MIB), vec![1; 5 * MIB]);
        let late = alloc(0, 64 * MIB, MAIN);
        two.copy(MAIN, late, there, 5 * MIB);
        assert_eq!(two.read(MAIN, late, 5 * MIB), vec![1; 5 * MIB]);
        one.copy(MAIN, early, there, 4096);
        assert_eq!(one.wait(MAIN), 0);
        free(0, early);
        free(0, late);
        free(1, there);
    });
    assert!(text.is_none_or(|text| !text.contains("gapless:")), "nobody is told anything");
}
