//! Copies, modules and kernels.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapless::ByteSize;
use gapless::driver::cuda::sys::cudaError_enum as E;

use super::contexts::device_of_context;
use super::entry::{
    CONTEXT, Code, HANDLE, INVALID, LOST, NOT_FOUND, OK, begin_current, find_stream, forbidden_in_capture, pointer, put,
};
use crate::broken::{self, Noted};
use crate::counts;
use crate::kernels;
use crate::state::{Accessor, Mapping, State};
use crate::streams::{Op, Stream};

/// Queues `work`, which runs only if all of `ranges` may be accessed then. Otherwise the stream's device is lost.
fn queue_work(
    state: &'static State,
    stream: &Arc<Stream>,
    ranges: Vec<(Accessor, u64, u64)>,
    work: impl Fn() + Send + Sync + 'static,
) {
    let device = stream.device;
    let queued = Noted::now();
    let run = move || {
        let state = State::get();
        if state.devices[device].lost.load(Ordering::Acquire) != 0 {
            return;
        }
        let mappings = state.mappings.read();
        if ranges.iter().all(|&(by, addr, bytes)| state.accessible(&mappings, by, addr, bytes)) {
            work();
        } else {
            if let Some(queued) = &queued {
                tell_inaccessible(state, &mappings, &ranges, queued);
            }
            state.devices[device].lost.store(LOST, Ordering::Release);
        }
    };
    state.streams.queue(stream, Op::Run(Arc::new(run)));
}

/// Tells which rule work breaks that may not access one of `ranges`.
fn tell_inaccessible(
    state: &State,
    mappings: &BTreeMap<u64, Mapping>,
    ranges: &[(Accessor, u64, u64)],
    queued: &Noted,
) {
    for &(by, addr, bytes) in ranges {
        let Some((at, is_mapped)) = state.inaccessible(mappings, by, addr, bytes) else { continue };
        let what = format!("{} at {addr:#x}", ByteSize(bytes));
        if is_mapped {
            let detail = format!("{what}: its device has no access at {at:#x}");
            return broken::work("work_without_access", detail, queued, None);
        }
        let detail = format!("{what}: nothing is mapped at {at:#x}");
        return match broken::unmapped_by(at, queued) {
            Some((by, true)) => broken::work("wait_after_unmap", detail, queued, Some(&by)),
            Some((by, false)) => broken::work("work_unmapped", detail, queued, Some(&by)),
            None => broken::work("work_unmapped", detail, queued, None),
        };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemcpyDtoDAsync_v2");
    let stream = find_stream!(state, stream, device);
    let bytes = bytes as u64;
    queue_work(
        state,
        &stream,
        vec![(Accessor::Copy(device), target, bytes), (Accessor::Copy(device), source, bytes)],
        move || {
            // SAFETY: both ranges were found accessible, and stay so while the mappings are locked.
            unsafe { kernels::copy(target, source, bytes) };
        },
    );
    OK
}

/// Copies between devices, whether or not they can access each other's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyPeerAsync(
    target: u64,
    target_context: *mut c_void,
    source: u64,
    source_context: *mut c_void,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    let (state, device) = begin_current!("cuMemcpyPeerAsync");
    let stream = find_stream!(state, stream, device);
    let (Some(to), Some(from)) = (device_of_context(state, target_context), device_of_context(state, source_context))
    else {
        return CONTEXT;
    };
    let bytes = bytes as u64;
    queue_work(
        state,
        &stream,
        vec![(Accessor::Copy(to), target, bytes), (Accessor::Copy(from), source, bytes)],
        move || {
            // SAFETY: both ranges were found accessible, and stay so while the mappings are locked.
            unsafe { kernels::copy(target, source, bytes) };
        },
    );
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    target: *mut c_void,
    source: u64,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { copy_out_on(target, source, bytes, stream) }
}

