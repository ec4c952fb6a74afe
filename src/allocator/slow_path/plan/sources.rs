//! Sources: completely free chunks, which a plan may take from where they are.

use super::super::super::streams::region::RegionId;
use super::super::super::streams::state::{AllStates, StreamState};
use super::super::mapper::Mapper;
use crate::heap::{Block, BlockState, Heap};
use crate::pages::{PageCount, PageRange};
use crate::physical::ChunkId;
use crate::segment::View;
use crate::stream::StreamIndex;

/// A completely free chunk, where it is now.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The chunk.
    pub chunk: ChunkId,
    /// The stream whose region it is in.
    pub stream: StreamIndex,
    /// The region there.
    pub region: RegionId,
    /// Offset of the free block that it lies in.
    pub block: u64,
    /// The pages of its active view.
    pub pages: PageRange,
    /// The epoch of the last free in that block.
    pub epoch: u64,
}

/// All completely free chunks, wherever they are, but for those that cannot be moved now; with a stream, those in its
/// regions.
pub fn free_chunks(mapper: &Mapper, states: &AllStates<'_>, of_stream: Option<StreamIndex>) -> Vec<Source> {
    let mut sources = Vec::new();
    for (number, state) in states.iter().enumerate() {
        let stream = StreamIndex(u32::try_from(number).expect("stream numbers are 32 bits"));
        if of_stream.is_none_or(|wanted| wanted == stream) {
            sources.extend(free_views(mapper, state).map(|(region, block, view)| Source {
                chunk: view.chunk,
                stream,
                region,
                block: block.offset,
                pages: view.pages,
                epoch: state.epoch_base + u64::from(block.epoch),
            }));
        }
    }
    sources
}

/// Number of pages in the completely free chunks of a stream, but for those that cannot be moved now.
pub fn free_pages_of(mapper: &Mapper, state: &StreamState) -> PageCount {
    free_views(mapper, state).map(|(_, _, view)| view.pages.len()).sum()
}

/// The views of completely free chunks of a stream, each with the region and the free block that it lies in.
fn free_views(mapper: &Mapper, state: &StreamState) -> impl Iterator<Item = (RegionId, Block, View)> {
    state.regions.iter().flat_map(move |(id, region)| {
        let segment = &mapper.segments[region.segment];
        let page_bytes = segment.page_bytes;
        region.heap.free_blocks_from(page_bytes).flat_map(move |found| {
            let whole = PageRange::inside(&(found.offset..found.offset + found.size), page_bytes);
            let block = *region.heap.block(found.offset).expect("indexed");
            let movable = move |view: &&View| whole.contains(view.pages) && !mapper.pool.is_barred(view.chunk);
            segment.table.views_in(whole).filter(movable).map(move |view| (id, block, *view))
        })
    })
}

/// Claims completely free chunks where they are: in the order of their addresses, so that what is left of a block is found
/// behind the chunk that was claimed in it before.
pub fn claim_sources<'s>(states: &mut AllStates<'_>, sources: impl Iterator<Item = &'s Source>) {
    let mut sources: Vec<&Source> = sources.collect();
    sources.sort_unstable_by_key(|source| (source.stream, source.region, source.pages.start));
    let mut before: Option<&Source> = None;
    for source in sources {
        let state = &mut states[source.stream.0 as usize];
        let region = state.region(source.region).expect("sources come from regions");
        let of_block = |it: &&Source| (it.stream, it.region, it.block) == (source.stream, source.region, source.block);
        let from = before.filter(of_block).map_or(source.block, |it| it.pages.start.offset(region.page_bytes));
        let first = walk_to(&region.heap, from, source.pages.start.offset(region.page_bytes));
        region.set_pages(first, source.pages, BlockState::Claimed);
        before = Some(source);
    }
}

/// Offset of the block that `offset` lies in, looked for from the block at `from` on, which starts at or before it.
pub fn walk_to(heap: &Heap, from: u64, offset: u64) -> u64 {
    let mut block = *heap.block(from).expect("a block to start from");
    while block.offset + block.size <= offset {
        block = *heap.after(&block).expect("the offset lies in the heap");
    }
    block.offset
}
