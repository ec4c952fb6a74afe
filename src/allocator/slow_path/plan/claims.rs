//! Claims: what a plan takes is marked in the heaps, so that nobody else takes it meanwhile; a piece at a time, and only what is
//! as free as the plan believes. Where something is not, everything is given back, and the plan is of no use.
//!
//! - I1  a claim that fails leaves the heaps as they were, but for what others did meanwhile, and for the epochs of the
//!   target's free blocks, of which all may be believed to be that of the latest.

use super::super::super::streams::state::StreamState;
use super::super::mapper::Mapper;
use super::sources::Source;
use super::states::{CLAIM_PIECE, States};
use super::{Backing, Goal, Plan, Recreation};
use crate::driver::Driver;
use crate::heap::{BlockState, Heap};
use crate::segment::ViewState;
use std::ops::Range;

/// A piece of a block of the target as it was before it was claimed.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// Offset of the piece.
    start: u64,
    /// Bytes of the piece.
    len: u64,
    /// Free or unmapped.
    state: BlockState,
    /// The block's epoch.
    epoch: u32,
}

/// Others have taken what a plan counts on since it was looked at. Nothing is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overtaken;

/// Claims what a plan takes, all or nothing, and notes in it what the claimed offsets consisted of and when its sources were
/// used last.
pub fn claim<D: Driver>(mapper: &Mapper, states: &mut States<'_, D>, plan: &mut Plan) -> Result<(), Overtaken> {
    let wanted: Vec<Source> = plan.sources().copied().collect();
    let count = wanted.len();
    let claimed = claim_free(states, wanted);
    if claimed.len() == count && note_epochs(plan, &claimed) && claim_target(states, plan) {
        return Ok(());
    }
    for source in &claimed {
        states.with(source.stream, |state| unclaim(mapper, state, source));
    }
    Err(Overtaken)
}

/// Claims those of some sources that are free still. Returns them in the order of streams, regions and addresses, each with the
/// epoch of its last use.
pub fn claim_free<D: Driver>(states: &mut States<'_, D>, mut sources: Vec<Source>) -> Vec<Source> {
    sources.sort_unstable_by_key(Source::place);
    let (mut claimed, mut of_piece) = (Vec::with_capacity(sources.len()), Vec::with_capacity(CLAIM_PIECE));
    for of_stream in sources.chunk_by(|one, other| one.stream == other.stream) {
        for piece in of_stream.chunks(CLAIM_PIECE) {
            let free = |state: &mut StreamState| of_piece.extend(piece.iter().filter_map(|source| source.claim(state)));
            states.with(piece[0].stream, free);
            claimed.append(&mut of_piece);
        }
    }
    claimed
}

/// Ends the claim on a chunk: its bytes are free where it is still mapped, else unmapped.
pub fn unclaim(mapper: &Mapper, state: &mut StreamState, source: &Source) {
    let region = state.region(source.region).expect("sources come from regions");
    let view = mapper.segment(region.segment).table.view(source.pages.start);
    let mapped = view.is_some_and(|view| view.state == ViewState::Active);
    let to = if mapped { BlockState::Free } else { BlockState::Hole };
    region.set_pages(source.pages.start.offset(region.page_bytes), source.pages, to);
}

/// Makes the claimed offsets of a plan's target what they were.
pub fn unclaim_target<D: Driver>(states: &mut States<'_, D>, goal: &Goal, before: &[Before]) {
    for pieces in before.chunks(CLAIM_PIECE) {
        states.with(goal.stream, |state| {
            let epoch = state.epoch;
            let heap = &mut state.region(goal.region).expect("the plan was made for it").heap;
            for piece in pieces {
                // Epochs may have been renumbered since: what was freed before counts as freed now.
                heap.set(piece.start, piece.start, piece.len, piece.state, piece.epoch.min(epoch));
            }
        });
    }
}

/// Notes when the sources of a plan, all of which are claimed, were used last. Returns false where one that was to be released
/// without waiting has been used since.
fn note_epochs(plan: &mut Plan, claimed: &[Source]) -> bool {
    let waits = plan.goal.allowance.recreation == Recreation::Waiting;
    let remapped = plan.fill.iter_mut().filter_map(|fill| match &mut fill.backing {
        Backing::Remap(source) => Some(source),
        Backing::Idle(_) | Backing::Create => None,
    });
    let moved = plan.reuse.iter_mut().map(|reuse| &mut reuse.source).chain(remapped).map(|source| (source, true));
    let mut sources: Vec<(&mut Source, bool)> =
        moved.chain(plan.release.iter_mut().map(|source| (source, waits))).collect();
    sources.sort_unstable_by_key(|(source, _)| source.place());
    sources.into_iter().zip(claimed).all(|((source, may_be_later), claimed)| {
        let later = std::mem::replace(&mut source.epoch, claimed.epoch) < claimed.epoch;
        may_be_later || !later
    })
}

