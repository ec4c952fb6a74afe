//! Registered blocks of C: memory of a device that a library registers, by its pointer.
//!
//! Threads: any.

use crate::abi::{CUstream_st, address, device_pointer, stream_id};
use crate::last_error::guard;
use crate::out::check_out;
use crate::process::device_of;
use crate::status::gapless_status;
use std::ffi::c_void;
use std::os::fd::IntoRawFd;

/// Allocates a block for a library that registers memory (NCCL) or for other hardware (RDMA), for work on stream, and writes its
/// address to *pointer. It is one physical allocation in a mapping of its own: pointer and size are multiples of the
/// driver's granularity, bytes is rounded up to it, nothing else is in there, and until it is freed it is not moved or
/// unmapped. RDMA can use it where the device supports that.
///
/// gapless_device_free_registered frees it, and no other function. Pools and the memory history are not about it.
///
/// # Safety
/// pointer points to a pointer; stream is a stream of the device, or null for the default one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_alloc_registered(
    device: i32,
    bytes: u64,
    stream: *mut CUstream_st,
    pointer: *mut *mut c_void,
) -> gapless_status {
    guard(|| {
        check_out(pointer, "pointer")?;
        let addr = device_of(device)?.alloc_registered(bytes, stream_id(stream))?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { pointer.write(device_pointer(addr)) };
        Ok(())
    })
}

/// Records that stream also uses a registered block: freeing it waits for that stream, too. Other threads may record or
/// export the same block meanwhile; one that frees it waits for that.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_record_registered(
    device: i32,
    pointer: *mut c_void,
    stream: *mut CUstream_st,
) -> gapless_status {
    guard(|| Ok(device_of(device)?.record_registered(address(pointer), stream_id(stream))?))
}

/// Writes to *descriptor a dma-buf of a registered block, for hardware that reaches the memory by itself: ibv_reg_dmabuf_mr takes
/// it with an offset of 0 and the whole block. The caller closes it, as soon as the hardware has it; the hardware's registration
/// ends before the block is freed. GAPLESS_ERROR_DRIVER where the device has no dma-bufs.
///
/// # Safety
/// descriptor points to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_registered_dma_buf(
    device: i32,
    pointer: *mut c_void,
    descriptor: *mut i32,
) -> gapless_status {
    guard(|| {
        check_out(descriptor, "descriptor")?;
        let exported = device_of(device)?.registered_dma_buf(address(pointer))?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { descriptor.write(exported.into_raw_fd()) };
        Ok(())
    })
}

/// Frees a registered block, after a wait for the streams that it was allocated for and recorded on: end its registration
/// before. Where one of them is being captured, the memory goes back to the allocator later. NULL: nothing.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_free_registered(device: i32, pointer: *mut c_void) -> gapless_status {
    guard(|| {
        let device = device_of(device)?;
        if pointer.is_null() { Ok(()) } else { Ok(device.free_registered(address(pointer))?) }
    })
}
