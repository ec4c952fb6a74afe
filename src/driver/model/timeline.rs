//! Timeline: streams, events and a clock that moves on demand only.
//!
//! A stream is a queue of items. The head completes once it is due, its stream is not held, and what it waits for on
//! another stream has completed; items behind it complete after it. Nothing runs in the background: a queue is brought
//! up to date when somebody asks about it.
//!
//! ```text
//!   position  1   2   3 | 4      5      6
//!             done: 3   | work   wait   marker     queue, front first
//!                         due 9  for    due 12     an event recorded here has position 6
//!                                (stream 7, position 2)
//! ```
//!
//! - I1  due times never decrease along a queue;
//! - I2  a wait points at a position that was queued earlier, so waits never form a circle;
//! - I3  `pending` is the sum of all queue lengths.
//!
//! Threads: none of its own; its owner locks. Cost: O(log s) amortised an item, with s streams; `in_flight` is
//! O(pending).

use crate::driver::EventHandle;
use crate::driver::handles::{FIRST_LANE, is_of_thread};
use crate::driver::ledger::token_base;
use crate::units::StreamId;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// The addresses that one item of work touches; empty ranges where it touches fewer.
pub(super) type Touched = [Range<u64>; 2];

#[derive(Debug)]
pub(super) struct Timeline {
    now: u64,
    lag: u64,
    lanes: BTreeMap<StreamId, Lane>,
    next_stream: u64,
    events: BTreeMap<EventHandle, Recording>,
    event_base: u64,
    events_made: u64,
    pending: usize,
}

/// A place in a stream's queue: complete once `position` items are done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    stream: StreamId,
    position: u64,
}

/// The last recording of an event.
#[derive(Debug, Clone, Copy)]
pub(super) enum Recording {
    None,
    At(Point),
    /// On this stream while it was being captured: it belongs to the graph, and no work on the device completes it.
    Captured(StreamId),
}

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Item>,
    done: u64,
    last_due: u64,
    /// Items up to this position need neither be due nor wait for the end of a hold.
    let_through: u64,
    held: bool,
    capturing: bool,
}

#[derive(Debug)]
struct Item {
    due: u64,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Marker,
    Work(Touched),
    Wait(Point),
}

impl Timeline {
    pub fn new(lag: u64) -> Self {
        Self {
            now: 0,
            lag,
            lanes: BTreeMap::from([(StreamId::DEFAULT, Lane::default())]),
            next_stream: FIRST_LANE,
            events: BTreeMap::new(),
            event_base: token_base(),
            events_made: 0,
            pending: 0,
        }
    }

