//! How long streams live: promised, and ended before a stream is destroyed.
//!
//! Threads: any.

use crate::abi::{CUstream_st, stream_id};
use crate::last_error::guard;
use crate::process::device_of;
use crate::registry::{find, gapless_allocator};
use crate::status::gapless_status;
use gapless::allocator::AllocError;

/// Promises that stream lives until it is forgotten or the allocator is destroyed.
///
/// Without the promise a stream may be destroyed at any time between two calls that are handed it, with memory live that
/// was allocated for it. So its handle goes to the driver only from such calls; what it may still use is reused at once on
/// the stream itself, and elsewhere only after its next call, or after the host has waited for the whole device. Keep the
/// streams that live long. The default stream always is kept; that of a thread cannot be, which is no error.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_keep_stream(allocator: *mut gapless_allocator, stream: *mut CUstream_st) -> gapless_status {
    guard(|| Ok(find(allocator)?.allocator().keep_stream(stream_id(stream)).map_err(AllocError::from)?))
}

/// Ends the promise of gapless_keep_stream, right before the stream is destroyed: no work that uses memory of the allocator
/// is queued on it any more. Good for a stream that was not kept, too: what it may still use needs no wait for the whole
/// device then. Does nothing for a stream that the allocator has not seen.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_forget_stream(allocator: *mut gapless_allocator, stream: *mut CUstream_st) -> gapless_status {
    guard(|| Ok(find(allocator)?.allocator().forget_stream(stream_id(stream)).map_err(AllocError::from)?))
}

/// As gapless_keep_stream, for the process-wide allocator of a device.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_keep_stream(device: i32, stream: *mut CUstream_st) -> gapless_status {
    guard(|| Ok(device_of(device)?.keep_stream(stream_id(stream))?))
}

/// As gapless_forget_stream, for the process-wide allocator of a device and its pools.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_forget_stream(device: i32, stream: *mut CUstream_st) -> gapless_status {
    guard(|| Ok(device_of(device)?.forget_stream(stream_id(stream))?))
}
