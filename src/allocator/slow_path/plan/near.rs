//! The sources that are near: the last ones in the order of all, and those that stale views of the target lead to. Mostly they
//! are enough, and how much else is free costs nothing. They are the ones that a plan from all sources takes, too, unless a chunk
//! that fits better lies further away.
//!
//! Cost: O([`LOOK_AT`] + pages of the request), and O(1) for each stale view, of which there are [`LOOK_UP`] at most. Where the
//! near ones are not enough, it comes on top of what all cost.

use super::super::super::streams::directory::Place;
use super::super::super::streams::region::RegionId;
use super::super::super::streams::state::StreamState;
use super::sources::{FreeRun, Source, Sources};
use super::states::{PIECE, States};
use super::target::Target;
use super::{Goal, World};
use crate::driver::Driver;
use crate::heap::{BlockState, FreeBlock, GRANULE};
use crate::pages::{PageCount, PageRange};
use crate::physical::ChunkId;
use crate::segment::View;
use crate::stream::StreamIndex;
use std::collections::BTreeMap;

/// Number of free blocks and chunks that are looked at, at least.
const LOOK_AT: usize = 64;

/// Most stale views of a target whose chunks are looked up.
const LOOK_UP: usize = 256;

/// Where a walk over the free blocks of a stream goes on: in this region, or in the last one; at this block, or at the largest.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    region: Option<RegionId>,
    block: Option<FreeBlock>,
}

/// A walk over the sources from the last one down, which ends once there are enough.
struct Walk<'a> {
    world: &'a World<'a>,
    goal: &'a Goal,
    /// Pages that are wanted.
    wanted: PageCount,
    /// Pages of those that were found that fit and need no wait.
    fitting: PageCount,
    /// Number of blocks and chunks that were looked at.
    looked_at: usize,
    found: Vec<Source>,
}

/// The last sources in the order of all, the last one first: as many as there are, or enough for `wanted` pages.
pub fn walk<D: Driver>(world: &World<'_>, states: &mut States<'_, D>, goal: &Goal, wanted: PageCount) -> Vec<Source> {
    let (fitting, looked_at, found) = (PageCount::ZERO, 0, Vec::new());
    let mut walk = Walk { world, goal, wanted, fitting, looked_at, found };
    for stream in states.indices().rev().filter(|stream| goal.source_stream().is_none_or(|only| only == *stream)) {
        if walk.stream(states, stream) {
            break;
        }
    }
    #[cfg(test)]
    states.interrupt();
    walk.found
}

impl Walk<'_> {
    /// Goes over the free blocks of a stream. Returns whether there are enough sources.
    fn stream<D: Driver>(&mut self, states: &mut States<'_, D>, stream: StreamIndex) -> bool {
        let page_bytes = self.world.mapper.chunks().page_bytes();
        let mut runs = Vec::with_capacity(PIECE);
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            runs.clear();
            cursor = states.with(stream, |state| copy_runs_down((stream, state), &mut runs, from, page_bytes));
            if runs.iter().any(|run| self.run(run)) {
                return true;
            }
        }
        false
    }

    /// Goes over the chunks in a free block. Returns whether there are enough sources.
    fn run(&mut self, run: &FreeRun) -> bool {
        self.looked_at += 1;
        for source in run.sources_down(self.world.mapper) {
            self.looked_at += 1;
            let at_once =
                source.stream == self.goal.stream || source.epoch <= self.world.passed[source.stream.0 as usize];
            if at_once && source.pages.len() <= self.wanted {
                self.fitting += source.pages.len();
            }
            self.found.push(source);
            if self.is_enough() {
                return true;
            }
        }
        self.is_enough()
    }

    fn is_enough(&self) -> bool {
        self.looked_at >= LOOK_AT && self.fitting >= self.wanted
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
            runs.push(FreeRun::new((stream, state), (id, region), block));
        }
        first = None;
        if left == 0 {
            return Some(Cursor { region: Some(id), block: Some(FreeBlock { size: GRANULE, offset: 0 }) });
        }
        left -= 1;
    }
    None
}

/// The near sources of a goal: those that a walk has found, and the free chunks of stale views where `target` has room. `None` where
/// those views are too many to look at.
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
    Some(Sources::with_places(list, places))
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

    /// As long as everything free is near, plans from the near sources are those from all: what is found, and what is not.
    #[test]
    fn plans_from_few_sources_are_plans_from_all() {
        let driver = device(48);
        let mut streams = vec![MAIN];
        streams.extend([(); 2].map(|()| driver.create_stream().unwrap()));
        let allocator = Allocator::builder(driver).slack(1.0).build().unwrap();
        streams.iter().for_each(|stream| allocator.keep_stream(*stream).unwrap());
        let (mut state, mut live): (u64, Vec<DeviceAddr>) = (7, Vec::new());
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut near, mut revived, mut without_room) = (0, 0, 0);
        for _ in 0..4_000 {
            let stream = streams[random(3) as usize];
            if random(5) < 2 && !live.is_empty() {
                allocator.free(live.swap_remove(random(live.len() as u64) as usize)).unwrap();
            } else {
                live.extend(allocator.alloc_raw((1 + random(8)) * PAGE, stream));
            }
            if allocator.inner.shared.streams.find(stream).unwrap().lock().regions.iter().count() == 0 {
                continue;
            }
            let [(first, looked_at_all), (all, _)] = both_plans(&allocator, 1 + random(12), stream);
            assert_eq!(format!("{first:?}"), format!("{all:?}"));
            near += u32::from(first.is_some() && !looked_at_all);
            without_room += u32::from(first.is_none() && !looked_at_all);
            revived += u32::from(!looked_at_all && first.is_some_and(|plan| !plan.reuse.is_empty()));
        }
        assert!(
            near > 100 && revived > 50,
            "{near} plans from near sources, {revived} of them with a view that is back"
        );
        assert_eq!(without_room, 0, "past the last mapping there is always room here");
        allocator.check();
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
        let pages = 4 * LOOK_AT as u64;
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

    /// A chunk of the size that is wanted counts more than that it is near.
    #[test]
    fn a_chunk_that_fits_is_taken_from_afar() {
        let blocks = 2 * LOOK_AT as u64;
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
        assert!(looked_at_all, "the near ones are of three pages");
        assert_eq!(format!("{near:?}"), format!("{all:?}"));
        let sizes: Vec<_> = near.unwrap().sources().map(|source| source.pages.len().0).collect();
        assert_eq!(sizes, [3, 1]);
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