    pub fn advance(&mut self, ops: u64) {
        self.now += ops;
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    pub fn event_count(&self) -> usize {
        self.events.len()
    }

    pub fn create_stream(&mut self) -> StreamId {
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        self.lanes.insert(stream, Lane::default());
        stream
    }

    /// Forgets a stream whose work has completed; events recorded on it are complete.
    pub fn remove_stream(&mut self, stream: StreamId) {
        self.lanes.remove(&stream);
    }

    /// Holds `stream`: nothing on it completes by itself.
    pub fn hold(&mut self, stream: StreamId) {
        self.settle(stream, u64::MAX);
        self.lane(stream).held = true;
    }

    pub fn resume(&mut self, stream: StreamId) {
        self.lane(stream).held = false;
    }

    /// Lets everything that is queued on `stream` now complete, whether or not it is held or due.
    pub fn let_through(&mut self, stream: StreamId) {
        let end = self.end(stream);
        self.lane(stream).let_through = end.position;
        self.settle(stream, u64::MAX);
    }

    pub fn set_capturing(&mut self, stream: StreamId, capturing: bool) {
        self.lane(stream).capturing = capturing;
    }

    pub fn is_capturing(&self, stream: StreamId) -> bool {
        self.lanes.get(&stream).is_some_and(|lane| lane.capturing)
    }

    /// Returns a stream that is being captured, if there is one.
    pub fn capturing(&self) -> Option<StreamId> {
        self.lanes.iter().find(|(_, lane)| lane.capturing).map(|(stream, _)| *stream)
    }

    pub fn create_event(&mut self) -> EventHandle {
        let event = EventHandle(self.event_base + self.events_made);
        self.events_made += 1;
        self.events.insert(event, Recording::None);
        event
    }

    /// Returns false when there is no such event.
    pub fn destroy_event(&mut self, event: EventHandle) -> bool {
        self.events.remove(&event).is_some()
    }

    /// Returns the event's last recording; `None` when there is no such event.
    pub fn recording(&self, event: EventHandle) -> Option<Recording> {
        self.events.get(&event).copied()
    }

    pub fn record(&mut self, event: EventHandle, stream: StreamId) {
        let recording = if self.is_capturing(stream) {
            Recording::Captured(stream)
        } else {
            let due = self.now + self.lag;
            Recording::At(self.push(stream, due, Step::Marker))
        };
        self.events.insert(event, recording);
    }

    pub fn work(&mut self, stream: StreamId, touched: Touched) {
        let due = self.now + self.lag;
        self.push(stream, due, Step::Work(touched));
    }

    /// Work that touches nothing and takes `ops`.
    pub fn delay(&mut self, stream: StreamId, ops: u64) {
        let start = (self.now + self.lag).max(self.lane(stream).last_due);
        self.push(stream, start.saturating_add(ops), Step::Marker);
    }

    /// Keeps later items of `stream` from completing before `point` does.
    pub fn wait(&mut self, stream: StreamId, point: Point) {
        if !self.reached(point) {
            self.push(stream, 0, Step::Wait(point));
        }
    }

    /// Returns true when everything up to `point` has completed.
    pub fn reached(&mut self, point: Point) -> bool {
        self.settle(point.stream, point.position);
        self.is_done(point)
    }

    /// Completes everything up to `point`, and what that waits for, whatever the clock and holds say.
    pub fn force(&mut self, point: Point) {
        while !self.is_done(point) {
            let lane = self.lane(point.stream);
            let Some(item) = lane.queue.pop_front() else { unreachable!("a point lies in its stream's queue") };
            lane.done += 1;
            self.pending -= 1;
            if let Step::Wait(target) = item.step {
                self.force(target);
            }
        }
    }

    /// Returns the end of what is queued on `stream` now.
    pub fn end(&mut self, stream: StreamId) -> Point {
        let lane = self.lane(stream);
        Point { stream, position: lane.done + lane.queue.len() as u64 }
    }

    /// Returns the ends of what is queued on the streams now.
    pub fn ends(&mut self) -> Vec<Point> {
        let streams: Vec<StreamId> = self.lanes.keys().copied().collect();
        streams.into_iter().map(|stream| self.end(stream)).collect()
    }

    /// Returns a stream with unfinished work in `range`, and where that work is.
    pub fn in_flight(&mut self, range: Range<u64>) -> Option<(StreamId, Range<u64>)> {
        if self.pending == 0 {
            return None;
        }
        let streams: Vec<StreamId> = self.lanes.keys().copied().collect();
        for stream in streams {
            self.settle(stream, u64::MAX);
        }
        let overlaps =
            |touched: &&Range<u64>| !touched.is_empty() && touched.start < range.end && range.start < touched.end;
        for (&stream, lane) in &self.lanes {
            for item in &lane.queue {
                if let Step::Work(touched) = &item.step
                    && let Some(touched) = touched.iter().find(overlaps)
                {
                    return Some((stream, touched.clone()));
                }
            }
        }
        None
    }

    fn push(&mut self, stream: StreamId, due: u64, step: Step) -> Point {
        let lane = self.lane(stream);
        lane.last_due = lane.last_due.max(due);
        let due = lane.last_due;
        lane.queue.push_back(Item { due, step });
        let position = lane.done + lane.queue.len() as u64;
        self.pending += 1;
        self.settle(stream, u64::MAX);
        Point { stream, position }
    }

    /// Completes what can complete on `stream`, front to back, up to position `last`.
    ///
    /// No further than `last`, which ends the recursion: when the head of this queue waits for a point, then all that
    /// lies before that point waits, by I2, for what lies before this head, and so is done.
    fn settle(&mut self, stream: StreamId, last: u64) {
        let now = self.now;
        while let Some(lane) = self.lanes.get_mut(&stream) {
            let may = |item: &&Item| lane.done < lane.let_through || (!lane.held && item.due <= now);
            if lane.done >= last {
                return;
            }
            let Some(head) = lane.queue.front().filter(may) else { return };
            if let Step::Wait(target) = head.step
                && !self.reached(target)
            {
                return;
            }
            let lane = self.lane(stream);
            lane.queue.pop_front();
            lane.done += 1;
            self.pending -= 1;
        }
    }

    fn is_done(&self, point: Point) -> bool {
        self.lanes.get(&point.stream).is_none_or(|lane| lane.done >= point.position)
    }

    /// # Panics
    /// When there is no such stream; callers have checked. That of a thread is there when it is used first.
    fn lane(&mut self, stream: StreamId) -> &mut Lane {
        if is_of_thread(stream) {
            return self.lanes.entry(stream).or_default();
        }
        self.lanes.get_mut(&stream).unwrap_or_else(|| panic!("{stream} was checked by the caller"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId::DEFAULT;

    fn recorded(timeline: &mut Timeline, stream: StreamId) -> Point {
        let event = timeline.create_event();
        timeline.record(event, stream);
        match timeline.recording(event) {
            Some(Recording::At(point)) => point,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn items_complete_in_order_once_due() {
        let mut timeline = Timeline::new(3);
        let first = recorded(&mut timeline, A);
        timeline.delay(A, 10);
        let second = recorded(&mut timeline, A);
        timeline.advance(2);
        assert!(!timeline.reached(first));
        timeline.advance(1);
        assert!(timeline.reached(first) && !timeline.reached(second));
        timeline.advance(10);
        assert!(timeline.reached(second));
        assert_eq!(timeline.pending, 0);
    }

    #[test]
    fn a_wait_carries_a_hold_to_another_stream_and_force_follows_it() {
        let mut timeline = Timeline::new(0);
        let b = timeline.create_stream();
        timeline.hold(A);
        let on_a = recorded(&mut timeline, A);
        timeline.wait(b, on_a);
        timeline.work(b, [0..10, 0..0]);
        let on_b = recorded(&mut timeline, b);
        // Letting b through does not undo its wait.
        timeline.let_through(b);
        assert!(!timeline.reached(on_b));
        assert_eq!(timeline.in_flight(5..6), Some((b, 0..10)));
        assert_eq!(timeline.in_flight(10..16), None);
        timeline.force(on_b);
        assert!(timeline.reached(on_a), "what b waited for came first");
        assert_eq!(timeline.in_flight(5..6), None);
        assert_eq!(timeline.pending, 0);
    }

    #[test]
    fn streams_that_wait_for_each_other_in_turn_do_not_deadlock() {
        let mut timeline = Timeline::new(1);
        let b = timeline.create_stream();
        for _ in 0..100 {
            let on_a = recorded(&mut timeline, A);
            timeline.wait(b, on_a);
            let on_b = recorded(&mut timeline, b);
            timeline.wait(A, on_b);
        }
        let last = recorded(&mut timeline, A);
        assert!(!timeline.reached(last));
        timeline.advance(1);
        assert!(timeline.reached(last));
        assert_eq!(timeline.pending, 0);
    }
}
