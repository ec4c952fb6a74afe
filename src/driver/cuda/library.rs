//! The driver library, loaded at run time: one binary for machines with and without a GPU.
//!
//! - I1  a [`Library`] exists only with every required function present and `cuInit` succeeded.
//! - I2  a library is never unloaded: driver threads and contexts may outlive every handle that this crate holds.
//!
//! Threads: any. Loading takes one lock, so a path is opened once; calls take none.
//! Cost: the first load is the driver's start, up to a second; later ones are a lookup.

use std::borrow::Cow;
use std::ffi::{CStr, OsStr, c_char};
use std::path::Path;

use crate::sync::unseen::Mutex;
use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use super::error::{CudaVersion, LoadError, MINIMUM_VERSION, kind_of};
use super::known_streams::KnownStreams;
use super::sys::{
    CUdevice, CUresult, CUstream, CUstreamCaptureStatus, Optional, REQUIRED, Required, cudaError_enum as code,
};
use crate::driver::{DriverCall, DriverError, DriverResult};

/// `cuStreamGetCaptureInfo` as it was from CUDA 10.1 on. Drivers still have it under that name, beside `_v2` (11.3) and `_v3`
/// (12.3); newer headers only have `_v3`, so it is not among the generated bindings.
pub(super) type FirstCaptureInfo = unsafe extern "C" fn(CUstream, *mut CUstreamCaptureStatus, *mut u64) -> CUresult;

/// The CUDA driver library, loaded and initialised. Lives until the process ends.
pub struct Library {
    required: Required,
    optional: Optional,
    file: String,
    version: CudaVersion,
    first_capture_info: Option<FirstCaptureInfo>,
    /// The streams of all devices of this library.
    streams: KnownStreams,
}

/// A driver library on disk.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LibraryFile {
    /// The path of the file that the loader chose.
    pub file: String,
    /// The newest CUDA version that it supports; `None` if it does not say, as the toolkit's stub.
    pub cuda: Option<CudaVersion>,
}

