//! Event pool: events are created once and recorded many times.

use crate::driver::{DriverResult, EventHandle, StreamDriver};
use crate::sync::SegQueue;

/// Idle events of one driver. Any thread; lock-free.
#[derive(Debug, Default)]
pub struct EventPool {
    idle: SegQueue<EventHandle>,
}

impl EventPool {
    /// An event to record: an idle one, or a new one.
    ///
    /// # Errors
    /// The driver's, when it cannot create one.
    pub fn take(&self, driver: &impl StreamDriver) -> DriverResult<EventHandle> {
        match self.idle.pop() {
            Some(event) => Ok(event),
            None => driver.event_create(),
        }
    }

    /// Takes an event back; its last recording no longer matters.
    pub fn put(&self, event: EventHandle) {
        self.idle.push(event);
    }

    /// Destroys all idle events. Returns the first failure, having tried all.
    ///
    /// # Errors
    /// The driver's.
    pub fn clear(&self, driver: &impl StreamDriver) -> DriverResult<()> {
        let mut first = Ok(());
        while let Some(event) = self.idle.pop() {
            let result = driver.event_destroy(event);
            first = first.and(result);
        }
        first
    }
}
