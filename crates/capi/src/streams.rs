//! How long streams live: promised, and ended before a stream is destroyed.
//!
//! Streams that nobody promises anything about are the rule for CuPy, RMM and Numba, whose stream objects end with
//! Python's. PyTorch's streams live as long as the process, so its requests promise it ([`StreamLives`]).
//!
//! Threads: any.

use crate::functions::{CUstream_st, stream_id};
use crate::last_error::guard;
use crate::process::Device;
use crate::registry::{find, gapless_allocator};
use crate::status::{Answer, gapless_status};
use gapless::Allocator;
use gapless::StreamId;
use gapless::driver::cuda::CudaDriver;

/// Whether a stream may be destroyed while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamLives {
    /// It is not.
    AsLongAsTheProcess,
    /// Nobody has promised anything.
    Unknown,
}

/// Promises that stream lives until it is forgotten or the allocator is destroyed.
///
/// Without the promise a stream may be destroyed at any time between two calls that are handed it, with memory live that
/// was allocated for it. So its handle goes to the driver only from such calls; what it may still use is reused at once on
/// the stream itself, and elsewhere only after its next call, or after the host has waited for the whole device. Keep the
/// streams that live long. The default stream always is kept; that of a thread cannot be, which is no error.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_keep_stream(allocator: *mut gapless_allocator, stream: *mut CUstream_st) -> gapless_status {
    guard(|| keep(&find(allocator)?.allocator, stream_id(stream)))
}

/// Ends the promise of gapless_keep_stream, right before the stream is destroyed: no work that uses memory of the allocator
/// is queued on it any more. Good for a stream that was not kept, too: what it may still use needs no wait for the whole
/// device then. Does nothing for a stream that the allocator has not seen.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_forget_stream(allocator: *mut gapless_allocator, stream: *mut CUstream_st) -> gapless_status {
    guard(|| forget(&find(allocator)?.allocator, stream_id(stream)))
}

/// As gapless_keep_stream, for the process-wide allocator of a device.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_keep_stream(device: i32, stream: *mut CUstream_st) -> gapless_status {
    guard(|| keep(&Device::get(device)?.main.allocator, stream_id(stream)))
}

/// As gapless_forget_stream, for the process-wide allocator of a device and its pools.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_forget_stream(device: i32, stream: *mut CUstream_st) -> gapless_status {
    guard(|| {
        let (device, stream) = (Device::get(device)?, stream_id(stream));
        for pool in device.pools.all() {
            forget(&pool.allocator, stream)?;
        }
        forget(&device.main.allocator, stream)
    })
}

fn keep(allocator: &Allocator<CudaDriver>, stream: StreamId) -> Answer<()> {
    allocator.keep_stream(stream).map_err(|error| gapless::allocator::AllocError::from(error).into())
}

fn forget(allocator: &Allocator<CudaDriver>, stream: StreamId) -> Answer<()> {
    allocator.forget_stream(stream).map_err(|error| gapless::allocator::AllocError::from(error).into())
}
