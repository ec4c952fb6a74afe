//! Streams and events of a CUDA device.
//!
//! Three handles stand for no stream object of their own: 0 and 1 are the legacy default stream, 2 is the default
//! stream of the calling thread (another stream on every thread). They belong to the context that is current on the calling
//! thread: while that is another one than the primary context of the device, they are refused, whenever they are handed in.
//! Handles of other streams are used again by the driver once their stream has been destroyed; `cuStreamGetId` (CUDA 12.0)
//! tells the streams apart.
//!
//! Streams of a green context of the primary one are streams of the device: such a context is "treated as if it were a primary
//! context" wherever its processors do not matter (the driver API's page of `cuCtxFromGreenCtx`), so events go there as well.
//!
//! Neither id nor context is asked of a stream that is being captured: the driver refuses, and the question ends the capture
//! (NVIDIA/cccl, `cudax/.../__places/stream_pool.cuh`). What it has told of the stream before counts there ([`KnownStreams`]),
//! and a stream that was never seen is accepted. The calling thread is relaxed, since a capture may begin between two calls.
//!
//! [`KnownStreams`]: super::known_streams::KnownStreams

use super::CudaDriver;
use super::context::{Current, Relaxed};
use super::known_streams::KnownStream;
use super::memory::size;
use super::sys::{
    CUcontext, CUevent, CUevent_flags_enum as event_flags, CUresult, CUstream, CUstream_flags_enum as stream_flags,
    CUstreamCaptureStatus_enum as capture_status, cudaError_enum as code,
};
use crate::driver::thread::{PER_THREAD_STREAM, own_stream};
use crate::driver::{
    DriverCall, DriverError, DriverErrorKind, DriverResult, EventHandle, HostMemory, StreamDriver, StreamIdentity,
    StreamLifetime,
};
use crate::units::{DeviceAddr, StreamId};
use std::borrow::Cow;
use std::ptr::null_mut;

/// CUDA's legacy default stream by its other handle (`CU_STREAM_LEGACY`).
pub const LEGACY_STREAM: StreamId = StreamId(1);

