//! Stream clock: the open epoch of one stream, the sealed ones on their way, and the last that has passed.
//!
//! ```text
//!      passed            sealed (event recorded)       open
//!   1 2 3 ... p  │  p+1 ─ e1   ...   o-1 ─ ek     │     o
//! ```
//!
//! - I1  `passed < open`; the sealed epochs are in order, each above `passed` and below `open`.
//!
//! Cost: `has_passed` is free for a passed epoch, else one query per sealed epoch that has completed plus one.

use super::events::EventPool;
use crate::driver::{DriverResult, EventHandle, StreamDriver};
use crate::units::StreamId;
use std::collections::VecDeque;

/// Epochs of one stream.
#[derive(Debug)]
pub struct StreamClock {
    stream: StreamId,
    open: u64,
    passed: u64,
    sealed: VecDeque<(u64, EventHandle)>,
}

impl StreamClock {
    /// A clock whose first epoch is open. Epoch 0 has passed: it is that of memory never used.
    pub fn new(stream: StreamId) -> Self {
        Self { stream, open: 1, passed: 0, sealed: VecDeque::new() }
    }

    /// The epoch that a free made now belongs to.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// The last epoch known to have passed, without asking the driver.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Epochs sealed and not known to have passed.
    pub fn sealed(&self) -> usize {
        self.sealed.len()
    }

    /// Asks the driver which sealed epochs have passed; returns the last that has.
    ///
    /// # Errors
    /// The driver's; what was learned before it stays known.
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

    /// Records an event for the open epoch and opens the next. The caller has made sure that frees from now on are
    /// stamped with the next epoch. False while the stream is being captured: nothing has changed then.
    ///
    /// # Errors
    /// The driver's; the epoch stays open, which is always safe.
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

    /// Blocks the host until `epoch`, which is sealed or passed, has passed.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait(&mut self, epoch: u64, driver: &impl StreamDriver, events: &EventPool) -> DriverResult<()> {
        if epoch <= self.passed {
            return Ok(());
        }
        debug_assert!(epoch < self.open, "only a sealed epoch can be waited for");
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

    /// Makes `waiter` wait, on the device, until `epoch` of this stream, which is sealed or passed, has passed.
    ///
    /// # Errors
    /// The driver's.
    pub fn hold_back(&self, waiter: StreamId, epoch: u64, driver: &impl StreamDriver) -> DriverResult<()> {
        debug_assert!(epoch < self.open, "only a sealed epoch can be waited for");
        match self.sealed.iter().find(|(sealed, _)| *sealed >= epoch) {
            Some(&(_, event)) if epoch > self.passed => driver.stream_wait(waiter, event),
            _ => Ok(()),
        }
    }

    /// Gives all events back without waiting for them: for tearing down.
    pub fn forget(&mut self, events: &EventPool) {
        for (_, event) in self.sealed.drain(..) {
            events.put(event);
        }
    }

    /// Asserts I1.
    ///
    /// # Panics
    /// When it does not hold.
    pub fn check(&self) {
        assert!(self.passed < self.open, "I1: an open epoch has passed");
        let mut last = self.passed;
        for (epoch, _) in &self.sealed {
            assert!(*epoch > last && *epoch < self.open, "I1: sealed epoch {epoch} out of order");
            last = *epoch;
        }
    }
}
