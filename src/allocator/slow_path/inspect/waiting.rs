//! Chunks that are free but for blocks that wait for streams: a request that needs them waits for those.
//!
//! Cost: O(pending blocks), and O(chunks in and beside them). A stream is locked for [`PIECE`] of its blocks at a time; what has
//! changed between two pieces may be counted or not.

use super::super::super::shared::Shared;
use super::super::super::streams::pending::{Cursor, Pending};
use super::super::super::streams::region::RegionId;
use super::super::super::streams::state::{Stream, StreamState};
use super::super::mapper::Mapper;
use super::super::plan::PIECE;
use crate::driver::Driver;
use crate::heap::BlockState;
use crate::pages::{PageCount, PageRange};

/// A block that waits for streams, or a free one beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    region: RegionId,
    /// Offset of its first byte in the region.
    start: u64,
    end: u64,
    is_free: bool,
    /// Number of the region's segment.
    segment: usize,
}

/// Pages of the chunks that are completely free once the blocks have been settled that wait for streams now. Those which are
/// completely free already are not counted.
pub fn waiting_pages<D: Driver>(shared: &Shared<D>, mapper: &Mapper) -> PageCount {
    shared.streams.with_pending().map(|stream| pages_of(&parts_of(stream), mapper)).sum()
}

/// The pending blocks of a stream and the free ones beside them, in the order of their addresses.
fn parts_of(stream: &Stream) -> Vec<Part> {
    let (mut parts, mut from) = (Vec::new(), Some(Cursor::default()));
    while let Some(at) = from {
        parts.reserve(3 * PIECE);
        from = stream.piece(|state| copy_piece(state, at, &mut parts));
    }
    // A free block between two that wait is there twice.
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// Copies the next blocks, and returns where to go on.
fn copy_piece(state: &StreamState, from: Cursor, parts: &mut Vec<Part>) -> Option<Cursor> {
    let mut blocks = state.pending.since(from);
    for (_, Pending { region: id, offset, .. }) in blocks.by_ref().take(PIECE) {
        let region = state.regions.get(*id).expect("a pending block has a region");
        let block = region.heap.block(*offset).expect("a pending block is in its heap");
        for part in [region.heap.before(block), Some(block), region.heap.after(block)].into_iter().flatten() {
            let is_free = part.state == BlockState::Free;
            if is_free || part.offset == *offset {
                let (start, end, segment) = (part.offset, part.offset + part.size, region.segment);
                parts.push(Part { region: *id, start, end, is_free, segment });
            }
        }
    }
    blocks.next().map(|(at, _)| at)
}

/// Pages of the chunks that lie whole in runs of these parts, and in none of the free ones.
fn pages_of(parts: &[Part], mapper: &Mapper) -> PageCount {
    let in_chunks = |segment: usize, start: u64, end: u64| -> PageCount {
        let pages = PageRange::inside(&(start..end), mapper.chunks().page_bytes());
        mapper.segment(segment).table.views_within(pages).map(|view| view.pages.len()).sum()
    };
    let runs = parts.chunk_by(|one, next| one.region == next.region && next.start <= one.end);
    let pages = runs.map(|run| {
        let (first, last) = (run[0], run[run.len() - 1]);
        let free = run.iter().filter(|part| part.is_free);
        let already: PageCount = free.map(|part| in_chunks(part.segment, part.start, part.end)).sum();
        in_chunks(first.segment, first.start, last.end).saturating_sub(already)
    });
    pages.sum()
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{ModelConfig, ModelDriver, WorkDriver};
    use crate::testing::longest_hold_of;
    use crate::units::{GIB, MIB, StreamId};
    use std::sync::Arc;

    const PAGE: u64 = 2 * MIB;
    const MAIN: StreamId = StreamId::DEFAULT;

    /// However many blocks wait side by side: their stream is locked for a few of them at a time.
    #[test]
    fn a_stream_is_locked_for_a_piece_of_its_pending_blocks() {
        let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 8 * GIB, ..ModelConfig::default() }));
        let user = driver.create_stream().unwrap();
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        allocator.keep_stream(user).unwrap();
        driver.hold(user);
        // Two to a page, so that each page waits for two blocks.
        let blocks: Vec<_> = (0..4000).map(|_| allocator.alloc_raw(PAGE / 2, MAIN).unwrap()).collect();
        for block in blocks {
            allocator.record_stream(block, user).unwrap();
            allocator.free(block).unwrap();
        }
        let mut largest = 0;
        let longest = longest_hold_of(|| largest = allocator.stats().fragmentation.largest_with_remapping_bytes);
        assert_eq!(largest, 8 * GIB);
        assert!(longest <= 256, "{longest} steps at once");
        driver.resume(user);
    }
}
