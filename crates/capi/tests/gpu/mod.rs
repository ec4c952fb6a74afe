//! A simulated device as a program uses it beside the allocator: streams, work, bytes. Processes of their own, since
//! settings, and allocators of a device, are per process.

#![allow(dead_code, reason = "every test binary uses a part of this module")]

use gapless::driver::cuda::sys::{
    CUcontext, CUfunction, CUstream, CUstreamCaptureMode, Optional, Required, cudaError_enum as code,
};
use gapless_capi::CUstream_st;
use std::ffi::c_void;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// One device, whose primary context is current while a method runs.
pub struct Gpu {
    api: Required,
    optional: Optional,
    context: CUcontext,
    spin: CUfunction,
}

impl Gpu {
    pub fn open(ordinal: i32) -> Self {
        // SAFETY: the simulated library's functions have the types of cuda.h.
        let api = unsafe { Required::new(crate::simulated::library()) }.unwrap();
        // SAFETY: no arguments but flags.
        assert_eq!(unsafe { api.cuInit(0) }, code::CUDA_SUCCESS);
        let mut context = std::ptr::null_mut();
        // SAFETY: the out-parameter is a valid pointer for the call.
        assert_eq!(unsafe { api.cuDevicePrimaryCtxRetain(&raw mut context, ordinal) }, code::CUDA_SUCCESS);
        // SAFETY: as above.
        let optional = unsafe { Optional::new(crate::simulated::library()) }.unwrap();
        let mut gpu = Self { api, optional, context, spin: std::ptr::null_mut() };
        gpu.spin = gpu.inside(|api| {
            let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
            let text = c".version 7.0\n.entry spin(\n";
            // SAFETY: a text that ends with NUL, and a valid out-parameter.
            assert_eq!(unsafe { api.cuModuleLoadData(&raw mut module, text.as_ptr().cast()) }, code::CUDA_SUCCESS);
            // SAFETY: as above.
            let found = unsafe { api.cuModuleGetFunction(&raw mut function, module, c"spin".as_ptr()) };
            assert_eq!(found, code::CUDA_SUCCESS);
            function
        });
        gpu
    }

    /// Runs `work` with this device's context current.
    pub fn inside<T>(&self, work: impl FnOnce(&Required) -> T) -> T {
        let mut before = std::ptr::null_mut();
        // SAFETY: the out-parameter is a valid pointer for the call.
        unsafe { self.api.cuCtxGetCurrent(&raw mut before) };
        // SAFETY: retained for good.
        unsafe { self.api.cuCtxSetCurrent(self.context) };
        let result = work(&self.api);
        // SAFETY: it was current before.
        unsafe { self.api.cuCtxSetCurrent(before) };
        result
    }

    /// Makes this device's context current on this thread from now on.
    pub fn make_current(&self) {
        // SAFETY: retained for good.
        unsafe { self.api.cuCtxSetCurrent(self.context) };
    }

    /// A stream that does not synchronise with the default one.
    pub fn stream(&self) -> *mut CUstream_st {
        self.stream_of(1)
    }

    /// A stream that synchronises with the default one.
    pub fn blocking_stream(&self) -> *mut CUstream_st {
        self.stream_of(0)
    }

    fn stream_of(&self, flags: u32) -> *mut CUstream_st {
        self.inside(|api| {
            let mut stream = std::ptr::null_mut();
            // SAFETY: the out-parameter is a valid pointer for the call.
            assert_eq!(unsafe { api.cuStreamCreate(&raw mut stream, flags) }, code::CUDA_SUCCESS);
            stream.cast()
        })
    }

    pub fn fill(&self, stream: *mut CUstream_st, at: *mut c_void, byte: u8, bytes: usize) {
        // SAFETY: the memory is allocated until the work has run.
        let queued = self.inside(|api| unsafe { api.cuMemsetD8Async(at.addr() as u64, byte, bytes, raw(stream)) });
        assert_eq!(queued, code::CUDA_SUCCESS);
    }

    pub fn copy(&self, stream: *mut CUstream_st, to: *mut c_void, from: *mut c_void, bytes: usize) {
        let (to, from) = (to.addr() as u64, from.addr() as u64);
        // SAFETY: the memory is allocated until the work has run.
        let queued = self.inside(|api| unsafe { api.cuMemcpyDtoDAsync_v2(to, from, bytes, raw(stream)) });
        assert_eq!(queued, code::CUDA_SUCCESS);
    }

