//! Sources: completely free chunks, which a plan may take from where they are.

use super::super::super::streams::region::{Region, RegionId};
use super::super::super::streams::state::StreamState;
use super::super::mapper::Mapper;
use super::states::{PIECE, States};
use crate::driver::Driver;
use crate::heap::{BlockState, FreeBlock};
use crate::pages::{PageCount, PageIndex, PageRange};
use crate::physical::ChunkId;
use crate::segment::View;
use crate::stream::{Fence, StreamIndex};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// A completely free chunk, where it is now.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The chunk.
    pub chunk: ChunkId,
    /// The stream whose region it is in.
    pub stream: StreamIndex,
    /// The region there.
    pub region: RegionId,
    /// The pages of its active view.
    pub pages: PageRange,
    /// The epoch of the last free in the block that it lies in.
    pub epoch: u64,
}

impl Source {
    /// The key that sources are ordered by.
    pub fn place(&self) -> (StreamIndex, RegionId, PageIndex) {
        (self.stream, self.region, self.pages.start)
    }

    /// Whether `user` need not wait for it, where stream `i` is known to have passed epoch `passed[i]`.
    pub fn is_passed(&self, user: StreamIndex, passed: &[u64]) -> bool {
        self.stream == user || self.epoch <= passed[self.stream.0 as usize]
    }

    /// The end of its last use where it is.
    pub fn last_use(&self) -> Fence {
        Fence { stream: self.stream, epoch: self.epoch }
    }

    /// Claims the chunk where it is, if that is completely free. Returns it with the epoch of its last use.
    pub fn claim(&self, state: &mut StreamState) -> Option<Self> {
        let (found, first) = self.found_free(state)?;
        state.region(self.region)?.set_pages(first, self.pages, BlockState::Claimed);
        Some(found)
    }

    /// The chunk with the epoch of its last use, if it is completely free where it is.
    pub fn if_free(&self, state: &StreamState) -> Option<Self> {
        self.found_free(state).map(|(found, _)| found)
    }

    /// The same, and the offset of the free block that it lies in.
    fn found_free(&self, state: &StreamState) -> Option<(Self, u64)> {
        let region = state.regions.get(self.region)?;
        let bytes = self.pages.bytes(region.page_bytes);
        let block = region.heap.block_around(bytes.start)?;
        let is_free = block.state == BlockState::Free && bytes.end <= block.offset + block.size;
        let epoch = state.epoch_base + u64::from(block.epoch);
        is_free.then_some((Self { epoch, ..*self }, block.offset))
    }
}

/// Completely free chunks that a plan may take.
#[derive(Debug, Default)]
pub struct Sources {
    /// One for each chunk.
    pub list: Vec<Source>,
    /// Number of those at the start of the list that are only there for stale views.
    pub only_for_views: usize,
    places: Places,
}

/// From a chunk to its place in the list.
#[derive(Debug)]
enum Places {
    /// By number of the chunk.
    OfAll(Vec<Option<NonZeroU32>>),
    /// Of those chunks alone that a plan asks for.
    OfAsked(BTreeMap<ChunkId, usize>),
}

impl Default for Places {
    fn default() -> Self {
        Self::OfAsked(BTreeMap::new())
    }
}

impl Sources {
    /// The completely free chunks in some free blocks, but for those that cannot be moved now. Of several blocks with the same
    /// chunk the last counts: those before it are out of date.
    pub fn new<'r>(mapper: &Mapper, runs: impl IntoIterator<Item = &'r FreeRun>) -> Self {
        let (mut list, mut numbers) = (Vec::new(), vec![None; mapper.chunks().id_bound()]);
        for source in runs.into_iter().flat_map(|run| run.sources(mapper)) {
            let number: &mut Option<NonZeroU32> = &mut numbers[source.chunk.0 as usize];
            match *number {
                Some(known) => list[place_of(known)] = source,
                None => {
                    list.push(source);
                    *number = NonZeroU32::new(u32::try_from(list.len()).expect("fewer than 2^32 chunks"));
                }
            }
        }
        Self { list, only_for_views: 0, places: Places::OfAll(numbers) }
    }

    /// Near ones: those that are only there for stale views, so many, before the last ones of all. With the places of the chunks
    /// that a plan asks for.
    pub fn near(list: Vec<Source>, only_for_views: usize, places: BTreeMap<ChunkId, usize>) -> Self {
        Self { list, only_for_views, places: Places::OfAsked(places) }
    }

    /// The place in the list of the source that a chunk is, if it is one.
    pub fn of_chunk(&self, chunk: ChunkId) -> Option<usize> {
        match &self.places {
            Places::OfAll(numbers) => numbers.get(chunk.0 as usize).copied().flatten().map(place_of),
            Places::OfAsked(places) => places.get(&chunk).copied(),
        }
    }

    /// Number of pages of all of them.
    pub fn pages(&self) -> PageCount {
        self.list.iter().map(|source| source.pages.len()).sum()
    }
}

/// The place in the list that a number stands for.
fn place_of(number: NonZeroU32) -> usize {
    number.get() as usize - 1
}

