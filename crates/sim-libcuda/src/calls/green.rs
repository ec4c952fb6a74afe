//! Green contexts: some of the processors of a device, with the memory of its primary context.
//!
//! Sources: the driver API's pages of green contexts. Of `cuStreamGetCtx_v2`: "returns the primary context of the associated device
//! in `pCtx`" for a stream of a green context, where `cuStreamGetCtx` returns what `cuCtxFromGreenCtx` does. Of the latter: that
//! context is "treated as if it were a primary context, while still honoring the resources", so events are those of the primary
//! context. Of `cuGreenCtxDestroy`: it "does not destroy streams", and calls with them, but for `cuStreamDestroy`, "will return
//! `CUDA_ERROR_STREAM_DETACHED`"; their captures become invalid.

use std::ffi::{c_int, c_uint, c_void};

use gapless::driver::cuda::sys::cudaError_enum as E;

use super::contexts::{add_context, context_token, find_context};
use super::entry::{CONTEXT, Code, HANDLE, INVALID, OK, begin, begin_current, pointer, put};
use super::streams::not_while_captured;
use crate::context::OtherContext;
use crate::state::CURRENT;

/// A description of all processors: the simulation does not divide them.
const ALL_PROCESSORS: u64 = 0x7100_0000;

/// Size of a `CUdevResource` in words of 4 bytes, the first of which is its type.
const RESOURCE_WORDS: usize = 36;
/// The word with its number of processors.
const PROCESSORS_AT: usize = 24;
/// The value of `CU_DEV_RESOURCE_TYPE_SM`.
const PROCESSORS: c_uint = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDevResource(
    device: c_int,
    resource: *mut [c_uint; RESOURCE_WORDS],
    kind: c_uint,
) -> Code {
    let state = begin!("cuDeviceGetDevResource");
    if !usize::try_from(device).is_ok_and(|device| device < state.devices.len()) {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    }
    if kind != PROCESSORS {
        return INVALID;
    }
    let mut words = [0; RESOURCE_WORDS];
    (words[0], words[PROCESSORS_AT]) = (PROCESSORS, 4);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(resource, words) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevResourceGenerateDesc(
    desc: *mut *mut c_void,
    resources: *const c_void,
    count: c_uint,
) -> Code {
    begin!("cuDevResourceGenerateDesc");
    if resources.is_null() || count == 0 {
        return INVALID;
    }
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(desc, pointer(ALL_PROCESSORS)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGreenCtxCreate(
    context: *mut *mut c_void,
    desc: *mut c_void,
    device: c_int,
    _flags: c_uint,
) -> Code {
    let state = begin!("cuGreenCtxCreate");
    let Some(device) = usize::try_from(device).ok().filter(|device| *device < state.devices.len()) else {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    };
    if desc as u64 != ALL_PROCESSORS {
        return INVALID;
    }
    let made = add_context(state, OtherContext { device, green: true });
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(context, pointer(context_token(state, made))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGreenCtxDestroy(context: *mut c_void) -> Code {
    let state = begin!("cuGreenCtxDestroy");
    let Some(found) = find_context(state, context).filter(|found| state.is_green(*found)) else { return CONTEXT };
    for stream in state.streams.all().into_iter().filter(|stream| stream.context == found) {
        if let Some(capture) = stream.capture() {
            capture.invalidate();
        }
        stream.detach();
    }
    state.contexts.lock()[found.number - 1] = None;
    OK
}

/// A green context and the context that it is converted to have one handle here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxFromGreenCtx(context: *mut *mut c_void, green: *mut c_void) -> Code {
    let state = begin!("cuCtxFromGreenCtx");
    let Some(found) = find_context(state, green).filter(|found| state.is_green(*found)) else { return CONTEXT };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(context, pointer(context_token(state, found))) }
}

/// The stream has to be a non-blocking one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGreenCtxStreamCreate(
    stream: *mut *mut c_void,
    green: *mut c_void,
    flags: c_uint,
    _priority: c_int,
) -> Code {
    let state = begin!("cuGreenCtxStreamCreate");
    let Some(found) = find_context(state, green).filter(|found| state.is_green(*found)) else { return CONTEXT };
    if flags & 1 == 0 {
        return INVALID;
    }
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(stream, pointer(state.streams.create(found, false))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx_v2(
    stream: *mut c_void,
    context: *mut *mut c_void,
    green: *mut *mut c_void,
) -> Code {
    let (state, _) = begin_current!("cuStreamGetCtx_v2");
    let Some(stream) = state.streams.find(stream as u64, CURRENT.get().unwrap_or_default()) else { return HANDLE };
    not_while_captured!(stream);
    let own = stream.context;
    let (of, its_green) = if state.is_green(own) { (own.primary(), context_token(state, own)) } else { (own, 0) };
    // SAFETY: guaranteed by the driver API's contract.
    match unsafe { put(green, pointer(its_green)) } {
        // SAFETY: as above.
        OK => unsafe { put(context, pointer(context_token(state, of))) },
        code => code,
    }
}
