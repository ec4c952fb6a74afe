//! Captures: which one a stream belongs to.

use super::CudaDriver;
use super::streams::{is_default, raw_stream};
use super::sys::{CUstreamCaptureStatus_enum as capture_status, cudaError_enum as code};
use crate::driver::{DriverCall, StreamDriver};
use crate::units::StreamId;
use std::ptr::null_mut;

/// The capture that a stream belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Capture {
    /// A capture by its number, which no other capture of the process has.
    Number(u64),
    /// Some capture: the driver has no function that tells which.
    Unknown,
}

impl CudaDriver {
    /// Returns the capture into a graph that `stream` belongs to. One that has become invalid is none: it ends without a graph.
    ///
    /// The stream exists, as for every call with a stream.
    pub fn capture_of(&self, stream: StreamId) -> Option<Capture> {
        let (v3, first) =
            (self.library.optional().cuStreamGetCaptureInfo_v3.as_ref().ok(), self.library.first_capture_info());
        if v3.is_none() && first.is_none() {
            return self.is_capturing(stream).then_some(Capture::Unknown);
        }
        let (mut status, mut number) = (capture_status::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let mut ask = || {
            let (stream, status, number) = (raw_stream(stream), &raw mut status, &raw mut number);
            match (v3, first) {
                // SAFETY: a stream of this device (the caller's part); the first two out-parameters are valid for the call, the
                // others may be null.
                (Some(v3), _) => unsafe { v3(stream, status, number, null_mut(), null_mut(), null_mut(), null_mut()) },
                // SAFETY: as above, without the others.
                (None, Some(first)) => unsafe { first(stream, status, number) },
                (None, None) => unreachable!("looked at above"),
            }
        };
        // A handle of its own says which context is meant. Most of the time that one is current anyway.
        let mut result = if is_default(stream) { code::CUDA_ERROR_INVALID_CONTEXT } else { ask() };
        if result == code::CUDA_ERROR_INVALID_CONTEXT || result == code::CUDA_ERROR_INVALID_HANDLE {
            let Ok(_current) = self.context.enter(DriverCall::Stream) else { return None };
            result = ask();
        }
        let active = status == capture_status::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        (result == code::CUDA_SUCCESS && active).then_some(Capture::Number(number))
    }
}
