//! The near sources: the last ones in the order of all, and those that stale views of the target lead to. Mostly they are enough,
//! and how much else is free costs nothing. A plan from them is the plan from all, or there is none: of the chunks that need no
//! wait, a plan takes the largest that fits, the last of several in the order; the pool knows how large that can be.
//!
//! Streams are locked for a piece of the walk at a time. A chunk that moves in between may be found twice: then the claim of the
//! plan fails, and the plan is made again.
//!
//! Cost: O([`LOOK_AT_MOST`] + pages of the request), and O(1) for each stale view, of which there are [`LOOK_UP`] at most. Where
//! the near ones are not enough, it comes on top of what all cost.

use super::super::super::streams::directory::Place;
use super::super::super::streams::region::RegionId;
use super::super::super::streams::state::StreamState;
use super::sources::{FreeRun, LastUse, Source, Sources};
use super::states::{PIECE, States};
use super::target::Target;
use super::{Goal, World};
use crate::driver::Driver;
use crate::heap::{BlockState, FreeBlock, GRANULE};
use crate::pages::{PageCount, PageRange};
use crate::physical::{ChunkId, ChunkPool};
use crate::segment::View;
use crate::stream::StreamIndex;
use std::collections::BTreeMap;

/// Number of free blocks and chunks that are looked at, at most, beside [`LOOKS_FOR_A_PAGE`] for each page that is wanted.
const LOOK_AT_MOST: u64 = 256;
const LOOKS_FOR_A_PAGE: u64 = 4;

/// Most stale views of a target whose chunks are looked up.
const LOOK_UP: usize = 256;

/// Where a walk over the free blocks of a stream goes on: in this region, or in the last one; at this block, or at the largest.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    region: Option<RegionId>,
    block: Option<FreeBlock>,
}

/// The chunks that are missing, by size.
#[derive(Debug)]
struct Missing(Vec<(PageCount, u64)>);

impl Missing {
    /// The chunks that are taken for `pages` pages in a row: each as large as fits. `None` where no chunk is small enough.
    fn new(chunks: &ChunkPool, pages: PageCount) -> Option<Self> {
        let (mut missing, mut left) = (Vec::new(), pages);
        while left > PageCount::ZERO {
            let size = chunks.largest_up_to(left)?;
            missing.push((size, left.0 / size.0));
            left = PageCount(left.0 % size.0);
        }
        Some(Self(missing))
    }

    /// One of that size has been found.
    fn found(&mut self, size: PageCount) {
        if let Some(place) = self.0.iter().position(|(missing, _)| *missing == size) {
            self.0[place].1 -= 1;
            if self.0[place].1 == 0 {
                self.0.swap_remove(place);
            }
        }
    }

    fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }
}

/// A walk over the sources from the last one down.
struct Walk<'a> {
    world: &'a World<'a>,
    goal: &'a Goal,
    missing: Missing,
    /// Number of blocks and chunks that may still be looked at.
    looks: u64,
    found: Vec<Source>,
}

/// How a walk goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    On,
    /// Nothing is missing any more.
    Enough,
    /// It has become too long.
    TooLong,
}

/// The last sources in the order of all, the last one first, if they seem to be enough for `pages` pages.
pub fn walk<D: Driver>(
    world: &World<'_>,
    states: &mut States<'_, D>,
    goal: &Goal,
    pages: PageCount,
) -> Option<Vec<Source>> {
    let missing = Missing::new(world.mapper.chunks(), pages)?;
    let looks = LOOK_AT_MOST + LOOKS_FOR_A_PAGE * pages.0;
    let mut walk = Walk { world, goal, missing, looks, found: Vec::new() };
    let streams = states.indices().rev().filter(|stream| goal.source_stream().is_none_or(|only| only == *stream));
    let mut step = if walk.missing.is_nothing() { Step::Enough } else { Step::On };
    for stream in streams {
        if step != Step::On {
            break;
        }
        step = walk.stream(states, stream);
    }
    #[cfg(test)]
    states.interrupt();
    (step == Step::Enough).then_some(walk.found)
}

