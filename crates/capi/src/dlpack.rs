//! Growable ranges as tensors of DLPack, which PyTorch, CuPy, JAX and others take without a copy.
//!
//! - I1  a tensor's range has its addresses until the tensor's deleter was called, whoever closes it meanwhile.
//!
//! Threads: any; a deleter may be called on any thread, without the interpreter's lock, and when the process ends.

use crate::abi::{address, device_pointer};
use crate::last_error::{guard, report_failure};
use crate::out::check_out;
use crate::process::device_of;
use crate::status::{Failure, gapless_status};
use gapless::driver::cuda::CudaDriver;
use gapless_process::RangeHold;
use std::ffi::c_void;
use std::sync::atomic::AtomicU32;

/// DLPack's `DLManagedTensor`, of one dimension.
#[repr(C)]
pub struct DLManagedTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A tensor with what it points to and what it keeps.
#[repr(C)]
struct Exported {
    tensor: DLManagedTensor,
    shape: [i64; 1],
    strides: [i64; 1],
    _range: RangeHold<CudaDriver>,
}

/// `kDLCUDA`.
const CUDA: i32 = 2;
/// `kDLUInt`.
const UNSIGNED: u8 = 1;

/// Writes to *tensor a new tensor of DLPack (a DLManagedTensor of dlpack.h) over all addresses of a range: bytes, in one dimension.
/// Those beyond what is mapped must not be used; what the range grows by is in reach of the tensor at once. Whoever takes the
/// tensor calls its deleter once, on any thread, but not in a callback of a map listener. Until then the range keeps its memory and
/// its addresses, also when it is closed.
///
/// # Safety
/// tensor points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_range_dlpack(
    device: i32,
    range: *mut c_void,
    tensor: *mut *mut DLManagedTensor,
) -> gapless_status {
    guard(|| {
        check_out(tensor, "tensor")?;
        let range = device_of(device)?.hold_range(address(range))?;
        let bytes = i64::try_from(range.address_bytes()).map_err(Failure::argument)?;
        let mut exported = Box::new(Exported {
            tensor: DLManagedTensor {
                data: device_pointer(range.addr()),
                device_type: CUDA,
                device_id: device,
                dimensions: 1,
                type_code: UNSIGNED,
                type_bits: 8,
                type_lanes: 1,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
                context: std::ptr::null_mut(),
                deleter: Some(delete),
            },
            shape: [bytes],
            strides: [1],
            _range: range,
        });
        exported.tensor.shape = exported.shape.as_mut_ptr();
        exported.tensor.strides = exported.strides.as_mut_ptr();
        // The tensor comes first in what it is a part of.
        let exported = Box::into_raw(exported).cast();
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { tensor.write(exported) };
        Ok(())
    })
}

/// Deletes a tensor, and lets go of its range.
///
/// # Safety
/// One of [`gapless_range_dlpack`], not deleted before.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensor) {
    static REPORTED: AtomicU32 = AtomicU32::new(0);
    report_failure(&REPORTED, || {
        // SAFETY: the first field of what a box was made into (the function's contract).
        drop(unsafe { Box::from_raw(tensor.cast::<Exported>()) });
        Ok(())
    });
}
