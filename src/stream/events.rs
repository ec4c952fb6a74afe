//! Event pool: events are created once and recorded many times.

use crate::driver::{DriverResult, EventHandle, StreamDriver};
use crate::sync::SegQueue;

/// The idle events of one driver. May be used by any thread; lock-free.
#[derive(Debug, Default)]
pub struct EventPool {
    idle: SegQueue<EventHandle>,
}

impl EventPool {
    /// Returns an event to record: an idle one, or a new one if there is none.
    ///
    /// # Errors
    /// Returns the driver's error if it cannot create an event.
    pub fn take(&self, driver: &impl StreamDriver) -> DriverResult<EventHandle> {
        match self.idle.pop() {
            Some(event) => Ok(event),
            None => driver.event_create(),
        }
    }

    /// Returns an event to the pool. Its last recording no longer matters.
    pub fn put(&self, event: EventHandle) {
        self.idle.push(event);
    }

    /// Destroys all idle events.
    ///
    /// # Errors
    /// Returns the driver's first error, after trying to destroy all events.
    pub fn clear(&self, driver: &impl StreamDriver) -> DriverResult<()> {
        let mut first = Ok(());
        while let Some(event) = self.idle.pop() {
            let result = driver.event_destroy(event);
            first = first.and(result);
        }
        first
    }
}