impl StreamDriver for CudaDriver {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        let call = DriverCall::Stream;
        if is_default(stream) {
            return self.check_default(stream);
        }
        let ordinal = self.info.ordinal;
        let other = || Err(refused(format!("{stream} is not a stream of device {ordinal}'s primary context")));
        let current = self.context.enter(call)?;
        match self.known_in_capture(stream, &current) {
            Ok(Some(known)) if known.ordinal == ordinal => return Ok(()),
            Ok(Some(_)) => return other(),
            // The driver does not tell.
            Err(_) => return Ok(()),
            Ok(None) => {}
        }
        match self.context_of(stream, &current) {
            Ok(context) if context == self.context.raw() => {
                let number = self.number_of(stream, &current)?;
                self.library.streams().note(stream, KnownStream { ordinal, number });
                Ok(())
            }
            // A capture has begun meanwhile.
            Err(error) if error.kind == DriverErrorKind::Capturing => Ok(()),
            // Whatever else went wrong, a device that is lost for one, says nothing about the stream.
            Err(error) if error.kind != DriverErrorKind::InvalidHandle => Err(error),
            _ => other(),
        }
    }

    fn identify(&self, stream: StreamId) -> DriverResult<StreamIdentity> {
        match stream {
            StreamId::DEFAULT | LEGACY_STREAM => {
                self.check_default(stream)?;
                Ok(StreamIdentity { key: StreamId::DEFAULT, number: 0, lifetime: StreamLifetime::Device })
            }
            PER_THREAD_STREAM => {
                self.check_default(stream)?;
                own_stream().ok_or_else(|| refused("the thread is ending, and its default stream with it"))
            }
            _ => {
                let current = self.context.enter(DriverCall::Stream)?;
                let number = match self.known_in_capture(stream, &current)? {
                    Some(known) => known.number,
                    None => self.number_of(stream, &current)?,
                };
                Ok(StreamIdentity { key: stream, number, lifetime: StreamLifetime::Owner })
            }
        }
    }

    fn owns_default_stream(&self) -> bool {
        // What goes wrong here is said where the stream is identified.
        self.context.is_displaced(DriverCall::Stream).is_ok_and(|displaced| !displaced)
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.context.enter(DriverCall::Stream).is_ok_and(|current| self.is_captured(stream, &current))
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        let _guards = self.context.enter_outside_capture(DriverCall::EventCreate)?;
        let mut event = null_mut();
        // Threads that wait for it sleep: they may hold up others that want memory, and should not take a processor as well.
        let flags = event_flags::CU_EVENT_DISABLE_TIMING.0 | event_flags::CU_EVENT_BLOCKING_SYNC.0;
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { self.library.api().cuEventCreate(&raw mut event, flags) };
        self.library.check(DriverCall::EventCreate, "cuEventCreate", result)?;
        Ok(EventHandle(event as u64))
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        let _guards = self.context.enter_outside_capture(DriverCall::EventDestroy)?;
        // SAFETY: an event of this driver, destroyed once (the trait's contract).
        let result = unsafe { self.library.api().cuEventDestroy_v2(raw_event(event)) };
        self.library.check(DriverCall::EventDestroy, "cuEventDestroy", result)
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        let _current = self.context.enter(DriverCall::EventRecord)?;
        // SAFETY: event and stream are of this driver (the trait's contract).
        let result = unsafe { self.library.api().cuEventRecord(raw_event(event), raw_stream(stream)) };
        self.library.check(DriverCall::EventRecord, "cuEventRecord", result)
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        // A query from a thread in the default capture mode would break a capture under way elsewhere.
        let _guards = self.context.enter_outside_capture(DriverCall::EventQuery)?;
        // SAFETY: an event of this driver (the trait's contract).
        let result = unsafe { self.library.api().cuEventQuery(raw_event(event)) };
        if result == code::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        self.check_event(DriverCall::EventQuery, "cuEventQuery", result).map(|()| true)
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        let _guards = self.context.enter_outside_capture(DriverCall::EventSynchronize)?;
        // SAFETY: an event of this driver (the trait's contract).
        let result = unsafe { self.library.api().cuEventSynchronize(raw_event(event)) };
        self.check_event(DriverCall::EventSynchronize, "cuEventSynchronize", result)
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        let _current = self.context.enter(DriverCall::StreamWait)?;
        // SAFETY: event and stream are of this driver (the trait's contract); 0 is the only flag for plain waits.
        let result = unsafe { self.library.api().cuStreamWaitEvent(raw_stream(stream), raw_event(event), 0) };
        self.check_event(DriverCall::StreamWait, "cuStreamWaitEvent", result)
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        let current = self.context.enter(DriverCall::Synchronize)?;
        // A wait for the context ends every capture in it. The legacy stream tells of those on blocking streams, and the question
        // harms none.
        if self.is_captured(StreamId::DEFAULT, &current) {
            let text = "a stream that waits for the legacy default stream is being captured into a graph";
            return Err(DriverError::new(DriverCall::Synchronize, DriverErrorKind::Capturing, text));
        }
        drop(current);
        self.context.synchronize()
    }

    fn create_copy_stream(&self) -> DriverResult<StreamId> {
        let _guards = self.context.enter_outside_capture(DriverCall::Stream)?;
        let mut stream = null_mut();
        let flags = stream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { self.library.api().cuStreamCreate(&raw mut stream, flags) };
        self.library.check(DriverCall::Stream, "cuStreamCreate", result)?;
        Ok(StreamId(stream as u64))
    }

    fn destroy_copy_stream(&self, stream: StreamId) -> DriverResult<()> {
        if !is_default(stream) {
            self.wait_for_stream(stream)?;
        }
        self.end_stream(stream)
    }

    fn copy_out(
        &self,
        stream: StreamId,
        target: HostMemory,
        offset: u64,
        source: DeviceAddr,
        bytes: u64,
    ) -> DriverResult<()> {
        let call = DriverCall::CopyOut;
        let (target, bytes) = (host_pointer(call, target, offset)?, size(call, bytes)?);
        let _guards = self.context.enter_outside_capture(call)?;
        // SAFETY: both ranges are there until the copy has completed (the trait's contract).
        let result = unsafe { self.library.api().cuMemcpyDtoHAsync_v2(target, source.0, bytes, raw_stream(stream)) };
        self.library.check(call, "cuMemcpyDtoHAsync", result)
    }

    fn copy_in(
        &self,
        stream: StreamId,
        target: DeviceAddr,
        source: HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        let call = DriverCall::CopyIn;
        let (source, bytes) = (host_pointer(call, source, offset)?, size(call, bytes)?);
        let _guards = self.context.enter_outside_capture(call)?;
        // SAFETY: both ranges are there until the copy has completed (the trait's contract).
        let result = unsafe { self.library.api().cuMemcpyHtoDAsync_v2(target.0, source, bytes, raw_stream(stream)) };
        self.library.check(call, "cuMemcpyHtoDAsync", result)
    }

    fn clear(&self, stream: StreamId, target: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let call = DriverCall::Clear;
        let bytes = size(call, bytes)?;
        let _guards = self.context.enter_outside_capture(call)?;
        // SAFETY: the range is there until the work has completed (the trait's contract).
        let result = unsafe { self.library.api().cuMemsetD8Async(target.0, 0, bytes, raw_stream(stream)) };
        self.library.check(call, "cuMemsetD8Async", result)
    }
}

