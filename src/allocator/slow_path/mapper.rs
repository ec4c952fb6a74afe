//! Mapper: chunks, segments and their page tables, which only the slow path touches. One per allocator, behind one lock, so
//! that at most one thread talks to the driver about mappings: the driver serialises such calls anyway.

use super::super::geometry::Geometry;
use super::stale::StaleOrder;
use crate::driver::ChunkHandle;
use crate::pages::PageIndex;
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
    /// Reservations of dropped ranges that could not be returned to the driver then: address and bytes.
    pub left_behind: Vec<(DeviceAddr, u64)>,
    /// What was mapped behind blocks, in an allocator that keeps its mappings.
    pub kept: Vec<(ViewAt, ChunkHandle)>,
    /// The stale views, oldest first.
    pub stale_order: StaleOrder,
    /// Number and bytes of the slots of the next arena for streams without regions.
    pub next_arena: (usize, u64),
    /// Number of segments with addresses out of use because a driver sequence could not be undone.
    pub poisoned: u64,
    /// Number of chunks moved from one place to another.
    pub harvested_chunks: u64,
    /// Number of stale views that became active again without a driver call.
    pub reused_views: u64,
}

impl Mapper {
    /// Nothing is held, nothing is mapped.
    pub fn new(geometry: &Geometry, budget_bytes: u64) -> Self {
        Self {
            pool: ChunkPool::new(geometry.page_bytes, budget_bytes),
            sizes: ChunkSizes::new(geometry.chunk_policy, geometry.page_bytes),
            segments: Vec::new(),
            left_behind: Vec::new(),
            kept: Vec::new(),
            stale_order: StaleOrder::default(),
            next_arena: geometry.first_slots,
            poisoned: 0,
            harvested_chunks: 0,
            reused_views: 0,
        }
    }

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

/// The place of a view that starts at `page` of segment number `segment`.
pub fn view_at(segment: usize, page: PageIndex) -> ViewAt {
    ViewAt { segment: u32::try_from(segment).expect("segment numbers are 32 bits"), page }
}
