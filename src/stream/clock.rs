//! Stream clock: the open epoch of one stream, the sealed epochs that have not passed, and the last one that has.
//!
//! ```text
//!      passed            sealed (event recorded)       open
//!   1 2 3 ... p  │  p+1 ─ e1   ...   o-1 ─ ek     │     o
//! ```
//!
//! An event covers its epoch and all before it. An epoch that is closed without an event, since that was lost to a
//! capture, is covered by the next one.
//!
//! A host wait for an event is made without the lock of the clock ([`StreamClock::begin_wait`]): until it is over, no event of
//! the clock is recorded again or destroyed.
//!
//! - I1  `passed < open`; the sealed epochs are in order, each above `passed` and below `open`.
//! - I2  the driver gets the stream's handle only from calls that [`Reach`] allows.
//!
//! Cost: `poll` makes one driver call per sealed epoch that has completed, and one more if any is left.

use super::events::EventPool;
use crate::driver::{DriverErrorKind, DriverResult, EventHandle, StreamDriver};
use crate::units::StreamId;
use std::collections::VecDeque;

/// An epoch that never passes.
pub const NEVER: u64 = u64::MAX;

/// Which calls may hand a stream's handle to the driver. A handle whose stream has been destroyed is undefined behaviour
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All: the stream lives as long as the device, or until its owner has it forgotten.
    Kept,
    /// Those that were handed it themselves: it lives as long as they run; how much longer is unknown.
    Given,
    /// None: the stream has been destroyed or forgotten, and no more work is queued on it. All of its work lies before
    /// the end of epoch `last`; if there is none, only a wait for the whole device shows that it has completed.
    Over {
        /// The last epoch.
        last: Option<u64>,
    },
}

/// How it can be known whether an epoch has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cover {
    /// It has passed.
    Passed,
    /// It has passed once this event has completed.
    Event(EventHandle),
    /// It cannot be known so far.
    Nothing,
}

/// How an event that is no longer needed is disposed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reuse {
    /// It is recorded again.
    Pool,
    /// It is destroyed: it belongs to a graph.
    Never,
}

/// How the host waits for an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWait {
    /// The epoch has passed.
    Needless,
    /// No event covers the epoch, so there is nothing to wait for.
    Impossible,
    /// The wait for this event, which [`StreamClock::end_wait`] has to follow.
    For(EventHandle),
}

/// The epochs of one stream.
#[derive(Debug)]
pub struct StreamClock {
    stream: StreamId,
    reach: Reach,
    open: u64,
    passed: u64,
    sealed: VecDeque<(u64, EventHandle)>,
    /// Number of host waits for events of this clock.
    waits: usize,
    /// Events that are no longer needed, but for those waits; and whether they can be recorded again.
    retired: Vec<(EventHandle, Reuse)>,
    /// The stream is over and all of its work has completed: every epoch has passed, the open one too.
    gone: bool,
}

impl StreamClock {
    /// Creates a clock whose first epoch, number 1, is open. Epoch 0 has passed: it stands for memory never used.
    pub fn new(stream: StreamId, reach: Reach) -> Self {
        Self { stream, reach, open: 1, passed: 0, sealed: VecDeque::new(), waits: 0, retired: Vec::new(), gone: false }
    }

    /// Returns the open epoch, in which memory is freed now.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// Returns the last epoch known to have passed, without a driver call: the open one for a stream that is gone. Not a
    /// later one: what the next stream of this entry frees is stamped with those.
    pub fn passed(&self) -> u64 {
        if self.gone { self.open } else { self.passed }
    }

    /// Returns true if `epoch` is known to have passed, without a driver call.
    pub fn has_passed(&self, epoch: u64) -> bool {
        self.cover(epoch) == Cover::Passed
    }

    /// Returns the number of sealed epochs that are not known to have passed.
    pub fn sealed(&self) -> usize {
        self.sealed.len()
    }

    /// Returns which calls may hand the stream's handle to the driver.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// Returns true once the stream is over and all of its work has completed.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Returns how it can be known whether `epoch` has passed.
    fn cover(&self, epoch: u64) -> Cover {
        if epoch <= self.passed || (self.gone && epoch < NEVER) {
            return Cover::Passed;
        }
        let last = if let Reach::Over { last } = self.reach { last } else { None };
        let covers = |sealed: u64| sealed >= epoch || (Some(sealed) == last && epoch < NEVER);
        self.sealed.iter().find(|(sealed, _)| covers(*sealed)).map_or(Cover::Nothing, |(_, event)| Cover::Event(*event))
    }

