//! What the program does on a GPU beside the allocators: it has contexts of its own, streams of a green context, and captures.
//! Gapless itself makes none of these calls.
//!
//! Threads: any.

use crate::device::stream_of;
use crate::op::{CaptureMode, CurrentContext};
use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::raw::raw_stream;
use gapless::driver::cuda::sys::{
    CUcontext, CUdevResource, CUdevResourceType, CUdevice, CUgreenCtx, CUgreenCtxCreate_flags as green_flags, CUresult,
    CUstream_flags_enum as stream_flags, CUstreamCaptureMode_enum as capture_mode, Optional, Required,
    cudaError_enum as code,
};
use gapless::units::StreamId;
use std::ptr::null_mut;

/// Device 0, as the program uses it.
pub(super) struct Program {
    api: &'static Required,
    optional: &'static Optional,
    device: CUdevice,
    /// The primary context of the device.
    primary: CUcontext,
    /// A context beside it; none where the driver cannot make one.
    own: Option<CUcontext>,
    /// A green context of the primary one; none where the driver has no such contexts.
    green: Option<Green>,
}

/// A green context.
#[derive(Clone, Copy)]
struct Green {
    raw: CUgreenCtx,
    /// The context as it is made current.
    converted: CUcontext,
}

// SAFETY: the handles of contexts are tokens that the driver accepts on every thread.
unsafe impl Send for Program {}
// SAFETY: as above; the struct is never changed.
unsafe impl Sync for Program {}

impl Program {
    /// Uses the library of a driver that is open. The contexts that are made live as long as the process.
    pub(super) fn new(driver: &CudaDriver) -> Self {
        let (api, optional, device) = (driver.raw().api(), driver.raw().optional(), driver.raw().device());
        let primary = driver.raw().context();
        let own = optional.cuCtxCreate_v4.as_ref().ok().map(|create| {
            let mut own = null_mut();
            // SAFETY: the out-parameter is valid for the call; no parameters and no flags.
            expect("cuCtxCreate", unsafe { create(&raw mut own, null_mut(), 0, device) });
            own
        });
        let green = Green::create(driver);
        let program = Self { api, optional, device, primary, own, green };
        program.make_current(CurrentContext::None);
        program
    }

    /// Resets the primary context. No thread uses anything of it.
    pub(super) fn reset(&self) {
        // SAFETY: a device, and what was made in its primary context is not used any more.
        expect("cuDevicePrimaryCtxReset", unsafe { self.optional.cuDevicePrimaryCtxReset_v2(self.device) });
    }

    /// Returns what the program has after a reset, when the device was opened again: green contexts go with the primary one.
    pub(super) fn after_reset(&self, driver: &CudaDriver) -> Self {
        Self { primary: driver.raw().context(), green: Green::create(driver), ..*self }
    }

    pub(super) fn make_current(&self, context: CurrentContext) {
        self.set_current(match context {
            CurrentContext::None => null_mut(),
            CurrentContext::Primary => self.primary,
            CurrentContext::Own => self.own.unwrap_or(null_mut()),
            CurrentContext::Green => self.green.as_ref().map_or(null_mut(), |green| green.converted),
        });
    }

    /// Returns whether the current context of the calling thread is another one of the device than its primary context.
    pub(super) fn is_in_other_context(&self) -> bool {
        let current = self.current();
        !current.is_null() && current != self.primary
    }

    fn current(&self) -> CUcontext {
        let mut current = null_mut();
        // SAFETY: the out-parameter is valid for the call.
        expect("cuCtxGetCurrent", unsafe { self.api.cuCtxGetCurrent(&raw mut current) });
        current
    }

    fn set_current(&self, context: CUcontext) {
        // SAFETY: null, or a context that lives as long as the process.
        expect("cuCtxSetCurrent", unsafe { self.api.cuCtxSetCurrent(context) });
    }

