//! Stream handles of a simulated device, and the lanes that they stand for. As with a real driver, the value of a destroyed
//! stream's handle comes back at once for a new stream, while the work of the old one may still be running.
//!
//! A *lane* is what a simulated device runs the work of one stream in; its number is never used again. One handle stands for
//! a lane of its own on every thread.
//!
//! Threads: none of its own; its owner locks.

use super::thread::{PER_THREAD_STREAM, THREAD_KEYS, own_stream};
use super::{StreamIdentity, StreamLifetime};
use crate::units::StreamId;
use std::collections::BTreeMap;

#[derive(Debug)]
pub(super) struct Handles {
    lanes: BTreeMap<StreamId, StreamId>,
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
        Self { lanes: BTreeMap::from([(StreamId::DEFAULT, StreamId::DEFAULT)]), destroyed: Vec::new() }
    }

    /// Returns a handle for the stream in a new lane: the last one destroyed, or else the lane's own number.
    pub fn create(&mut self, lane: StreamId) -> StreamId {
        let handle = self.destroyed.pop().unwrap_or(lane);
        self.lanes.insert(handle, lane);
        handle
    }

    /// Returns the lane of the stream that a handle stands for on the calling thread.
    pub fn lane(&self, handle: StreamId) -> Result<StreamId, NoStream> {
        if handle == PER_THREAD_STREAM {
            return own_stream().map(|own| StreamId(own.number)).ok_or(NoStream::Unknown);
        }
        let missing = || if self.destroyed.contains(&handle) { NoStream::Destroyed } else { NoStream::Unknown };
        self.lanes.get(&handle).copied().ok_or_else(missing)
    }

    /// Returns which stream a handle stands for on the calling thread.
    pub fn identify(&self, handle: StreamId) -> Result<StreamIdentity, NoStream> {
        if handle == PER_THREAD_STREAM {
            return own_stream().ok_or(NoStream::Unknown);
        }
        let lifetime = if handle == StreamId::DEFAULT { StreamLifetime::Device } else { StreamLifetime::Owner };
        Ok(StreamIdentity { key: handle, number: self.lane(handle)?.0 + 1, lifetime })
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

/// Returns true for the lane of a thread's own stream. Nobody creates it: it is there when it is used first.
pub(super) fn is_of_thread(lane: StreamId) -> bool {
    lane.0 >= THREAD_KEYS
}

/// Returns true for handles that stand for default streams, which cannot be destroyed.
pub(super) fn is_default(handle: StreamId) -> bool {
    [StreamId::DEFAULT, PER_THREAD_STREAM].contains(&handle)
}

/// The number of the first lane that is created, and its handle: above those that stand for default streams.
pub(super) const FIRST_LANE: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_back_in_another_lane() {
        let mut handles = Handles::new();
        let first = handles.create(StreamId(8));
        assert_eq!(handles.destroy(first), Ok(StreamId(8)));
        assert_eq!(handles.lane(first), Err(NoStream::Destroyed));
        assert_eq!(handles.lane(StreamId(7)), Err(NoStream::Unknown));
        assert_eq!(handles.create(StreamId(9)), first);
        let own = || handles.lane(PER_THREAD_STREAM).unwrap();
        assert!(is_of_thread(own()) && own() != std::thread::scope(|scope| scope.spawn(own).join().unwrap()));
        assert_eq!((handles.lane(first), handles.created()), (Ok(StreamId(9)), 1));
    }
}
