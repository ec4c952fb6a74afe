//! The memory history: the newest allocations and frees of all front ends, for PyTorch's `_record_memory_history`.
//!
//! - I1  at most `most` events are kept, the newest ones; none while recording is off.
//! - I2  events at one address are in the order in which they happened: an allocation is noted after it, a free before. What is
//!   refused is not noted, but for a request that ran out of memory.
//!
//! Threads: any; one lock while recording is on. Cost: a load of an atomic while it is off.

use gapless::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The history of all devices of a process: whether recording is on, and the events.
#[derive(Debug)]
pub struct History {
    on: AtomicBool,
    ring: Mutex<Ring>,
}

/// Whether the events that were recorded before are kept, when recording starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// They stay, as far as there is room.
    Kept,
    /// They are forgotten.
    Forgotten,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Event>,
    most: usize,
}

/// The action that an event records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// An allocation that was served.
    Alloc,
    /// A free.
    Free,
    /// A request that ran out of memory.
    Oom,
}

/// An allocation, a free, or a request that ran out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// The action that it records.
    pub action: Action,
    /// The number of the device.
    pub device: u32,
    /// The address; for a request that ran out of memory, the bytes that the device had free.
    pub addr: u64,
    /// Bytes requested; 0 for a free whose front end does not say.
    pub bytes: u64,
    /// The stream of the allocation; 0 for a free whose front end does not say.
    pub stream: u64,
    /// Microseconds since 1970.
    pub time_us: u64,
}

impl Ring {
    const EMPTY: Self = Self { events: VecDeque::new(), most: 0 };

    fn shorten(&mut self, most: usize) {
        let surplus = self.events.len().saturating_sub(most);
        self.events.drain(..surplus);
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    /// A history that records nothing yet.
    pub const fn new() -> Self {
        Self { on: AtomicBool::new(false), ring: Mutex::new(Ring::EMPTY) }
    }

    /// Keeps the newest `most` events from now on; 0 turns recording off and forgets the rest.
    pub fn record(&self, most: usize, before: Before) {
        let mut ring = self.ring.lock();
        if before == Before::Forgotten || most == 0 {
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
        ring.events.push_back(Event { action, device, addr: addr.0, bytes, stream: stream.as_raw(), time_us });
    }

    /// The events, the oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.ring.lock().events.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(history: &History) -> Vec<u64> {
        history.events().iter().map(|event| event.bytes).collect()
    }

    #[test]
    fn the_newest_are_kept() {
        let history = History::new();
        let note = |bytes| history.note(Action::Alloc, 0, DeviceAddr(512), bytes, StreamId::DEFAULT);
        note(1);
        assert!(noted(&history).is_empty() && !history.is_on());
        history.record(3, Before::Kept);
        (2..7).for_each(note);
        assert_eq!(noted(&history), [4, 5, 6]);
        history.record(2, Before::Kept);
        assert_eq!(noted(&history), [5, 6]);
        note(7);
        assert_eq!(noted(&history), [6, 7]);
        history.record(2, Before::Forgotten);
        note(8);
        assert_eq!(noted(&history), [8]);
        assert!(history.is_on());
        history.record(0, Before::Kept);
        note(9);
        assert!(noted(&history).is_empty() && !history.is_on());
    }
}