    /// Creates a stream of the green context; `None` where there is none.
    pub(super) fn create_green_stream(&self) -> Option<StreamId> {
        let green = self.green.as_ref()?;
        let mut stream = null_mut();
        let flags = stream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: the out-parameter is valid for the call; the context lives as long as the process.
        let created = unsafe { self.optional.cuGreenCtxStreamCreate(&raw mut stream, green.raw, flags, 0) };
        expect("cuGreenCtxStreamCreate", created);
        Some(stream_of(stream as u64))
    }
}

impl Program {
    /// Creates a stream that waits for the legacy default stream, and which that stream waits for.
    pub(super) fn create_blocking_stream(&self) -> StreamId {
        let mut stream = null_mut();
        let flags = stream_flags::CU_STREAM_DEFAULT.0;
        // SAFETY: the out-parameter is valid for the call.
        self.in_primary(|| expect("cuStreamCreate", unsafe { self.api.cuStreamCreate(&raw mut stream, flags) }));
        stream_of(stream as u64)
    }

    /// Begins the capture of a stream of the device.
    pub(super) fn begin_capture(&self, stream: StreamId, mode: CaptureMode) {
        let mode = match mode {
            CaptureMode::Global => capture_mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::ThreadLocal => capture_mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Relaxed => capture_mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        // SAFETY: the caller has the stream.
        let begin = || unsafe { self.optional.cuStreamBeginCapture_v2(raw_stream(stream), mode) };
        self.in_primary(|| expect("cuStreamBeginCapture", begin()));
    }

    /// Ends the capture of a stream.
    ///
    /// # Errors
    /// The driver's code where it ended without a graph.
    pub(super) fn end_capture(&self, stream: StreamId) -> Result<(), u32> {
        let mut graph = null_mut();
        // SAFETY: the caller has the stream; the out-parameter is valid for the call.
        let ended = self.in_primary(|| unsafe { self.optional.cuStreamEndCapture(raw_stream(stream), &raw mut graph) });
        if ended != code::CUDA_SUCCESS {
            return Err(ended.0);
        }
        // SAFETY: made just above, destroyed once.
        expect("cuGraphDestroy", unsafe { self.optional.cuGraphDestroy(graph) });
        Ok(())
    }

    fn in_primary<T>(&self, call: impl FnOnce() -> T) -> T {
        let before = self.current();
        self.set_current(self.primary);
        let value = call();
        self.set_current(before);
        value
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").finish_non_exhaustive()
    }
}

impl Green {
    /// Creates a green context with all processors of the device; `None` where the driver has no such contexts.
    fn create(driver: &CudaDriver) -> Option<Self> {
        let (optional, device) = (driver.raw().optional(), driver.raw().device());
        if optional.cuGreenCtxCreate.is_err() {
            return None;
        }
        let (mut all, mut description) = (CUdevResource::default(), null_mut());
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        // SAFETY: the out-parameter is valid for the call, here and below.
        expect("cuDeviceGetDevResource", unsafe { optional.cuDeviceGetDevResource(device, &raw mut all, kind) });
        // SAFETY: one resource of the device.
        let described = unsafe { optional.cuDevResourceGenerateDesc(&raw mut description, &raw mut all, 1) };
        expect("cuDevResourceGenerateDesc", described);
        let (mut raw, mut converted) = (null_mut(), null_mut());
        let flags = green_flags::CU_GREEN_CTX_DEFAULT_STREAM.0;
        // SAFETY: described just above.
        expect("cuGreenCtxCreate", unsafe { optional.cuGreenCtxCreate(&raw mut raw, description, device, flags) });
        // SAFETY: created just above.
        expect("cuCtxFromGreenCtx", unsafe { optional.cuCtxFromGreenCtx(&raw mut converted, raw) });
        Some(Self { raw, converted })
    }
}

fn expect(function: &str, result: CUresult) {
    assert_eq!(result, code::CUDA_SUCCESS, "{function}");
}
