//! Functions that gapless does not call but other programs look up, such as PyTorch and the CUDA runtime when they
//! start. They are enough to start these programs, but not to compute.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use crate::calls::entry::{Code, INVALID, NOT_FOUND, OK, begin, begin_current, pointer, put};
use crate::calls::{copy_in_on, copy_out_on, load_module, synchronize};
use crate::missing;
use crate::state::CURRENT;
use gapless::driver::cuda::sys::cudaError_enum as E;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) -> Code {
    let state = begin!("cuDevicePrimaryCtxGetState");
    let Some(found) = usize::try_from(device).ok().and_then(|device| state.devices.get(device)) else {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(flags, 0) };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(active, c_int::from(found.retained.load(Ordering::Relaxed) > 0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, addr: u64) -> Code {
    let state = begin!("cuPointerGetAttribute");
    let Some(device) = state.device_of(addr) else { return INVALID };
    match attribute {
        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE: device memory.
        // SAFETY: guaranteed by the driver API's contract.
        2 => unsafe { put(data.cast::<c_uint>(), 2) },
        // CU_POINTER_ATTRIBUTE_DEVICE_POINTER.
        // SAFETY: guaranteed by the driver API's contract.
        3 => unsafe { put(data.cast::<u64>(), addr) },
        // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL.
        // SAFETY: guaranteed by the driver API's contract.
        9 => unsafe { put(data.cast::<c_int>(), device as c_int) },
        _ => INVALID,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut *mut c_void,
    image: *const c_void,
    _count: c_uint,
    _options: *mut c_uint,
    _values: *mut *mut c_void,
) -> Code {
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { load_module(module, image) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetApiVersion(_context: *mut c_void, version: *mut c_uint) -> Code {
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(version, 3020) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut *mut c_void, flags: c_uint, _priority: c_int) -> Code {
    let (state, _) = begin_current!("cuStreamCreateWithPriority");
    let context = CURRENT.get().unwrap_or_default();
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(stream, pointer(state.streams.create(context, flags & 1 == 0))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(target: u64, source: *const c_void, bytes: usize) -> Code {
    // SAFETY: guaranteed by the driver API's contract.
    match unsafe { copy_in_on(target, source, bytes, std::ptr::null_mut()) } {
        // SAFETY: 0 is the legacy default stream.
        OK => unsafe { synchronize(std::ptr::null_mut()) },
        code => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(target: *mut c_void, source: u64, bytes: usize) -> Code {
    // SAFETY: guaranteed by the driver API's contract.
    match unsafe { copy_out_on(target, source, bytes, std::ptr::null_mut()) } {
        // SAFETY: 0 is the legacy default stream.
        OK => unsafe { synchronize(std::ptr::null_mut()) },
        code => code,
    }
}

/// Exports functions that are looked up but never called.
macro_rules! looked_up_only {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> Code {
            missing::called(stringify!($name));
            E::CUDA_ERROR_NOT_SUPPORTED.0
        }
    )* };
}

looked_up_only! {
    cuFuncGetAttribute cuLaunchCooperativeKernel cuLinkAddData_v2 cuLinkComplete cuLinkCreate_v2 cuModuleLoad
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuTensorMapEncodeTiled
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(_device: c_int, _flags: c_uint) -> Code {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(_function: *mut c_void, _attribute: c_uint, _value: c_int) -> Code {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetCacheConfig(_function: *mut c_void, _config: c_uint) -> Code {
    OK
}

/// Looks up `symbol` in this library, with and without version suffixes.
///
/// # Safety
/// `symbol` is null or ends with NUL, and `function` is null or valid for a write.
unsafe fn look_up(symbol: *const c_char, function: *mut *mut c_void) -> Code {
    if symbol.is_null() || function.is_null() {
        return INVALID;
    }
    // SAFETY: a name ends with NUL (the caller's part).
    let name = unsafe { std::ffi::CStr::from_ptr(symbol) }.to_string_lossy();
    // SAFETY: an all-zero Dl_info is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is in this library, and the out-parameter is valid.
    let found = unsafe { libc::dladdr(cuFuncSetCacheConfig as *const c_void, &raw mut info) };
    if found == 0 {
        return NOT_FOUND;
    }
    // SAFETY: the path comes from dladdr, and the library is already loaded.
    let handle = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    for suffix in ["_v3", "_v2", ""] {
        let Ok(full) = std::ffi::CString::new(format!("{name}{suffix}")) else { continue };
        // SAFETY: the handle comes from the loader, and the name ends with NUL.
        let address = unsafe { libc::dlsym(handle, full.as_ptr()) };
        if !address.is_null() {
            // SAFETY: guaranteed by the caller.
            return unsafe { put(function, address) };
        }
    }
    missing::looked_up(&name);
    NOT_FOUND
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    status: *mut c_uint,
) -> Code {
    // SAFETY: guaranteed by the driver API's contract.
    let code = unsafe { look_up(symbol, function) };
    if !status.is_null() && code != INVALID {
        // SAFETY: guaranteed by the driver API's contract.
        unsafe { put(status, c_uint::from(code == NOT_FOUND)) };
    }
    code
}

/// As before CUDA 12.0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
) -> Code {
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { look_up(symbol, function) }
}