    /// Returns true if `epoch` has passed, or an event shows when it has.
    pub fn covers(&self, epoch: u64) -> bool {
        self.cover(epoch) != Cover::Nothing
    }

    /// Returns the last epoch that is covered, or that a call can cover by recording an event, without a wait for the whole device.
    /// The call was handed the stream if `given`. Whether the stream is being captured is not considered.
    pub fn coverable_until(&self, given: bool) -> u64 {
        let last_sealed = self.sealed.back().map_or(self.passed(), |(epoch, _)| *epoch);
        match self.reach {
            Reach::Over { last: Some(_) } => NEVER - 1,
            _ if self.may_name(given) => NEVER - 1,
            _ => last_sealed.max(self.passed()),
        }
    }

    /// Queries the driver for the sealed epochs that have passed, and returns the last one.
    ///
    /// # Errors
    /// Returns the driver's error. Epochs found to have passed before the error are kept.
    pub fn poll(&mut self, driver: &impl StreamDriver, events: &EventPool) -> DriverResult<u64> {
        while let Some(&(epoch, event)) = self.sealed.front() {
            match driver.event_query(event) {
                Ok(false) => break,
                Ok(true) => {
                    self.sealed.pop_front();
                    self.passed = epoch;
                    self.retire(event, Reuse::Pool, driver, events);
                }
                // A capture began between the check before the event was recorded and the recording, and has ended
                // since. The event belongs to the graph; the epoch is open for another one.
                Err(error) if error.kind == DriverErrorKind::Capturing => {
                    self.sealed.pop_front();
                    self.retire(event, Reuse::Never, driver, events);
                }
                Err(error) => return Err(error),
            }
        }
        self.note_end();
        Ok(self.passed())
    }

    /// Records an event for the open epoch and opens the next one. The caller must already stamp frees with the next
    /// epoch; `given` says that it was handed the stream. Returns `false`, without a change, while the stream is being
    /// captured, and where the driver must not get its handle.
    ///
    /// # Errors
    /// Returns the driver's error. The epoch stays open, which is always safe.
    pub fn seal(&mut self, given: bool, driver: &impl StreamDriver, events: &EventPool) -> DriverResult<bool> {
        if self.is_captured(given, driver) != Some(false) {
            return Ok(false);
        }
        let event = events.take(driver)?;
        if let Err(error) = driver.event_record(event, self.stream) {
            events.put(event);
            return Err(error);
        }
        if driver.is_capturing(self.stream) {
            // The capture may have begun before the recording: then the event belongs to the graph, and a query would
            // break the capture.
            let _ = driver.event_destroy(event);
            return Ok(false);
        }
        self.sealed.push_back((self.open, event));
        self.open += 1;
        Ok(true)
    }

    /// Returns whether the stream is being captured; `None` where the driver must not be asked.
    pub fn is_captured(&self, given: bool, driver: &impl StreamDriver) -> Option<bool> {
        self.may_name(given).then(|| driver.is_capturing(self.stream))
    }

    /// Closes the open epoch without an event, and returns it. The caller must already stamp frees with the next one.
    pub fn close_epoch(&mut self) -> u64 {
        self.open += 1;
        self.open - 1
    }

    /// Returns true if the stream has been destroyed or forgotten.
    pub fn is_over(&self) -> bool {
        matches!(self.reach, Reach::Over { .. })
    }

    /// Notes that all epochs up to `epoch`, which is closed, have passed: the whole device has been waited for. `over`
    /// says that the stream was over before that wait began.
    pub fn pass(&mut self, epoch: u64, over: bool, driver: &impl StreamDriver, events: &EventPool) {
        debug_assert!(epoch < self.open, "an open epoch cannot be waited for");
        while let Some(&(sealed, event)) = self.sealed.front() {
            if sealed > epoch {
                break;
            }
            self.sealed.pop_front();
            self.retire(event, Reuse::Pool, driver, events);
        }
        if epoch > self.passed {
            self.passed = epoch;
            self.gone = self.gone || over;
        }
        // Otherwise a later wait was noted before: it knew as much, and the entry may belong to another stream by now.
        self.note_end();
    }

