//! Streams: when memory that one stream used may be reused by another.
//!
//! Time on a stream is counted in *epochs*. Every free happens in the open epoch of its stream; recording an event
//! *seals* that epoch and opens the next. Once the event has completed, all work before the frees of that epoch is
//! done: the epoch has *passed*. So one event covers any number of frees, and none is recorded until it is needed.
//!
//! Threads: the owner of a [`StreamClock`] holds a lock; [`StreamTable`], [`Entries`], [`StreamSet`] and [`EventPool`] may be used
//! by any thread.
//! Lock order: see `docs/internals/design.md`.

mod clock;
mod entries;
mod events;
mod set;
mod table;

pub use clock::{HostWait, NEVER, Reach, StreamClock};
pub use entries::{CAPACITY as STREAM_LIMIT, Entries, Slots};
pub use events::EventPool;
pub use set::StreamSet;
pub use table::StreamTable;

/// Index of a stream in the allocator's [`Entries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamIndex(pub u32);

/// A point in a stream's time: the end of an epoch. It has passed when the stream has passed that epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// The stream whose time is meant.
    pub stream: StreamIndex,
    /// The epoch that ends at the fence.
    pub epoch: u64,
}
