//! Waits of the host for streams: memory is taken away only when no work may use it any more.

use gapless::driver::{Driver, DriverResult, EventHandle};
use gapless::units::StreamId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The streams used so far, each with the event that is recorded on it to wait for it.
pub(super) struct Waits<D: Driver> {
    driver: Arc<D>,
    events: BTreeMap<StreamId, EventHandle>,
    /// Number of waits.
    count: u64,
}

impl<D: Driver> Waits<D> {
    pub(super) const fn new(driver: Arc<D>) -> Self {
        Self { driver, events: BTreeMap::new(), count: 0 }
    }

    /// Returns the number of waits so far.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Notes that work may be queued on `stream`.
    pub(super) fn note(&mut self, stream: StreamId) -> DriverResult<()> {
        if let std::collections::btree_map::Entry::Vacant(new) = self.events.entry(stream) {
            new.insert(self.driver.event_create()?);
        }
        Ok(())
    }

    /// Blocks until all work queued on `stream` has completed (`cudaStreamSynchronize`).
    pub(super) fn for_stream(&mut self, stream: StreamId) -> DriverResult<()> {
        self.count += 1;
        let Some(&event) = self.events.get(&stream) else { return Ok(()) };
        self.driver.event_record(event, stream)?;
        self.driver.event_synchronize(event)
    }

    /// Blocks until all work queued on any stream has completed, as `cudaFree` does.
    pub(super) fn for_device(&mut self) -> DriverResult<()> {
        self.count += 1;
        for (&stream, &event) in &self.events {
            self.driver.event_record(event, stream)?;
        }
        self.events.values().try_for_each(|&event| self.driver.event_synchronize(event))
    }
}

impl<D: Driver> Drop for Waits<D> {
    fn drop(&mut self) {
        for &event in self.events.values() {
            // If the device is lost, its events are lost with it, and `drop` cannot report an error.
            let _ = self.driver.event_destroy(event);
        }
    }
}