/// A copy to pageable memory has completed when the call returns, unless a graph copies. The driver API's page promised it until
/// CUDA 11 and calls it possible now; cudarc gives such memory back at once.
///
/// # Safety
/// The same as for `cuMemcpyDtoHAsync_v2`.
pub unsafe fn copy_out_on(target: *mut c_void, source: u64, bytes: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemcpyDtoHAsync_v2");
    let stream = find_stream!(state, stream, device);
    let (target, bytes) = (target as u64, bytes as u64);
    counts::add(counts::TO_HOST, bytes);
    queue_work(state, &stream, vec![(Accessor::Copy(device), source, bytes)], move || {
        if state.settings.copies {
            // SAFETY: the source was found accessible; the target is valid by the driver API's contract.
            unsafe { kernels::copy(target, source, bytes) };
        }
    });
    if !state.is_pinned(target) && stream.capture().is_none() {
        stream.synchronize();
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    target: u64,
    source: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { copy_in_on(target, source, bytes, stream) }
}

/// Pageable memory is copied elsewhere before the call returns ("API synchronization behavior" of the driver API), so that the
/// program may give it back or write to it at once. Pinned memory is read when the copy's turn comes, and so is what a graph
/// copies.
///
/// # Safety
/// The same as for `cuMemcpyHtoDAsync_v2`.
pub unsafe fn copy_in_on(target: u64, source: *const c_void, bytes: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemcpyHtoDAsync_v2");
    let stream = find_stream!(state, stream, device);
    let is_pageable = bytes > 0 && !state.is_pinned(source as u64);
    let is_staged = is_pageable && state.settings.copies && stream.capture().is_none();
    // SAFETY: the source is valid by the driver API's contract.
    let staged = is_staged.then(|| unsafe { std::slice::from_raw_parts(source.cast::<u8>(), bytes) }.to_vec());
    let (source, bytes) = (source as u64, bytes as u64);
    counts::add(counts::FROM_HOST, bytes);
    queue_work(state, &stream, vec![(Accessor::Copy(device), target, bytes)], move || {
        if state.settings.copies {
            let source = staged.as_ref().map_or(source, |bytes| bytes.as_ptr() as u64);
            // SAFETY: the target was found accessible; the source is staged, or valid by the driver API's contract.
            unsafe { kernels::copy(target, source, bytes) };
        }
    });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(target: u64, value: u8, count: usize, stream: *mut c_void) -> Code {
    let (state, device) = begin_current!("cuMemsetD8Async");
    let stream = find_stream!(state, stream, device);
    queue_work(state, &stream, vec![(Accessor::Kernel(device), target, count as u64)], move || {
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
    queue_work(state, &stream, vec![(Accessor::Kernel(device), target, count as u64 * 4)], move || {
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
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { load_module(module, image) }
}

/// # Safety
/// The same as for `cuModuleLoadData`.
pub unsafe fn load_module(module: *mut *mut c_void, image: *const c_void) -> Code {
    let (state, _) = begin_current!("cuModuleLoadData");
    forbidden_in_capture!(state, "capture_create");
    if image.is_null() {
        return INVALID;
    }
    // SAFETY: PTX ends with NUL (the driver API's contract); other images are not supported.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().into_owned();
    if !text.contains(".version") {
        return E::CUDA_ERROR_INVALID_IMAGE.0;
    }
    let token = state.token();
    state.modules.lock().insert(token, text);
    // SAFETY: guaranteed by the driver API's contract.
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
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(function, pointer(token)) }
}

const KERNELS: [&str; 10] = [
    "fill_pattern",
    "verify_pattern",
    "spin",
    "bandwidth_read",
    "bandwidth_write",
    "bandwidth_copy",
    "pointer_chase_link",
    "pointer_chase",
    "dependent_write",
    "dependent_check",
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
    // SAFETY: the same contract.
    unsafe { launch(function, stream, parameters) }
}

/// Runs a kernel in stream order. On the CPU, the grid does not matter.
///
/// # Safety
/// The same as for `cuLaunchKernel`.
pub(super) unsafe fn launch(function: *mut c_void, stream: *mut c_void, parameters: *mut *mut c_void) -> Code {
    let (state, device) = begin_current!("cuLaunchKernel");
    let stream = find_stream!(state, stream, device);
    let Some(&name) = state.functions.lock().get(&(function as u64)) else { return HANDLE };
    let Some(count) = kernels::parameters_of(name) else { return INVALID };
    if parameters.is_null() {
        return INVALID;
    }
    // SAFETY: as many pointers as the kernel has parameters (the driver API's contract).
    let pointers = unsafe { std::slice::from_raw_parts(parameters.cast::<*const u64>(), count) };
    // SAFETY: each points to a value of eight bytes, the width of the kernels' parameters.
    let values: Vec<u64> = pointers.iter().map(|value| unsafe { value.read_unaligned() }).collect();
    if name == "spin" {
        // Hold no lock while waiting: mappings may change while the kernel spins.
        let wait = Duration::from_nanos(values[0]);
        state.streams.queue(&stream, Op::Run(Arc::new(move || std::thread::sleep(wait))));
        return OK;
    }
    let ranges = kernels::ranges_of(name, &values);
    let ranges = ranges.into_iter().map(|(addr, bytes)| (Accessor::Kernel(device), addr, bytes)).collect();
    queue_work(state, &stream, ranges, move || {
        // SAFETY: the ranges were found accessible, and stay so while the mappings are locked.
        unsafe { kernels::run(name, &values) };
    });
    OK
}
