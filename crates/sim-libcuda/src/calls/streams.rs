//! Streams and events.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gapless::driver::cuda::sys::cudaError_enum as E;

use super::contexts::context_token;
use super::entry::{
    CAPTURE, Code, HANDLE, INVALID, NOT_READY, OK, begin, begin_current, find_stream, forbidden_in_capture, pointer,
    put, without_context,
};
use super::graphs::{self, InCapture};
use crate::broken;
use crate::ipc::SharedEvent;
use crate::state::{CURRENT, Event};
use crate::streams::Op;

/// Returns an error if the stream is being captured, which ends the capture.
macro_rules! not_captured {
    ($stream:expr) => {
        if let Some(capture) = $stream.capture() {
            capture.invalidate();
            return broken::rule("capture_synchronize", CAPTURE, || "the stream is being captured".into());
        }
    };
}

/// Returns an error if the stream is being captured, which ends the capture unless the capture or the calling thread is relaxed.
///
/// Source: NVIDIA/cccl, cudax/.../__places/stream_pool.cuh: cuStreamGetId "is not capture-safe: during
/// cudaStreamCaptureModeThreadLocal / Global it rejects the query and invalidates the capture itself", and
/// "cudaStreamGetDevice/cuStreamGetCtx are not permitted while the stream is participating in capture".
macro_rules! not_while_captured {
    ($stream:expr) => {
        if let Some(capture) = $stream.capture() {
            if capture.mode != $crate::calls::entry::RELAXED
                && $crate::state::CAPTURE_MODE.get() != $crate::calls::entry::RELAXED
            {
                capture.invalidate();
            }
            return $crate::broken::rule("capture_id", $crate::calls::entry::CAPTURE, || {
                "the stream is being captured".into()
            });
        }
    };
}
pub(super) use not_while_captured;

