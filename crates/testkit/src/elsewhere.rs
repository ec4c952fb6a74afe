//! The streams of threads that were left: no other thread can name them to the driver, but each can wait for their ends.

use gapless::driver::EventHandle;
use gapless::units::StreamId;
use std::collections::BTreeMap;

/// The streams of threads that were left, by their names, and the events at their ends.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere(pub BTreeMap<StreamId, EventHandle>);

impl Elsewhere {
    pub fn events(&self) -> usize {
        self.0.len()
    }

    /// Returns the event at the end of a stream of another thread.
    pub fn end_of(&self, stream: StreamId) -> Option<EventHandle> {
        self.0.get(&stream).copied()
    }
}