/// Claims the offsets of a plan's target, or nothing of them.
fn claim_target<D: Driver>(states: &mut States<'_, D>, plan: &mut Plan) -> bool {
    let goal = plan.goal;
    let mut of_piece = Vec::with_capacity(CLAIM_PIECE);
    let mut at = plan.claim.start;
    while at < plan.claim.end {
        let left = at..plan.claim.end;
        let claimed = states.with(goal.stream, |state| {
            let heap = &mut state.region(goal.region).expect("the plan was made for it").heap;
            claim_next(heap, plan.claim.start, left, &mut of_piece)
        });
        let Some(end) = claimed else {
            unclaim_target(states, &goal, &plan.before);
            plan.before.clear();
            return false;
        };
        plan.before.append(&mut of_piece);
        at = end;
    }
    true
}

/// Adds the next blocks of `left` to the claimed block that starts at `start`, and notes what they were in `before`, which is
/// empty. Returns the end of what is claimed then, or `None` where a block is neither free nor unmapped.
fn claim_next(heap: &mut Heap, start: u64, left: Range<u64>, before: &mut Vec<Before>) -> Option<u64> {
    let mut block = heap.block_around(left.start)?;
    let first = if left.start == start { block.offset } else { start };
    let mut at = left.start;
    while at < left.end && before.len() < CLAIM_PIECE {
        if !matches!(block.state, BlockState::Free | BlockState::Hole) {
            return None;
        }
        let end = (block.offset + block.size).min(left.end);
        before.push(Before { start: at, len: end - at, state: block.state, epoch: block.epoch });
        at = end;
        if at < left.end {
            block = *heap.after(&block).expect("the target lies in the heap");
        }
    }
    heap.set(first, start, at - start, BlockState::Claimed, 0);
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::super::super::super::kind::RegionKind;
    use super::super::super::super::request::Request;
    use super::super::super::super::rules::Rules;
    use super::super::super::super::streams::region::RegionId;
    use super::super::super::SlowPath;
    use super::super::{Allowance, Copies, World, plan};
    use super::*;
    use crate::allocator::AllocError;
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{ModelConfig, ModelDriver, WorkDriver};
    use crate::heap::{Block, GRANULE};
    use crate::pages::PageCount;
    use crate::units::{DeviceAddr, StreamId};
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    /// The default stream has a free page, and another one four, between live ones. All memory is used up.
    struct Setting {
        allocator: Allocator<ModelDriver>,
        other: StreamId,
        live: Vec<DeviceAddr>,
    }

    impl Setting {
        fn new() -> Self {
            let config = ModelConfig { capacity_bytes: 9 * PAGE, ..ModelConfig::default() };
            let driver = Arc::new(ModelDriver::new(config));
            let other = driver.create_stream().unwrap();
            let builder = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).slack(f64::INFINITY);
            let allocator = builder.build().unwrap();
            allocator.keep_stream(other).unwrap();
            let own = allocator.alloc_raw(PAGE, MAIN).unwrap();
            let mut live: Vec<_> = (0..8).map(|_| allocator.alloc_raw(PAGE, other).unwrap()).collect();
            for number in [6, 4, 2, 0] {
                allocator.free(live.remove(number)).unwrap();
            }
            allocator.free(own).unwrap();
            Self { allocator, other, live }
        }

        /// All blocks of all streams. The epoch of an unmapped block means nothing.
        fn blocks(&self) -> Vec<Block> {
            let streams = &self.allocator.inner.shared.streams;
            let of_state = |state: &StreamState| -> Vec<Block> {
                let blocks = state.regions.iter().flat_map(|(_, region)| region.heap.blocks().collect::<Vec<_>>());
                let epoch = |block: &Block| if block.state == BlockState::Hole { 0 } else { block.epoch };
                blocks.map(|block| Block { epoch: epoch(&block), ..block }).collect()
            };
            streams.iter().flat_map(|stream| of_state(&stream.lock())).collect()
        }

        /// Plans a block of five pages, for which a free page and four free chunks are taken, and calls `work` with the plan.
        fn planned(&self, work: impl FnOnce(&SlowPath<'_, ModelDriver>, Plan)) {
            let inner = &self.allocator.inner;
            let entered = inner.door.enter(&inner.shared, |path| {
                let (soft_pages, hard_pages) = (PageCount::ZERO, PageCount::ZERO);
                let allowance = Allowance { soft_pages, hard_pages, recreation: Recreation::WithoutWaiting };
                let goal = Goal {
                    request: Request::new(5 * PAGE, 5 * PAGE, GRANULE),
                    stream: inner.shared.streams.find(MAIN).unwrap().index,
                    region: RegionId::first(RegionKind::Large),
                    allowance,
                    rules: Rules::default(),
                    apart: false,
                };
                let passed = path.progress().passed();
                let copies = &mut Copies::default();
                let world = World { mapper: &path.mapper, directory: &inner.shared.directory, passed: &passed };
                let plan = plan(&world, &mut path.states(), copies, goal).expect("there are chunks");
                assert_eq!((plan.start, plan.sources().count()), (0, 4));
                work(path, plan);
                Ok::<_, AllocError>(())
            });
            entered.unwrap();
        }
    }

    /// Whatever is taken between the plan and the claim: nothing stays claimed.
    #[test]
    fn a_claim_that_others_were_faster_than_is_undone() {
        for (on_other, at) in [(true, 0), (true, 1), (true, 3), (false, 0)] {
            let setting = Setting::new();
            setting.planned(|path, mut plan| {
                let stream = if on_other { setting.other } else { MAIN };
                let mut taken: Vec<_> = (0..=at).map(|_| setting.allocator.alloc_raw(PAGE, stream).unwrap()).collect();
                let last = taken.pop().unwrap();
                taken.into_iter().for_each(|block| setting.allocator.free(block).unwrap());
                let before = setting.blocks();
                assert_eq!(claim(&path.mapper, &mut path.states(), &mut plan), Err(Overtaken));
                assert_eq!(setting.blocks(), before, "taken: number {at} of {stream:?}");
                // Once it is free again, the plan is good.
                setting.allocator.free(last).unwrap();
                let before = setting.blocks();
                assert_eq!(claim(&path.mapper, &mut path.states(), &mut plan), Ok(()));
                assert_ne!(setting.blocks(), before);
                path.abandon(&plan);
                assert_eq!(setting.blocks(), before);
            });
            setting.allocator.check();
            let block = setting.allocator.alloc_raw(5 * PAGE, MAIN).unwrap();
            setting.live.iter().chain([&block]).for_each(|block| setting.allocator.free(*block).unwrap());
        }
    }

    /// Epochs were renumbered between a claim and its end: what was freed before counts as freed now, not in an epoch to come.
    #[test]
    fn what_was_claimed_is_free_in_an_epoch_that_has_begun() {
        let setting = Setting::new();
        let stream = setting.allocator.inner.shared.streams.find(MAIN).unwrap();
        let progress = setting.allocator.inner.shared.streams.progress(None);
        for _ in 0..5 {
            let open = stream.clock.lock().open();
            assert!(progress.has_passed(stream.index, open).unwrap());
        }
        let own = setting.allocator.alloc_raw(PAGE, MAIN).unwrap();
        setting.allocator.free(own).unwrap();
        setting.planned(|path, mut plan| {
            claim(&path.mapper, &mut path.states(), &mut plan).unwrap();
            assert!(plan.before.iter().any(|piece| piece.epoch == 6));
            stream.clock.lock().close_epoch();
            stream.lock().open_next_epoch(2);
            assert_eq!(stream.lock().epoch, 2);
            path.abandon(&plan);
        });
        setting.allocator.check();
    }

    /// A chunk that was to be released without waiting has been used again since.
    #[test]
    fn a_release_without_waiting_is_not_of_what_was_used_since() {
        let setting = Setting::new();
        setting.planned(|path, mut plan| {
            plan.release = plan.moved().copied().take(1).collect();
            plan.fill.remove(0);
            let index = setting.allocator.inner.shared.streams.find(setting.other).unwrap().index;
            path.progress().has_passed(index, 1).unwrap();
            let used: Vec<_> = (0..4).map(|_| setting.allocator.alloc_raw(PAGE, setting.other).unwrap()).collect();
            used.into_iter().for_each(|block| setting.allocator.free(block).unwrap());
            let before = setting.blocks();
            assert_eq!(claim(&path.mapper, &mut path.states(), &mut plan), Err(Overtaken));
            assert_eq!(setting.blocks(), before);
        });
        setting.allocator.check();
    }

    /// A stream is locked for a few blocks at a time, however many a plan takes.
    #[test]
    fn a_few_blocks_are_claimed_at_a_time() {
        let count = 3 * CLAIM_PIECE as u64 + 1;
        let mut heap = Heap::new(count * PAGE);
        for page in (0..count).step_by(2) {
            heap.set(page.saturating_sub(1) * PAGE, page * PAGE, PAGE, BlockState::Free, 0);
        }
        let (mut at, mut pieces) = (0, Vec::new());
        while at < count * PAGE {
            let mut before = Vec::new();
            at = claim_next(&mut heap, 0, at..count * PAGE, &mut before).unwrap();
            pieces.push(before.len());
        }
        assert_eq!(pieces, [CLAIM_PIECE, CLAIM_PIECE, CLAIM_PIECE, 1]);
        assert_eq!(heap.block(0).map(|block| (block.state, block.size)), Some((BlockState::Claimed, count * PAGE)));
        heap.check();
    }
}