/// Returns an error if the event was recorded in a capture: one that is under way ends. Once it has ended, the event is good for
/// nothing until it is recorded again, and the error is another one (`gapless probe --only captured_event`).
macro_rules! not_of_a_capture {
    ($state:expr, $event:expr) => {
        if let Some(id) = $event.captured {
            let code = if graphs::invalidate($state, id) { E::CUDA_ERROR_CAPTURED_EVENT.0 } else { INVALID };
            return broken::rule("capture_event", code, || "the event was recorded in a capture".into());
        }
    };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) -> Code {
    let (state, _) = begin_current!("cuStreamCreate");
    let context = CURRENT.get().unwrap_or_default();
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(stream, pointer(state.streams.create(context, flags & 1 == 0))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> Code {
    let (state, _) = begin_current!("cuStreamDestroy_v2");
    if state.streams.destroy(stream as u64) { OK } else { HANDLE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> Code {
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { synchronize(stream) }
}

/// # Safety
/// The same as for `cuStreamSynchronize`.
pub unsafe fn synchronize(stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuStreamSynchronize");
    let stream = find_stream!(state, stream, device);
    not_captured!(stream);
    forbidden_in_capture!(state, "capture_query");
    stream.synchronize();
    state.devices[device].lost.load(Ordering::Acquire)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuStreamQuery");
    let stream = find_stream!(state, stream, device);
    not_captured!(stream);
    forbidden_in_capture!(state, "capture_query");
    if stream.tail().is_none_or(|tail| tail.is_complete()) { OK } else { NOT_READY }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: *mut c_void, context: *mut *mut c_void) -> Code {
    let (state, _) = begin_current!("cuStreamGetCtx");
    let Some(stream) = state.streams.find(stream as u64, CURRENT.get().unwrap_or_default()) else { return HANDLE };
    not_while_captured!(stream);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(context, pointer(context_token(state, stream.context))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetId(stream: *mut c_void, id: *mut u64) -> Code {
    let (state, device) = begin_current!("cuStreamGetId");
    // Also of the legacy stream: the question ends the capture of a blocking one (`gapless probe --only capture_blocking`).
    let stream = find_stream!(state, stream, device);
    not_while_captured!(stream);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(id, stream.id) }
}

/// The value of `CU_EVENT_BLOCKING_SYNC`.
const BLOCKING_SYNC: c_uint = 1;
/// The value of `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;
/// The value of `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: c_uint = 4;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, flags: c_uint) -> Code {
    let (state, _) = begin_current!("cuEventCreate");
    let shared = match flags & (INTERPROCESS | DISABLE_TIMING) {
        // An event of several processes measures no time.
        INTERPROCESS => return INVALID,
        flags if flags & INTERPROCESS != 0 => match SharedEvent::create() {
            Ok(shared) => Some(Arc::new(shared)),
            Err(_) => return E::CUDA_ERROR_OPERATING_SYSTEM.0,
        },
        _ => None,
    };
    let token = state.token();
    // An event made in a green context is one of its primary context.
    let current = CURRENT.get().unwrap_or_default();
    let context = if state.is_green(current) { current.primary() } else { current };
    let created = Event { context, blocking: flags & BLOCKING_SYNC != 0, shared, ..Event::default() };
    state.events.lock().insert(token, created);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(event, pointer(token)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> Code {
    let state = begin!("cuEventDestroy_v2");
    if state.events.lock().remove(&(event as u64)).is_some() { OK } else { HANDLE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuEventRecord");
    let stream = find_stream!(state, stream, device);
    let mut events = state.events.lock();
    let Some(event) = events.get_mut(&(event as u64)) else { return HANDLE };
    // An event is recorded on streams of its own context only. Streams of all devices may wait for it.
    let context = if state.is_green(stream.context) { stream.context.primary() } else { stream.context };
    if event.context != context {
        return HANDLE;
    }
    if let Some(shared) = &event.shared {
        not_captured!(stream);
        let (shared, recording) = (Arc::clone(shared), shared.record());
        state.streams.queue(&stream, Op::Run(Arc::new(move || shared.complete(recording))));
        return OK;
    }
    let captured = stream.capture().map(|capture| capture.id);
    // Queue an empty operation, so that the event completes in stream order on an idle stream too.
    state.streams.queue(&stream, Op::Run(Arc::new(|| {})));
    (event.recorded, event.captured) = (stream.tail(), captured);
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: *mut c_void) -> Code {
    let state = begin!("cuEventQuery");
    let Some(event) = state.events.lock().get(&(event as u64)).cloned() else { return HANDLE };
    not_of_a_capture!(state, event);
    forbidden_in_capture!(state, "capture_query");
    let lost = state.devices[event.context.device].lost.load(Ordering::Acquire);
    if lost != 0 {
        return lost;
    }
    if event.is_complete() { OK } else { NOT_READY }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: *mut c_void) -> Code {
    let state = begin!("cuEventSynchronize");
    if CURRENT.get().is_none() {
        return without_context();
    }
    let Some(event) = state.events.lock().get(&(event as u64)).cloned() else { return HANDLE };
    not_of_a_capture!(state, event);
    forbidden_in_capture!(state, "capture_query");
    state.spins.fetch_add(u64::from(!event.blocking && !event.is_complete()), Ordering::Relaxed);
    if let Some(marker) = &event.recorded {
        marker.wait();
    }
    if let Some(shared) = &event.shared {
        shared.wait(shared.last());
    }
    state.devices[event.context.device].lost.load(Ordering::Acquire)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) -> Code {
    let (state, device) = begin_current!("cuStreamWaitEvent");
    let stream = find_stream!(state, stream, device);
    let Some(event) = state.events.lock().get(&(event as u64)).cloned() else { return HANDLE };
    match graphs::wait_in_capture(state, &stream, &event) {
        Ok(InCapture::Yes) => return OK,
        Ok(InCapture::No) => {}
        Err(code) => return code,
    }
    if let Some(marker) = event.recorded {
        state.streams.queue(&stream, Op::Wait(marker));
    }
    if let Some(shared) = event.shared {
        let recording = shared.last();
        state.streams.queue(&stream, Op::Run(Arc::new(move || shared.wait(recording))));
    }
    OK
}
