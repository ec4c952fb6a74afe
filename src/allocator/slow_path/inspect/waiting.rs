//! Chunks that are free but for blocks that wait for streams: a request that needs them waits for those.
//!
//! Cost: O(pending blocks), and O(free blocks and chunks beside them).

use super::super::super::shared::Shared;
use super::super::super::streams::region::RegionId;
use super::super::super::streams::state::StreamState;
use super::super::mapper::Mapper;
use super::super::plan::PIECE;
use crate::driver::Driver;
use crate::heap::{Block, BlockState};
use crate::pages::{PageCount, PageRange};
use std::ops::Range;

/// Pages of the chunks that are completely free once the blocks have been settled that wait for streams now. Those which are
/// completely free already are not counted. Locks one stream after the other, for a piece of its blocks at a time.
pub fn waiting_pages<D: Driver>(shared: &Shared<D>, mapper: &Mapper) -> PageCount {
    let mut pages = PageCount::ZERO;
    for stream in shared.streams.with_pending() {
        let mut blocks: Vec<(RegionId, u64)> =
            stream.lock().pending.iter().map(|pending| (pending.region, pending.offset)).collect();
        blocks.sort_unstable();
        let mut counted: Option<(RegionId, u64)> = None;
        for piece in blocks.chunks(PIECE) {
            stream.piece(|state| {
                for (region, offset) in piece {
                    // Neighbours are in the run of the one before.
                    if counted.is_some_and(|(of, end)| of == *region && *offset < end) {
                        continue;
                    }
                    let Some(run) = run_around(state, *region, *offset) else { continue };
                    counted = Some((*region, run.end));
                    pages += pages_in_run(state, mapper, *region, run);
                }
            });
        }
    }
    pages
}

/// Whether a block is free, or waits for streams and not for a pin.
fn will_be_free(state: &StreamState, region: RegionId, block: &Block) -> bool {
    match block.state {
        BlockState::Free => true,
        BlockState::Pending => !state.pins.contains_key(&(region, block.offset)),
        BlockState::Hole | BlockState::Live | BlockState::Claimed => false,
    }
}

/// The offsets of the blocks around one that will be free as well. `None` where it has been settled.
fn run_around(state: &StreamState, id: RegionId, offset: u64) -> Option<Range<u64>> {
    let heap = &state.regions.get(id)?.heap;
    let block = heap.block(offset).filter(|block| block.state == BlockState::Pending)?;
    let (mut first, mut last) = (*block, *block);
    while let Some(before) = heap.before(&first).filter(|block| will_be_free(state, id, block)) {
        first = *before;
    }
    while let Some(after) = heap.after(&last).filter(|block| will_be_free(state, id, block)) {
        last = *after;
    }
    Some(first.offset..last.offset + last.size)
}

/// Pages of the chunks that lie in a run whole, and in none of its free blocks.
fn pages_in_run(state: &StreamState, mapper: &Mapper, id: RegionId, run: Range<u64>) -> PageCount {
    let region = state.regions.get(id).expect("a run is in a region");
    let table = &mapper.segments[region.segment].table;
    let in_chunks = |bytes: Range<u64>| -> PageCount {
        let whole = PageRange::inside(&bytes, region.page_bytes);
        table.views_in(whole).map(|view| view.pages).filter(|pages| whole.contains(*pages)).map(PageRange::len).sum()
    };
    let blocks = region.heap.blocks_from(run.start).take_while(|block| block.offset < run.end);
    let free = blocks.filter(|block| block.state == BlockState::Free);
    let already: PageCount = free.map(|block| in_chunks(block.offset..block.offset + block.size)).sum();
    in_chunks(run).saturating_sub(already)
}
