//! Functions for tests, which are not part of the driver API.

use super::*;

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
