//! Copies of what a plan looks at: no stream is locked while it is made. What has changed meanwhile is noticed when it is
//! claimed.
//!
//! Unmapped blocks and views change under the mapper's lock only, which whoever plans holds. So a copy that is made in pieces has
//! all of them; what may be out of date is which bytes between them are free.
//!
//! Cost: O([`PIECE`](super::PIECE)) each time that a stream is locked; in all, O(unmapped blocks) of the region, and where near
//! sources do not suffice, O(free blocks of a page or more) of all streams.

use super::super::super::streams::region::RegionId;
use super::super::super::streams::state::StreamState;
use super::super::mapper::Mapper;
use super::near;
use super::sources::{FreeRun, LastUse, Source, Sources, free_runs};
use super::states::States;
use super::target::Target;
use super::{Goal, World};
use crate::driver::Driver;
use crate::pages::PageCount;
use crate::stream::StreamIndex;
use std::collections::BTreeMap;

/// Copies that were made for a plan.
#[derive(Debug, Default)]
pub struct Copies {
    /// For each stream, its free blocks of a page or more.
    free: Option<Vec<Copy<Vec<FreeRun>>>>,
    /// The chunks in them.
    sources: Option<Sources>,
    /// The last chunks in the order of all, as long as those are not copied, if these seem to be enough.
    walked: Option<Option<Vec<Source>>>,
    /// Regions of the stream that the plan is for.
    targets: BTreeMap<RegionId, Copy<Target>>,
}

/// A copy, and how often the stream had allocated and freed before it was begun.
#[derive(Debug)]
struct Copy<T> {
    copied: T,
    count: u64,
}

impl Copies {
    /// The completely free chunks; of one stream, if the goal has to do with those.
    pub fn sources<D: Driver>(&mut self, mapper: &Mapper, states: &mut States<'_, D>, goal: &Goal) -> &Sources {
        let (page_bytes, all) = (mapper.chunks().page_bytes(), states.indices());
        let free = self.free.get_or_insert_with(|| {
            let copy = |stream| match goal.source_stream() {
                Some(only) if only != stream => Copy { copied: Vec::new(), count: 0 },
                _ => Copy::new(states, stream, |states| free_runs(states, stream, page_bytes, LastUse::Epoch)),
            };
            all.map(copy).collect()
        });
        self.sources.get_or_insert_with(|| Sources::new(mapper, free.iter().flat_map(|copy| &copy.copied)))
    }

    /// Whether all completely free chunks have been looked for.
    pub fn have_all_sources(&self) -> bool {
        self.free.is_some()
    }

    /// The near sources for a goal, or `None` where they are not worth a try.
    pub fn near<D: Driver>(&mut self, world: &World<'_>, states: &mut States<'_, D>, goal: &Goal) -> Option<Sources> {
        if self.have_all_sources() {
            return None;
        }
        let pages = PageCount::covering(goal.request.size, world.mapper.chunks().page_bytes());
        let missing = pages.saturating_sub(goal.allowance.soft_pages);
        let walked = self.walked.get_or_insert_with(|| near::walk(world, states, goal, missing));
        near::near(world, states, walked.as_ref()?, &self.targets.get(&goal.region)?.copied, goal)
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
                *copy = Copy::new(states, stream, |states| {
                    free_runs(states, stream, mapper.chunks().page_bytes(), LastUse::Epoch)
                });
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
    use crate::units::{DeviceAddr, StreamId};
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
}
