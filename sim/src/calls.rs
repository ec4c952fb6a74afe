//! The functions that gapless calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapless::DeviceAddr;
use gapless::driver::cuda::sys::{
    CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUmemLocationType_enum, cudaError_enum as E,
};
use gapless::driver::{DriverResult, MemoryDriver};

use crate::kernels;
use crate::settings::{Rdma, planned_fault};
use crate::state::{BELOW, CAPTURE_MODE, CURRENT, Chunk, Event, INITIALISED, Mapping, State};
use crate::streams::{Capture, Op, Stream};

/// What the functions return: a `CUresult`.
pub type Code = c_uint;

pub const OK: Code = E::CUDA_SUCCESS.0;
pub const INVALID: Code = E::CUDA_ERROR_INVALID_VALUE.0;
pub const HANDLE: Code = E::CUDA_ERROR_INVALID_HANDLE.0;
pub const CONTEXT: Code = E::CUDA_ERROR_INVALID_CONTEXT.0;
pub const UNSUPPORTED: Code = E::CUDA_ERROR_NOT_SUPPORTED.0;
pub const NOT_FOUND: Code = E::CUDA_ERROR_NOT_FOUND.0;
const NOT_READY: Code = E::CUDA_ERROR_NOT_READY.0;
const CAPTURE: Code = E::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0;
const ISOLATION: Code = E::CUDA_ERROR_STREAM_CAPTURE_ISOLATION.0;
const LOST: Code = E::CUDA_ERROR_ILLEGAL_ADDRESS.0;

