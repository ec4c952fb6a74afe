//! A device's primary context: retained once, current on a thread only for the length of a call.
//!
//! - I1  a [`Current`] restores the context that was current before it, on the same thread.
//! - I2  a [`Relaxed`] restores the thread's capture mode.
//! - I3  nothing is done in a context that was reset (`cudaDeviceReset`) after it was retained: its streams, events and memory are
//!   gone, and their handles dangle.
//!
//! Threads: any; the two guards stay on theirs. Cost: three driver calls of tens of nanoseconds per guard, two where the
//! context was current already.

use std::marker::PhantomData;

use super::library::Library;
use super::sys::{CUcontext, CUdevice, CUstream, CUstreamCaptureMode, CUstreamCaptureMode_enum as capture_mode};
use crate::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult};

/// The retained primary context of one device.
#[derive(Debug)]
pub(super) struct Context {
    library: &'static Library,
    device: CUdevice,
    raw: CUcontext,
    /// The number of the context when it was retained. A reset leaves the handle and gives it another number.
    id: u64,
}

// SAFETY: a context handle is a token that the driver accepts on every thread.
unsafe impl Send for Context {}
// SAFETY: as above; the struct is never changed.
unsafe impl Sync for Context {}

/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`: what a driver answers about a primary context that was reset and not retained again.
const CONTEXT_IS_DESTROYED: i32 = 709;

impl Context {
    /// Retains the primary context of `device`, and creates it if there is none yet.
    pub(super) fn retain(library: &'static Library, device: CUdevice) -> DriverResult<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { library.api().cuDevicePrimaryCtxRetain(&raw mut raw, device) };
        library.check(DriverCall::Open, "cuDevicePrimaryCtxRetain", result)?;
        let mut retained = Self { library, device, raw, id: 0 };
        retained.id = retained.current_id(DriverCall::Open)?;
        Ok(retained)
    }

    fn current_id(&self, call: DriverCall) -> DriverResult<u64> {
        let mut id = 0;
        // SAFETY: a context that is retained; the out-parameter is a valid pointer for the call.
        let result = unsafe { self.library.api().cuCtxGetId(self.raw, &raw mut id) };
        self.library.check(call, "cuCtxGetId", result).map(|()| id)
    }

    /// # Errors
    /// `DeviceLost` once the context was reset.
    fn expect_alive(&self, call: DriverCall) -> DriverResult<()> {
        let error = match self.current_id(call) {
            Ok(id) if id == self.id => return Ok(()),
            Ok(_) => None,
            Err(error) if error.kind.is_sticky() && error.code != CONTEXT_IS_DESTROYED => return Err(error),
            Err(error) => Some(error),
        };
        let because = error.map_or_else(String::new, |error| format!(" ({error})"));
        let text = format!(
            "the primary context of device {} was reset, by cudaDeviceReset, cuDevicePrimaryCtxReset or a library that calls them: \
             memory of this allocator cannot be used any more{because}; start a new process",
            self.device
        );
        Err(DriverError {
            function: Some("cuCtxGetId".into()),
            code: CONTEXT_IS_DESTROYED,
            name: "CUDA_ERROR_CONTEXT_IS_DESTROYED".into(),
            ..DriverError::new(call, DriverErrorKind::DeviceLost, text)
        })
    }

    /// Returns the driver's handle of the context.
    pub(super) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// Returns whether the calling thread's current context is another one on the same device: its default streams are not
    /// this context's. With no context current, or another device's, a device's default streams are meant.
    pub(super) fn is_displaced(&self, call: DriverCall) -> DriverResult<bool> {
        let api = self.library.api();
        let mut current = std::ptr::null_mut();
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { api.cuCtxGetCurrent(&raw mut current) };
        self.library.check(call, "cuCtxGetCurrent", result)?;
        if current.is_null() || current == self.raw {
            return Ok(false);
        }
        let mut device = 0;
        // SAFETY: the out-parameter is a valid pointer for the call; a context is current.
        let result = unsafe { api.cuCtxGetDevice(&raw mut device) };
        self.library.check(call, "cuCtxGetDevice", result)?;
        Ok(device == self.device)
    }

    /// Returns the device that a stream of any context belongs to. The stream is not being captured.
    pub(super) fn device_of(&self, stream: CUstream) -> DriverResult<u32> {
        let call = DriverCall::Stream;
        let _guards = self.enter_outside_capture(call)?;
        let api = self.library.api();
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller says that this is a stream handle; the out-parameter is a valid pointer for the call.
        let result = unsafe { api.cuStreamGetCtx(stream, &raw mut context) };
        self.library.check(call, "cuStreamGetCtx", result)?;
        // SAFETY: a stream's context lives as long as the stream.
        let result = unsafe { api.cuCtxSetCurrent(context) };
        self.library.check(call, "cuCtxSetCurrent", result)?;
        let mut device = 0;
        // SAFETY: the out-parameter is a valid pointer for the call; a context is current.
        let result = unsafe { api.cuCtxGetDevice(&raw mut device) };
        // SAFETY: this context was current before; the guard restores the one before it.
        let _ = unsafe { api.cuCtxSetCurrent(self.raw) };
        self.library.check(call, "cuCtxGetDevice", result)?;
        // A device's handle is its number.
        Ok(device.cast_unsigned())
    }

    /// Makes this context current until the guard is dropped.
    ///
    /// # Errors
    /// `DeviceLost` once the context was reset.
    pub(super) fn enter(&self, call: DriverCall) -> DriverResult<Current<'_>> {
        self.expect_alive(call)?;
        let api = self.library.api();
        let mut before = std::ptr::null_mut();
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { api.cuCtxGetCurrent(&raw mut before) };
        self.library.check(call, "cuCtxGetCurrent", result)?;
        if before == self.raw {
            return Ok(Current { context: self, restore: None, on_this_thread: PhantomData });
        }
        // SAFETY: the context is retained for as long as `self` lives.
        let result = unsafe { api.cuCtxSetCurrent(self.raw) };
        self.library.check(call, "cuCtxSetCurrent", result)?;
        Ok(Current { context: self, restore: Some(before), on_this_thread: PhantomData })
    }

    /// Does what [`enter`](Self::enter) does, and tells the driver that the calls of this thread do not belong to any
    /// capture.
    pub(super) fn enter_outside_capture(&self, call: DriverCall) -> DriverResult<(Relaxed, Current<'_>)> {
        let current = self.enter(call)?;
        Ok((Relaxed::new(self.library), current))
    }

    /// Blocks until all work on the device has completed.
    pub(super) fn synchronize(&self) -> DriverResult<()> {
        let _guards = self.enter_outside_capture(DriverCall::Synchronize)?;
        // SAFETY: no arguments; the context is current.
        let result = unsafe { self.library.api().cuCtxSynchronize() };
        self.library.check(DriverCall::Synchronize, "cuCtxSynchronize", result)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `retain`, released once here. At the end of the process the driver may be gone
        // already and answer with an error, which changes nothing.
        let _ = unsafe { self.library.api().cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A context made current on this thread.
#[derive(Debug)]
pub struct Current<'a> {
    context: &'a Context,
    restore: Option<CUcontext>,
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.restore {
            // SAFETY: this context (or none) was current when the guard was made.
            let _ = unsafe { self.context.library.api().cuCtxSetCurrent(before) };
        }
    }
}

/// This thread's calls do not break a stream capture that is under way, here or on another thread.
pub(super) struct Relaxed {
    library: &'static Library,
    before: Option<CUstreamCaptureMode>,
    on_this_thread: PhantomData<*const ()>,
}

impl Relaxed {
    pub(super) fn new(library: &'static Library) -> Self {
        let mut mode = capture_mode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the parameter is a valid pointer for the call, which swaps the mode with the thread's.
        let result = unsafe { library.api().cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        let swapped = result == super::sys::cudaError_enum::CUDA_SUCCESS;
        Self { library, before: swapped.then_some(mode), on_this_thread: PhantomData }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: as in `new`.
            let _ = unsafe { self.library.api().cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}
