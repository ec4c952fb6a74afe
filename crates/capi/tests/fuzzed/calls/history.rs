//! The memory history, against the calls that were made while it was on.
//!
//! - H1  it has the newest events, as many as it was set to keep, in the order of the calls: what was served, freed and refused
//!   through the doors of the process-wide allocators, on whatever thread, and nothing else.
//!
//! The events of calls that run at a time have no order.

use super::effect::stream_named;
use super::work::stream_of;
use super::*;

/// The events that the history must have.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    /// Events that happened one after the other; those of one element in any order.
    groups: Vec<Vec<Event>>,
    /// The most to keep; 0 while it is off. How many of the newest are in it.
    most: usize,
    kept: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    Alloc,
    Free,
    Oom,
}

/// An event, without what a caller of the front ends need not say: a free's bytes and stream, and the bytes that were free when a
/// request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    action: Action,
    device: i32,
    addr: u64,
    bytes: u64,
    stream: u64,
}

impl Event {
    fn new(action: Action, device: i32, addr: u64, bytes: u64, stream: StreamId) -> Self {
        let stream = stream_named(stream.as_raw());
        match action {
            Action::Alloc => Self { action, device, addr, bytes, stream },
            Action::Free => Self { action, device, addr, bytes: 0, stream: 0 },
            Action::Oom => Self { action, device, addr: 0, bytes, stream },
        }
    }
}

impl Shadow {
    pub(super) fn is_on(&self) -> bool {
        self.most > 0
    }

    /// Whether it has room for so many more.
    pub(super) fn has_room(&self, events: usize) -> bool {
        self.kept + events <= self.most
    }

    fn note(&mut self, group: Vec<Event>) {
        if self.is_on() && !group.is_empty() {
            self.kept = self.most.min(self.kept + group.len());
            self.groups.push(group);
        }
    }

    fn switch(&mut self, most: usize, clear: bool) {
        self.most = most;
        self.kept = if clear || most == 0 { 0 } else { self.kept.min(most) };
    }
}

impl Calls {
    pub(super) fn note_event(&mut self, action: Action, device: i32, addr: u64, bytes: u64, stream: StreamId) {
        self.history.note(vec![Event::new(action, device, addr, bytes, stream)]);
    }

    /// Notes what happened in some order.
    pub(super) fn note_events(&mut self, events: impl IntoIterator<Item = (Action, u64, Block)>) {
        let event = |(action, addr, block): (Action, u64, Block)| {
            Event::new(action, block.device, addr, block.bytes, block.home)
        };
        self.history.note(events.into_iter().map(event).collect());
    }

    /// A request through a process-wide door has failed on this thread: where there was no memory, it counts as such.
    pub(super) fn note_refusal(&mut self, exists: bool, device: i32, bytes: u64, stream: *mut CUstream_st) {
        let refused = matches!(gapless_last_error_status(), GAPLESS_ERROR_OUT_OF_MEMORY | GAPLESS_ERROR_TOO_LARGE);
        if exists && refused {
            self.note_event(Action::Oom, device, 0, bytes, stream_of(stream.addr() as u64));
            if let Some(book) = self.books.iter_mut().find(|book| book.lasting && book.device == device) {
                book.done.out_of_memory += 1;
            }
        }
    }

    /// Switches the history on or off, or reads it.
    pub(super) fn object_history(&mut self, record: Record) {
        if record.what >= 160 {
            return self.check_history();
        }
        let most = if record.what < 40 { 0 } else { record.number as usize % 40 };
        c!(gapless_torch_record_history(most as u64, i32::from(record.how % 2 == 1)));
        self.history.switch(most, record.how % 2 == 1);
    }

    /// Starts the history again, where what happened is not known in detail.
    pub(super) fn clear_history(&mut self) {
        c!(gapless_torch_record_history(self.history.most as u64, 1));
        self.history.switch(self.history.most, true);
    }

    /// Checks H1: the newest events are there, in the order of the calls.
    pub(super) fn check_history(&self) {
        let mut found = self.recorded();
        assert_eq!(found.len(), self.history.kept, "events in the history: {found:?}");
        for group in self.history.groups.iter().rev() {
            let mut last = found.split_off(found.len().saturating_sub(group.len()));
            let mut expected = group.clone();
            last.sort_unstable();
            expected.sort_unstable();
            if last.len() < expected.len() {
                expected.retain(|event| last.contains(event));
            }
            assert_eq!(last, expected, "behind {found:?}");
            if found.is_empty() {
                break;
            }
        }
    }

    fn recorded(&self) -> Vec<Event> {
        let record = Record { call: Call::Alloc, handle: 0, what: 0, how: 0, number: 1 };
        let call =
            |buffer: *mut c_char, capacity, needed: *mut u64| c!(gapless_torch_history_json(buffer, capacity, needed));
        let mut needed = UNTOUCHED as u64;
        expect(call(null_mut(), 0, &raw mut needed), &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
        let list = self.read_text(record, needed, call);
        let event = |event: &serde_json::Value| {
            let number = |key: &str| event[key].as_u64().expect("a number");
            assert!(number("time_us") > 0, "{event}");
            let action = match event["action"].as_str() {
                Some("alloc") => Action::Alloc,
                Some("free") => Action::Free,
                Some("oom") => Action::Oom,
                _ => panic!("an event of another kind: {event}"),
            };
            let device = i32::try_from(number("device")).expect("a device");
            Event::new(action, device, number("addr"), number("bytes"), stream_of(number("stream")))
        };
        list.as_array().expect("a list").iter().map(event).collect()
    }
}
