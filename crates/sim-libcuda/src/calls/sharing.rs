//! Chunks of other processes.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};

use gapless::driver::MemoryDriver;
use gapless::driver::host::HostDriver;

use super::entry::{Code, INVALID, UNSUPPORTED, begin_vmm, code_of, put};
use crate::settings::{Rdma, Settings};
use crate::state::Chunk;

/// The value of `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: c_uint = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    target: *mut c_void,
    handle: u64,
    kind: c_uint,
    flags: u64,
) -> Code {
    let state = begin_vmm!("cuMemExportToShareableHandle");
    let Some(chunk) = state.chunks.lock().get(&handle).copied() else { return INVALID };
    if target.is_null() || flags != 0 || kind != DESCRIPTOR || chunk.exportable & kind == 0 {
        return INVALID;
    }
    // No work runs while the chunk's bytes move.
    let _mappings = state.mappings.write();
    match state.accounted(chunk.device, |host| host.export_labelled(chunk.handle, &label_of(&chunk, state.settings))) {
        // SAFETY: guaranteed by the driver API's contract.
        Ok(descriptor) => unsafe { put(target.cast::<c_int>(), descriptor.into_raw_fd()) },
        Err(error) => code_of::<()>(Err(error)),
    }
}

/// Of one whole mapping: a dma-buf is an ordinary file of its chunk here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    target: *mut c_void,
    addr: u64,
    bytes: usize,
    kind: c_uint,
    flags: u64,
) -> Code {
    const DMA_BUF: c_uint = 1;
    let state = begin_vmm!("cuMemGetHandleForAddressRange");
    if state.settings.rdma == Rdma::No {
        return UNSUPPORTED;
    }
    let mappings = state.mappings.write();
    let chunk = mappings.get(&addr).filter(|mapping| mapping.bytes == bytes as u64).map(|mapping| mapping.chunk);
    let chunk = chunk.and_then(|chunk| state.chunks.lock().get(&chunk).copied());
    let Some(chunk) = chunk.filter(|_| !target.is_null() && kind == DMA_BUF && flags == 0) else { return INVALID };
    match state.accounted(chunk.device, |host| host.export_labelled(chunk.handle, &label_of(&chunk, state.settings))) {
        // SAFETY: guaranteed by the driver API's contract.
        Ok(descriptor) => unsafe { put(target.cast::<c_int>(), descriptor.into_raw_fd()) },
        Err(error) => code_of::<()>(Err(error)),
    }
}

/// A chunk that this process has already gets one more reference to the handle that it has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(handle: *mut u64, source: *mut c_void, kind: c_uint) -> Code {
    let state = begin_vmm!("cuMemImportFromShareableHandle");
    let number = source as usize as c_int;
    if handle.is_null() || kind != DESCRIPTOR || number < 0 {
        return INVALID;
    }
    // SAFETY: the caller keeps the descriptor open during the call; a number that is none is refused by the first use.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let Some((label, bytes)) = HostDriver::label_of(descriptor) else { return INVALID };
    let Some((physical, rdma, exportable)) = properties(&label) else { return INVALID };
    // Of a device that this process does not see.
    let Some(device) = state.settings.physical.iter().position(|its| *its == physical) else { return INVALID };
    let mut chunks = state.chunks.lock();
    let made = match state.accounted(device, |host| host.import(descriptor, bytes)) {
        Ok(made) => made,
        Err(error) => return code_of::<()>(Err(error)),
    };
    let known = chunks.iter_mut().find(|(_, chunk)| (chunk.device, chunk.handle) == (device, made));
    let token = if let Some((token, chunk)) = known {
        // A chunk counts the references of the program, and has the host driver's handle once.
        chunk.references += 1;
        let _ = state.devices[device].host.release(made);
        *token
    } else {
        let token = state.token();
        chunks.insert(token, Chunk { device, handle: made, bytes, references: 1, rdma, exportable });
        token
    };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(handle, token) }
}

/// Returns the label of a chunk, which [`properties`] reads in whichever process.
fn label_of(chunk: &Chunk, settings: &Settings) -> String {
    format!("{}:{}:{}", settings.physical[chunk.device], u8::from(chunk.rdma), chunk.exportable)
}

/// Reads the device of the machine, RDMA capability and handle types from the label of a chunk.
fn properties(label: &str) -> Option<(usize, bool, u32)> {
    let mut parts = label.split(':');
    let found = (parts.next()?.parse().ok()?, parts.next()? == "1", parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(found)
}
