//! What an allocator reports, as plain data and as text. How the figures come about is in `slow_path/inspect`.

mod live;
mod oom;
mod snapshot;
mod stats;

pub use live::LiveAllocation;
pub use oom::{OutOfMemory, Pinned, StreamUse};
pub use snapshot::{BlockSnapshot, ChunkSnapshot, RegionSnapshot, Snapshot};
pub use stats::{Fragmentation, SizeRange, Stats};
