//! The state of a model device, and how it answers: a shortage is an error, a broken rule a panic.

use super::FIRST_ADDRESS;
use super::timeline::{Point, Recording, Timeline};
use crate::driver::handles::{Handles, NoStream, is_default};
use crate::driver::ledger::{Ledger, Refusal};
use crate::driver::{DriverCall, DriverCalls, DriverError, DriverErrorKind, DriverResult, EventHandle};
use crate::units::{StreamId, round_up};

#[derive(Debug)]
pub(super) struct State {
    pub(super) ledger: Ledger,
    pub(super) timeline: Timeline,
    pub(super) handles: Handles,
    pub(super) next_address: u64,
    pub(super) calls: DriverCalls,
    pub(super) host_waits: u64,
    pub(super) modelled_micros: f64,
}

impl State {
    /// Addresses for a reservation. Fresh ones while there are any, so that a stale address is seldom a valid one;
    /// then the first gap that fits. A page is left between reservations: no range spans two of them.
    pub(super) fn room(&mut self, bytes: u64, alignment: u64, address_end: u64) -> Option<u64> {
        let page = self.ledger.granularity();
        let fits = |from: u64, limit: u64| {
            let start = round_up(from, alignment)?;
            let end = start.checked_add(bytes)?;
            (end <= limit).then_some((start, end))
        };
        if let Some((start, end)) = fits(self.next_address, address_end) {
            self.next_address = end + page;
            return Some(start);
        }
        let mut from = FIRST_ADDRESS + page;
        for (start, reserved) in self.ledger.reservations() {
            if let Some((found, _)) = fits(from, start.saturating_sub(page)) {
                return Some(found);
            }
            from = start + reserved + page;
        }
        fits(from, address_end).map(|(start, _)| start)
    }

    /// Returns the lane of a stream. An unknown handle is an error; one of a destroyed stream is a broken rule.
    pub(super) fn lane(&self, call: DriverCall, stream: StreamId) -> DriverResult<StreamId> {
        self.handles.lane(stream).map_err(|missing| match missing {
            NoStream::Unknown => no_stream(call, stream),
            NoStream::Destroyed => broken(call, &format!("{stream:?} has been destroyed")),
        })
    }

    pub(super) fn destroy(&mut self, stream: StreamId) -> DriverResult<StreamId> {
        let lane = self.lane(DriverCall::Stream, stream)?;
        if is_default(stream) {
            let text = "a default stream cannot be destroyed";
            return Err(DriverError::new(DriverCall::Stream, DriverErrorKind::InvalidHandle, text));
        }
        let destroyed = self.handles.destroy(stream);
        debug_assert_eq!(destroyed, Ok(lane));
        Ok(lane)
    }

    /// # Panics
    /// When there is no such stream.
    pub(super) fn existing(&self, stream: StreamId) -> StreamId {
        self.handles.lane(stream).unwrap_or_else(|_| panic!("there is no {stream:?}"))
    }

    pub(super) fn known_event(&self, call: DriverCall, event: EventHandle) -> Recording {
        self.timeline.recording(event).unwrap_or_else(|| no_event(call, event))
    }

    /// Returns where the event was recorded last, if ever. An event of a capture is an error, and a broken rule while
    /// the capture lasts, which would be lost.
    pub(super) fn recording(&self, call: DriverCall, event: EventHandle) -> DriverResult<Option<Point>> {
        match self.known_event(call, event) {
            Recording::None => Ok(None),
            Recording::At(point) => Ok(Some(point)),
            Recording::Captured(lane) => {
                let text = format!("{event:?} was recorded in a capture of {lane:?}");
                if self.timeline.is_capturing(lane) {
                    broken(call, &text);
                }
                Err(DriverError::new(call, DriverErrorKind::Capturing, text))
            }
        }
    }

    pub(super) fn host_wait(&mut self, point: Point) {
        if !self.timeline.reached(point) {
            self.host_waits += 1;
            self.timeline.force(point);
        }
    }
}

/// A shortage is an error; a broken rule is a bug in the caller.
pub(super) fn enforce<T>(call: DriverCall, answer: Result<T, Refusal>) -> DriverResult<T> {
    match answer {
        Ok(value) => Ok(value),
        Err(Refusal::Shortage(text)) => Err(DriverError::new(call, DriverErrorKind::OutOfMemory, text)),
        Err(Refusal::Misuse(text)) => broken(call, &text),
    }
}

pub(super) fn broken(call: DriverCall, rule: &str) -> ! {
    panic!("driver contract broken ({}): {rule}", call.name())
}

pub(super) fn no_stream(call: DriverCall, stream: StreamId) -> DriverError {
    DriverError::new(call, DriverErrorKind::InvalidHandle, format!("there is no {stream:?}"))
}

pub(super) fn no_event(call: DriverCall, event: EventHandle) -> ! {
    broken(call, &format!("{event:?} was destroyed or is not an event of this driver"))
}