    /// Keeps a stream busy.
    pub fn delay(&self, stream: *mut CUstream_st, milliseconds: u64) {
        let mut nanoseconds = milliseconds * 1_000_000;
        let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
        let (spin, parameters) = (self.spin, parameters.as_mut_ptr());
        let queued = self.inside(|api| {
            // SAFETY: the kernel's only parameter, which the call copies.
            unsafe { api.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, raw(stream), parameters, std::ptr::null_mut()) }
        });
        assert_eq!(queued, code::CUDA_SUCCESS);
    }

    pub fn destroy_stream(&self, stream: *mut CUstream_st) {
        // SAFETY: a stream of this device, which nobody names afterwards.
        assert_eq!(self.inside(|api| unsafe { api.cuStreamDestroy_v2(raw(stream)) }), code::CUDA_SUCCESS);
    }

    /// Makes later work of a stream of this device wait for what is queued on a stream of another one, or of this one.
    pub fn order_behind(&self, stream: *mut CUstream_st, other: &Gpu, behind: *mut CUstream_st) {
        let event = other.inside(|api| {
            let mut event = std::ptr::null_mut();
            // SAFETY: the out-parameter is a valid pointer for the call.
            assert_eq!(unsafe { api.cuEventCreate(&raw mut event, 2) }, code::CUDA_SUCCESS);
            // SAFETY: an event and a stream of that device.
            assert_eq!(unsafe { api.cuEventRecord(event, raw(behind)) }, code::CUDA_SUCCESS);
            event
        });
        // SAFETY: a stream of this device; events of all devices may be waited for.
        let waits = self.inside(|api| unsafe { api.cuStreamWaitEvent(raw(stream), event, 0) });
        assert_eq!(waits, code::CUDA_SUCCESS);
        // SAFETY: created above; the wait has been queued.
        assert_eq!(other.inside(|api| unsafe { api.cuEventDestroy_v2(event) }), code::CUDA_SUCCESS);
    }

    /// Begins to capture a stream, in the mode in which any forbidden call of any thread ends the capture.
    pub fn begin_capture(&self, stream: *mut CUstream_st) {
        let begin = self.optional.cuStreamBeginCapture_v2.as_ref().unwrap();
        // SAFETY: a stream of this device.
        assert_eq!(self.inside(|_| unsafe { begin(raw(stream), CUstreamCaptureMode(0)) }), code::CUDA_SUCCESS);
    }

    /// Ends the capture of a stream, which must not have been broken.
    pub fn end_capture(&self, stream: *mut CUstream_st) {
        let end = self.optional.cuStreamEndCapture.as_ref().unwrap();
        let mut graph = std::ptr::null_mut();
        // SAFETY: a stream of this device, and a valid out-parameter.
        assert_eq!(self.inside(|_| unsafe { end(raw(stream), &raw mut graph) }), code::CUDA_SUCCESS);
    }

    /// Waits for the device.
    pub fn wait_for_all(&self) {
        // SAFETY: no arguments.
        assert_eq!(self.inside(|api| unsafe { api.cuCtxSynchronize() }), code::CUDA_SUCCESS);
    }

    /// Waits for a stream; the driver's answer.
    pub fn wait(&self, stream: *mut CUstream_st) -> u32 {
        // SAFETY: a stream of this device.
        self.inside(|api| unsafe { api.cuStreamSynchronize(raw(stream)) }).0
    }

    /// The bytes at an address, once the work on a stream is done.
    pub fn read(&self, stream: *mut CUstream_st, at: *mut c_void, bytes: usize) -> Vec<u8> {
        let mut target = vec![0_u8; bytes];
        let to = target.as_mut_ptr().cast();
        // SAFETY: the target lives until the work is done, which is waited for.
        let queued = self.inside(|api| unsafe { api.cuMemcpyDtoHAsync_v2(to, at.addr() as u64, bytes, raw(stream)) });
        assert_eq!(queued, code::CUDA_SUCCESS);
        assert_eq!(self.wait(stream), 0);
        target
    }
}

/// Runs the body of a test in a process of its own with simulated devices, in which libcuda.so.1 is the simulated one.
/// Returns what the process wrote, in the outer process.
pub fn with_devices(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    const INNER: &str = "GAPLESS_TEST_INNER";
    if std::env::var_os(INNER).is_some() {
        body();
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    symlink(crate::simulated::library(), folder.path().join("libcuda.so.1")).unwrap();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env_remove("GAPLESS_CONF")
        .env("GAPLESS_SIM_DEVICES", "2")
        .env("GAPLESS_SIM_CAPACITY", "256MiB")
        .envs(settings.iter().copied())
        .env("LD_LIBRARY_PATH", PathBuf::from(folder.path()))
        .env(INNER, "1")
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "in a process with {settings:?}: {}\n{text}", output.status);
    assert!(text.contains("1 passed"), "no test is called {test}:\n{text}");
    Some(text)
}

fn raw(stream: *mut CUstream_st) -> CUstream {
    stream.cast()
}
