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
    /// Bytes of host memory behind the page tables.
    tables_bytes: u64,
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
            tables_bytes: 0,
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

    /// Adds a view to the page table of a segment.
    pub fn add_view(&mut self, segment: usize, view: View) {
        let table = &mut self.segments[segment].table;
        let before = table.metadata_bytes();
        table.add(view);
        self.tables_bytes += table.metadata_bytes() - before;
    }

    /// Puts another segment in the place of one that is not needed any more. Returns that.
    pub fn replace_segment(&mut self, number: usize, fresh: Segment) -> Segment {
        let before = std::mem::replace(&mut self.segments[number], fresh);
        self.tables_bytes -= before.table.metadata_bytes();
        before
    }

    /// Number of mappings.
    pub fn mappings(&self) -> usize {
        self.pool.views()
    }

    /// Bytes of host memory behind chunks and page tables.
    pub fn metadata_bytes(&self) -> u64 {
        self.pool.metadata_bytes() + self.tables_bytes
    }

    /// Asserts that what is counted is what there is.
    ///
    /// # Panics
    /// Panics if it is not.
    pub fn check_counts(&self) {
        let views: usize = self.segments.iter().map(|segment| segment.table.len()).sum();
        assert_eq!(views, self.mappings(), "mappings");
        let tables: u64 = self.segments.iter().map(|segment| segment.table.metadata_bytes()).sum();
        assert_eq!(tables, self.tables_bytes, "memory of page tables");
    }
}

/// The place of a view that starts at `page` of segment number `segment`.
pub fn view_at(segment: usize, page: PageIndex) -> ViewAt {
    ViewAt { segment: u32::try_from(segment).expect("segment numbers are 32 bits"), page }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{ModelConfig, ModelDriver};
    use crate::testing::{Break, assert_noticed};
    use crate::units::StreamId;
    use std::mem::ManuallyDrop;
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;

    fn allocator() -> ManuallyDrop<Allocator<ModelDriver>> {
        let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
        ManuallyDrop::new(Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap())
    }

    /// The books of a chunk and its mapping take some bytes of the host's memory, and few.
    #[test]
    fn chunks_and_mappings_take_memory_of_the_host() {
        let allocator = ManuallyDrop::into_inner(allocator());
        let mut range = allocator.reserve_range(1000 * PAGE).unwrap();
        range.grow(PAGE, StreamId::DEFAULT).unwrap();
        let before = allocator.stats().metadata_bytes;
        range.grow(999 * PAGE, StreamId::DEFAULT).unwrap();
        let each = (allocator.stats().metadata_bytes - before) / 999;
        assert!((50..500).contains(&each), "{each} bytes");
    }

    #[test]
    fn check_names_what_is_counted_wrongly() {
        let mapped = || {
            let allocator = allocator();
            allocator.alloc(PAGE, StreamId::DEFAULT).unwrap();
            allocator
        };
        let check =
            |allocator: &ManuallyDrop<Allocator<ModelDriver>>| allocator.inner.door.mapper.lock().check_counts();
        let breaks: &[Break<ManuallyDrop<Allocator<ModelDriver>>>] = &[
            ("mappings", |allocator| {
                let pool = &mut allocator.inner.door.mapper.lock().pool;
                pool.add_stale(ChunkId(0), view_at(0, PageIndex(40)));
            }),
            ("memory of page tables", |allocator| allocator.inner.door.mapper.lock().tables_bytes += 1),
        ];
        assert_noticed(mapped, check, breaks);
    }
}
