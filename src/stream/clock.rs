//! Stream clock: the open epoch of one stream, the sealed epochs that have not passed, and the last one that has.
//!
//! ```text
//!      passed            sealed (event recorded)       open
//!   1 2 3 ... p  │  p+1 ─ e1   ...   o-1 ─ ek     │     o
//! ```
//!
//! - I1  `passed < open`; the sealed epochs are in order, each above `passed` and below `open`.
//!
//! Cost: `poll` makes one driver call per sealed epoch that has completed, and one more if any is left.

use super::events::EventPool;
use crate::driver::{DriverResult, EventHandle, StreamDriver};
use crate::units::StreamId;
use std::collections::VecDeque;

/// The epochs of one stream.
#[derive(Debug)]
pub struct StreamClock {
    stream: StreamId,
    open: u64,
    passed: u64,
    sealed: VecDeque<(u64, EventHandle)>,
}

impl StreamClock {
    /// Creates a clock whose first epoch, number 1, is open. Epoch 0 has passed: it stands for memory never used.
    pub fn new(stream: StreamId) -> Self {
        Self { stream, open: 1, passed: 0, sealed: VecDeque::new() }
    }

    /// Returns the open epoch, in which memory is freed now.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// Returns the last epoch known to have passed, without a driver call.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Returns the number of sealed epochs that are not known to have passed.
    pub fn sealed(&self) -> usize {
        self.sealed.len()
    }

    /// Queries the driver for the sealed epochs that have passed, and returns the last one.
    ///
    /// # Errors
    /// Returns the driver's error. Epochs found to have passed before the error are kept.
    pub fn poll(&mut self, driver: &impl StreamDriver, events: &EventPool) -> DriverResult<u64> {
        while let Some(&(epoch, event)) = self.sealed.front() {
            if !driver.event_query(event)? {
                break;
            }
            self.sealed.pop_front();
            self.passed = epoch;
            events.put(event);
        }
        Ok(self.passed)
    }

    /// Records an event for the open epoch and opens the next one. The caller must already stamp frees with the next
    /// epoch. Returns `false`, without a change, while the stream is being captured.
    ///
    /// # Errors
    /// Returns the driver's error. The epoch stays open, which is always safe.
    pub fn seal(&mut self, driver: &impl StreamDriver, events: &EventPool) -> DriverResult<bool> {
        if driver.is_capturing(self.stream) {
            return Ok(false);
        }
        let event = events.take(driver)?;
        if let Err(error) = driver.event_record(event, self.stream) {
            events.put(event);
            return Err(error);
        }
        self.sealed.push_back((self.open, event));
        self.open += 1;
        Ok(true)
    }

    /// Blocks the calling thread until `epoch`, which must not be open, has passed.
    ///
    /// # Errors
    /// Returns the driver's error. Nothing has changed then.
    pub fn wait(&mut self, epoch: u64, driver: &impl StreamDriver, events: &EventPool) -> DriverResult<()> {
        if epoch <= self.passed {
            return Ok(());
        }
        debug_assert!(epoch < self.open, "the open epoch cannot be waited for");
        if let Some(&(_, event)) = self.sealed.iter().find(|(sealed, _)| *sealed >= epoch) {
            driver.event_synchronize(event)?;
        }
        while let Some(&(sealed, event)) = self.sealed.front() {
            self.sealed.pop_front();
            self.passed = sealed;
            events.put(event);
            if sealed >= epoch {
                break;
            }
        }
        Ok(())
    }

