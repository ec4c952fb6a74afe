//! Copies of what a plan looks at: no stream is locked while it is made. What has changed meanwhile is noticed when it is
//! claimed.
//!
//! Unmapped blocks and views change under the mapper's lock only, which whoever plans holds. So a copy that is made in pieces has
//! all of them; what may be out of date is which bytes between them are free.
//!
//! Cost: O([`PIECE`]) each time that a stream is locked; in all, O(unmapped blocks) of the region, and O(free blocks of a page or
//! more) of all streams where chunks have to be found.

use super::super::super::streams::region::{Region, RegionId};
use super::super::super::streams::state::StreamState;
use super::super::mapper::Mapper;
use super::Goal;
use super::sources::{FreeRun, Sources, free_runs};
use super::states::{PIECE, States};
use crate::driver::Driver;
use crate::heap::{Block, BlockState, Heap};
use crate::stream::StreamIndex;
use crate::units::DeviceAddr;
use std::collections::BTreeMap;

/// Copies that were made for a plan.
#[derive(Debug, Default)]
pub struct Copies {
    /// For each stream, its free blocks of a page or more.
    free: Option<Vec<Copy<Vec<FreeRun>>>>,
    /// The chunks in them.
    sources: Option<Sources>,
    /// Regions of the stream that the plan is for.
    targets: BTreeMap<RegionId, Copy<Target>>,
}

/// A copy, and how often the stream had allocated and freed before it was begun.
#[derive(Debug)]
struct Copy<T> {
    copied: T,
    count: u64,
}

/// A copy of the region that a plan places a request in.
#[derive(Debug)]
pub struct Target {
    /// Address of its first byte.
    pub base: DeviceAddr,
    /// Number of its segment.
    pub segment: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Its unmapped blocks, and the free ones beside them, in address order.
    pub blocks: Vec<Block>,
}

impl Copies {
    /// The completely free chunks; of one stream, if the goal has to do with those.
    pub fn sources<D: Driver>(&mut self, mapper: &Mapper, states: &mut States<'_, D>, goal: &Goal) -> &Sources {
        let (page_bytes, all) = (mapper.chunks().page_bytes(), states.indices());
        let free = self.free.get_or_insert_with(|| {
            let copy = |stream| match goal.source_stream() {
                Some(only) if only != stream => Copy { copied: Vec::new(), count: 0 },
                _ => Copy::new(states, stream, |states| free_runs(states, stream, page_bytes)),
            };
            all.map(copy).collect()
        });
        self.sources.get_or_insert_with(|| Sources::new(mapper, free.iter().flat_map(|copy| &copy.copied)))
    }

    /// The region of a goal.
    pub fn target<D: Driver>(&mut self, states: &mut States<'_, D>, goal: &Goal) -> &Target {
        let (stream, id) = (goal.stream, goal.region);
        let copy = || Copy::new(states, stream, |states| Target::new(states, stream, id));
        &self.targets.entry(id).or_insert_with(copy).copied
    }

    /// Both, as far as they have been copied.
    pub fn both(&self, id: RegionId) -> (Option<&Sources>, Option<&Target>) {
        (self.sources.as_ref(), self.targets.get(&id).map(|copy| &copy.copied))
    }

    /// Makes the copies again that are out of date, so that all are of the moment at which `states` are locked together. Returns
    /// whether there were any.
    pub fn catch_up<D: Driver>(&mut self, mapper: &Mapper, states: &mut States<'_, D>, goal: &Goal) -> bool {
        let mut any = false;
        for (stream, copy) in states.indices().zip(self.free.iter_mut().flatten()) {
            if goal.source_stream().is_none_or(|only| only == stream) && copy.is_outdated(states, stream) {
                any = true;
                *copy = Copy::new(states, stream, |states| free_runs(states, stream, mapper.chunks().page_bytes()));
            }
        }
        for (id, copy) in &mut self.targets {
            if copy.is_outdated(states, goal.stream) {
                any = true;
                *copy = Copy::new(states, goal.stream, |states| Target::new(states, goal.stream, *id));
            }
        }
        if any {
            self.sources = None;
        }
        any
    }
}