/// All completely free chunks, wherever they are, but for those that cannot be moved now; looked for in pieces.
pub fn free_chunks<D: Driver>(mapper: &Mapper, states: &mut States<'_, D>) -> Sources {
    Sources::new(mapper, &all_free_runs(states, mapper.chunks().page_bytes(), LastUse::Epoch))
}

/// The pages that are free and mapped, by what is in their chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct FreePages {
    /// Nothing else, and the chunk can be moved.
    pub in_free_chunks: PageCount,
    /// A block that is in use, at most: what is freed while it is looked for may be counted twice.
    pub beside_others: PageCount,
}

impl FreePages {
    /// Those in some free blocks. A chunk that lies in several, since its surroundings were freed meanwhile, counts once.
    fn in_runs(mapper: &Mapper, runs: &[FreeRun]) -> Self {
        let beside_others = |run: &FreeRun| {
            let in_chunks = run.chunks(mapper).map(|view| view.pages.len()).sum();
            run.whole_pages(mapper.chunks().page_bytes()).len().saturating_sub(in_chunks)
        };
        Self { in_free_chunks: Sources::new(mapper, runs).pages(), beside_others: runs.iter().map(beside_others).sum() }
    }
}

/// Counts the pages that are free and mapped; looked for in pieces.
pub fn free_pages<D: Driver>(mapper: &Mapper, states: &mut States<'_, D>) -> FreePages {
    FreePages::in_runs(mapper, &all_free_runs(states, mapper.chunks().page_bytes(), LastUse::Any))
}

/// The free blocks of all streams that take a page or more.
fn all_free_runs<D: Driver>(states: &mut States<'_, D>, page_bytes: u64, last_use: LastUse) -> Vec<FreeRun> {
    states.indices().flat_map(|stream| free_runs(states, stream, page_bytes, last_use)).collect()
}

/// What is to be known of when a free block was used last.
#[derive(Clone, Copy, Debug)]
pub enum LastUse {
    /// The epoch, which has to be looked up in the heap.
    Epoch,
    /// Nothing.
    Any,
}

impl LastUse {
    /// How many blocks are looked at while their stream is locked.
    fn piece(self) -> usize {
        match self {
            Self::Epoch => PIECE,
            // Each takes half as long.
            Self::Any => 2 * PIECE,
        }
    }

    fn epoch(self, region: &Region, block: FreeBlock) -> u32 {
        match self {
            Self::Epoch => region.heap.block(block.offset).expect("indexed").epoch,
            Self::Any => 0,
        }
    }
}

/// A free block of a page or more, as it was when it was looked at.
#[derive(Debug)]
pub struct FreeRun {
    stream: StreamIndex,
    region: RegionId,
    segment: usize,
    block: FreeBlock,
    epoch: u64,
}

impl FreeRun {
    /// A free block of a region of a stream.
    pub fn new(
        (stream, state): (StreamIndex, &StreamState),
        (id, region): (RegionId, &Region),
        block: FreeBlock,
        last_use: LastUse,
    ) -> Self {
        let epoch = state.epoch_base + u64::from(last_use.epoch(region, block));
        Self { stream, region: id, segment: region.segment, block, epoch }
    }

    /// The pages that lie in it whole.
    fn whole_pages(&self, page_bytes: u64) -> PageRange {
        PageRange::inside(&(self.block.offset..self.block.offset + self.block.size), page_bytes)
    }

    /// The views of the chunks that lie in it whole.
    fn chunks<'m>(&self, mapper: &'m Mapper) -> impl Iterator<Item = &'m View> + use<'m> {
        let segment = mapper.segment(self.segment);
        segment.table.views_within(self.whole_pages(segment.page_bytes))
    }

    /// The chunks that lie in it whole, but for those that cannot be moved now.
    fn sources<'m>(&self, mapper: &'m Mapper) -> impl Iterator<Item = Source> + use<'m> {
        self.movable(mapper, self.chunks(mapper))
    }

    /// The same, the last one first.
    pub fn sources_down<'m>(&self, mapper: &'m Mapper) -> impl Iterator<Item = Source> + use<'m> {
        let segment = mapper.segment(self.segment);
        self.movable(mapper, segment.table.views_within_down(self.whole_pages(segment.page_bytes)))
    }

    /// The sources that some of its chunks are.
    fn movable<'m, V: Iterator<Item = &'m View>>(
        &self,
        mapper: &'m Mapper,
        views: V,
    ) -> impl Iterator<Item = Source> + use<'m, V> {
        let Self { stream, region, epoch, .. } = *self;
        let source = move |view: &View| Source { chunk: view.chunk, stream, region, pages: view.pages, epoch };
        views.filter(|view| !mapper.chunks().is_barred(view.chunk)).map(source)
    }
}

/// Where a walk over the free blocks of a stream goes on.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// The number of the region among those of the stream.
    region: usize,
    block: FreeBlock,
}