/// The address of a byte of the host's memory.
fn host_pointer(call: DriverCall, memory: HostMemory, offset: u64) -> DriverResult<*mut std::ffi::c_void> {
    Ok((size(call, memory.0)? as *mut std::ffi::c_void).wrapping_byte_add(size(call, offset)?))
}

impl CudaDriver {
    /// Blocks until everything queued on a stream so far has completed.
    pub(super) fn wait_for_stream(&self, stream: StreamId) -> DriverResult<()> {
        let _guards = self.context.enter_outside_capture(DriverCall::Stream)?;
        // SAFETY: a stream of this driver (the trait's contract).
        let result = unsafe { self.library.api().cuStreamSynchronize(raw_stream(stream)) };
        self.library.check(DriverCall::Stream, "cuStreamSynchronize", result)
    }

    /// Destroys a stream at once, while what is queued on it still runs.
    pub(super) fn end_stream(&self, stream: StreamId) -> DriverResult<()> {
        if is_default(stream) {
            let text = "a default stream cannot be destroyed";
            return Err(DriverError::new(DriverCall::Stream, DriverErrorKind::InvalidHandle, text));
        }
        let _guards = self.context.enter_outside_capture(DriverCall::Stream)?;
        // SAFETY: a stream of this driver, destroyed once (the trait's contract).
        let result = unsafe { self.library.api().cuStreamDestroy_v2(raw_stream(stream)) };
        self.library.check(DriverCall::Stream, "cuStreamDestroy", result)
    }

    /// Refuses a default stream while the calling thread's is that of another context of the device.
    fn check_default(&self, stream: StreamId) -> DriverResult<()> {
        if !self.context.is_displaced(DriverCall::Stream)? {
            return Ok(());
        }
        Err(refused(format!(
            "{stream} is a default stream, and on this thread a context other than the primary one of device {} is current: hand \
             in the handle of a stream that was created in the primary context",
            self.info.ordinal
        )))
    }

