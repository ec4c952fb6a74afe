//! The memory history: the newest allocations and frees of all front ends, for PyTorch's `_record_memory_history`.
//!
//! - I1  at most `most` events are kept, the newest ones; none while recording is off.
//! - I2  events at one address are in the order in which they happened: an allocation is noted after it, a free before. What is
//!   refused is not noted, but for a request that ran out of memory.
//!
//! Threads: any; one lock while recording is on. Cost: a load of an atomic while it is off.

use crate::last_error::guard;
use crate::out::write_json;
use crate::status::gapless_status;
use gapless::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The history of all devices of this process.
pub(crate) static HISTORY: History = History { on: AtomicBool::new(false), ring: Mutex::new(Ring::EMPTY) };

/// Whether recording is on, and the events.
#[derive(Debug)]
pub(crate) struct History {
    on: AtomicBool,
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Event>,
    most: usize,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    Alloc,
    Free,
    /// A request that ran out of memory.
    Oom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Event {
    action: Action,
    device: u32,
    /// The address; for a request that ran out of memory, the bytes that the device had free.
    addr: u64,
    /// Bytes requested; 0 for a free whose front end does not say.
    bytes: u64,
    /// The stream of the allocation; 0 for a free whose front end does not say.
    stream: u64,
    /// Microseconds since 1970.
    time_us: u64,
}

impl Ring {
    const EMPTY: Self = Self { events: VecDeque::new(), most: 0 };

    fn shorten(&mut self, most: usize) {
        let surplus = self.events.len().saturating_sub(most);
        self.events.drain(..surplus);
    }
}

impl History {
    /// Keeps the newest `most` events from now on; 0 turns recording off.
    fn record(&self, most: usize, clear: bool) {
        let mut ring = self.ring.lock();
        if clear || most == 0 {
            *ring = Ring::EMPTY;
        }
        ring.shorten(most);
        ring.most = most;
        // Relaxed: an event that races with the start or the end may be in the history or not.
        self.on.store(most > 0, Ordering::Relaxed);
    }

    /// Whether recording is on.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Adds an event if recording is on.
    pub fn note(&self, action: Action, device: u32, addr: DeviceAddr, bytes: u64, stream: StreamId) {
        if self.is_on() {
            self.push(action, device, addr, bytes, stream);
        }
    }

    #[cold]
    fn push(&self, action: Action, device: u32, addr: DeviceAddr, bytes: u64, stream: StreamId) {
        let mut ring = self.ring.lock();
        if ring.most == 0 {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let kept = ring.most - 1;
        ring.shorten(kept);
        ring.events.push_back(Event { action, device, addr: addr.0, bytes, stream: stream.0, time_us });
    }

    fn events(&self) -> Vec<Event> {
        self.ring.lock().events.iter().copied().collect()
    }
}

/// Keeps a history of the newest allocations, frees and requests that ran out of memory, of all front ends and devices: at
/// most most_events of them, 0 to keep none and forget the rest. If clear is not 0, the history starts empty.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_record_history(most_events: usize, clear: i32) {
    HISTORY.record(most_events, clear != 0);
}

/// Writes the history of all devices as a JSON list into buffer, the oldest event first, as gapless_stats_json does.
///
/// # Safety
/// buffer, capacity and needed are as in gapless_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_history_json(
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gapless_status {
    guard(|| {
        // SAFETY: the same contract.
        unsafe { write_json(&HISTORY.events(), buffer, capacity, needed) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(history: &History) -> Vec<u64> {
        history.events().iter().map(|event| event.bytes).collect()
    }

    #[test]
    fn the_newest_are_kept() {
        let history = History { on: AtomicBool::new(false), ring: Mutex::new(Ring::EMPTY) };
        let note = |bytes| history.note(Action::Alloc, 0, DeviceAddr(512), bytes, StreamId(0));
        note(1);
        assert!(noted(&history).is_empty());
        history.record(3, false);
        (2..7).for_each(note);
        assert_eq!(noted(&history), [4, 5, 6]);
        history.record(2, false);
        assert_eq!(noted(&history), [5, 6]);
        note(7);
        assert_eq!(noted(&history), [6, 7]);
        history.record(2, true);
        note(8);
        assert_eq!(noted(&history), [8]);
        history.record(0, false);
        note(9);
        assert!(noted(&history).is_empty());
    }
}