/// The free blocks of a stream that take a page or more.
pub fn free_runs<D: Driver>(
    states: &mut States<'_, D>,
    stream: StreamIndex,
    page_bytes: u64,
    last_use: LastUse,
) -> Vec<FreeRun> {
    let smallest = FreeBlock { size: page_bytes, offset: 0 };
    let (mut runs, mut piece) = (Vec::new(), Vec::with_capacity(last_use.piece()));
    let mut cursor = Some(Cursor { region: 0, block: smallest });
    while let Some(from) = cursor {
        cursor = states.with(stream, |state| copy_runs((stream, state), &mut piece, from, smallest, last_use));
        runs.append(&mut piece);
    }
    runs
}

/// Copies the next free blocks, and returns where to go on. A region counts as a block, since there may be many.
fn copy_runs(
    (stream, state): (StreamIndex, &StreamState),
    runs: &mut Vec<FreeRun>,
    from: Cursor,
    smallest: FreeBlock,
    last_use: LastUse,
) -> Option<Cursor> {
    let (mut left, mut first) = (last_use.piece(), from.block);
    for (number, (id, region)) in state.regions.iter().enumerate().skip(from.region) {
        for block in region.heap.free_blocks_since(first) {
            if left == 0 {
                return Some(Cursor { region: number, block });
            }
            left -= 1;
            runs.push(FreeRun::new((stream, state), (id, region), block, last_use));
        }
        first = smallest;
        if left == 0 {
            return Some(Cursor { region: number + 1, block: smallest });
        }
        left -= 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::super::super::kind::RegionKind;
    use super::*;
    use crate::allocator::AllocError;
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{ModelConfig, ModelDriver};
    use crate::units::{GIB, MIB, StreamId};
    use std::sync::Arc;

    const PAGE: u64 = 2 * MIB;
    const MAIN: StreamId = StreamId::DEFAULT;

    /// How many free blocks each piece of a walk finds.
    fn pieces(allocator: &Allocator<ModelDriver>) -> Vec<usize> {
        let stream = allocator.inner.shared.streams.find(MAIN).unwrap();
        let smallest = FreeBlock { size: PAGE, offset: 0 };
        let (mut cursor, mut pieces) = (Some(Cursor { region: 0, block: smallest }), Vec::new());
        while let Some(from) = cursor {
            let mut runs = Vec::new();
            cursor = copy_runs((stream.index, &stream.lock()), &mut runs, from, smallest, LastUse::Epoch);
            pieces.push(runs.len());
        }
        pieces
    }

    /// A free during the search merges two free blocks into one, and both may be found.
    #[test]
    fn a_chunk_that_is_found_twice_counts_once() {
        let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 8 * PAGE, ..ModelConfig::default() }));
        let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(2 * PAGE)).build().unwrap();
        let [first, live, last] = [3, 2, 3].map(|pages| allocator.alloc_raw(pages * PAGE, MAIN).unwrap());
        allocator.free(first).unwrap();
        let inner = &allocator.inner;
        let entered = inner.door.enter(&inner.shared, |path| {
            let mut runs = all_free_runs(&mut path.states(), PAGE, LastUse::Epoch);
            allocator.free(live).unwrap();
            runs.extend(all_free_runs(&mut path.states(), PAGE, LastUse::Epoch));
            let pages = FreePages::in_runs(&path.mapper, &runs);
            assert_eq!((pages.in_free_chunks, pages.beside_others), (PageCount(5), PageCount::ZERO));
            Ok::<_, AllocError>(())
        });
        entered.unwrap();
        allocator.free(last).unwrap();
    }

    /// However many free blocks and regions a stream has, it is locked for so many of them at a time.
    #[test]
    fn free_blocks_are_copied_in_pieces() {
        let driver = ModelDriver::new(ModelConfig { capacity_bytes: 80 * GIB, ..ModelConfig::default() });
        let builder = Allocator::builder(Arc::new(driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
        let allocator = builder.build().unwrap();
        let count = 3 * PIECE;
        let blocks: Vec<_> = (0..2 * count).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
        blocks.iter().step_by(2).for_each(|block| allocator.free(*block).unwrap());
        let found = pieces(&allocator);
        assert_eq!(found.iter().sum::<usize>(), count);
        assert!(found.len() >= 3 && found.iter().all(|piece| *piece <= PIECE), "{found:?}");
    }

    #[test]
    fn regions_without_free_blocks_are_passed_in_pieces() {
        let driver = ModelDriver::new(ModelConfig { capacity_bytes: 80 * GIB, ..ModelConfig::default() });
        let builder = Allocator::builder(Arc::new(driver)).chunk_policy(ChunkPolicy::Fixed(64 * MIB));
        let allocator = builder.region_bytes(64 * MIB).build().unwrap();
        let _live: Vec<_> = (0..3 * PIECE).map(|_| allocator.alloc_raw(64 * MIB, MAIN).unwrap()).collect();
        let regions =
            allocator.inner.shared.streams.find(MAIN).unwrap().lock().regions.of_kind(RegionKind::Large).count();
        assert!(regions >= 3 * PIECE);
        assert_eq!(pieces(&allocator), vec![0; regions.div_ceil(PIECE + 1)]);
    }
}
