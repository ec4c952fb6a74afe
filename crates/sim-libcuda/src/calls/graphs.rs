//! Captures of streams, and graphs.

use std::ffi::{c_uint, c_void};

use gapless::driver::cuda::sys::cudaError_enum as E;

use super::entry::{
    Code, INVALID, ISOLATION, OK, RELAXED, ask_stream, begin, begin_current, find_stream, pointer, put,
};
use crate::broken;
use crate::state::{CURRENT, Event, State};
use crate::streams::{Capture, Stream};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: *mut c_void, status: *mut c_uint) -> Code {
    let (state, device) = begin_current!("cuStreamIsCapturing");
    let stream = ask_stream!(state, stream, device);
    let now = stream.capture().as_ref().map_or(0, status_of);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(status, now) }
}

/// Reports which capture a stream belongs to.
macro_rules! report_capture {
    ($name:literal, $stream:ident, $status:ident, $id:ident) => {{
        let (state, device) = begin_current!($name);
        let report = |capture: Option<&Capture>| {
            let number = capture.filter(|capture| capture.is_valid()).map(|capture| capture.id);
            (capture.map_or(0, status_of), number)
        };
        let context = CURRENT.get().unwrap_or_default();
        let (now, number) = match state.streams.capture_of_created($stream as u64, context, report) {
            Some(answer) => answer,
            None => report(ask_stream!(state, $stream, device).capture().as_ref()),
        };
        if let Some(number) = number.filter(|_| !$id.is_null()) {
            // SAFETY: not null, so valid for a write (the driver API's contract).
            unsafe { $id.write(number) };
        }
        // SAFETY: guaranteed by the driver API's contract.
        unsafe { put($status, now) }
    }};
}

/// As in CUDA 10.1 to 11.2; later drivers have it as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo(stream: *mut c_void, status: *mut c_uint, id: *mut u64) -> Code {
    report_capture!("cuStreamGetCaptureInfo", stream, status, id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: *mut c_void,
    status: *mut c_uint,
    id: *mut u64,
    _graph: *mut *mut c_void,
    _dependencies: *mut *const c_void,
    _edges: *mut *const c_void,
    _count: *mut usize,
) -> Code {
    report_capture!("cuStreamGetCaptureInfo_v3", stream, status, id)
}

/// The `CUstreamCaptureStatus` of a stream that belongs to a capture.
fn status_of(capture: &Capture) -> c_uint {
    if capture.is_valid() { 1 } else { 2 }
}

/// Ends a capture without a graph, if it is still in progress. Returns whether it was.
pub(super) fn invalidate(state: &State, id: u64) -> bool {
    let mut found = false;
    for stream in state.streams.of_capture(id) {
        if let Some(capture) = stream.capture() {
            capture.invalidate();
            found = true;
        }
    }
    found
}

/// Whether a wait became part of a capture.
pub(super) enum InCapture {
    Yes,
    No,
}

/// A wait of `stream` for `event`, as far as captures are concerned: a stream that waits for an event of a capture joins
/// the capture. Operations of a capture are in the order of the calls, so there is nothing to wait for.
pub(super) fn wait_in_capture(state: &State, stream: &Stream, event: &Event) -> Result<InCapture, Code> {
    let own = stream.capture();
    match (&own, event.captured) {
        (None, None) => Ok(InCapture::No),
        (Some(capture), None) => {
            capture.invalidate();
            Err(broken::rule("capture_wait", ISOLATION, || "the event was recorded outside of the capture".into()))
        }
        (Some(capture), Some(id)) if capture.id == id => Ok(InCapture::Yes),
        (Some(capture), Some(id)) => {
            capture.invalidate();
            invalidate(state, id);
            Err(E::CUDA_ERROR_STREAM_CAPTURE_MERGE.0)
        }
        (None, Some(id)) => {
            let members = state.streams.of_capture(id);
            let found = members.first().and_then(|member| member.capture()).ok_or(INVALID)?;
            stream.begin_capture(found.joined());
            Ok(InCapture::Yes)
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_uint) -> Code {
    let (state, device) = begin_current!("cuStreamBeginCapture_v2");
    if stream as u64 <= 1 || mode > 2 {
        return INVALID;
    }
    let stream = find_stream!(state, stream, device);
    if stream.begin_capture(Capture::begin(state.token(), mode)) { OK } else { E::CUDA_ERROR_ILLEGAL_STATE.0 }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> Code {
    let (state, device) = begin_current!("cuStreamEndCapture");
    let stream = find_stream!(state, stream, device);
    let Some(capture) = stream.capture() else { return E::CUDA_ERROR_ILLEGAL_STATE.0 };
    if !capture.origin {
        return E::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED.0;
    }
    if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
        return E::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0;
    }
    for stream in state.streams.of_capture(capture.id) {
        stream.end_capture();
    }
    if !capture.is_valid() {
        // SAFETY: guaranteed by the driver API's contract.
        unsafe { put(graph, std::ptr::null_mut()) };
        return E::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.0;
    }
    let token = state.token();
    state.graphs.lock().insert(token, capture.ops());
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(graph, pointer(token)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(exec: *mut *mut c_void, graph: *mut c_void, _flags: u64) -> Code {
    let (state, _) = begin_current!("cuGraphInstantiateWithFlags");
    let mut graphs = state.graphs.lock();
    let Some(ops) = graphs.get(&(graph as u64)).cloned() else { return INVALID };
    let token = state.token();
    graphs.insert(token, ops);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(exec, pointer(token)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(exec: *mut c_void, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuGraphLaunch");
    let stream = find_stream!(state, stream, device);
    let Some(ops) = state.graphs.lock().get(&(exec as u64)).cloned() else { return INVALID };
    for op in ops {
        state.streams.queue(&stream, op);
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphDestroy(graph: *mut c_void) -> Code {
    let state = begin!("cuGraphDestroy");
    if state.graphs.lock().remove(&(graph as u64)).is_some() { OK } else { INVALID }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecDestroy(exec: *mut c_void) -> Code {
    let state = begin!("cuGraphExecDestroy");
    if state.graphs.lock().remove(&(exec as u64)).is_some() { OK } else { INVALID }
}
