//! Functions for tests, which are not part of the driver API.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;

use super::entry::{Code, INVALID, OK, begin, put};
use crate::interruption::{self, Interruption};
use crate::state::State;

/// Replaces the planned faults by those in a text in the format of `GAPLESS_SIM_FAIL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sim_plan_faults(text: *const c_char) -> Code {
    if text.is_null() {
        return INVALID;
    }
    // SAFETY: the caller's text ends with NUL.
    crate::settings::plan_faults(&unsafe { CStr::from_ptr(text) }.to_string_lossy());
    OK
}

/// Runs `callback` with `data` when the driver's function of that name, or any for NULL, is called after `calls_before`
/// more such calls: on the thread that makes the call, before it does anything, and once. It may call the driver. NULL as
/// `callback` plans nothing. Writes to `*left`, unless that is NULL, whether what was planned before has not run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sim_before_call(
    function: *const c_char,
    calls_before: u64,
    callback: Option<interruption::Callback>,
    data: *mut c_void,
    left: *mut bool,
) -> Code {
    // SAFETY: the caller's text is NULL or ends with NUL.
    let name = (!function.is_null()).then(|| unsafe { CStr::from_ptr(function) }.to_string_lossy().into_owned());
    let next = callback.map(|callback| Interruption { function: name, calls_before, callback, data });
    let before = interruption::plan(next);
    if !left.is_null() {
        // SAFETY: not null, so valid for a write (the caller's part).
        unsafe { left.write(before) };
    }
    OK
}

/// Counts the objects that exist on a device: chunks, mappings, reservations, and events of all devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sim_usage(device: c_int, counts: *mut [u64; 4]) -> Code {
    let state = begin!("gapless_sim_usage");
    let Some(device) = usize::try_from(device).ok().filter(|device| *device < state.devices.len()) else {
        return INVALID;
    };
    let chunks = state.chunks.lock().values().filter(|chunk| chunk.device == device).count();
    let mappings = state.mappings.read().values().filter(|mapping| mapping.device == device).count();
    let reservations = state.reservations.lock().values().filter(|(_, owner)| *owner == device).count();
    let events = state.events.lock().len();
    // SAFETY: null or valid for a write.
    unsafe { put(counts, [chunks, mappings, reservations, events].map(|count| count as u64)) }
}

/// Counts the waits for events that took a processor's time, since the event was not created for threads that sleep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sim_spins() -> u64 {
    State::get().spins.load(Ordering::Relaxed)
}
