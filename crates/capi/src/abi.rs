//! C's types in Rust's: streams, pointers, strings.

use crate::status::{Answer, Failure};
use gapless::{DeviceAddr, StreamId};
use std::ffi::{CStr, c_char, c_void};

/// CUDA's stream: a CUstream and a cudaStream_t alike.
#[repr(C)]
pub struct CUstream_st {
    _opaque: [u8; 0],
}

/// The stream that a caller of the C interface names: it exists, as `gapless.h` asks for.
pub(crate) fn stream_id(stream: *mut CUstream_st) -> StreamId {
    // SAFETY: the caller's part.
    unsafe { StreamId::from_raw(stream.expose_provenance() as u64) }
}

pub(crate) fn address(pointer: *mut c_void) -> DeviceAddr {
    DeviceAddr(pointer.addr() as u64)
}

/// A pointer for the caller to pass on. Nothing here follows it, so it needs no provenance.
pub(crate) fn device_pointer(addr: DeviceAddr) -> *mut c_void {
    std::ptr::without_provenance_mut(addr.0 as usize)
}

/// Reads a caller's string; `None` for null.
///
/// # Safety
/// `text` is null or points to a NUL-terminated string that nobody changes during the call.
pub(crate) unsafe fn optional_text(text: *const c_char) -> Answer<Option<String>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so NUL-terminated (the function's contract).
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(|text| Some(text.to_owned())).map_err(|_| Failure::argument("a text that is not UTF-8"))
}

/// Reads a caller's options, a JSON object; the default for null.
///
/// # Safety
/// As [`optional_text`].
pub(crate) unsafe fn json_options<T: Default + serde::de::DeserializeOwned>(options: *const c_char) -> Answer<T> {
    // SAFETY: the function's contract.
    match unsafe { optional_text(options) }? {
        Some(text) => serde_json::from_str(&text).map_err(|error| Failure::argument(format!("options: {error}"))),
        None => Ok(T::default()),
    }
}

/// Reads a caller's string, which must not be null.
///
/// # Safety
/// As [`optional_text`].
pub(crate) unsafe fn text(text: *const c_char, what: &str) -> Answer<String> {
    // SAFETY: the same contract.
    unsafe { optional_text(text) }?.ok_or_else(|| Failure::argument(format!("the {what} is null")))
}
