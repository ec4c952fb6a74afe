//! The driver API functions that gapless calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapless::DeviceAddr;
use gapless::driver::cuda::sys::{
    CUmemAccess_flags_enum, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUmemLocationType_enum,
    cudaError_enum as E,
};
use gapless::driver::{DriverResult, MemoryDriver};

use crate::context::Context;
use crate::kernels;
use crate::settings::{Rdma, planned_fault};
use crate::state::{Accessor, BELOW, CAPTURE_MODE, CURRENT, Chunk, DeviceSet, Event, INITIALISED, Mapping, State};
use crate::streams::{Capture, Op, Stream};

/// The result of the functions: a `CUresult`.
pub type Code = c_uint;

pub const OK: Code = E::CUDA_SUCCESS.0;
pub const INVALID: Code = E::CUDA_ERROR_INVALID_VALUE.0;
pub const HANDLE: Code = E::CUDA_ERROR_INVALID_HANDLE.0;
pub const CONTEXT: Code = E::CUDA_ERROR_INVALID_CONTEXT.0;
pub const UNSUPPORTED: Code = E::CUDA_ERROR_NOT_SUPPORTED.0;
pub const NOT_FOUND: Code = E::CUDA_ERROR_NOT_FOUND.0;
const NOT_READY: Code = E::CUDA_ERROR_NOT_READY.0;
const CAPTURE: Code = E::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0;
const IMPLICIT: Code = E::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT.0;
const ISOLATION: Code = E::CUDA_ERROR_STREAM_CAPTURE_ISOLATION.0;
const LOST: Code = E::CUDA_ERROR_ILLEGAL_ADDRESS.0;

/// Begins an exported function: runs a planned interruption, and returns the code of a planned fault, or an error if `cuInit`
/// was not called.
macro_rules! begin {
    ($name:literal) => {{
        crate::interruption::before_call($name);
        if let Some(code) = planned_fault($name) {
            return code;
        }
        if !INITIALISED.load(Ordering::Acquire) {
            return E::CUDA_ERROR_NOT_INITIALIZED.0;
        }
        State::get()
    }};
}
pub(crate) use begin;

/// Like `begin`, for functions that need a current context. Returns an error if there is none or if it is lost.
macro_rules! begin_current {
    ($name:literal) => {{
        let state = begin!($name);
        let Some(crate::context::Context { device, .. }) = CURRENT.get() else { return CONTEXT };
        let lost = state.devices[device].lost.load(Ordering::Acquire);
        if lost != 0 {
            return lost;
        }
        (state, device)
    }};
}
pub(crate) use begin_current;

/// Returns an error if the function is not allowed during a stream capture and the calling thread invalidates one.
macro_rules! forbidden_in_capture {
    ($state:expr) => {
        if breaks_a_capture($state) {
            return CAPTURE;
        }
    };
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`, of a capture and of a thread.
const RELAXED: u32 = 2;

fn breaks_a_capture(state: &State) -> bool {
    const GLOBAL: u32 = 0;
    let mode = CAPTURE_MODE.get();
    if mode == RELAXED {
        return false;
    }
    let here = std::thread::current().id();
    let mut broken = false;
    for stream in state.streams.all() {
        if let Some(capture) = stream.capture()
            && capture.mode != RELAXED
            && (capture.thread == here || (mode == GLOBAL && capture.mode == GLOBAL))
        {
            capture.invalidate();
            broken = true;
        }
    }
    broken
}

/// Finds a stream to use. The legacy default stream is unusable while a blocking stream is captured: the attempt ends
/// that capture.
macro_rules! find_stream {
    ($state:expr, $stream:expr, $device:expr) => {
        match stream_of($state, $stream, $device) {
            Ok(stream) => match $state.streams.implicit_capture($stream as u64, &stream) {
                None => stream,
                Some(capture) => {
                    capture.invalidate();
                    return IMPLICIT;
                }
            },
            Err(code) => return code,
        }
    };
}

/// Finds a stream to ask about, which ends no capture.
macro_rules! ask_stream {
    ($state:expr, $stream:expr, $device:expr) => {
        match stream_of($state, $stream, $device) {
            Ok(stream) if $state.streams.implicit_capture($stream as u64, &stream).is_some() => return IMPLICIT,
            Ok(stream) => stream,
            Err(code) => return code,
        }
    };
}

/// Stores an out-parameter.
///
/// # Safety
/// `target` is null or valid for a write.
pub unsafe fn put<T>(target: *mut T, value: T) -> Code {
    if target.is_null() {
        return INVALID;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { target.write(value) };
    OK
}

fn code_of<T>(result: DriverResult<T>) -> Code {
    match result {
        Ok(_) => OK,
        Err(error) => Code::try_from(error.code).unwrap_or(E::CUDA_ERROR_UNKNOWN.0),
    }
}

pub fn pointer<T>(token: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(token as usize)
}

mod contexts;
mod graphs;
mod ipc;
mod launch;
mod plain_memory;
mod sharing;
mod start;
mod streams;
mod testing;
mod vmm;

use vmm::begin_vmm;
mod work;

use contexts::{context_token, device_of_context};
use streams::stream_of;
pub use streams::synchronize;
pub use work::{copy_in_on, copy_out_on, load_module};