impl Library {
    /// Loads the installed driver (`libcuda.so.1`, found as the dynamic loader finds libraries) and initialises it.
    ///
    /// # Errors
    /// [`LoadError`], which says what to do. Nothing is cached: a later call tries again.
    pub fn open() -> Result<&'static Self, LoadError> {
        Self::open_first(&DEFAULT_NAMES.map(OsStr::new))
    }

    /// Loads the library at `path` instead of the installed one.
    ///
    /// # Safety
    /// The file is a driver library, or none at all: loading it runs its code.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub unsafe fn open_from(path: &Path) -> Result<&'static Self, LoadError> {
        Self::open_first(&[path.as_os_str()])
    }

    /// Finds the library at `path`, or the installed one, and reads its version, without starting it: what can be said
    /// of a driver that [`open`](Self::open) refuses. `None` if no library could be loaded.
    ///
    /// # Safety
    /// That of [`open_from`](Self::open_from).
    #[must_use]
    pub unsafe fn find(path: Option<&Path>) -> Option<LibraryFile> {
        let names = path.map_or_else(|| DEFAULT_NAMES.map(OsStr::new).to_vec(), |path| vec![path.as_os_str()]);
        let (handle, name) = names.iter().find_map(|&name| Some((dlopen(name).ok()?, name)))?;
        let file = file_of(&handle).unwrap_or_else(|| name.to_string_lossy().into_owned());
        let cuda = version_of(&handle).filter(|version| version.0 != 0);
        Some(LibraryFile { file, cuda })
    }

    /// Returns the path of the file that the loader chose.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the newest CUDA version that this driver supports.
    pub fn version(&self) -> CudaVersion {
        self.version
    }

    /// Returns the number of devices, at least 1.
    ///
    /// # Errors
    /// The error of `cuDeviceGetCount`.
    pub fn device_count(&self) -> DriverResult<u32> {
        let mut count = 0;
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { self.required.cuDeviceGetCount(&raw mut count) };
        self.check(DriverCall::Open, "cuDeviceGetCount", result)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Returns the driver's token for device number `ordinal`.
    pub(super) fn device(&self, ordinal: u32) -> DriverResult<CUdevice> {
        let mut device = 0;
        let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { self.required.cuDeviceGet(&raw mut device, ordinal) };
        self.check(DriverCall::Open, "cuDeviceGet", result)?;
        Ok(device)
    }

    /// Returns the functions that every supported driver has.
    pub(super) fn api(&self) -> &Required {
        &self.required
    }

    /// Returns the functions that may be missing, each a `Result`.
    pub(super) fn optional(&self) -> &Optional {
        &self.optional
    }

    /// Returns the oldest function that tells of captures.
    pub(super) fn first_capture_info(&self) -> Option<FirstCaptureInfo> {
        self.first_capture_info
    }

    /// Returns what the driver has told of streams.
    pub(super) fn streams(&self) -> &KnownStreams {
        &self.streams
    }

    /// Turns a result code into `Ok` or into the error with the driver's own name and text for it.
    pub(super) fn check(&self, call: DriverCall, function: &str, result: CUresult) -> DriverResult<()> {
        if result == code::CUDA_SUCCESS { Ok(()) } else { Err(self.error(call, function, result)) }
    }

    fn error(&self, call: DriverCall, function: &str, result: CUresult) -> DriverError {
        describe(&self.required, call, function, result)
    }

    fn open_first(names: &[&OsStr]) -> Result<&'static Self, LoadError> {
        let mut opened = OPENED.lock();
        let key = names.first().map(|name| name.to_os_string()).unwrap_or_default();
        if let Some((_, library)) = opened.iter().find(|(path, _)| *path == key) {
            return Ok(library);
        }
        let mut tried = Vec::new();
        for name in names {
            match dlopen(name) {
                Ok(handle) => {
                    let library = Self::from_handle(handle, name)?;
                    let library: &'static Self = Box::leak(Box::new(library));
                    opened.push((key, library));
                    return Ok(library);
                }
                Err(error) => tried.push(format!("{}: {error}", name.to_string_lossy())),
            }
        }
        Err(LoadError::LibraryNotFound { tried: tried.join("; ") })
    }

    fn from_handle(handle: Handle, name: &OsStr) -> Result<Self, LoadError> {
        let file = file_of(&handle).unwrap_or_else(|| name.to_string_lossy().into_owned());
        // An old driver is told by its version, which says more than the first function that it lacks.
        if let Some(found) = version_of(&handle)
            && found.0 != 0
            && found < MINIMUM_VERSION
        {
            return Err(LoadError::DriverTooOld { found, needed: MINIMUM_VERSION });
        }
        for &name in REQUIRED {
            if !has_symbol(&handle, name) {
                return Err(LoadError::MissingSymbol { name, library: file });
            }
        }
        let missing = |_| LoadError::MissingSymbol { name: "(unknown)", library: file.clone() };
        let again = dlopen(name).map_err(missing)?;
        // `cuInit` starts threads, which run on where it, or what follows, has failed.
        std::mem::forget(dlopen(name).map_err(missing)?);
        // SAFETY: this is the function's type in cuda.h from 10.1 to 11.2, which drivers keep for programs of that time.
        let first_capture_info = unsafe { handle.get::<FirstCaptureInfo>(b"cuStreamGetCaptureInfo\0") };
        let first_capture_info = first_capture_info.ok().map(|function| *function);
        // SAFETY: the symbols are functions of the driver API, whose types are those of the toolkit's own header.
        let required = unsafe { Required::from_library(handle) }.map_err(missing)?;
        // SAFETY: as above.
        let optional = unsafe { Optional::from_library(again) }.map_err(missing)?;

        // SAFETY: cuInit takes no pointers; 0 is the only flag value there is.
        let result = unsafe { required.cuInit(0) };
        let mut version = 0;
        // SAFETY: the out-parameter is a valid pointer for the call; the function needs no initialised driver.
        let _ = unsafe { required.cuDriverGetVersion(&raw mut version) };
        let version = CudaVersion(version);
        match result {
            code::CUDA_SUCCESS => {}
            code::CUDA_ERROR_NO_DEVICE => return Err(LoadError::NoDevice { version }),
            code::CUDA_ERROR_STUB_LIBRARY => return Err(LoadError::StubLibrary { library: file }),
            other => return Err(LoadError::Init(describe(&required, DriverCall::Open, "cuInit", other))),
        }
        let streams = KnownStreams::default();
        let library = Self { required, optional, file, version, first_capture_info, streams };
        match library.device_count() {
            Ok(0) => Err(LoadError::NoDevice { version }),
            Ok(_) => Ok(library),
            Err(error) => Err(LoadError::Init(error)),
        }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("file", &self.file).field("version", &self.version).finish_non_exhaustive()
    }
}

/// Returns the error for `result`. Name and text come from the driver; if it has none, the number stands for the name.
fn describe(api: &Required, call: DriverCall, function: &str, result: CUresult) -> DriverError {
    let number = i32::try_from(result.0).unwrap_or(i32::MAX);
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: the out-parameter is a valid pointer for the call.
    let named = unsafe { api.cuGetErrorName(result, &raw mut name) } == code::CUDA_SUCCESS;
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the out-parameter is a valid pointer for the call.
    let explained = unsafe { api.cuGetErrorString(result, &raw mut text) } == code::CUDA_SUCCESS;
    let known = |valid: bool, text: *const c_char| {
        if valid && !text.is_null() {
            // SAFETY: on success the driver gives a NUL-terminated string that lives as long as the library.
            Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        } else {
            None
        }
    };
    let text = known(explained, text).unwrap_or_else(|| format!("the driver has no text for result {number}"));
    DriverError {
        call,
        function: (function != call.name()).then(|| function.to_owned().into()),
        kind: kind_of(result),
        code: number,
        name: known(named, name).map_or_else(|| Cow::Owned(format!("result {number}")), Cow::Owned),
        text: text.into(),
    }
}

