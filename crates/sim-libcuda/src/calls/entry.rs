//! The parts that the exported functions share: their codes, how they begin, how they find a stream, and how they answer.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use gapless::driver::DriverResult;
use gapless::driver::cuda::sys::cudaError_enum as E;

use crate::broken;
use crate::settings::Settings;
use crate::state::{CAPTURE_MODE, CURRENT, State};
use crate::streams::Stream;

/// The result of the functions: a `CUresult`.
pub type Code = c_uint;

pub const OK: Code = E::CUDA_SUCCESS.0;
pub const INVALID: Code = E::CUDA_ERROR_INVALID_VALUE.0;
pub const OUT_OF_MEMORY: Code = E::CUDA_ERROR_OUT_OF_MEMORY.0;
pub const HANDLE: Code = E::CUDA_ERROR_INVALID_HANDLE.0;
pub const CONTEXT: Code = E::CUDA_ERROR_INVALID_CONTEXT.0;
/// The context was reset and not retained since.
pub const DESTROYED: Code = E::CUDA_ERROR_CONTEXT_IS_DESTROYED.0;
pub const UNSUPPORTED: Code = E::CUDA_ERROR_NOT_SUPPORTED.0;
pub const NOT_FOUND: Code = E::CUDA_ERROR_NOT_FOUND.0;
pub const UNINITIALISED: Code = E::CUDA_ERROR_NOT_INITIALIZED.0;
pub const NOT_READY: Code = E::CUDA_ERROR_NOT_READY.0;
pub const CAPTURE: Code = E::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0;
pub const IMPLICIT: Code = E::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT.0;
pub const ISOLATION: Code = E::CUDA_ERROR_STREAM_CAPTURE_ISOLATION.0;
/// `CUDA_ERROR_STREAM_DETACHED`, of CUDA 13.
pub const DETACHED: Code = 917;
pub const LOST: Code = E::CUDA_ERROR_ILLEGAL_ADDRESS.0;

/// Begins an exported function: pauses, runs a planned interruption, counts the call, and returns the code of a planned fault, or
/// an error if `cuInit` was not called.
macro_rules! begin {
    ($name:literal) => {{
        $crate::pauses::before_call();
        $crate::interruption::before_call($name);
        $crate::counts::add($name, 1);
        $crate::broken::begin($name);
        if let Some(code) = $crate::faults::planned($name) {
            return code;
        }
        if !$crate::state::INITIALISED.load(::std::sync::atomic::Ordering::Acquire) {
            return $crate::calls::entry::before_init($name);
        }
        $crate::state::State::get()
    }};
}
pub(crate) use begin;

/// Like `begin`, for functions that need a current context. Returns an error if there is none, or if it is lost or destroyed.
macro_rules! begin_current {
    ($name:literal) => {{
        let state = $crate::calls::entry::begin!($name);
        let Some($crate::context::Context { device, number }) = $crate::state::CURRENT.get() else {
            return $crate::calls::entry::without_context();
        };
        if number == 0 && state.devices[device].is_reset.load(::std::sync::atomic::Ordering::Acquire) {
            return $crate::broken::rule("reset_info", $crate::calls::entry::DESTROYED, || {
                "the context was reset, and not retained since".into()
            });
        }
        let lost = state.devices[device].lost.load(::std::sync::atomic::Ordering::Acquire);
        if lost != 0 {
            return lost;
        }
        (state, device)
    }};
}
pub(crate) use begin_current;

/// Like `begin`, for functions of virtual memory management. Returns an error if the devices have none, if a stream capture forbids
/// it, or if the current context is lost.
macro_rules! begin_vmm {
    ($name:literal) => {{
        let state = $crate::calls::entry::begin!($name);
        if !state.settings.vmm {
            return $crate::calls::entry::UNSUPPORTED;
        }
        if state.settings.strict_captures {
            $crate::calls::entry::forbidden_in_capture!(state, "capture_create");
        }
        if let Some($crate::context::Context { device, .. }) = $crate::state::CURRENT.get() {
            let lost = state.devices[device].lost.load(::std::sync::atomic::Ordering::Acquire);
            if lost != 0 {
                return lost;
            }
        }
        state
    }};
}
pub(super) use begin_vmm;

/// The code of a call before `cuInit`.
pub fn before_init(function: &'static str) -> Code {
    // What reads the settings otherwise is `cuInit`.
    Settings::read();
    broken::begin(function);
    broken::rule("begin_without_init", UNINITIALISED, || "nothing was initialised".into())
}

/// The code of a call without a current context.
pub fn without_context() -> Code {
    broken::rule("info_without_context", CONTEXT, || "this thread has no current context".into())
}

/// Returns an error if the function is not allowed during a stream capture and the calling thread invalidates one.
macro_rules! forbidden_in_capture {
    ($state:expr, $rule:literal) => {
        if $crate::calls::entry::breaks_a_capture($state) {
            return $crate::broken::rule($rule, $crate::calls::entry::CAPTURE, || "the capture is broken by it".into());
        }
    };
}
pub(super) use forbidden_in_capture;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`, of a capture and of a thread.
pub const RELAXED: u32 = 2;

pub(super) fn breaks_a_capture(state: &State) -> bool {
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

/// Returns the stream of a handle, or the code of the error.
pub(super) fn stream_of(state: &State, stream: *mut c_void, device: usize) -> Result<Arc<Stream>, Code> {
    let context = CURRENT.get().filter(|context| context.device == device).ok_or(CONTEXT)?;
    let found = state.streams.find(stream as u64, context).ok_or(HANDLE)?;
    if found.is_detached() {
        return Err(DETACHED);
    }
    // Streams of green contexts can be used while the primary context is current, too.
    let usable = found.context == context || (found.context.primary() == context && state.is_green(found.context));
    if usable { Ok(found) } else { Err(CONTEXT) }
}

/// Finds a stream to use. The legacy default stream is unusable while a blocking stream is captured: the attempt ends
/// that capture.
macro_rules! find_stream {
    ($state:expr, $stream:expr, $device:expr) => {
        match $crate::calls::entry::stream_of($state, $stream, $device) {
            Ok(stream) => match $state.streams.implicit_capture($stream as u64, &stream) {
                None => stream,
                Some(capture) => {
                    capture.invalidate();
                    return $crate::broken::rule("capture_legacy", $crate::calls::entry::IMPLICIT, || {
                        "the capture is broken by it".into()
                    });
                }
            },
            Err(code) => return code,
        }
    };
}
pub(super) use find_stream;

/// Finds a stream to ask about its capture, which ends none.
macro_rules! ask_stream {
    ($state:expr, $stream:expr, $device:expr) => {
        match $crate::calls::entry::stream_of($state, $stream, $device) {
            Ok(stream) if $state.streams.implicit_capture($stream as u64, &stream).is_some() => {
                return $crate::calls::entry::IMPLICIT
            }
            Ok(stream) => stream,
            Err(code) => return code,
        }
    };
}
pub(super) use ask_stream;

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

pub(super) fn code_of<T>(result: DriverResult<T>) -> Code {
    match result {
        Ok(_) => OK,
        Err(error) => Code::try_from(error.code).unwrap_or(E::CUDA_ERROR_UNKNOWN.0),
    }
}

pub fn pointer<T>(token: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(token as usize)
}