impl<T> Copy<T> {
    fn new<'s, D: Driver>(
        states: &mut States<'s, D>,
        stream: StreamIndex,
        copy: impl FnOnce(&mut States<'s, D>) -> T,
    ) -> Self {
        let count = states.with(stream, |state| count_of(state));
        let copied = copy(states);
        #[cfg(test)]
        states.interrupt();
        Self { copied, count }
    }

    fn is_outdated<D: Driver>(&self, states: &mut States<'_, D>, stream: StreamIndex) -> bool {
        states.with(stream, |state| count_of(state)) != self.count
    }
}

/// Returns how many times a stream has allocated and freed. Without these operations, free memory changes under the mapper's lock
/// only.
fn count_of(state: &StreamState) -> u64 {
    state.tally.allocs + state.tally.frees
}

impl Target {
    fn new<D: Driver>(states: &mut States<'_, D>, stream: StreamIndex, id: RegionId) -> Self {
        let (base, segment, page_bytes) = states.with(stream, |state| {
            let region = region_of(state, id);
            (region.base, region.segment, region.page_bytes)
        });
        let mut blocks = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            from = states.with(stream, |state| copy_piece(&region_of(state, id).heap, &mut blocks, at));
        }
        Self { base, segment, page_bytes, blocks }
    }
}

fn region_of(state: &StreamState, id: RegionId) -> &Region {
    state.regions.get(id).expect("regions stay")
}

/// Copies the next unmapped blocks from offset `from` on, with the free ones beside them, and returns where to go on.
fn copy_piece(heap: &Heap, copied: &mut Vec<Block>, from: u64) -> Option<u64> {
    let mut from = from;
    // The last piece may have ended amid a run of them. Where one ends, another block starts now as then: a free block is not
    // followed by another one, and unmapped blocks stay.
    let runs_on = copied.last().is_some_and(|last| last.offset + last.size == from);
    let mut next = if runs_on { heap.block(from).copied() } else { None };
    for _ in 0..PIECE {
        let block = match next.filter(|block| is_open(block.state)) {
            Some(block) => block,
            None => first_of_next_run(heap, from)?,
        };
        copied.push(block);
        from = block.offset + block.size;
        next = heap.after(&block).copied();
    }
    Some(from)
}

/// Whether a block may be a part of a room.
fn is_open(state: BlockState) -> bool {
    matches!(state, BlockState::Free | BlockState::Hole)
}

/// The free block before the next unmapped one that starts at `from` or above, or else that one itself.
fn first_of_next_run(heap: &Heap, from: u64) -> Option<Block> {
    let (offset, _) = heap.unmapped_from(from).next()?;
    let unmapped = heap.block(offset).expect("I3: it is a block");
    let before = heap.before(unmapped).filter(|before| before.state == BlockState::Free);
    // What lies below was copied in the piece before, and has been merged with this one since.
    let clipped = before.map(|before| {
        let start = before.offset.max(from);
        Block { offset: start, size: before.offset + before.size - start, ..*before }
    });
    Some(clipped.filter(|block| block.size > 0).unwrap_or(*unmapped))
}

#[cfg(test)]
mod tests {
    use super::super::super::super::kind::RegionKind;
    use super::super::super::super::request::Request;
    use super::super::super::super::rules::Rules;
    use super::super::{Allowance, Recreation};
    use super::*;
    use crate::allocator::AllocError;
    use crate::allocator::Allocator;
    use crate::driver::ModelDriver;
    use crate::heap::GRANULE;
    use crate::pages::PageCount;
    use crate::units::StreamId;
    use std::sync::Arc;

    const MAIN: StreamId = StreamId::DEFAULT;

    /// Work of another thread between a copy and the check whether it is out of date.
    type Meanwhile = fn(&Allocator<ModelDriver>, DeviceAddr);