    /// Blocks the calling thread until `epoch` has passed. Returns `false`, without waiting, where no event
    /// covers it.
    ///
    /// # Errors
    /// Returns the driver's error. Nothing has changed then.
    pub fn wait(&mut self, epoch: u64, driver: &impl StreamDriver, events: &EventPool) -> DriverResult<bool> {
        let event = match self.begin_wait(epoch) {
            HostWait::Needless => return Ok(true),
            HostWait::Impossible => return Ok(false),
            HostWait::For(event) => event,
        };
        let waited = driver.event_synchronize(event);
        self.end_wait(event, waited.is_ok(), driver, events);
        waited.map(|()| true)
    }

    /// Begins a host wait until `epoch` has passed, during which the clock need not be locked. The caller waits for the event,
    /// if there is one, and calls [`end_wait`](Self::end_wait).
    pub fn begin_wait(&mut self, epoch: u64) -> HostWait {
        match self.cover(epoch) {
            Cover::Passed => HostWait::Needless,
            Cover::Nothing => HostWait::Impossible,
            Cover::Event(event) => {
                self.waits += 1;
                HostWait::For(event)
            }
        }
    }

    /// Ends a host wait for `event`, which is known to have completed if `completed`.
    pub fn end_wait(&mut self, event: EventHandle, completed: bool, driver: &impl StreamDriver, events: &EventPool) {
        // Others may have found the same meanwhile.
        if completed && self.sealed.iter().any(|(_, sealed)| *sealed == event) {
            while let Some((epoch, passed)) = self.sealed.pop_front() {
                self.passed = epoch;
                self.retire(passed, Reuse::Pool, driver, events);
                if passed == event {
                    break;
                }
            }
            self.note_end();
        }
        self.waits -= 1;
        if self.waits == 0 {
            for (event, reuse) in std::mem::take(&mut self.retired) {
                self.retire(event, reuse, driver, events);
            }
        }
    }

    /// Puts an event aside that is no longer needed.
    fn retire(&mut self, event: EventHandle, reuse: Reuse, driver: &impl StreamDriver, events: &EventPool) {
        match reuse {
            _ if self.waits > 0 => self.retired.push((event, reuse)),
            Reuse::Pool => events.put(event),
            Reuse::Never => drop(driver.event_destroy(event)),
        }
    }

    /// Makes `waiter` wait on the device until `epoch` of this stream has passed. The host does not wait. Returns
    /// `false` where no event covers it.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub fn make_wait(&self, waiter: StreamId, epoch: u64, driver: &impl StreamDriver) -> DriverResult<bool> {
        match self.cover(epoch) {
            Cover::Passed => Ok(true),
            Cover::Nothing => Ok(false),
            Cover::Event(event) => driver.stream_wait(waiter, event).map(|()| true),
        }
    }

    /// Lets every call hand the stream's handle to the driver.
    pub fn keep(&mut self) {
        self.reach = Reach::Kept;
    }

    /// Notes that the stream is over; that all of its work lies before the last closed epoch, if `fenced`.
    pub fn end(&mut self, fenced: bool) {
        self.reach = Reach::Over { last: fenced.then_some(self.open - 1) };
        self.note_end();
    }

    /// Makes the clock of a stream that is gone that of another stream. What was freed so far has passed.
    pub fn renew(&mut self, stream: StreamId, reach: Reach) {
        debug_assert!(self.gone && self.sealed.is_empty(), "the stream is not gone");
        (self.stream, self.reach) = (stream, reach);
        (self.passed, self.open, self.gone) = (self.open, self.open + 1, false);
    }

    /// Returns all events to the pool without waiting for them, when the allocator is closed.
    pub fn drop_events(&mut self, events: &EventPool) {
        for (_, event) in self.sealed.drain(..) {
            events.put(event);
        }
    }

    /// Returns true if a call, which was handed the stream if `given`, may hand its handle to the driver.
    pub fn may_name(&self, given: bool) -> bool {
        match self.reach {
            Reach::Kept => true,
            Reach::Given => given,
            Reach::Over { .. } => false,
        }
    }

    /// Notes whether the last work of a stream that is over has completed.
    fn note_end(&mut self) {
        if let Reach::Over { last: Some(last) } = self.reach {
            self.gone = self.gone || self.passed >= last;
        }
    }

    /// Asserts I1.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub fn check(&self) {
        assert!(self.passed < self.open, "I1: an open epoch has passed");
        let mut last = self.passed;
        for (epoch, _) in &self.sealed {
            assert!(*epoch > last && *epoch < self.open, "I1: sealed epoch {epoch} out of order");
            last = *epoch;
        }
    }
}

#[cfg(test)]
mod tests;
