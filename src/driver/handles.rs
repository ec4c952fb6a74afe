//! Stream handles of a simulated device. As with a real driver, the value of a destroyed stream's handle comes back at
//! once for a new stream, while the work of the old one may still be running.
//!
//! A *lane* is what a simulated device runs the work of one stream in; its number is never used again.
//!
//! Threads: none of its own; its owner locks.

use crate::units::StreamId;
use std::collections::HashMap;

#[derive(Debug)]
pub(super) struct Handles {
    lanes: HashMap<StreamId, StreamId>,
    /// Destroyed handles, the last one last. None of them has a lane.
    destroyed: Vec<StreamId>,
}

/// Why a handle stands for no stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoStream {
    /// No stream had it.
    Unknown,
    /// Its stream was destroyed. On a real device every use of it is undefined behaviour.
    Destroyed,
}

impl Handles {
    /// The default stream, in a lane of the same number.
    pub fn new() -> Self {
        Self { lanes: HashMap::from([(StreamId::DEFAULT, StreamId::DEFAULT)]), destroyed: Vec::new() }
    }

    /// Returns a handle for the stream in a new lane: the last one destroyed, or else the lane's own number.
    pub fn create(&mut self, lane: StreamId) -> StreamId {
        let handle = self.destroyed.pop().unwrap_or(lane);
        self.lanes.insert(handle, lane);
        handle
    }

    pub fn lane(&self, handle: StreamId) -> Result<StreamId, NoStream> {
        let missing = || if self.destroyed.contains(&handle) { NoStream::Destroyed } else { NoStream::Unknown };
        self.lanes.get(&handle).copied().ok_or_else(missing)
    }

    /// Makes the handle invalid, and returns its lane.
    pub fn destroy(&mut self, handle: StreamId) -> Result<StreamId, NoStream> {
        let lane = self.lane(handle)?;
        self.lanes.remove(&handle);
        self.destroyed.push(handle);
        Ok(lane)
    }

    /// Number of streams that have a handle, without the default one.
    pub fn created(&self) -> usize {
        self.lanes.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_back_in_another_lane() {
        let mut handles = Handles::new();
        let first = handles.create(StreamId(1));
        assert_eq!(handles.destroy(first), Ok(StreamId(1)));
        assert_eq!(handles.lane(first), Err(NoStream::Destroyed));
        assert_eq!(handles.lane(StreamId(7)), Err(NoStream::Unknown));
        assert_eq!(handles.create(StreamId(2)), first);
        assert_eq!((handles.lane(first), handles.created()), (Ok(StreamId(2)), 1));
    }
}
