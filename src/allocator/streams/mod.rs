//! What the allocator keeps for each stream, and what it knows about the streams' progress.
//!
//! ```text
//! state.rs      one stream: regions, pending blocks, counts      region.rs     a heap over a slot of addresses
//! progress.rs   which epochs have passed; waiting, ordering      directory.rs  from an address to its region
//! peak.rs       the peak of live bytes over all streams      live.rs       the live allocations
//! ```
//!
//! Threads: any. Lock order: a stream's clock, then stream states in the order of their numbers. No stream state is
//! locked during a driver call.

pub mod directory;
mod live;
pub mod peak;
mod progress;
pub mod region;
pub mod state;

use super::error::StreamError;
use crate::driver::{Counted, Driver, StreamDriver};
use crate::stream::{EventPool, STREAM_LIMIT, StreamIndex, StreamTable};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::units::StreamId;
use peak::PeakMeter;
use state::{AllStates, Stream};

/// The streams of one allocator, and the driver that tells how far they are.
#[derive(Debug)]
pub struct Streams<D> {
    /// The driver; the slow path makes its memory calls through it as well.
    pub driver: Counted<D>,
    /// Idle events.
    pub events: EventPool,
    /// The peak of live bytes over all streams.
    pub peak: PeakMeter,
    table: StreamTable<Stream>,
    /// Epoch of a stream's blocks at which they are renumbered.
    epoch_limit: u32,
    host_waits: AtomicU64,
}

impl<D: Driver> Streams<D> {
    /// No streams yet.
    pub fn new(driver: Arc<D>, epoch_limit: u32) -> Self {
        Self {
            driver: Counted::new(driver),
            events: EventPool::default(),
            peak: PeakMeter::default(),
            table: StreamTable::default(),
            epoch_limit,
            host_waits: AtomicU64::new(0),
        }
    }

    /// The stream with this handle, if the allocator has seen it.
    #[inline]
    pub fn find(&self, stream: StreamId) -> Option<&Stream> {
        self.table.find(stream)
    }

    /// The stream with this handle, added if it is new and the driver accepts it.
    #[inline]
    pub fn find_or_add(&self, stream: StreamId) -> Result<&Stream, StreamError> {
        match self.find(stream) {
            Some(known) => Ok(known),
            None => self.add(stream),
        }
    }

    #[cold]
    fn add(&self, stream: StreamId) -> Result<&Stream, StreamError> {
        self.driver.check_stream(stream).map_err(|source| StreamError::Foreign { stream, source })?;
        self.table
            .find_or_add(stream, |index| Stream::new(stream, index))
            .ok_or(StreamError::TooMany { limit: STREAM_LIMIT })
    }

    /// The stream with this number.
    #[inline]
    pub fn get(&self, index: StreamIndex) -> &Stream {
        self.table.get(index)
    }

    /// All streams, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.table.iter()
    }

    /// The states of all streams, locked in the order of their numbers.
    pub fn lock_all(&self) -> AllStates<'_> {
        self.iter().map(Stream::lock).collect()
    }

    /// How often the host has waited for a stream.
    pub fn host_waits(&self) -> u64 {
        self.host_waits.load(Ordering::Relaxed)
    }
}
