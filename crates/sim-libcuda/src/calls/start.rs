//! Initialization, version and error texts.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

use gapless::driver::cuda::sys::cudaError_enum as E;

use super::entry::{Code, INVALID, OK, put};
use crate::settings::Settings;
use crate::state::INITIALISED;
use crate::{counts, faults, record};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_flags: c_uint) -> Code {
    let settings = Settings::read();
    record::begin();
    counts::add("cuInit", 1);
    if let Some(code) = faults::planned("cuInit") {
        return code;
    }
    if !settings.wrong.is_empty() {
        return INVALID;
    }
    if settings.devices == 0 {
        return E::CUDA_ERROR_NO_DEVICE.0;
    }
    INITIALISED.store(true, Ordering::Release);
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(version, Settings::read().version) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    let known = name_of(code);
    // SAFETY: guaranteed by the driver API's contract.
    let stored = unsafe { put(name, known.map_or(std::ptr::null(), CStr::as_ptr)) };
    if known.is_some() { stored } else { INVALID }
}

fn name_of(code: Code) -> Option<&'static CStr> {
    Some(match E(code) {
        E::CUDA_SUCCESS => c"CUDA_SUCCESS",
        E::CUDA_ERROR_INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        E::CUDA_ERROR_OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        E::CUDA_ERROR_NOT_INITIALIZED => c"CUDA_ERROR_NOT_INITIALIZED",
        E::CUDA_ERROR_NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        E::CUDA_ERROR_INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        E::CUDA_ERROR_INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        E::CUDA_ERROR_INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        E::CUDA_ERROR_NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        E::CUDA_ERROR_NOT_READY => c"CUDA_ERROR_NOT_READY",
        E::CUDA_ERROR_ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        E::CUDA_ERROR_NOT_PERMITTED => c"CUDA_ERROR_NOT_PERMITTED",
        E::CUDA_ERROR_NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        E::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        E::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        E::CUDA_ERROR_STREAM_CAPTURE_ISOLATION => c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        E::CUDA_ERROR_UNKNOWN => c"CUDA_ERROR_UNKNOWN",
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code {
    let Some(name) = name_of(code) else {
        // SAFETY: guaranteed by the driver API's contract.
        unsafe { put(text, std::ptr::null()) };
        return INVALID;
    };
    let words = match E(code) {
        E::CUDA_ERROR_OUT_OF_MEMORY => c"out of memory",
        E::CUDA_ERROR_INVALID_VALUE => c"invalid argument",
        E::CUDA_ERROR_ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        E::CUDA_ERROR_NOT_SUPPORTED => c"operation not supported",
        E::CUDA_ERROR_INVALID_HANDLE => c"invalid resource handle",
        _ => name,
    };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(text, words.as_ptr()) }
}
