//! Streams: who may reuse what, when.
//!
//! Time on a stream is counted in *epochs*. Every free happens in the open epoch of its stream; recording an event
//! *seals* that epoch and opens the next. Once the event has completed, every use before any free of that epoch is
//! over: the epoch has *passed*. So one event covers any number of frees, and none is recorded until somebody asks.
//!
//! Threads: a [`StreamClock`] is locked by its owner. Lock order: see `ARCHITECTURE.md`.

mod clock;
mod events;
mod table;

pub use clock::StreamClock;
pub use events::EventPool;
pub use table::{CAPACITY as STREAM_LIMIT, Slots, StreamTable};

/// A stream's place in the allocator's [`StreamTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamIndex(pub u32);

/// A point on a stream: everything up to and including this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// The stream.
    pub stream: StreamIndex,
    /// The epoch.
    pub epoch: u64,
}
