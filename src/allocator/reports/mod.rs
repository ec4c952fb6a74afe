//! The reports of an allocator, as plain data and as text. The figures are computed in `slow_path/inspect`.

mod live;
mod oom;
mod snapshot;
mod stats;

pub use live::LiveAllocation;
pub use oom::{OutOfMemory, Pinned, StreamUse};
pub use snapshot::{BlockSnapshot, ChunkSnapshot, RegionSnapshot, Snapshot};
pub use stats::{Fragmentation, SizeRange, Stats};
