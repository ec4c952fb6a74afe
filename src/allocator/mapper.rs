//! Mapper: what only the slow path touches. One per allocator, behind one lock, so that at most one thread talks to the
//! driver about mappings: the driver serialises such calls anyway.

use crate::physical::{ChunkId, ChunkPool, ChunkSizes, ViewAt};
use crate::segment::{Segment, View};
use crate::units::DeviceAddr;

/// Chunks, segments and their page tables.
#[derive(Debug)]
pub struct Mapper {
    /// Physical memory.
    pub pool: ChunkPool,
    /// How large new chunks are.
    pub sizes: ChunkSizes,
    /// Segments, by number.
    pub segments: Vec<Segment>,
    /// Reservations of dropped ranges that could not be given back then: address and bytes.
    pub left_behind: Vec<(DeviceAddr, u64)>,
    /// Slots of the next arena.
    pub next_arena_slots: usize,
    /// Segments taken out of use because a driver sequence could not be undone.
    pub poisoned: u64,
    /// Chunks moved from one place to another.
    pub harvested_chunks: u64,
    /// Stale views taken up again without a driver call.
    pub reused_views: u64,
}

impl Mapper {
    /// The view at a place.
    pub fn view(&self, at: ViewAt) -> &View {
        self.segments[at.segment as usize].table.view(at.page).expect("a chunk's view is in the page table")
    }

    /// All views of a chunk, the active one first.
    pub fn views_of(&self, chunk: ChunkId) -> Vec<ViewAt> {
        let chunk = self.pool.get(chunk);
        chunk.active.into_iter().chain(chunk.stale.iter().copied()).collect()
    }

    /// Number of mappings.
    pub fn mappings(&self) -> usize {
        self.segments.iter().map(|segment| segment.table.len()).sum()
    }
}