/// Begins an exported function: a planned fault, or no `cuInit` before it, is its answer.
macro_rules! begin {
    ($name:literal) => {{
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

/// As `begin`, for calls that need a current context, and answer with its loss.
macro_rules! begin_current {
    ($name:literal) => {{
        let state = begin!($name);
        let Some(device) = CURRENT.get().checked_sub(1) else { return CONTEXT };
        let lost = state.devices[device].lost.load(Ordering::Acquire);
        if lost != 0 {
            return lost;
        }
        (state, device)
    }};
}
pub(crate) use begin_current;

/// Ends a call that a stream capture does not allow, from a thread that may break it.
macro_rules! forbidden_in_capture {
    ($state:expr) => {
        if breaks_a_capture($state) {
            return CAPTURE;
        }
    };
}

fn breaks_a_capture(state: &State) -> bool {
    const GLOBAL: u32 = 0;
    const RELAXED: u32 = 2;
    let mode = CAPTURE_MODE.get();
    if mode == RELAXED {
        return false;
    }
    let here = std::thread::current().id();
    let mut broken = false;
    for stream in state.streams.all() {
        if let Some(capture) = stream.capture.lock().as_mut()
            && capture.mode != RELAXED
            && (capture.thread == here || (mode == GLOBAL && capture.mode == GLOBAL))
        {
            capture.valid = false;
            broken = true;
        }
    }
    broken
}

macro_rules! find_stream {
    ($state:expr, $stream:expr, $device:expr) => {
        match stream_of($state, $stream, $device) {
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
    // SAFETY: the caller's promise.
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

// Start

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_flags: c_uint) -> Code {
    let settings = crate::settings::Settings::read();
    if let Some(code) = planned_fault("cuInit") {
        return code;
    }
    if settings.devices == 0 {
        return E::CUDA_ERROR_NO_DEVICE.0;
    }
    INITIALISED.store(true, Ordering::Release);
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    // SAFETY: the driver API's contract.
    unsafe { put(version, crate::settings::Settings::read().version) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    let known = name_of(code);
    // SAFETY: the driver API's contract.
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
        // SAFETY: the driver API's contract.
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
    // SAFETY: the driver API's contract.
    unsafe { put(text, words.as_ptr()) }
}

// Devices and contexts

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    let state = begin!("cuDeviceGetCount");
    // SAFETY: the driver API's contract.
    unsafe { put(count, state.devices.len() as c_int) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code {
    let state = begin!("cuDeviceGet");
    if !usize::try_from(ordinal).is_ok_and(|ordinal| ordinal < state.devices.len()) {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    }
    // SAFETY: the driver API's contract.
    unsafe { put(device, ordinal) }
}

/// Copies a text with its terminator.
unsafe fn put_text(target: *mut c_char, room: c_int, text: &str) -> Code {
    let room = usize::try_from(room).unwrap_or(0);
    if target.is_null() || room == 0 {
        return INVALID;
    }
    let bytes: Vec<c_char> =
        text.bytes().take(room - 1).chain(std::iter::once(0)).map(|b| c_char::from_ne_bytes([b])).collect();
    // SAFETY: the target has room for that many (the driver API's contract).
    unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) -> Code {
    begin!("cuDeviceGetName");
    // SAFETY: the driver API's contract.
    unsafe { put_text(name, room, &format!("Simulated GPU {device}")) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, room: c_int, device: c_int) -> Code {
    begin!("cuDeviceGetPCIBusId");
    // SAFETY: the driver API's contract.
    unsafe { put_text(id, room, &format!("0000:{device:02x}:00.0")) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> Code {
    begin!("cuDeviceGetUuid_v2");
    // SAFETY: the driver API's contract.
    unsafe { put(uuid, [device as u8; 16]) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> Code {
    let state = begin!("cuDeviceTotalMem_v2");
    // SAFETY: the driver API's contract.
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
    // SAFETY: the driver API's contract.
    unsafe { put(value, answer) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(answer: *mut c_int, device: c_int, peer: c_int) -> Code {
    begin!("cuDeviceCanAccessPeer");
    // SAFETY: the driver API's contract.
    unsafe { put(answer, c_int::from(device != peer)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> Code {
    let state = begin!("cuDevicePrimaryCtxRetain");
    let Some(found) = usize::try_from(device).ok().and_then(|device| state.devices.get(device)) else {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    };
    found.retained.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the driver API's contract.
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

/// Contexts are tokens below every other.
fn context_token(device: usize) -> u64 {
    CONTEXTS + device as u64
}

const CONTEXTS: u64 = 0xc0_0000;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> Code {
    begin!("cuCtxGetCurrent");
    let current = CURRENT.get().checked_sub(1).map_or(std::ptr::null_mut(), |device| pointer(context_token(device)));
    // SAFETY: the driver API's contract.
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
    // SAFETY: the driver API's contract.
    unsafe { put(context, pointer(context_token(device))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> Code {
    let (state, device) = begin_current!("cuCtxSynchronize");
    forbidden_in_capture!(state);
    for stream in state.streams.of_device(device) {
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
    // SAFETY: the driver API's contract.
    let wanted = unsafe { mode.read() };
    if wanted > 2 {
        return INVALID;
    }
    // SAFETY: the driver API's contract.
    unsafe { put(mode, CAPTURE_MODE.replace(wanted)) }
}

// Plain memory

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    let (state, device) = begin_current!("cuMemGetInfo_v2");
    match state.devices[device].host.memory_info() {
        // SAFETY: the driver API's contract.
        Ok(info) => match unsafe { put(free, info.free as usize) } {
            // SAFETY: the driver API's contract.
            OK => unsafe { put(total, info.total as usize) },
            code => code,
        },
        Err(error) => code_of::<()>(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(addr: *mut u64, bytes: usize) -> Code {
    let (state, device) = begin_current!("cuMemAlloc_v2");
    forbidden_in_capture!(state);
    if bytes == 0 || addr.is_null() {
        return INVALID;
    }
    match state.allocate(device, bytes as u64) {
        // SAFETY: the driver API's contract.
        Ok(at) => unsafe { put(addr, at) },
        Err(error) => code_of::<()>(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(addr: u64) -> Code {
    let (state, device) = begin_current!("cuMemFree_v2");
    forbidden_in_capture!(state);
    if addr == 0 {
        return OK;
    }
    for stream in state.streams.of_device(device) {
        stream.synchronize();
    }
    if state.free(addr) { OK } else { INVALID }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(addr: *mut u64, bytes: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemAllocAsync");
    if bytes == 0 || addr.is_null() {
        return INVALID;
    }
    let stream = find_stream!(state, stream, device);
    let mut allocated = state.allocate(device, bytes as u64);
    if allocated.is_err() {
        // What was freed on this stream is to be had once the stream has passed.
        stream.synchronize();
        allocated = state.allocate(device, bytes as u64);
    }
    match allocated {
        // SAFETY: the driver API's contract.
        Ok(at) => unsafe { put(addr, at) },
        Err(error) => code_of::<()>(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(addr: u64, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemFreeAsync");
    let Some(stream) = state.streams.find(stream as u64, device) else { return HANDLE };
    let free = Arc::new(move || {
        State::get().free(addr);
    });
    state.streams.queue(&stream, Op::Run(free));
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(addr: *mut *mut c_void, bytes: usize) -> Code {
    let (state, _) = begin_current!("cuMemAllocHost_v2");
    forbidden_in_capture!(state);
    if bytes == 0 || addr.is_null() {
        return INVALID;
    }
    let words = vec![[0_u64; 2]; bytes.div_ceil(16)].into_boxed_slice();
    let at = Box::into_raw(words).cast::<[u64; 2]>();
    state.pinned.lock().insert(at as u64, bytes.div_ceil(16));
    // SAFETY: the driver API's contract.
    unsafe { put(addr, at.cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(addr: *mut c_void) -> Code {
    let (state, _) = begin_current!("cuMemFreeHost");
    let Some(count) = state.pinned.lock().remove(&(addr as u64)) else { return INVALID };
    let slice = std::ptr::slice_from_raw_parts_mut(addr.cast::<[u64; 2]>(), count);
    // SAFETY: made by `cuMemAllocHost` with this length, and taken out of the table by this call alone.
    drop(unsafe { Box::from_raw(slice) });
    OK
}

// Virtual memory management

macro_rules! begin_vmm {
    ($name:literal) => {{
        let state = begin!($name);
        if !state.settings.vmm {
            return UNSUPPORTED;
        }
        forbidden_in_capture!(state);
        if let Some(device) = CURRENT.get().checked_sub(1) {
            let lost = state.devices[device].lost.load(Ordering::Acquire);
            if lost != 0 {
                return lost;
            }
        }
        state
    }};
}

/// The device that a location names.
fn device_at(state: &State, location: &CUmemLocation) -> Option<usize> {
    let device = usize::try_from(location.id).ok()?;
    (location.type_ == CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE && device < state.devices.len())
        .then_some(device)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    prop: *const CUmemAllocationProp,
    _option: c_uint,
) -> Code {
    let state = begin_vmm!("cuMemGetAllocationGranularity");
    // SAFETY: null or valid (the driver API's contract).
    let Some(prop) = (unsafe { prop.as_ref() }) else { return INVALID };
    let Some(device) = device_at(state, &prop.location) else { return INVALID };
    // SAFETY: the driver API's contract.
    unsafe { put(bytes, state.devices[device].host.granularity() as usize) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    addr: *mut u64,
    bytes: usize,
    align: usize,
    _hint: u64,
    flags: u64,
) -> Code {
    let state = begin_vmm!("cuMemAddressReserve");
    if addr.is_null() || flags != 0 || bytes == 0 {
        return INVALID;
    }
    // Addresses belong to the process; the current device's memory driver keeps them, as it will map into them.
    let device = CURRENT.get().saturating_sub(1);
    let host = &state.devices[device].host;
    match host.reserve(bytes as u64, (align as u64).max(host.granularity())) {
        Ok(at) => {
            state.reservations.lock().insert(at.0, (bytes as u64, device));
            // SAFETY: the driver API's contract.
            unsafe { put(addr, at.0) }
        }
        Err(error) => code_of::<()>(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressFree(addr: u64, bytes: usize) -> Code {
    let state = begin_vmm!("cuMemAddressFree");
    let mut reservations = state.reservations.lock();
    let Some(&(_, device)) = reservations.get(&addr) else { return INVALID };
    let result = state.devices[device].host.address_free(DeviceAddr(addr), bytes as u64);
    if result.is_ok() {
        reservations.remove(&addr);
    }
    code_of(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    bytes: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> Code {
    let state = begin_vmm!("cuMemCreate");
    // SAFETY: null or valid (the driver API's contract).
    let Some(prop) = (unsafe { prop.as_ref() }) else { return INVALID };
    let Some(device) = device_at(state, &prop.location) else { return INVALID };
    if handle.is_null() || flags != 0 {
        return INVALID;
    }
    let exportable = prop.requestedHandleTypes.0;
    if exportable != 0 && !state.settings.export {
        return UNSUPPORTED;
    }
    match state.devices[device].host.create(bytes as u64) {
        Ok(made) => {
            let token = state.token();
            let rdma = prop.allocFlags.gpuDirectRDMACapable != 0;
            let chunk = Chunk { device, handle: made, bytes: bytes as u64, references: 1, rdma, exportable };
            state.chunks.lock().insert(token, chunk);
            // SAFETY: the driver API's contract.
            unsafe { put(handle, token) }
        }
        Err(error) => code_of::<()>(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(handle: u64) -> Code {
    let state = begin_vmm!("cuMemRelease");
    let mut chunks = state.chunks.lock();
    let Some(chunk) = chunks.get_mut(&handle) else { return INVALID };
    if chunk.references > 1 {
        chunk.references -= 1;
        return OK;
    }
    let result = state.devices[chunk.device].host.release(chunk.handle);
    if result.is_ok() {
        chunks.remove(&handle);
    }
    code_of(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMap(addr: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> Code {
    let state = begin_vmm!("cuMemMap");
    if offset != 0 || flags != 0 {
        return INVALID;
    }
    let Some(chunk) = state.chunks.lock().get(&handle).copied() else { return INVALID };
    if bytes as u64 != chunk.bytes {
        return UNSUPPORTED;
    }
    if state.device_of(addr) != Some(chunk.device) {
        return INVALID;
    }
    let mut mappings = state.mappings.write();
    let result = state.devices[chunk.device].host.map(DeviceAddr(addr), chunk.bytes, chunk.handle);
    if result.is_ok() {
        let Chunk { device, bytes, rdma, .. } = chunk;
        mappings.insert(addr, Mapping { bytes, device, chunk: handle, rdma, accessible: false });
    }
    code_of(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(addr: u64, bytes: usize, list: *const CUmemAccessDesc, count: usize) -> Code {
    let state = begin_vmm!("cuMemSetAccess");
    if list.is_null() || count == 0 {
        return INVALID;
    }
    // SAFETY: as long as the count says (the driver API's contract).
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    if list.iter().any(|one| device_at(state, &one.location).is_none()) {
        return INVALID;
    }
    let mut mappings = state.mappings.write();
    let Some(starts) = State::tiling(&mappings, addr, bytes as u64) else { return INVALID };
    if state.settings.rdma == Rdma::Refused && starts.iter().any(|start| mappings[start].rdma) {
        return E::CUDA_ERROR_UNKNOWN.0;
    }
    let device = mappings[&addr].device;
    let result = state.devices[device].host.set_access(DeviceAddr(addr), bytes as u64);
    if result.is_ok() {
        for start in starts {
            if let Some(mapping) = mappings.get_mut(&start) {
                mapping.accessible = true;
            }
        }
    }
    code_of(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemUnmap(addr: u64, bytes: usize) -> Code {
    let state = begin_vmm!("cuMemUnmap");
    let mut mappings = state.mappings.write();
    let Some(starts) = State::tiling(&mappings, addr, bytes as u64) else { return INVALID };
    let device = mappings[&addr].device;
    let result = state.devices[device].host.unmap(DeviceAddr(addr), bytes as u64);
    if result.is_ok() {
        for start in starts {
            mappings.remove(&start);
        }
    }
    code_of(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, addr: u64) -> Code {
    let state = begin_vmm!("cuMemGetAccess");
    // SAFETY: null or valid (the driver API's contract).
    if unsafe { location.as_ref() }.is_none_or(|location| device_at(state, location).is_none()) {
        return INVALID;
    }
    let accessible = State::accessible(&state.mappings.read(), addr, 1);
    // SAFETY: the driver API's contract.
    unsafe { put(flags, if accessible { 3 } else { 0 }) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(handle: *mut u64, addr: *mut c_void) -> Code {
    let state = begin_vmm!("cuMemRetainAllocationHandle");
    let addr = addr as u64;
    let found = state.mappings.read().range(..=addr).next_back().map(|(start, mapping)| (*start, *mapping));
    let Some((_, mapping)) = found.filter(|(start, mapping)| addr - start < mapping.bytes && mapping.chunk != 0) else {
        return INVALID;
    };
    let mut chunks = state.chunks.lock();
    let Some(chunk) = chunks.get_mut(&mapping.chunk) else { return INVALID };
    chunk.references += 1;
    // SAFETY: the driver API's contract.
    unsafe { put(handle, mapping.chunk) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: u64) -> Code {
    let state = begin_vmm!("cuMemGetAllocationPropertiesFromHandle");
    let Some(chunk) = state.chunks.lock().get(&handle).copied() else { return INVALID };
    let mut found = CUmemAllocationProp::default();
    found.type_.0 = 1;
    found.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    found.location.id = chunk.device as c_int;
    found.requestedHandleTypes.0 = chunk.exportable;
    found.allocFlags.gpuDirectRDMACapable = u8::from(chunk.rdma);
    // SAFETY: the driver API's contract.
    unsafe { put(prop, found) }
}

/// A descriptor whose file holds the chunk's handle: good for imports by the same process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    target: *mut c_void,
    handle: u64,
    kind: c_uint,
    flags: u64,
) -> Code {
    let state = begin_vmm!("cuMemExportToShareableHandle");
    let Some(chunk) = state.chunks.lock().get(&handle).copied() else { return INVALID };
    if flags != 0 || kind != 1 || chunk.exportable & kind == 0 {
        return INVALID;
    }
    // SAFETY: a name that ends with NUL and no flags but one.
    let fd = unsafe { libc::memfd_create(c"gapless-sim-chunk".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return E::CUDA_ERROR_OPERATING_SYSTEM.0;
    }
    let bytes = handle.to_ne_bytes();
    // SAFETY: eight bytes of a local array.
    unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), 8, 0) };
    // SAFETY: the driver API's contract.
    unsafe { put(target.cast::<c_int>(), fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(handle: *mut u64, source: *mut c_void, kind: c_uint) -> Code {
    let state = begin_vmm!("cuMemImportFromShareableHandle");
    let mut bytes = [0; 8];
    let fd = source as usize as c_int;
    // SAFETY: eight bytes of a local array.
    let read = unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), 8, 0) };
    let mut chunks = state.chunks.lock();
    let token = u64::from_ne_bytes(bytes);
    match chunks.get_mut(&token) {
        Some(chunk) if read == 8 && kind == 1 => chunk.references += 1,
        _ => return INVALID,
    }
    // SAFETY: the driver API's contract.
    unsafe { put(handle, token) }
}

// Streams and events

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) -> Code {
    let (state, device) = begin_current!("cuStreamCreate");
    // SAFETY: the driver API's contract.
    unsafe { put(stream, pointer(state.streams.create(device, flags & 1 == 0))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> Code {
    let (state, _) = begin_current!("cuStreamDestroy_v2");
    if state.streams.destroy(stream as u64) { OK } else { HANDLE }
}

/// The stream, or the code that says why not.
pub fn stream_of(state: &State, stream: *mut c_void, device: usize) -> Result<Arc<Stream>, Code> {
    let found = state.streams.find(stream as u64, device).ok_or(HANDLE)?;
    if found.device == device { Ok(found) } else { Err(CONTEXT) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> Code {
    // SAFETY: the driver API's contract.
    unsafe { synchronize(stream) }
}

/// # Safety
/// As `cuStreamSynchronize`.
pub unsafe fn synchronize(stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuStreamSynchronize");
    let stream = find_stream!(state, stream, device);
    if stream.capture.lock().is_some() {
        return CAPTURE;
    }
    forbidden_in_capture!(state);
    stream.synchronize();
    state.devices[device].lost.load(Ordering::Acquire)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuStreamQuery");
    let stream = find_stream!(state, stream, device);
    forbidden_in_capture!(state);
    if stream.tail().is_none_or(|tail| tail.is_complete()) { OK } else { NOT_READY }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: *mut c_void, context: *mut *mut c_void) -> Code {
    let (state, device) = begin_current!("cuStreamGetCtx");
    let Some(stream) = state.streams.find(stream as u64, device) else { return HANDLE };
    // SAFETY: the driver API's contract.
    unsafe { put(context, pointer(context_token(stream.device))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: *mut c_void, status: *mut c_uint) -> Code {
    let (state, device) = begin_current!("cuStreamIsCapturing");
    let stream = find_stream!(state, stream, device);
    let now = stream.capture.lock().as_ref().map_or(0, |capture| if capture.valid { 1 } else { 2 });
    // SAFETY: the driver API's contract.
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
        // SAFETY: the driver API's contract.
        unsafe { put(graph, std::ptr::null_mut()) };
        return E::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.0;
    }
    let token = state.token();
    state.graphs.lock().insert(token, capture.ops);
    // SAFETY: the driver API's contract.
    unsafe { put(graph, pointer(token)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(exec: *mut *mut c_void, graph: *mut c_void, _flags: u64) -> Code {
    let (state, _) = begin_current!("cuGraphInstantiateWithFlags");
    let mut graphs = state.graphs.lock();
    let Some(ops) = graphs.get(&(graph as u64)).cloned() else { return INVALID };
    let token = state.token();
    graphs.insert(token, ops);
    // SAFETY: the driver API's contract.
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

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> Code {
    let (state, _) = begin_current!("cuEventCreate");
    let token = state.token();
    state.events.lock().insert(token, Event::default());
    // SAFETY: the driver API's contract.
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
    let captured = stream.capture.lock().is_some();
    // An operation of its own, so that an idle stream's event completes in stream order like any other.
    state.streams.queue(&stream, Op::Run(Arc::new(|| {})));
    *event = Event { recorded: stream.tail(), captured };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: *mut c_void) -> Code {
    let state = begin!("cuEventQuery");
    forbidden_in_capture!(state);
    let Some(event) = state.events.lock().get(&(event as u64)).cloned() else { return HANDLE };
    if event.captured {
        return E::CUDA_ERROR_CAPTURED_EVENT.0;
    }
    if let Some(code) = any_lost(state) {
        return code;
    }
    if event.recorded.is_none_or(|marker| marker.is_complete()) { OK } else { NOT_READY }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: *mut c_void) -> Code {
    let state = begin!("cuEventSynchronize");
    forbidden_in_capture!(state);
    let Some(event) = state.events.lock().get(&(event as u64)).cloned() else { return HANDLE };
    if event.captured {
        return E::CUDA_ERROR_CAPTURED_EVENT.0;
    }
    if let Some(marker) = event.recorded {
        marker.wait();
    }
    any_lost(state).unwrap_or(OK)
}

fn any_lost(state: &State) -> Option<Code> {
    state.devices.iter().map(|device| device.lost.load(Ordering::Acquire)).find(|&code| code != 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) -> Code {
    let (state, device) = begin_current!("cuStreamWaitEvent");
    let stream = find_stream!(state, stream, device);
    let Some(event) = state.events.lock().get(&(event as u64)).cloned() else { return HANDLE };
    if let Some(capture) = stream.capture.lock().as_mut()
        && !event.captured
    {
        capture.valid = false;
        return ISOLATION;
    }
    if let Some(marker) = event.recorded {
        state.streams.queue(&stream, Op::Wait(marker));
    }
    OK
}

// Work

/// Queues `work`, which first proves that it may touch `ranges`; where it may not, the device is lost.
fn queue_work(
    state: &'static State,
    stream: &Arc<Stream>,
    ranges: Vec<(u64, u64)>,
    work: impl Fn() + Send + Sync + 'static,
) {
    let device = stream.device;
    let run = move || {
        let state = State::get();
        if state.devices[device].lost.load(Ordering::Acquire) != 0 {
            return;
        }
        let mappings = state.mappings.read();
        if ranges.iter().all(|&(addr, bytes)| State::accessible(&mappings, addr, bytes)) {
            work();
        } else {
            state.devices[device].lost.store(LOST, Ordering::Release);
        }
    };
    state.streams.queue(stream, Op::Run(Arc::new(run)));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemcpyDtoDAsync_v2");
    let stream = find_stream!(state, stream, device);
    let bytes = bytes as u64;
    queue_work(state, &stream, vec![(target, bytes), (source, bytes)], move || {
        // SAFETY: both ranges were found accessible, and stay so while the mappings are locked.
        unsafe { kernels::copy(target, source, bytes) };
    });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    target: *mut c_void,
    source: u64,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    // SAFETY: the driver API's contract.
    unsafe { copy_out_on(target, source, bytes, stream) }
}

/// # Safety
/// As `cuMemcpyDtoHAsync_v2`.
pub unsafe fn copy_out_on(target: *mut c_void, source: u64, bytes: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemcpyDtoHAsync_v2");
    let stream = find_stream!(state, stream, device);
    let (target, bytes) = (target as u64, bytes as u64);
    queue_work(state, &stream, vec![(source, bytes)], move || {
        // SAFETY: the source was found accessible; the target is the program's promise.
        unsafe { kernels::copy(target, source, bytes) };
    });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    target: u64,
    source: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    // SAFETY: the driver API's contract.
    unsafe { copy_in_on(target, source, bytes, stream) }
}

/// # Safety
/// As `cuMemcpyHtoDAsync_v2`.
pub unsafe fn copy_in_on(target: u64, source: *const c_void, bytes: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemcpyHtoDAsync_v2");
    let stream = find_stream!(state, stream, device);
    let (source, bytes) = (source as u64, bytes as u64);
    queue_work(state, &stream, vec![(target, bytes)], move || {
        // SAFETY: the target was found accessible; the source is the program's promise.
        unsafe { kernels::copy(target, source, bytes) };
    });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(target: u64, value: u8, count: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemsetD8Async");
    let stream = find_stream!(state, stream, device);
    queue_work(state, &stream, vec![(target, count as u64)], move || {
        let at: *mut u8 = pointer(target);
        // SAFETY: the range was found accessible, and stays so while the mappings are locked.
        unsafe { at.write_bytes(value, count) };
    });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD32Async(target: u64, value: c_uint, count: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemsetD32Async");
    let stream = find_stream!(state, stream, device);
    queue_work(state, &stream, vec![(target, count as u64 * 4)], move || {
        for word in 0..count {
            let at: *mut c_uint = pointer(target + word as u64 * 4);
            // SAFETY: the range was found accessible, and stays so while the mappings are locked.
            unsafe { at.write(value) };
        }
    });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> Code {
    // SAFETY: the driver API's contract.
    unsafe { load_module(module, image) }
}

/// # Safety
/// As `cuModuleLoadData`.
pub unsafe fn load_module(module: *mut *mut c_void, image: *const c_void) -> Code {
    let (state, _) = begin_current!("cuModuleLoadData");
    forbidden_in_capture!(state);
    if image.is_null() {
        return INVALID;
    }
    // SAFETY: PTX ends with NUL (the driver API's contract); nothing else is understood here.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().into_owned();
    if !text.contains(".version") {
        return E::CUDA_ERROR_INVALID_IMAGE.0;
    }
    let token = state.token();
    state.modules.lock().insert(token, text);
    // SAFETY: the driver API's contract.
    unsafe { put(module, pointer(token)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: *mut c_void) -> Code {
    let (state, _) = begin_current!("cuModuleUnload");
    if state.modules.lock().remove(&(module as u64)).is_some() { OK } else { HANDLE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> Code {
    let (state, _) = begin_current!("cuModuleGetFunction");
    let modules = state.modules.lock();
    let Some(text) = modules.get(&(module as u64)) else { return HANDLE };
    if name.is_null() {
        return INVALID;
    }
    // SAFETY: a name ends with NUL (the driver API's contract).
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let known = KERNELS.iter().find(|known| **known == name && text.contains(&format!(".entry {known}(")));
    let Some(&known) = known else { return NOT_FOUND };
    let token = state.token();
    state.functions.lock().insert(token, known);
    // SAFETY: the driver API's contract.
    unsafe { put(function, pointer(token)) }
}

const KERNELS: [&str; 8] = [
    "fill_pattern",
    "verify_pattern",
    "spin",
    "bandwidth_read",
    "bandwidth_write",
    "bandwidth_copy",
    "pointer_chase_link",
    "pointer_chase",
];

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared_bytes: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    let (state, device) = begin_current!("cuLaunchKernel");
    let stream = find_stream!(state, stream, device);
    let Some(&name) = state.functions.lock().get(&(function as u64)) else { return HANDLE };
    let Some(count) = kernels::parameters_of(name) else { return INVALID };
    if parameters.is_null() {
        return INVALID;
    }
    // SAFETY: as many pointers as the kernel has parameters (the driver API's contract).
    let pointers = unsafe { std::slice::from_raw_parts(parameters.cast::<*const u64>(), count) };
    // SAFETY: each points to a value of eight bytes, the width of our kernels' parameters.
    let values: Vec<u64> = pointers.iter().map(|value| unsafe { value.read_unaligned() }).collect();
    if name == "spin" {
        // Holds no lock while it waits: mappings may change under a spinning kernel.
        let wait = Duration::from_nanos(values[0]);
        state.streams.queue(&stream, Op::Run(Arc::new(move || std::thread::sleep(wait))));
        return OK;
    }
    queue_work(state, &stream, kernels::ranges_of(name, &values), move || {
        // SAFETY: the ranges were found accessible, and stay so while the mappings are locked.
        unsafe { kernels::run(name, &values) };
    });
    OK
}

/// Plans faults from within the process; not part of the driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sim_plan_faults(text: *const c_char) -> Code {
    if text.is_null() {
        return INVALID;
    }
    // SAFETY: the caller's text ends with NUL.
    crate::settings::plan_faults(&unsafe { CStr::from_ptr(text) }.to_string_lossy());
    OK
}

/// What is alive on a device: chunks, mappings, reservations, events of all devices. Not part of the driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sim_usage(device: c_int, counts: *mut [u64; 4]) -> Code {
    let state = begin!("gapless_sim_usage");
    let Some(device) = usize::try_from(device).ok().filter(|device| *device < state.devices.len()) else {
        return INVALID;
    };
    let chunks = state.chunks.lock().values().filter(|chunk| chunk.device == device).count();
    let mappings = state.mappings.read().values().filter(|mapping| mapping.device == device).count();
    let reservations = state.reservations.lock().values().filter(|(_, owner)| *owner == device).count();
    let events = state.events.lock().len();
    // SAFETY: null or valid for a write.
    unsafe { put(counts, [chunks, mappings, reservations, events].map(|count| count as u64)) }
}
