//! The memory history in C, for PyTorch's `_record_memory_history`.
//!
//! Threads: any.

use crate::last_error::guard;
use crate::out::write_json;
use crate::process::PROCESS;
use crate::status::gapless_status;
use gapless_process::Before;
use std::ffi::c_char;

/// Keeps a history of the newest allocations, frees and requests that ran out of memory, of all front ends and devices: at
/// most most_events of them, 0 to keep none and forget the rest. If clear is not 0, the history starts empty.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_record_history(most_events: u64, clear: i32) {
    let most_events = usize::try_from(most_events).unwrap_or(usize::MAX);
    PROCESS.history().record(most_events, if clear == 0 { Before::Kept } else { Before::Forgotten });
}

/// Writes the history of all devices as a JSON list into buffer, the oldest event first, as gapless_stats_json does.
///
/// # Safety
/// buffer, capacity and needed are as in gapless_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_history_json(
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> gapless_status {
    guard(|| {
        // SAFETY: the same contract.
        unsafe { write_json(&PROCESS.history().events(), buffer, capacity, needed) }
    })
}
