//! Captures of streams, and graphs.

use super::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: *mut c_void, status: *mut c_uint) -> Code {
    let (state, device) = begin_current!("cuStreamIsCapturing");
    let stream = find_stream!(state, stream, device);
    let now = stream.capture.lock().as_ref().map_or(0, |capture| if capture.valid { 1 } else { 2 });
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(status, now) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_uint) -> Code {
    let (state, device) = begin_current!("cuStreamBeginCapture_v2");
    if stream as u64 <= 1 || mode > 2 {
        return INVALID;
    }
    let stream = find_stream!(state, stream, device);
    let mut capture = stream.capture.lock();
    if capture.is_some() {
        return E::CUDA_ERROR_ILLEGAL_STATE.0;
    }
    *capture = Some(Capture { mode, thread: std::thread::current().id(), valid: true, ops: Vec::new() });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> Code {
    let (state, device) = begin_current!("cuStreamEndCapture");
    let stream = find_stream!(state, stream, device);
    let Some(capture) = stream.capture.lock().take() else { return E::CUDA_ERROR_ILLEGAL_STATE.0 };
    if !capture.valid {
        // SAFETY: guaranteed by the driver API's contract.
        unsafe { put(graph, std::ptr::null_mut()) };
        return E::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.0;
    }
    let token = state.token();
    state.graphs.lock().insert(token, capture.ops);
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
