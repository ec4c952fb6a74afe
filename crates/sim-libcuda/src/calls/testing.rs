//! Functions for tests, which are not part of the driver API.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::entry::{Code, INVALID, OK, begin, begin_current, find_stream, put};
use crate::faults;
use crate::interruption::{self, Interruption};
use crate::state::State;
use crate::streams::Op;

/// How long a stream is held by a test that does not let it go.
const LONGEST_HOLD: Duration = Duration::from_secs(10);

/// Replaces the planned faults by those in a text in the format of `GAPLESS_SIM_FAIL`. An error, and no change, if it has another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sim_plan_faults(text: *const c_char) -> Code {
    if text.is_null() {
        return INVALID;
    }
    // SAFETY: the caller's text ends with NUL.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let Ok(faults) = faults::parse(&text) else { return INVALID };
    faults::plan(faults);
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

/// Counts what the driver is asked to do from now on, from zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sim_restart_counts() {
    crate::counts::restart();
}

/// Writes what was counted to the `capacity` bytes at `text`, with a NUL at the end: `name:count,...`, for each function that was
/// called how often that was, and `bytes_to_host` and `bytes_from_host` for copies. An error if it does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sim_counts(text: *mut c_char, capacity: usize) -> Code {
    let counts = crate::counts::text();
    if text.is_null() || counts.len() >= capacity {
        return INVALID;
    }
    // SAFETY: not null, so valid for writes of `capacity` bytes (the caller's part).
    let target = unsafe { std::slice::from_raw_parts_mut(text.cast::<u8>(), capacity) };
    target[..counts.len()].copy_from_slice(counts.as_bytes());
    target[counts.len()] = 0;
    OK
}

/// Has a stream wait, behind what is queued on it, until the caller sets `*is_over`. After ten seconds the hold ends by itself and
/// sets it, so that a test fails, and does not hang, where somebody waits for the stream who must not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sim_hold(stream: *mut c_void, is_over: *const AtomicBool) -> Code {
    let (state, device) = begin_current!("gapless_sim_hold");
    let stream = find_stream!(state, stream, device);
    // SAFETY: null, or a flag that outlives the process's work (the caller's part).
    let Some(is_over) = (unsafe { is_over.as_ref::<'static>() }) else { return INVALID };
    let hold = move || {
        let start = Instant::now();
        while !is_over.load(Ordering::Acquire) && start.elapsed() < LONGEST_HOLD {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Ordering::Release);
    };
    state.streams.queue(&stream, Op::Run(Arc::new(hold)));
    OK
}