fn dlopen(name: &OsStr) -> Result<Handle, libloading::Error> {
    // SAFETY: loading runs the library's initialisers; that is what the user installed a driver (or named a path) for.
    unsafe { Handle::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
}

fn has_symbol(handle: &Handle, name: &str) -> bool {
    // SAFETY: the address is only compared with null, by `get_singlethreaded`'s own error.
    unsafe { handle.get::<*const ()>(name.as_bytes()) }.is_ok()
}

fn version_of(handle: &Handle) -> Option<CudaVersion> {
    type GetVersion = unsafe extern "C" fn(*mut i32) -> CUresult;
    // SAFETY: this is the function's type in cuda.h since its first release.
    let function = unsafe { handle.get::<GetVersion>(b"cuDriverGetVersion\0") }.ok()?;
    let mut version = 0;
    // SAFETY: the out-parameter is a valid pointer for the call; the function needs no initialised driver.
    let result = unsafe { function(&raw mut version) };
    (result == code::CUDA_SUCCESS).then_some(CudaVersion(version))
}

/// Returns the path of the file that the dynamic loader loaded.
fn file_of(handle: &Handle) -> Option<String> {
    // SAFETY: the address is only asked about, never called.
    let symbol = unsafe { handle.get::<*const libc::c_void>(b"cuInit\0") }.ok()?;
    // SAFETY: an all-zero Dl_info is valid: pointers and nothing else.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the out-parameter is a valid pointer for the call.
    let found = unsafe { libc::dladdr(*symbol, &raw mut info) } != 0;
    if !found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gave a NUL-terminated path that lives as long as the library is loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned();
    std::fs::canonicalize(&path).map_or(Some(path), |real| Some(real.to_string_lossy().into_owned()))
}

const DEFAULT_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

static OPENED: Mutex<Vec<(std::ffi::OsString, &'static Library)>> = Mutex::new(Vec::new());

#[cfg(test)]
mod tests {
    use super::*;

    /// The CUDA version in which each required function appeared, as `cudaTypedefs.h` tells in the names of its types
    /// (`PFN_cuMemMap_v10020`). A function that is required later goes into this table.
    const APPEARED: &[(i32, &[&str])] = &[
        (2_000, &["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute"]),
        (
            2_000,
            &[
                "cuCtxGetDevice",
                "cuCtxSynchronize",
                "cuMemFreeHost",
                "cuModuleLoadData",
                "cuModuleUnload",
                "cuModuleGetFunction",
            ],
        ),
        (2_000, &["cuStreamCreate", "cuStreamSynchronize", "cuStreamQuery"]),
        (2_000, &["cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventSynchronize"]),
        (2_020, &["cuDriverGetVersion"]),
        (3_020, &["cuDeviceTotalMem_v2", "cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocHost_v2"]),
        (3_020, &["cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"]),
        (3_020, &["cuMemsetD8Async", "cuMemsetD32Async", "cuStreamWaitEvent"]),
        (4_000, &["cuDeviceCanAccessPeer", "cuCtxGetCurrent", "cuCtxSetCurrent"]),
        (4_000, &["cuStreamDestroy_v2", "cuEventDestroy_v2", "cuLaunchKernel"]),
        (6_000, &["cuGetErrorName", "cuGetErrorString"]),
        (7_000, &["cuDevicePrimaryCtxRetain"]),
        (9_020, &["cuStreamGetCtx"]),
        (10_000, &["cuStreamIsCapturing"]),
        (10_010, &["cuThreadExchangeStreamCaptureMode"]),
        (10_020, &["cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap"]),
        (10_020, &["cuMemSetAccess", "cuMemGetAllocationGranularity"]),
        (11_000, &["cuDevicePrimaryCtxRelease_v2"]),
        (12_000, &["cuStreamGetId", "cuCtxGetId"]),
    ];

    #[test]
    fn the_least_driver_is_the_first_with_every_required_function() {
        let appeared = |name: &&str| {
            let row = APPEARED.iter().find(|(_, names)| names.contains(name));
            CudaVersion(row.unwrap_or_else(|| panic!("in which version did {name} appear?")).0)
        };
        assert_eq!(REQUIRED.iter().map(appeared).max(), Some(MINIMUM_VERSION));
    }
}
