//! The reports of an allocator, as plain data and as text. The figures are computed in `slow_path/inspect`.

mod asleep;
mod figures;
mod holder;
mod live;
mod oom;
mod shown;
mod snapshot;
mod stats;

pub use asleep::Asleep;
pub use holder::Holder;
pub use live::LiveAllocation;
pub use oom::{OutOfMemory, Pinned, StreamUse};
pub use shown::ShownPeaks;
pub use snapshot::{BlockSnapshot, ChunkSnapshot, RegionSnapshot, Snapshot};
pub use stats::{Figure, FigureKind, FigureUnit, Figures, Fragmentation, SizeRange, Stats};