impl Walk<'_> {
    /// Goes over the free blocks of a stream.
    fn stream<D: Driver>(&mut self, states: &mut States<'_, D>, stream: StreamIndex) -> Step {
        let page_bytes = self.world.mapper.chunks().page_bytes();
        let mut runs = Vec::with_capacity(PIECE);
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            runs.clear();
            cursor = states.with(stream, |state| copy_runs_down((stream, state), &mut runs, from, page_bytes));
            // A stream without free blocks has been looked at, too.
            self.looks = self.looks.saturating_sub(1);
            for run in &runs {
                let step = self.run(run);
                if step != Step::On {
                    return step;
                }
            }
            if self.looks == 0 {
                return Step::TooLong;
            }
        }
        Step::On
    }

    /// Goes over the chunks in a free block.
    fn run(&mut self, run: &FreeRun) -> Step {
        self.looks = self.looks.saturating_sub(1);
        for source in run.sources_down(self.world.mapper) {
            self.looks = self.looks.saturating_sub(1);
            self.found.push(source);
            if source.is_passed(self.goal.stream, self.world.passed) {
                self.missing.found(source.pages.len());
                if self.missing.is_nothing() {
                    return Step::Enough;
                }
            }
            if self.looks == 0 {
                return Step::TooLong;
            }
        }
        Step::On
    }
}

/// Copies the next free blocks of a page or more, the largest first, and returns where to go on. A region counts as a block, since
/// there may be many.
fn copy_runs_down(
    (stream, state): (StreamIndex, &StreamState),
    runs: &mut Vec<FreeRun>,
    from: Cursor,
    page_bytes: u64,
) -> Option<Cursor> {
    let (mut left, mut first) = (PIECE, from.block);
    for (id, region) in state.regions.down_from(from.region) {
        let large = region.heap.free_blocks_down_from(first).take_while(|block| block.size >= page_bytes);
        for block in large {
            if left == 0 {
                return Some(Cursor { region: Some(id), block: Some(block) });
            }
            left -= 1;
            runs.push(FreeRun::new((stream, state), (id, region), block, LastUse::Epoch));
        }
        first = None;
        if left == 0 {
            return Some(Cursor { region: Some(id), block: Some(FreeBlock { size: GRANULE, offset: 0 }) });
        }
        left -= 1;
    }
    None
}

/// The near sources of a goal: those that a walk has found, and before them the free chunks of stale views where `target` has
/// room. `None` where those views are too many to look at.
pub fn near<D: Driver>(
    world: &World<'_>,
    states: &mut States<'_, D>,
    walked: &[Source],
    target: &Target,
    goal: &Goal,
) -> Option<Sources> {
    let table = &world.mapper.segment(target.segment).table;
    let unmapped = target.adequate_runs(goal.request.size).flatten().filter(|block| block.state == BlockState::Hole);
    let views = unmapped.flat_map(|block| {
        table.views_in(PageRange::inside(&(block.offset..block.offset + block.size), target.page_bytes))
    });
    let (mut list, mut places) = (walked.to_vec(), BTreeMap::new());
    for (looked_up, View { chunk, .. }) in views.enumerate() {
        if looked_up == LOOK_UP {
            return None;
        }
        if places.contains_key(chunk) {
            continue;
        }
        let found = list.iter().position(|source| source.chunk == *chunk).or_else(|| {
            let source = look_up(world, states, *chunk)?;
            goal.source_stream().is_none_or(|only| only == source.stream).then(|| list.push(source))?;
            Some(list.len() - 1)
        });
        places.extend(found.map(|place| (*chunk, place)));
    }
    let last = list.len().saturating_sub(1);
    places.values_mut().for_each(|place| *place = last - *place);
    list.reverse();
    let looked_up = list.len() - walked.len();
    Some(Sources::near(list, looked_up, places))
}

/// The source that a chunk is, if it is completely free where its bytes are allocated.
fn look_up<D: Driver>(world: &World<'_>, states: &mut States<'_, D>, chunk: ChunkId) -> Option<Source> {
    let World { mapper, directory, .. } = *world;
    let facts = mapper.chunks().get(chunk);
    let at = facts.active.filter(|_| !mapper.chunks().is_barred(chunk))?;
    let Place::Region(owner, _) = directory.find(mapper.segment(at.segment as usize).base) else { return None };
    let pages = PageRange::new(at.page, facts.pages);
    let source = Source { chunk, stream: owner.stream, region: owner.region, pages, epoch: 0 };
    states.with(owner.stream, |state| source.if_free(state))
}

