//! State that the allocator keeps for each stream, and its knowledge of the streams' progress.
//!
//! ```text
//! state.rs      one stream: regions, pending blocks, counts      region.rs     a heap over a slot of addresses
//! identity.rs   which stream a handle stands for             directory.rs  from an address to its region
//! progress.rs   which epochs have passed; waiting, ordering      live.rs       all blocks, the live ones
//! pending.rs    blocks that wait for other streams           settle.rs     these are freed, or waited for
//! peak.rs       the peak of live bytes over all streams      roomy.rs      which further regions have room
//! readings.rs   what the clocks said when they were read     largest.rs    the largest live blocks
//! extras.rs     what is kept of single blocks            sharing.rs    they are marked, pinned, let go
//! live_mark.rs  a stream's part of the meter of the peak       live_bounds.rs   bounds for the search for the largest
//! last.rs       the last block, freed and taken again
//! ```
//!
//! Threads: any. Lock order: the readings, a stream's clock, then stream states in the order of their numbers. No stream state is
//! locked during a driver call.

pub mod directory;
pub mod extras;
mod identity;
mod largest;
pub mod last;
mod live;
pub mod live_bounds;
mod live_mark;
pub mod peak;
pub mod pending;
mod progress;
mod readings;
pub mod region;
mod roomy;
mod settle;
mod sharing;
pub mod state;

pub use progress::Progress;

use super::geometry::Geometry;
use super::rules::Rules;
use crate::driver::{Counted, Driver};
use crate::stream::{Entries, EventPool, StreamClock, StreamIndex, StreamSet};
use crate::sync::{Arc, AtomicU64, MutexGuard, Ordering};
use identity::Known;
use peak::PeakMeter;
use readings::{Epochs, Readings};
use state::{AllStates, Stream, StreamState};

/// The streams of one allocator, and the driver that tells how far they are.
#[derive(Debug)]
pub struct Streams<D> {
    /// The driver; the slow path makes its memory calls through it as well.
    pub driver: Counted<D>,
    /// Idle events.
    pub events: EventPool,
    /// The peak of live bytes over all streams.
    pub peak: PeakMeter,
    entries: Entries<Stream>,
    known: Known,
    /// The streams in whose regions a block may be pending. Changed with the stream's state locked.
    pending: StreamSet,
    /// The streams in whose regions exposed memory may be that has to go back to the driver. Changed in the same way.
    exposed: StreamSet,
    /// The streams with epochs that are sealed and not known to have passed, and some others. Changed with the stream's clock
    /// locked.
    sealed: StreamSet,
    readings: Readings,
    /// Epoch of a stream's blocks at which they are renumbered.
    epoch_limit: u32,
    rules: Rules,
    host_waits: AtomicU64,
    /// Number of waits for the device that a capture forbade.
    waits_forbidden: AtomicU64,
}

impl<D: Driver> Streams<D> {
    /// No streams yet.
    pub fn new(driver: Arc<D>, geometry: &Geometry) -> Self {
        Self {
            driver: Counted::new(driver),
            events: EventPool::default(),
            peak: PeakMeter::default(),
            entries: Entries::default(),
            known: Known::default(),
            pending: StreamSet::default(),
            exposed: StreamSet::default(),
            sealed: StreamSet::default(),
            readings: Readings::default(),
            epoch_limit: geometry.epoch_limit,
            rules: geometry.rules,
            host_waits: AtomicU64::new(0),
            waits_forbidden: AtomicU64::new(0),
        }
    }

    /// The stream with this number.
    #[inline]
    pub fn get(&self, index: StreamIndex) -> &Stream {
        self.entries.get(index)
    }

    /// The number of streams.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// All streams, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.entries.iter()
    }

    /// The progress of the streams, for a call that was handed the stream `given`, or none.
    pub fn progress(&self, given: Option<StreamIndex>) -> Progress<'_, D> {
        Progress::new(self, given)
    }

    /// The states of all streams, locked in the order of their numbers.
    pub fn lock_all(&self) -> AllStates<'_> {
        self.iter().map(Stream::lock).collect()
    }

    /// The streams in whose regions a block may be pending.
    pub fn with_pending(&self) -> impl Iterator<Item = &Stream> {
        self.pending.iter().map(|index| {
            #[cfg(test)]
            crate::testing::step();
            self.get(index)
        })
    }

    /// The streams in whose regions exposed memory may be that has to go back to the driver.
    pub fn with_exposed(&self) -> impl Iterator<Item = &Stream> {
        self.exposed.iter().map(|index| self.get(index))
    }

    /// Notes whether a block of a stream's regions is pending, or exposed and freed. Called with its state, which is this one,
    /// locked.
    pub fn note_pending(&self, index: StreamIndex, state: &StreamState) {
        self.pending.set(index, !state.pending.is_empty());
        self.exposed.set(index, !state.exposed.is_empty());
    }

    /// Notes whether a stream has events that have not completed. Called with its clock, which is this one, locked.
    fn note_sealed(&self, index: StreamIndex, clock: &StreamClock) {
        self.sealed.set(index, clock.sealed() > 0);
    }

    /// Returns the readings of all streams' clocks.
    fn readings(&self) -> MutexGuard<'_, Epochs> {
        self.readings.of_now(self.count(), |index| &self.get(index).clock)
    }

    /// The sum of all live bytes. Looks at the streams that have changed since it did last; `actor` is likely to go on.
    pub fn live_bytes(&self, actor: StreamIndex) -> u64 {
        self.peak.sum(|index| self.get(index), actor)
    }

    /// Returns how many times the host has waited for a stream.
    pub fn host_waits(&self) -> u64 {
        self.host_waits.load(Ordering::Relaxed)
    }

    /// How often a capture has kept the host from waiting for the device.
    pub fn waits_forbidden(&self) -> u64 {
        self.waits_forbidden.load(Ordering::Relaxed)
    }
}
