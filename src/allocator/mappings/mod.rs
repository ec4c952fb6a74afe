//! Mappings: which chunk is mapped where. Nothing else changes the views of chunks or the page tables of segments.
//!
//! ```text
//! changes.rs    map, retire, revive, strand, lend, remove: the device and both books at once
//! stale.rs      the stale views, oldest first
//! check.rs      the invariants
//! ```
//!
//! - M1  a view is in the page table of its segment and in the list of its chunk, in the same state; it maps its chunk whole.
//! - M2  a chunk has one active view at most, and is lent only while it has one.
//! - M3  what is counted of mappings is what there is.
//! - M4  what was mapped behind blocks stays mapped there, in an allocator that keeps its mappings, or is asleep.
//!
//! Threads: not synchronized; the owner holds a lock, also while the driver is called.
//!
//! It decides nothing: which chunks, which addresses and when is the caller's business, and so are the blocks above them.

mod changes;
mod check;
mod stale;

pub use changes::{Change, NewView, NotMapped, Revival};
use stale::StaleOrder;

use super::geometry::Geometry;
use crate::driver::ChunkHandle;
use crate::pages::{PageCount, PageIndex};
use crate::physical::{Chunk, ChunkId, ChunkPool, ViewAt};
use crate::segment::{Segment, View};
use crate::units::DeviceAddr;
use std::collections::BTreeMap;

/// Chunks, segments and what is mapped where.
#[derive(Debug)]
pub struct Mappings {
    chunks: ChunkPool,
    /// By number.
    segments: Vec<Segment>,
    /// The stale views, oldest first.
    stale_order: StaleOrder,
    /// The mappings behind blocks, in an allocator that keeps its mappings.
    kept: Option<BTreeMap<ViewAt, ChunkHandle>>,
    /// Bytes of host memory behind the page tables.
    tables_bytes: u64,
    counts: Counts,
}

/// Operation counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Number of driver sequences that could not be undone, so that addresses are out of use.
    pub poisoned: u64,
    /// Number of chunks that were remapped from behind blocks to behind others.
    pub remapped_chunks: u64,
    /// Number of those that were still mapped where they were needed: a stale view became active again without a driver call.
    pub reused_views: u64,
}

impl Mappings {
    /// Nothing is held, nothing is mapped.
    pub fn new(geometry: &Geometry, budget_bytes: u64) -> Self {
        Self {
            chunks: ChunkPool::new(geometry.page_bytes, budget_bytes),
            segments: Vec::new(),
            stale_order: StaleOrder::default(),
            kept: (!geometry.rules.may_unmap()).then(BTreeMap::new),
            tables_bytes: 0,
            counts: Counts::default(),
        }
    }

    /// Physical memory.
    pub fn chunks(&self) -> &ChunkPool {
        &self.chunks
    }

    /// A segment.
    pub fn segment(&self, number: usize) -> &Segment {
        &self.segments[number]
    }

    /// All segments, by number.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The view at a place.
    pub fn view(&self, at: ViewAt) -> &View {
        self.segments[at.segment as usize].table.view(at.page).expect("a chunk's view is in the page table")
    }

    /// All views of a chunk, the active one first.
    pub fn views_of(&self, chunk: ChunkId) -> Vec<ViewAt> {
        let chunk = self.chunks.get(chunk);
        chunk.active.into_iter().chain(chunk.stale.iter().copied()).collect()
    }

    /// Number of mappings.
    pub fn mappings(&self) -> usize {
        self.chunks.views()
    }

    /// Operation counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes of host memory behind chunks and page tables.
    pub fn metadata_bytes(&self) -> u64 {
        self.chunks.metadata_bytes() + self.tables_bytes
    }

    /// Adds a segment without mappings. Returns its number.
    pub fn add_segment(&mut self, base: DeviceAddr, bytes: u64) -> usize {
        self.segments.push(Segment::new(base, bytes, self.chunks.page_bytes()));
        self.segments.len() - 1
    }

    /// As [`add_segment`](Self::add_segment), under the number of one that was [vacated](Self::vacate), if there is one.
    pub fn add_segment_in_vacant(&mut self, base: DeviceAddr, bytes: u64) -> usize {
        let vacant = self.segments.iter().position(|segment| segment.pages == PageCount::ZERO);
        let Some(number) = vacant else { return self.add_segment(base, bytes) };
        self.replace_segment(number, Segment::new(base, bytes, self.chunks.page_bytes()));
        number
    }

    /// Forgets a segment in which nothing is mapped, whose addresses have gone back.
    pub fn vacate(&mut self, number: usize) {
        debug_assert_eq!(self.segments[number].table.len(), 0, "M1: a view would be without its page table");
        self.replace_segment(number, Segment::new(DeviceAddr(0), 0, self.chunks.page_bytes()));
    }

    fn replace_segment(&mut self, number: usize, fresh: Segment) {
        let before = std::mem::replace(&mut self.segments[number], fresh);
        self.tables_bytes -= before.table.metadata_bytes();
    }

    /// Adds a chunk that was just created. It is idle.
    pub fn add_chunk(&mut self, handle: ChunkHandle, pages: PageCount) -> ChunkId {
        self.chunks.add(handle, pages)
    }

    /// Removes an idle chunk that was just released.
    pub fn remove_chunk(&mut self, chunk: ChunkId) -> Chunk {
        self.chunks.remove(chunk)
    }

    /// Keeps an idle chunk from everybody until [`end_withholding`](Self::end_withholding).
    pub fn withhold(&mut self, chunk: ChunkId) {
        self.chunks.withhold(chunk);
    }

    /// Makes a chunk idle again that was withheld.
    pub fn end_withholding(&mut self, chunk: ChunkId) {
        self.chunks.end_withholding(chunk);
    }

    /// Excludes a chunk that cannot be moved now until [`lift_bars`](Self::lift_bars).
    pub fn bar(&mut self, chunk: ChunkId) {
        self.chunks.bar(chunk);
    }

    /// Ends the exclusion of all chunks.
    pub fn lift_bars(&mut self) {
        self.chunks.lift_bars();
    }

    /// Changes the budget to `bytes`, rounded down to whole pages.
    pub fn set_budget(&mut self, bytes: u64) {
        self.chunks.set_budget(bytes);
    }

    /// Resets the peaks of what is held to the current values.
    pub fn reset_peak(&mut self) {
        self.chunks.reset_peak();
    }
}

/// The place of a view that starts at `page` of segment number `segment`.
pub fn view_at(segment: usize, page: PageIndex) -> ViewAt {
    ViewAt { segment: u32::try_from(segment).expect("segment numbers are 32 bits"), page }
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{ModelConfig, ModelDriver};
    use crate::units::StreamId;
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;

    /// The books of a chunk and its mapping take some bytes of the host's memory, and few.
    #[test]
    fn chunks_and_mappings_take_memory_of_the_host() {
        let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
        let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let mut range = allocator.reserve_range(1000 * PAGE).unwrap();
        range.grow(PAGE, StreamId::DEFAULT).unwrap();
        let before = allocator.stats().metadata_bytes;
        range.grow(999 * PAGE, StreamId::DEFAULT).unwrap();
        let each = (allocator.stats().metadata_bytes - before) / 999;
        assert!((50..500).contains(&each), "{each} bytes");
    }
}
