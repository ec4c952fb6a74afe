//! Devices and contexts.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use gapless::driver::cuda::sys::cudaError_enum as E;

use super::entry::{CAPTURE, CONTEXT, Code, INVALID, OK, begin, begin_current, forbidden_in_capture, pointer, put};
use crate::broken;
use crate::context::{Context, OtherContext};
use crate::settings::Rdma;
use crate::state::{BELOW, CAPTURE_MODE, CURRENT, State};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    let state = begin!("cuDeviceGetCount");
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(count, state.devices.len() as c_int) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code {
    let state = begin!("cuDeviceGet");
    if !usize::try_from(ordinal).is_ok_and(|ordinal| ordinal < state.devices.len()) {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    }
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(device, ordinal) }
}

/// Copies a text and its terminator into a buffer of `length` bytes.
unsafe fn put_text(target: *mut c_char, length: c_int, text: &str) -> Code {
    let length = usize::try_from(length).unwrap_or(0);
    if target.is_null() || length == 0 {
        return INVALID;
    }
    let bytes: Vec<c_char> =
        text.bytes().take(length - 1).chain(std::iter::once(0)).map(|b| c_char::from_ne_bytes([b])).collect();
    // SAFETY: the target is at least that long (the driver API's contract).
    unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> Code {
    begin!("cuDeviceGetName");
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put_text(name, length, &format!("Simulated GPU {device}")) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int) -> Code {
    begin!("cuDeviceGetPCIBusId");
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put_text(id, length, &format!("0000:{device:02x}:00.0")) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> Code {
    let state = begin!("cuDeviceGetUuid_v2");
    let Some(physical) = usize::try_from(device).ok().and_then(|device| state.settings.physical.get(device)) else {
        return INVALID;
    };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(uuid, [*physical as u8 + 1; 16]) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> Code {
    let state = begin!("cuDeviceTotalMem_v2");
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(bytes, state.settings.capacity as usize) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, _device: c_int) -> Code {
    let state = begin!("cuDeviceGetAttribute");
    let settings = state.settings;
    let answer = match attribute {
        16 => 4,                                       // multiprocessors
        18 => c_int::from(settings.soft.is_some()),    // integrated
        41 => 1,                                       // unified addressing
        75 => 9,                                       // compute capability
        102 => c_int::from(settings.vmm),              // virtual memory management
        103 => c_int::from(settings.export),           // POSIX file descriptors
        110 => c_int::from(settings.rdma != Rdma::No), // RDMA with virtual memory management
        124 => c_int::from(settings.rdma != Rdma::No), // dma-bufs
        1..=140 => 0,
        _ => return INVALID,
    };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(value, answer) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(answer: *mut c_int, device: c_int, peer: c_int) -> Code {
    let state = begin!("cuDeviceCanAccessPeer");
    let known = |device: c_int| usize::try_from(device).ok().filter(|device| *device < state.devices.len());
    let (Some(from), Some(to)) = (known(device), known(peer)) else { return E::CUDA_ERROR_INVALID_DEVICE.0 };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(answer, c_int::from(from != to && state.can_reach(from, to))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> Code {
    let state = begin!("cuDevicePrimaryCtxRetain");
    let Some(found) = usize::try_from(device).ok().and_then(|device| state.devices.get(device)) else {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    };
    found.retained.fetch_add(1, Ordering::Relaxed);
    found.is_reset.store(false, Ordering::Release);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(context, pointer(context_token(state, Context { device: device as usize, number: 0 }))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    let state = begin!("cuDevicePrimaryCtxRelease_v2");
    let Some(found) = usize::try_from(device).ok().and_then(|device| state.devices.get(device)) else {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    };
    let released = found.retained.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    if released.is_err() { CONTEXT } else { OK }
}

/// Returns the token of a context. It is below all other tokens.
pub(super) fn context_token(state: &State, context: Context) -> u64 {
    let number = if context.number == 0 { context.device } else { state.devices.len() + context.number - 1 };
    CONTEXTS + number as u64
}

const CONTEXTS: u64 = 0xc0_0000;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> Code {
    let state = begin!("cuCtxGetCurrent");
    let current = CURRENT.get().map_or(std::ptr::null_mut(), |context| pointer(context_token(state, context)));
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(context, current) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> Code {
    set_current(begin!("cuCtxSetCurrent"), context)
}

fn set_current(state: &State, context: *mut c_void) -> Code {
    let found = find_context(state, context);
    if found.is_none() && !context.is_null() {
        return CONTEXT;
    }
    CURRENT.set(found);
    OK
}

/// Returns the context of a handle.
pub(super) fn find_context(state: &State, context: *mut c_void) -> Option<Context> {
    let token = (context as u64).checked_sub(CONTEXTS)? as usize;
    if token < state.devices.len() {
        return Some(Context { device: token, number: 0 });
    }
    let at = token - state.devices.len();
    let OtherContext { device, .. } = (*state.contexts.lock().get(at)?)?;
    Some(Context { device, number: at + 1 })
}

/// Returns the device of a context.
pub(super) fn device_of_context(state: &State, context: *mut c_void) -> Option<usize> {
    find_context(state, context).map(|context| context.device)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> Code {
    let (_, current) = begin_current!("cuCtxGetDevice");
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(device, current as c_int) }
}

/// Returns a new context.
pub(super) fn add_context(state: &State, context: OtherContext) -> Context {
    let mut contexts = state.contexts.lock();
    contexts.push(Some(context));
    Context { device: context.device, number: contexts.len() }
}

/// Creates a context beside the primary one, and makes it current.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(context: *mut *mut c_void, _flags: c_uint, device: c_int) -> Code {
    let state = begin!("cuCtxCreate_v2");
    let Some(device) = usize::try_from(device).ok().filter(|device| *device < state.devices.len()) else {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    };
    let made = add_context(state, OtherContext { device, green: false });
    BELOW.with_borrow_mut(|below| below.push(CURRENT.get()));
    CURRENT.set(Some(made));
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(context, pointer(context_token(state, made))) }
}

/// As in CUDA 12.5, where a context may be given limits, which the simulation has none of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v4(
    context: *mut *mut c_void,
    params: *mut c_void,
    flags: c_uint,
    device: c_int,
) -> Code {
    if !params.is_null() {
        return INVALID;
    }
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { cuCtxCreate_v2(context, flags, device) }
}

/// Destroys a context that `cuCtxCreate` made, with its streams and events. Where it is current, none is afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDestroy_v2(context: *mut c_void) -> Code {
    let state = begin!("cuCtxDestroy_v2");
    let Some(found) = find_context(state, context).filter(|found| found.number > 0 && !state.is_green(*found)) else {
        return CONTEXT;
    };
    destroy_context(state, found);
    if CURRENT.get() == Some(found) {
        CURRENT.set(BELOW.with_borrow_mut(Vec::pop).unwrap_or(None));
    }
    OK
}

pub(super) fn destroy_context(state: &State, context: Context) {
    state.destroy_objects_of(context);
    state.contexts.lock()[context.number - 1] = None;
}

/// Returns a number that no other context has or had. A primary context that was reset has another one.
///
/// Source: the driver API's page of `cuCtxGetId`: "unique for the life of the program for this instance of CUDA".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetId(context: *mut c_void, id: *mut u64) -> Code {
    let state = begin!("cuCtxGetId");
    let found = if context.is_null() { CURRENT.get() } else { find_context(state, context) };
    let Some(Context { device, number }) = found else { return CONTEXT };
    if number == 0 && state.devices[device].is_reset.load(Ordering::Acquire) {
        return E::CUDA_ERROR_CONTEXT_IS_DESTROYED.0;
    }
    let instance = match number {
        0 => state.devices[device].resets.load(Ordering::Acquire) * state.devices.len() as u64 + device as u64,
        number => (1 << 32) + number as u64,
    };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(id, instance + 1) }
}

/// Destroys what the primary context of a device has: streams, events, memory of `cuMemAlloc`, green contexts. Calls in it answer
/// that it is destroyed until it is retained again, which gives a new one by the same handle.
///
/// Source: the driver API's page of `cuDevicePrimaryCtxReset`: "explicitly destroys and cleans up all resources associated with the
/// current device in the current process". Chunks, mappings and reservations of virtual memory survive it, as an H100 with driver
/// 580 has answered (`gapless probe --only context_reset`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> Code {
    let state = begin!("cuDevicePrimaryCtxReset_v2");
    let Some(device) = usize::try_from(device).ok().filter(|device| *device < state.devices.len()) else {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    };
    let found = &state.devices[device];
    state.destroy_objects_of(Context { device, number: 0 });
    let green: Vec<Context> = state.green_contexts_of(device);
    green.into_iter().for_each(|context| destroy_context(state, context));
    state.free_all_of(device);
    found.lost.store(0, Ordering::Release);
    found.resets.fetch_add(1, Ordering::AcqRel);
    found.is_reset.store(true, Ordering::Release);
    OK
}

/// Gives the current context's device access to the `cuMemAlloc` memory of another. Mappings of `cuMemMap` have access of
/// their own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxEnablePeerAccess(peer: *mut c_void, flags: c_uint) -> Code {
    let (state, device) = begin_current!("cuCtxEnablePeerAccess");
    let Some(peer) = device_of_context(state, peer).filter(|peer| *peer != device && flags == 0) else {
        return INVALID;
    };
    if !state.can_reach(device, peer) {
        return E::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED.0;
    }
    let new = state.peers_enabled.write().insert((device, peer));
    if new { OK } else { E::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.0 }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: *mut c_void) -> Code {
    let state = begin!("cuCtxPushCurrent");
    BELOW.with_borrow_mut(|below| below.push(CURRENT.get()));
    let code = set_current(state, context);
    if code != OK {
        BELOW.with_borrow_mut(Vec::pop);
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut *mut c_void) -> Code {
    let state = begin!("cuCtxPopCurrent");
    let Some(popped) = CURRENT.get() else { return CONTEXT };
    CURRENT.set(BELOW.with_borrow_mut(Vec::pop).unwrap_or(None));
    if context.is_null() {
        return OK;
    }
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(context, pointer(context_token(state, popped))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> Code {
    let (state, device) = begin_current!("cuCtxSynchronize");
    forbidden_in_capture!(state, "capture_synchronize");
    let streams = state.streams.of_device(device);
    // A context whose streams are captured cannot be waited for, whatever the capture mode of the calling thread.
    let mut captured = false;
    for stream in &streams {
        if let Some(capture) = stream.capture() {
            capture.invalidate();
            captured = true;
        }
    }
    if captured {
        return broken::rule("capture_synchronize", CAPTURE, || "a stream of the context is being captured".into());
    }
    for stream in streams {
        stream.synchronize();
    }
    state.devices[device].lost.load(Ordering::Acquire)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> Code {
    begin!("cuThreadExchangeStreamCaptureMode");
    if mode.is_null() {
        return INVALID;
    }
    // SAFETY: guaranteed by the driver API's contract.
    let wanted = unsafe { mode.read() };
    if wanted > 2 {
        return INVALID;
    }
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(mode, CAPTURE_MODE.replace(wanted)) }
}