    /// Whether a region has to be copied again after `meanwhile`.
    fn is_copied_again(meanwhile: Meanwhile) -> bool {
        let allocator = Allocator::builder(Arc::new(ModelDriver::default())).build().unwrap();
        let block = allocator.alloc_raw(GRANULE, MAIN).unwrap();
        let inner = &allocator.inner;
        let mut any = false;
        let entered = inner.door.enter(&inner.shared, |path| {
            let none = PageCount::ZERO;
            let goal = Goal {
                request: Request::new(GRANULE, GRANULE, GRANULE),
                stream: inner.shared.streams.find(MAIN).unwrap().index,
                region: RegionId::first(RegionKind::Small),
                allowance: Allowance { soft_pages: none, hard_pages: none, recreation: Recreation::WithoutWaiting },
                rules: Rules::default(),
                apart: false,
            };
            let mut copies = Copies::default();
            copies.target(&mut path.states(), &goal);
            meanwhile(&allocator, block);
            any = copies.catch_up(&path.mapper, &mut States::together(&inner.shared.streams), &goal);
            Ok::<_, AllocError>(())
        });
        entered.unwrap();
        any
    }

    #[test]
    fn a_copy_is_out_of_date_once_the_stream_has_allocated_or_freed() {
        assert!(!is_copied_again(|_, _| {}));
        assert!(is_copied_again(|allocator, _| assert!(allocator.alloc_raw(GRANULE, MAIN).is_ok())));
        assert!(is_copied_again(|allocator, block| allocator.free(block).unwrap()));
        // As many frees as allocations, and other bytes are free.
        assert!(is_copied_again(|allocator, block| {
            allocator.alloc_raw(2 * GRANULE, MAIN).unwrap();
            allocator.free(block).unwrap();
        }));
    }

    /// Wherever a piece ends: all unmapped blocks are copied, the free ones beside them, and no other free block.
    #[test]
    fn copies_made_in_pieces_lack_nothing() {
        const RUNS: u64 = 3 * PIECE as u64;
        for shift in 0..3 {
            // Runs of an unmapped and a free block, a live block behind each, and at the end a free block between live ones.
            let mut heap = Heap::new((3 * RUNS + 3) * GRANULE);
            heap.set(0, 0, (3 * RUNS + 3) * GRANULE, BlockState::Free, 0);
            let mut expected = Vec::new();
            for run in 0..RUNS {
                let start = 3 * run * GRANULE;
                heap.take_live(start, start + 2 * GRANULE, GRANULE, 0);
                heap.set(start, start, GRANULE, BlockState::Hole, 0);
                // A run of one block moves where the pieces end.
                if run < shift {
                    heap.take_live(start + GRANULE, start + GRANULE, GRANULE, 0);
                }
                expected.push((start, BlockState::Hole));
                if run >= shift {
                    expected.push((start + GRANULE, BlockState::Free));
                }
            }
            heap.take_live(3 * RUNS * GRANULE, (3 * RUNS + 1) * GRANULE, 2 * GRANULE, 0);
            heap.check();
            let (mut copied, mut from) = (Vec::new(), Some(0));
            while let Some(at) = from {
                let before = copied.len();
                from = copy_piece(&heap, &mut copied, at);
                assert!(copied.len() - before <= PIECE);
            }
            let places: Vec<_> = copied.iter().map(|block| (block.offset, block.state)).collect();
            assert_eq!(places, expected);
        }
    }

    /// The free block before an unmapped one may begin in the piece before, or end where that did.
    #[test]
    fn what_the_piece_before_has_is_not_copied_again() {
        let mut heap = Heap::new(4 * GRANULE);
        heap.set(0, 0, 2 * GRANULE, BlockState::Free, 0);
        let found = |granules: u64| {
            first_of_next_run(&heap, granules * GRANULE)
                .map(|block| (block.offset / GRANULE, block.size / GRANULE, block.state))
        };
        assert_eq!(found(0), Some((0, 2, BlockState::Free)));
        assert_eq!(found(1), Some((1, 1, BlockState::Free)));
        assert_eq!(found(2), Some((2, 2, BlockState::Hole)));
        assert_eq!(found(3), None);
    }
}
