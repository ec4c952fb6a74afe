//! Devices and contexts.

use super::*;

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
    begin!("cuDeviceGetUuid_v2");
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(uuid, [device as u8; 16]) }
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
        41 => 1,                                       // unified addressing
        75 => 9,                                       // compute capability
        102 => c_int::from(settings.vmm),              // virtual memory management
        103 => c_int::from(settings.export),           // POSIX file descriptors
        110 => c_int::from(settings.rdma != Rdma::No), // RDMA with virtual memory management
        1..=140 => 0,
        _ => return INVALID,
    };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(value, answer) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(answer: *mut c_int, device: c_int, peer: c_int) -> Code {
    begin!("cuDeviceCanAccessPeer");
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(answer, c_int::from(device != peer)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> Code {
    let state = begin!("cuDevicePrimaryCtxRetain");
    let Some(found) = usize::try_from(device).ok().and_then(|device| state.devices.get(device)) else {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    };
    found.retained.fetch_add(1, Ordering::Relaxed);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(context, pointer(context_token(device as usize))) }
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

/// Returns the token of a device's primary context. It is below all other tokens.
pub(super) fn context_token(device: usize) -> u64 {
    CONTEXTS + device as u64
}

const CONTEXTS: u64 = 0xc0_0000;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> Code {
    begin!("cuCtxGetCurrent");
    let current = CURRENT.get().checked_sub(1).map_or(std::ptr::null_mut(), |device| pointer(context_token(device)));
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(context, current) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> Code {
    let state = begin!("cuCtxSetCurrent");
    let token = context as u64;
    if token == 0 {
        CURRENT.set(0);
        return OK;
    }
    match token.checked_sub(CONTEXTS).map(|device| device as usize) {
        Some(device) if device < state.devices.len() => CURRENT.set(device + 1),
        _ => return CONTEXT,
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: *mut c_void) -> Code {
    BELOW.with_borrow_mut(|below| below.push(CURRENT.get()));
    // SAFETY: the same contract.
    let code = unsafe { cuCtxSetCurrent(context) };
    if code != OK {
        BELOW.with_borrow_mut(Vec::pop);
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut *mut c_void) -> Code {
    begin!("cuCtxPopCurrent");
    let Some(device) = CURRENT.get().checked_sub(1) else { return CONTEXT };
    CURRENT.set(BELOW.with_borrow_mut(Vec::pop).unwrap_or(0));
    if context.is_null() {
        return OK;
    }
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(context, pointer(context_token(device))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> Code {
    let (state, device) = begin_current!("cuCtxSynchronize");
    forbidden_in_capture!(state);
    let streams = state.streams.of_device(device);
    // A context whose streams are captured cannot be waited for, whatever the capture mode of the calling thread.
    let mut captured = false;
    for stream in &streams {
        if let Some(capture) = stream.capture.lock().as_ref() {
            capture.invalidate();
            captured = true;
        }
    }
    if captured {
        return CAPTURE;
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