    /// The outcome of a call about an event. One that was recorded in a capture which has ended is an invalid value to the driver
    /// until it is recorded again (`gapless probe --only captured_event`); it is the graph's, as one of a capture under way is.
    fn check_event(&self, call: DriverCall, function: &str, result: CUresult) -> DriverResult<()> {
        self.library.check(call, function, result).map_err(|error| match error.kind {
            DriverErrorKind::InvalidValue => DriverError { kind: DriverErrorKind::Capturing, ..error },
            _ => error,
        })
    }

    /// Whether a stream is being captured.
    fn is_captured(&self, stream: StreamId, _current: &Current<'_>) -> bool {
        let mut status = capture_status::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is one of this device (the trait's contract); the out-parameter is valid for the call.
        let result = unsafe { self.library.api().cuStreamIsCapturing(raw_stream(stream), &raw mut status) };
        // The legacy stream cannot even be asked while a stream that synchronises with it is captured.
        result == code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            || (result == code::CUDA_SUCCESS && status != capture_status::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Returns the last answer about a stream that is being captured; `None` for one that is not.
    ///
    /// # Errors
    /// `Capturing` where nothing is known of it.
    pub(super) fn known_in_capture(
        &self,
        stream: StreamId,
        current: &Current<'_>,
    ) -> DriverResult<Option<KnownStream>> {
        if !self.is_captured(stream, current) {
            return Ok(None);
        }
        let text = "the driver does not tell which stream this is while it is being captured";
        let unknown = || DriverError::new(DriverCall::Stream, DriverErrorKind::Capturing, text);
        self.library.streams().find(stream).ok_or_else(unknown).map(Some)
    }

    /// The number of a stream of its own handle, which is not being captured.
    fn number_of(&self, stream: StreamId, _current: &Current<'_>) -> DriverResult<u64> {
        let _relaxed = Relaxed::new(self.library);
        let mut number = 0;
        // SAFETY: the caller says that this is a stream handle; the out-parameter is a valid pointer for the call.
        let result = unsafe { self.library.api().cuStreamGetId(raw_stream(stream), &raw mut number) };
        self.library.check(DriverCall::Stream, "cuStreamGetId", result)?;
        Ok(number)
    }

    /// The context of a stream of its own handle, which is not being captured: for one of a green context, the primary context of
    /// the device, whose memory and events it has.
    fn context_of(&self, stream: StreamId, _current: &Current<'_>) -> DriverResult<CUcontext> {
        let _relaxed = Relaxed::new(self.library);
        let (mut context, mut green) = (null_mut(), null_mut());
        // SAFETY: the caller says that this is a stream handle; the out-parameter is a valid pointer for the call.
        let result = unsafe { self.library.api().cuStreamGetCtx(raw_stream(stream), &raw mut context) };
        self.library.check(DriverCall::Stream, "cuStreamGetCtx", result)?;
        // Drivers before CUDA 12.5 tell the green context alone.
        if context != self.context.raw()
            && let Ok(function) = &self.library.optional().cuStreamGetCtx_v2
        {
            // SAFETY: as above, with two out-parameters.
            let result = unsafe { function(raw_stream(stream), &raw mut context, &raw mut green) };
            self.library.check(DriverCall::Stream, "cuStreamGetCtx_v2", result)?;
        }
        Ok(context)
    }
}

fn refused(text: impl Into<Cow<'static, str>>) -> DriverError {
    DriverError::new(DriverCall::Stream, DriverErrorKind::InvalidHandle, text)
}

/// Returns true for the handles that stand for a default stream.
pub(super) fn is_default(stream: StreamId) -> bool {
    [StreamId::DEFAULT, LEGACY_STREAM, PER_THREAD_STREAM].contains(&stream)
}

/// The driver's handle: a token that happens to be typed as a pointer.
pub fn raw_stream(stream: StreamId) -> CUstream {
    std::ptr::with_exposed_provenance_mut(stream.0 as usize)
}

fn raw_event(event: EventHandle) -> CUevent {
    std::ptr::with_exposed_provenance_mut(event.0 as usize)
}