    /// Makes `waiter` wait on the device until `epoch` of this stream, which must not be open, has passed. The host
    /// does not wait.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub fn hold_back(&self, waiter: StreamId, epoch: u64, driver: &impl StreamDriver) -> DriverResult<()> {
        debug_assert!(epoch < self.open, "the open epoch cannot be waited for");
        match self.sealed.iter().find(|(sealed, _)| *sealed >= epoch) {
            Some(&(_, event)) if epoch > self.passed => driver.stream_wait(waiter, event),
            _ => Ok(()),
        }
    }

    /// Returns all events to the pool without waiting for them, when the allocator is closed.
    pub fn forget(&mut self, events: &EventPool) {
        for (_, event) in self.sealed.drain(..) {
            events.put(event);
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
mod tests {
    use super::*;
    use crate::driver::{DriverCall, DriverErrorKind, Fault, FaultDriver, ModelDriver, WorkDriver};
    use crate::testing::{Break, assert_noticed};

    const MAIN: StreamId = StreamId::DEFAULT;

    fn clock() -> (ModelDriver, EventPool, StreamClock) {
        (ModelDriver::default(), EventPool::default(), StreamClock::new(MAIN))
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<StreamClock>] = &[
            ("I1: an open epoch has passed", |clock| clock.passed = clock.open),
            ("I1: sealed epoch 3 out of order", |clock| clock.open = 3),
            ("I1: sealed epoch 2 out of order", |clock| clock.passed = 2),
            ("I1: sealed epoch 2 out of order", |clock| clock.sealed.swap(0, 1)),
        ];
        let clock = || {
            let (driver, events, mut clock) = clock();
            driver.hold(MAIN);
            clock.open = 2;
            clock.passed = 1;
            assert!(clock.seal(&driver, &events).unwrap() && clock.seal(&driver, &events).unwrap());
            clock
        };
        assert_noticed(clock, StreamClock::check, breaks);
    }

    #[test]
    fn epochs_pass_in_order() {
        let (driver, events, mut clock) = clock();
        assert_eq!((clock.open(), clock.passed(), clock.sealed()), (1, 0, 0));
        driver.hold(MAIN);
        for open in 2..5 {
            assert!(clock.seal(&driver, &events).unwrap());
            assert_eq!((clock.open(), clock.sealed() as u64), (open, open - 1));
        }
        clock.check();
        assert_eq!(clock.poll(&driver, &events), Ok(0), "nothing has passed");
        driver.complete(MAIN);
        assert!(clock.seal(&driver, &events).unwrap(), "sealed on a stream that is not held");
        assert_eq!(clock.poll(&driver, &events), Ok(3));
        assert_eq!((clock.open(), clock.passed(), clock.sealed()), (5, 3, 1));
        clock.check();
        assert_eq!(driver.calls()[DriverCall::EventCreate], 4);
        assert!(clock.seal(&driver, &events).unwrap());
        assert_eq!(driver.calls()[DriverCall::EventCreate], 4, "events are reused");
    }

    #[test]
    fn the_host_waits_only_for_the_epoch_in_question() {
        let (driver, events, mut clock) = clock();
        driver.hold(MAIN);
        let within = [1, 2, 3].map(|_| {
            let event = driver.event_create().unwrap();
            driver.event_record(event, MAIN).unwrap();
            clock.seal(&driver, &events).unwrap();
            event
        });
        clock.wait(0, &driver, &events).unwrap();
        assert_eq!(driver.host_waits(), 0, "epoch 0 has passed from the start");
        clock.wait(2, &driver, &events).unwrap();
        assert_eq!((driver.host_waits(), clock.passed(), clock.sealed()), (1, 2, 1));
        assert_eq!(within.map(|event| driver.event_query(event).unwrap()), [true, true, false]);
        clock.check();
        clock.wait(2, &driver, &events).unwrap();
        assert_eq!(driver.host_waits(), 1, "the epoch is known to have passed");
    }

    #[test]
    fn another_stream_is_held_back_by_what_has_not_passed() {
        let (driver, events, mut clock) = clock();
        let other = driver.create_stream().unwrap();
        let waits = || driver.calls()[DriverCall::StreamWait];
        driver.hold(MAIN);
        clock.seal(&driver, &events).unwrap();
        clock.hold_back(other, 0, &driver).unwrap();
        assert_eq!(waits(), 0, "epoch 0 has passed from the start");
        clock.hold_back(other, 1, &driver).unwrap();
        assert_eq!(waits(), 1);
        let event = driver.event_create().unwrap();
        driver.event_record(event, other).unwrap();
        assert!(!driver.event_query(event).unwrap(), "the other stream waits for epoch 1");
        driver.complete(MAIN);
        assert!(driver.event_query(event).unwrap());
        clock.poll(&driver, &events).unwrap();
        clock.hold_back(other, 1, &driver).unwrap();
        assert_eq!(waits(), 1, "the epoch has passed");
    }

    #[test]
    fn the_epoch_stays_open_after_a_failure_or_during_a_capture() {
        let driver = FaultDriver::new(ModelDriver::default());
        let (events, mut clock) = (EventPool::default(), StreamClock::new(MAIN));
        let own = driver.create_stream().unwrap();
        let mut capturing = StreamClock::new(own);
        driver.inner().begin_capture(own);
        assert_eq!(capturing.seal(&driver, &events), Ok(false));
        assert_eq!((capturing.open(), capturing.sealed()), (1, 0));
        driver.inner().end_capture(own);
        driver.arm(Fault::nth(0, DriverErrorKind::OutOfMemory).only([DriverCall::EventRecord]));
        assert!(clock.seal(&driver, &events).is_err());
        assert_eq!((clock.open(), clock.sealed()), (1, 0));
        driver.disarm();
        assert_eq!(clock.seal(&driver, &events), Ok(true));
        assert_eq!(driver.inner().calls()[DriverCall::EventCreate], 1, "the event of the failure was kept");
        clock.forget(&events);
        assert_eq!(clock.sealed(), 0);
        events.clear(&driver).unwrap();
        assert_eq!(driver.inner().usage().events, 0);
    }
}
