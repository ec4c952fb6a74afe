//! What the program does on a GPU beside the allocators: it has contexts of its own, streams of a green context, and captures. Gapless
//! itself makes none of these calls.
//!
//! Threads: any.

use crate::op::CurrentContext;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::sys::{
    CUcontext, CUdevResource, CUdevResourceType, CUgreenCtx, CUgreenCtxCreate_flags as green_flags, CUresult,
    CUstream_flags_enum as stream_flags, Optional, Required, cudaError_enum as code,
};
use gapless::units::StreamId;
use std::ptr::null_mut;

/// Device 0, as the program uses it.
pub(super) struct Program {
    api: &'static Required,
    optional: &'static Optional,
    /// The primary context of the device.
    primary: CUcontext,
    /// A context beside it; none where the driver cannot make one.
    own: Option<CUcontext>,
    /// A green context of the primary one; none where the driver has no such contexts.
    green: Option<Green>,
}

/// A green context.
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
        let green = optional.cuGreenCtxCreate.is_ok().then(|| Green::create(driver));
        let program = Self { api, optional, primary, own, green };
        program.make_current(CurrentContext::None);
        program
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
        Some(StreamId(stream as u64))
    }
}

impl Green {
    /// Creates a green context with all processors of the device.
    fn create(driver: &CudaDriver) -> Self {
        let (optional, device) = (driver.raw().optional(), driver.raw().device());
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
        Self { raw, converted }
    }
}

fn expect(function: &str, result: CUresult) {
    assert_eq!(result, code::CUDA_SUCCESS, "{function}");
}
