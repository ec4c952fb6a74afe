//! A driver's own handles and functions, below the driver traits.
//!
//! For the experiments of `gapless probe` and the measurements of the device benchmark (`crates/probe/src`)
//! only: they make calls that the allocator never makes. Public with the feature `internals` alone, and free to change in any
//! version.

use std::ffi::{CStr, c_void};

use super::CudaDriver;
pub use super::context::Current;
pub use super::kernels::{Kernel, Module, Threads};
use super::plain;
pub use super::streams::raw_stream;
use super::sys::{
    CUcontext, CUdevice, CUlaunchAttribute, CUlaunchAttributeID_enum as attribute, CUlaunchConfig, CUmemAccessDesc,
    CUresult, Optional, Required,
};
use crate::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult};
use crate::units::{DeviceAddr, StreamId};

/// The parts of a [`CudaDriver`].
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a> {
    driver: &'a CudaDriver,
}

impl CudaDriver {
    /// See [`raw`](self).
    pub fn raw(&self) -> Raw<'_> {
        Raw { driver: self }
    }
}

impl<'a> Raw<'a> {
    /// The functions that every driver has.
    pub fn api(self) -> &'static Required {
        self.driver.library.api()
    }

    /// Reserves addresses, as many as the driver gives.
    ///
    /// # Errors
    /// The driver's.
    pub fn reserve(self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        self.driver.vmm().reserve(bytes, alignment)
    }

    /// Frees addresses of [`reserve`](Self::reserve).
    ///
    /// # Errors
    /// The driver's.
    pub fn address_free(self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.driver.vmm().address_free(addr, bytes)
    }

    /// The functions that older drivers lack, each a `Result`.
    pub fn optional(self) -> &'static Optional {
        self.driver.library.optional()
    }

    /// `Ok` for success, else the error with the driver's own name and text for it.
    ///
    /// # Errors
    /// Every `result` but `CUDA_SUCCESS`.
    pub fn check(self, call: DriverCall, function: &str, result: CUresult) -> DriverResult<()> {
        self.driver.library.check(call, function, result)
    }

    /// The driver's token for the device.
    pub fn device(self) -> CUdevice {
        self.driver.device
    }

    /// Read and write access for the device itself, as `set_access` requests it.
    pub fn access(self) -> CUmemAccessDesc {
        self.driver.peers.access()[0]
    }

    /// The device's primary context.
    pub fn context(self) -> CUcontext {
        self.driver.context.raw()
    }

    /// Makes the device's context current on this thread until the guard is dropped.
    ///
    /// # Errors
    /// The driver's error.
    pub fn enter(self, call: DriverCall) -> DriverResult<Current<'a>> {
        self.driver.context.enter(call)
    }

    /// Calls `cuMemAlloc`.
    ///
    /// # Errors
    /// `OutOfMemory` when no contiguous memory of that size is free; `InvalidValue` for 0 bytes.
    pub fn mem_alloc(self, bytes: u64) -> DriverResult<DeviceAddr> {
        plain::mem_alloc(self.driver.library, &self.driver.context, bytes)
    }

    /// Calls `cuMemFree`, which waits for the device.
    ///
    /// # Errors
    /// `InvalidValue` for an address that [`mem_alloc`](Self::mem_alloc) did not return.
    pub fn mem_free(self, addr: DeviceAddr) -> DriverResult<()> {
        plain::mem_free(self.driver.library, &self.driver.context, addr)
    }

    /// Compiles and loads a PTX source, and looks up the kernels called `entries` in it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn load<const N: usize>(self, ptx: &str, entries: [&CStr; N]) -> DriverResult<(Module, [Kernel; N])> {
        Module::load(self.driver.library, &self.driver.context, ptx, entries)
    }

    /// Unloads a module that [`load`](Self::load) returned.
    pub fn unload(self, module: Module) {
        // Where the context is lost, its modules are gone with it.
        if let Ok(_current) = self.enter(DriverCall::Work) {
            module.unload();
        }
    }

    /// Queues `kernel` on `stream`.
    ///
    /// # Safety
    /// The kernel's module is loaded. `parameters` are those that the kernel takes; the ranges they describe are mapped
    /// with access until it has run, or the context is lost.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn launch(
        self,
        kernel: Kernel,
        stream: StreamId,
        threads: Threads,
        parameters: &[u64],
    ) -> DriverResult<()> {
        let _current = self.enter(DriverCall::Work)?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.launch(kernel, stream, threads, parameters) }
    }

    /// Queues `kernel` on `stream` so that it may start before the work ahead of it has ended, if that is a kernel which
    /// lets it (programmatic dependent launch, CUDA 11.6 and compute capability 9.0).
    ///
    /// # Safety
    /// As for [`launch`](Self::launch), and the kernel waits for the work ahead of it before it touches memory.
    ///
    /// # Errors
    /// The driver's error; `NotSupported` where it has no such launch.
    pub unsafe fn launch_dependent(
        self,
        kernel: Kernel,
        stream: StreamId,
        threads: Threads,
        parameters: &[u64],
    ) -> DriverResult<()> {
        let Ok(function) = &self.optional().cuLaunchKernelEx else {
            let text = "the library has no cuLaunchKernelEx (CUDA 11.6)";
            return Err(DriverError::new(DriverCall::Work, DriverErrorKind::NotSupported, text));
        };
        let _current = self.enter(DriverCall::Work)?;
        let (blocks, block) = self.driver.shape(threads);
        let mut early = CUlaunchAttribute {
            id: attribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            ..CUlaunchAttribute::default()
        };
        early.value.programmaticStreamSerializationAllowed = 1;
        let config = CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: block,
            blockDimY: 1,
            blockDimZ: 1,
            hStream: raw_stream(stream),
            attrs: &raw mut early,
            numAttrs: 1,
            ..CUlaunchConfig::default()
        };
        let mut pointers: Vec<*mut c_void> =
            parameters.iter().map(|parameter| std::ptr::from_ref(parameter).cast_mut().cast()).collect();
        // SAFETY: as for `cuLaunchKernel` in `CudaDriver::launch`; the configuration and its one attribute are valid for the call.
        let result = unsafe { function(&raw const config, kernel.raw, pointers.as_mut_ptr(), std::ptr::null_mut()) };
        self.check(DriverCall::Work, "cuLaunchKernelEx", result)
    }
}
