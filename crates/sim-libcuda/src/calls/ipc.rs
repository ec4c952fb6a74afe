//! Events, and memory of `cuMemAlloc`, that are shared between processes by handles of 64 bytes.

use std::ffi::{c_uint, c_void};
use std::os::fd::AsFd;
use std::sync::Arc;

use gapless::driver::MemoryDriver;
use gapless::driver::host::HostDriver;

use super::entry::{CONTEXT, Code, HANDLE, INVALID, OK, begin, begin_current, code_of, pointer, put};
use crate::ipc::{Handle, Kind, OfProcess, SharedEvent};
use crate::state::{CURRENT, Event, Opened};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetEventHandle(handle: *mut Handle, event: *mut c_void) -> Code {
    let state = begin!("cuIpcGetEventHandle");
    let events = state.events.lock();
    let Some(event) = events.get(&(event as u64)) else { return HANDLE };
    // Created without `CU_EVENT_INTERPROCESS`, or by another process.
    let Some(shared) = event.shared.as_ref().filter(|_| !event.imported) else { return HANDLE };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(handle, shared.name().handle()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenEventHandle(event: *mut *mut c_void, handle: Handle) -> Code {
    let (state, _) = begin_current!("cuIpcOpenEventHandle");
    let Some(name) = OfProcess::read(Kind::Event, &handle) else { return HANDLE };
    if name.is_own() {
        return CONTEXT;
    }
    let Some(Ok(shared)) = name.open().map(SharedEvent::open) else { return HANDLE };
    let token = state.token();
    let context = CURRENT.get().unwrap_or_default();
    let opened = Event { context, shared: Some(Arc::new(shared)), imported: true, ..Event::default() };
    state.events.lock().insert(token, opened);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(event, pointer(token)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut Handle, addr: u64) -> Code {
    let (state, device) = begin_current!("cuIpcGetMemHandle");
    // No work runs while the bytes move to a file.
    let mappings = state.mappings.write();
    let mut plain = state.plain.lock();
    let Some(memory) = plain.get_mut(&addr) else { return INVALID };
    if mappings.get(&addr).is_none_or(|mapping| mapping.device != device) {
        return INVALID;
    }
    if memory.file.is_none() {
        let label = format!("{}:plain", state.settings.physical[device]);
        match state.accounted(device, |host| host.export_labelled(memory.chunk, &label)) {
            Ok(file) => memory.file = Some(Arc::new(file)),
            Err(error) => return code_of::<()>(Err(error)),
        }
    }
    let Some(file) = &memory.file else { return INVALID };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(handle, OfProcess::own(Kind::Memory, file.as_fd()).handle()) }
}

/// Memory that was opened before keeps its address, and is to be closed once more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(addr: *mut u64, handle: Handle, _flags: c_uint) -> Code {
    let (state, device) = begin_current!("cuIpcOpenMemHandle_v2");
    let Some(name) = OfProcess::read(Kind::Memory, &handle) else { return HANDLE };
    if addr.is_null() {
        return INVALID;
    }
    if name.is_own() {
        return CONTEXT;
    }
    let mut opened = state.opened.lock();
    if let Some((at, memory)) = opened.iter_mut().find(|(_, memory)| memory.name == name) {
        memory.times += 1;
        // SAFETY: guaranteed by the driver API's contract.
        return unsafe { put(addr, *at) };
    }
    let Some(file) = name.open() else { return HANDLE };
    let Some((label, bytes)) = HostDriver::label_of(file.as_fd()) else { return HANDLE };
    if label != format!("{}:plain", state.settings.physical[device]) {
        return HANDLE;
    }
    match state.map_plain(device, bytes, |host| host.import(file.as_fd(), bytes)) {
        Ok((at, chunk)) => {
            opened.insert(at, Opened { name, bytes, chunk, times: 1 });
            // SAFETY: guaranteed by the driver API's contract.
            unsafe { put(addr, at) }
        }
        Err(error) => code_of::<()>(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcCloseMemHandle(addr: u64) -> Code {
    let (state, device) = begin_current!("cuIpcCloseMemHandle");
    let mut opened = state.opened.lock();
    let Some(memory) = opened.get_mut(&addr) else { return INVALID };
    memory.times -= 1;
    if memory.times == 0 {
        for stream in state.streams.of_device(device) {
            stream.synchronize();
        }
        let (bytes, chunk) = (memory.bytes, memory.chunk);
        opened.remove(&addr);
        state.unmap_plain(addr, bytes, chunk);
    }
    OK
}
