//! What an allocator reports: plain data, and how it is computed from the streams' states and from [`Holdings`].
//!
//! Nothing here locks or calls the driver: whoever asks hands in what it has locked.

mod holdings;
mod live;
mod oom;
mod snapshot;
mod stats;

pub use holdings::Holdings;
pub use live::{LiveAllocation, live_blocks};
pub use oom::{OutOfMemory, Pinned, StreamUse};
pub use snapshot::{BlockSnapshot, ChunkSnapshot, RegionSnapshot, Snapshot};
pub use stats::{Fragmentation, SizeRange, Stats};