#[cfg(test)]
mod tests {
    use super::super::super::super::kind::RegionKind;
    use super::super::super::super::request::Request;
    use super::super::super::super::rules::Rules;
    use super::super::{Allowance, Copies, Plan, Recreation, plan};
    use super::*;
    use crate::allocator::{AllocError, Allocator, ChunkPolicy};
    use crate::driver::{ModelConfig, ModelDriver, WorkDriver};
    use crate::testing::{interrupt_after, steps_of};
    use crate::units::{DeviceAddr, MIB, StreamId};
    use std::sync::Arc;

    const PAGE: u64 = 2 * MIB;
    const MAIN: StreamId = StreamId::DEFAULT;

    fn device(pages: u64) -> Arc<ModelDriver> {
        Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() }))
    }

    /// An allocator of single pages on a device of so many. Every other page is free.
    fn with_every_other_page_free(pages: u64) -> Allocator<ModelDriver> {
        let allocator = Allocator::builder(device(pages)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let blocks: Vec<_> = (0..pages).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
        blocks.iter().step_by(2).for_each(|block| allocator.free(*block).unwrap());
        allocator
    }

    /// The plans for a request from the near sources, if they come first, and from all.
    fn both_plans(allocator: &Allocator<ModelDriver>, pages: u64, stream: StreamId) -> [(Option<Plan>, bool); 2] {
        let inner = &allocator.inner;
        let mut plans = None;
        let entered = inner.door.enter(&inner.shared, |path| {
            let stream = inner.shared.streams.find(stream).unwrap();
            let hard_pages = path.mapper.chunks().headroom_pages();
            let goal = Goal {
                request: Request::new(pages * PAGE, pages * PAGE, GRANULE),
                stream: stream.index,
                region: RegionId::first(RegionKind::Large),
                allowance: Allowance {
                    soft_pages: PageCount::ZERO,
                    hard_pages,
                    recreation: Recreation::WithoutWaiting,
                },
                rules: Rules::default(),
                apart: false,
            };
            path.progress().refresh_clocks(true).unwrap();
            let passed = path.progress().passed();
            let world = World { mapper: &path.mapper, directory: &inner.shared.directory, passed: &passed };
            plans = Some([false, true].map(|all| {
                let mut copies = Copies::default();
                if all {
                    copies.sources(&path.mapper, &mut path.states(), &goal);
                }
                let planned = plan(&world, &mut path.states(), &mut copies, goal);
                (planned, copies.have_all_sources())
            }));
            Ok::<_, AllocError>(())
        });
        entered.unwrap();
        plans.expect("planned")
    }

    /// What is near makes the plans that all would make: what is found, and what is not.
    fn assert_same_plans(pages: u64, steps: u32) -> [u32; 2] {
        let driver = device(pages);
        let mut streams = vec![MAIN];
        streams.extend([(); 2].map(|()| driver.create_stream().unwrap()));
        let allocator = Allocator::builder(driver).slack(1.0).build().unwrap();
        streams.iter().for_each(|stream| allocator.keep_stream(*stream).unwrap());
        let (mut state, mut live): (u64, Vec<DeviceAddr>) = (7, Vec::new());
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let [mut near, mut revived] = [0, 0];
        for _ in 0..steps {
            let stream = streams[random(3) as usize];
            if random(5) < 2 && !live.is_empty() {
                allocator.free(live.swap_remove(random(live.len() as u64) as usize)).unwrap();
            } else {
                // It leaves a chunk of its size, which nothing maps.
                drop(allocator.alloc_registered((1 + random(6)) * PAGE, stream));
                live.extend(allocator.alloc_raw((1 + random(8)) * PAGE, stream));
            }
            if allocator.inner.shared.streams.find(stream).unwrap().lock().regions.iter().count() == 0 {
                continue;
            }
            let [(first, looked_at_all), (all, _)] = both_plans(&allocator, 1 + random(12), stream);
            assert_eq!(format!("{first:?}"), format!("{all:?}"));
            near += u32::from(first.is_some() && !looked_at_all);
            revived += u32::from(!looked_at_all && first.is_some_and(|plan| !plan.reuse.is_empty()));
        }
        allocator.check();
        [near, revived]
    }

    #[test]
    fn plans_from_near_sources_are_plans_from_all() {
        for pages in [48, 4_000] {
            let [near, revived] = assert_same_plans(pages, 6_000);
            assert!(
                near > 200 && revived > 20,
                "{near} plans from near sources, {revived} of them with a view that is back"
            );
        }
    }

    /// What a request costs that moves a few chunks does not depend on how many others are free.
    #[test]
    fn a_few_chunks_are_found_among_many() {
        let [few, many] = [200, 2_000].map(|pages| {
            let allocator = with_every_other_page_free(pages);
            let steps = steps_of(|| _ = allocator.alloc_raw(4 * PAGE, MAIN).unwrap());
            allocator.check();
            steps
        });
        assert!(few < 1_000 && many <= few + 20, "{many} steps, {few} beside a tenth of the chunks");
    }

    /// The last free block has more chunks than are looked at, of which those at its end are taken.
    #[test]
    fn a_large_block_gives_its_end() {
        let pages = 2 * LOOK_AT_MOST;
        let driver = device(pages + 1);
        let user = driver.create_stream().unwrap();
        let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        allocator.keep_stream(user).unwrap();
        let own = allocator.alloc_raw(PAGE, user).unwrap();
        let block = allocator.alloc_raw(pages * PAGE, MAIN).unwrap();
        allocator.free(block).unwrap();
        let [(near, looked_at_all), (all, _)] = both_plans(&allocator, 3, user);
        assert!(!looked_at_all);
        let places =
            |plan: Option<Plan>| -> Vec<u64> { plan.unwrap().sources().map(|source| source.pages.start.0).collect() };
        let near = places(near);
        assert_eq!(near, [1, 2, 3].map(|behind| pages - behind));
        assert_eq!(near, places(all));
        allocator.free(own).unwrap();
    }

    /// A chunk of the size that is wanted counts more than that others are near.
    #[test]
    fn a_chunk_that_fits_is_taken_from_afar() {
        let blocks = LOOK_AT_MOST;
        let allocator =
            Allocator::builder(device(4 * blocks + 2)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let mut of_three = Vec::new();
        let single = allocator.alloc_raw(PAGE, MAIN).unwrap();
        let _live = allocator.alloc_raw(PAGE, MAIN).unwrap();
        let _live: Vec<_> = (0..blocks)
            .map(|_| {
                // It leaves a chunk of its size, which nothing maps.
                drop(allocator.alloc_registered(3 * PAGE, MAIN).unwrap());
                of_three.push(allocator.alloc_raw(3 * PAGE, MAIN).unwrap());
                allocator.alloc_raw(PAGE, MAIN).unwrap()
            })
            .collect();
        assert_eq!(allocator.stats().chunks, 2 * blocks + 2);
        of_three.iter().chain([&single]).for_each(|block| allocator.free(*block).unwrap());
        let [(near, looked_at_all), (all, _)] = both_plans(&allocator, 4, MAIN);
        assert!(looked_at_all, "those that are looked at are of three pages");
        assert_eq!(format!("{near:?}"), format!("{all:?}"));
        let mut sizes: Vec<_> = near.unwrap().sources().map(|source| source.pages.len().0).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 3]);
    }

    /// Others free the memory that is missing after the near sources were looked for, and before it is said that there is none.
    #[test]
    fn what_is_freed_after_a_look_at_near_sources_is_found() {
        for copies in 0..3 {
            let allocator =
                Arc::new(Allocator::builder(device(8)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap());
            let blocks: Vec<_> = (0..8).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
            blocks[..4].iter().step_by(2).for_each(|block| allocator.free(*block).unwrap());
            let (freeing, last) = (Arc::clone(&allocator), blocks[7]);
            interrupt_after(copies, move || freeing.free(last).unwrap());
            assert!(allocator.alloc_raw(3 * PAGE, MAIN).is_ok(), "freed after {copies} copies");
            allocator.check();
        }
    }
}
