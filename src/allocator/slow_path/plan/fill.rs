//! Finding chunks for the pages of a placement: idle ones, new ones, free ones from elsewhere, in the order that keeps both
//! driver calls and pinned memory low.

use super::super::super::kind::RegionKind;
use super::{Backing, Fill, Reach, Recreation, Source, Survey};
use crate::pages::{PageCount, PageIndex, PageRange};
use crate::physical::{ChunkId, Headroom, Wanted};
use std::collections::BTreeMap;
use std::ops::Range;

/// Finds chunks for runs of pages.
pub(super) struct Filler<'a> {
    survey: &'a Survey<'a>,
    /// The pages that the block covers whole.
    covered: PageRange,
    /// The sources that may be taken, by number: by [`Wait`], then by pages; the next to take is the last of a list.
    unused: [BTreeMap<PageCount, Vec<usize>>; Wait::ALL.len()],
    /// The idle chunks that may be taken, by pages, without empty lists. Listed when one is first looked for: mostly, there is
    /// none.
    idle: Option<BTreeMap<PageCount, &'a [ChunkId]>>,
    /// Number of pages created.
    created: PageCount,
    /// Number of pages released and not created again.
    released: PageCount,
    fill: Vec<Fill>,
    release: Vec<Source>,
}

/// The wait that is needed before a source can be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Nothing: it is of the same stream, or its last use has passed.
    Nothing,
    /// The device has to order the stream behind another.
    OtherStream,
}

impl Wait {
    const ALL: [Self; 2] = [Self::Nothing, Self::OtherStream];
}

impl<'a> Filler<'a> {
    /// For a block at the offsets `block`. `used` has the sources that must not be taken.
    pub(super) fn new(survey: &'a Survey<'a>, block: &Range<u64>, used: &[bool]) -> Self {
        let mut unused: [BTreeMap<PageCount, Vec<usize>>; Wait::ALL.len()] = Default::default();
        let sources = survey.sources.list.iter().enumerate().skip(survey.sources.only_for_views);
        for (number, source) in sources.filter(|(number, _)| !used[*number]) {
            let at_once = source.is_passed(survey.goal.stream, survey.passed);
            let wait = if at_once { Wait::Nothing } else { Wait::OtherStream };
            unused[wait as usize].entry(source.pages.len()).or_default().push(number);
        }
        let (fill, release) = (Vec::new(), Vec::new());
        Self {
            survey,
            covered: PageRange::inside(block, survey.page_bytes()),
            unused,
            idle: None,
            created: PageCount::ZERO,
            released: PageCount::ZERO,
            fill,
            release,
        }
    }

    /// The mappings to make, and the free chunks to release before.
    pub(super) fn finish(self) -> (Vec<Fill>, Vec<Source>) {
        (self.fill, self.release)
    }

    /// Fills `pages`, and at most `spare` pages more behind them. Returns the page after the last that was filled, or `None`
    /// when the chunks do not suffice.
    pub(super) fn fill(&mut self, pages: PageRange, spare: PageCount) -> Option<PageIndex> {
        let mut left = pages;
        while !left.is_empty() {
            let (backing, got) = self.next(self.wanted(left, spare))?;
            let filled = PageRange::new(left.start, got);
            self.fill.push(Fill { pages: filled, backing });
            left.start = filled.end;
        }
        Some(left.start)
    }

    /// Returns which pages a chunk at the start of `left` is wanted for.
    fn wanted(&self, left: PageRange, spare: PageCount) -> Wanted {
        let covered = if left.start < self.covered.start { left.start } else { left.end.min(self.covered.end) };
        Wanted { pages: left.len(), covered: PageRange { start: left.start, end: covered }.len(), spare }
    }

    /// The next chunk, for at most `pages + spare` pages, and the number of its pages.
    fn next(&mut self, wanted: Wanted) -> Option<(Backing, PageCount)> {
        let Wanted { pages, spare, .. } = wanted;
        let found = self
            .idle(wanted)
            .or_else(|| self.create_from_released(wanted))
            .or_else(|| self.create(wanted, self.survey.goal.allowance.soft_pages))
            .or_else(|| self.remap(wanted));
        // What comes now is for when no chunk fits, and one further away may.
        if found.is_some() || self.survey.reach == Reach::Near {
            return found;
        }
        self.create_beyond_slack(wanted)
            .or_else(|| self.remap_larger(pages, spare))
            .or_else(|| self.recreate_waiting(wanted))
    }

    fn idle(&mut self, wanted: Wanted) -> Option<(Backing, PageCount)> {
        let mapper = self.survey.mapper;
        let idle = self.idle.get_or_insert_with(|| mapper.chunks().idle_by_pages().collect());
        let (&size, of_size) = idle.range_mut(..=mapper.sizes().for_idle(wanted)).next_back()?;
        #[cfg(test)]
        crate::testing::step();
        let (&chunk, rest) = of_size.split_first().expect("empty lists are removed");
        *of_size = rest;
        if rest.is_empty() {
            idle.remove(&size);
        }
        Some((Backing::Idle(chunk), size))
    }

    /// A new chunk, as long as no more than `allowed` pages are created in all.
    fn create(&mut self, wanted: Wanted, allowed: PageCount) -> Option<(Backing, PageCount)> {
        let left = allowed.saturating_sub(self.created);
        if left == PageCount::ZERO {
            return None;
        }
        let goal = &self.survey.goal;
        let mapper = self.survey.mapper;
        let headroom = Headroom {
            pages: goal.allowance.hard_pages.saturating_sub(self.created),
            budget_pages: mapper.chunks().budget_pages(),
        };
        let got = match goal.request.kind {
            RegionKind::Small => mapper.sizes().for_small_blocks(headroom, wanted),
            RegionKind::Large => mapper.sizes().for_large_block(headroom, goal.request.size, wanted),
        };
        let got = got.min(left);
        self.created += got;
        Some((Backing::Create, got))
    }

    /// The budget has headroom but slack has not: what is free is made to fit, if that needs no waiting, before more is held.
    fn create_beyond_slack(&mut self, wanted: Wanted) -> Option<(Backing, PageCount)> {
        let hard_pages = self.survey.goal.allowance.hard_pages;
        if hard_pages <= self.created {
            return None;
        }
        self.remap_larger(wanted.pages, wanted.spare)
            .or_else(|| self.recreate(wanted, Recreation::WithoutWaiting))
            .or_else(|| self.create(Wanted { spare: PageCount::ZERO, ..wanted }, hard_pages))
    }

    /// The largest chunks, since a move costs the same for any size. Once there is no headroom, they are cut up instead, so
    /// that they cannot be pinned by small blocks later.
    fn remap(&mut self, wanted: Wanted) -> Option<(Backing, PageCount)> {
        let tight = self.survey.goal.allowance.hard_pages <= self.created;
        let small_enough = self.without_headroom(wanted);
        let chunks = self.survey.mapper.chunks();
        for wait in Wait::ALL {
            let Some((&size, of_size)) = self.unused[wait as usize].range(..=wanted.pages).next_back() else {
                continue;
            };
            let next = *of_size.last().expect("empty lists are removed");
            // One further away may fit better.
            if self.survey.reach == Reach::Near
                && !(wait == Wait::Nothing && Some(size) == chunks.largest_up_to(wanted.pages))
            {
                return None;
            }
            if tight && size > small_enough && self.survey.can_go_back(&self.survey.sources.list[next]) {
                self.give_back(wait, size);
                return self.create_from_released(wanted);
            }
            return Some(self.take(wait, size));
        }
        None
    }

    fn remap_larger(&mut self, pages: PageCount, spare: PageCount) -> Option<(Backing, PageCount)> {
        let smallest_fit = |wait: Wait| Some((wait, *self.unused[wait as usize].range(..=pages + spare).next()?.0));
        let (wait, size) = Wait::ALL.into_iter().find_map(smallest_fit)?;
        Some(self.take(wait, size))
    }

    fn take(&mut self, wait: Wait, size: PageCount) -> (Backing, PageCount) {
        (Backing::Remap(self.pop(wait, size)), size)
    }

    /// Takes the source that comes last: from the largest free block, whose loss is felt least, and from its end.
    fn pop(&mut self, wait: Wait, size: PageCount) -> Source {
        let by_pages = &mut self.unused[wait as usize];
        let of_size = by_pages.get_mut(&size).expect("just found");
        let number = of_size.pop().expect("empty lists are removed");
        if of_size.is_empty() {
            by_pages.remove(&size);
        }
        self.survey.sources.list[number]
    }

    /// As [`recreate`](Self::recreate), where the host may wait for it.
    fn recreate_waiting(&mut self, wanted: Wanted) -> Option<(Backing, PageCount)> {
        match self.survey.goal.allowance.recreation {
            Recreation::WithoutWaiting => None,
            Recreation::Waiting => self.recreate(wanted, Recreation::Waiting),
        }
    }

    /// Releases the smallest free chunk that covers the shortage, or the largest there is, so that what is needed can be
    /// created in its place.
    fn recreate(&mut self, wanted: Wanted, recreation: Recreation) -> Option<(Backing, PageCount)> {
        let covering = |wait: Wait| Some((wait, *self.unused[wait as usize].range(wanted.pages..).next()?.0));
        let largest = |wait: Wait| Some((wait, *self.unused[wait as usize].keys().next_back()?));
        let mut waits = Wait::ALL.into_iter();
        let (wait, size) = waits.find_map(covering).or_else(|| Wait::ALL.into_iter().find_map(largest))?;
        let next = *self.unused[wait as usize][&size].last().expect("empty lists are removed");
        if recreation == Recreation::WithoutWaiting && !self.survey.can_go_back(&self.survey.sources.list[next]) {
            return None;
        }
        self.give_back(wait, size);
        self.create_from_released(wanted)
    }

    fn give_back(&mut self, wait: Wait, size: PageCount) {
        let source = self.pop(wait, size);
        self.release.push(source);
        self.released += size;
    }

    fn create_from_released(&mut self, wanted: Wanted) -> Option<(Backing, PageCount)> {
        if self.released == PageCount::ZERO {
            return None;
        }
        let got = self.without_headroom(wanted).min(wanted.pages).min(self.released);
        self.released -= got;
        Some((Backing::Create, got))
    }

    /// The size of chunks that are created in the place of larger ones.
    fn without_headroom(&self, wanted: Wanted) -> PageCount {
        self.survey.mapper.sizes().without_headroom(self.survey.goal.request.size, wanted.covered)
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::Allocator;
    use crate::driver::{DriverCall, ModelDriver};
    use crate::testing::steps_of;
    use crate::units::{MIB, StreamId};

    /// The memory of a range that is gone serves before more is created, though the budget would allow it.
    #[test]
    fn a_chunk_that_nothing_maps_is_used_before_one_is_created() {
        const PAGE: u64 = 2 * MIB;
        let allocator = Allocator::builder(std::sync::Arc::new(ModelDriver::default())).build().unwrap();
        let mut range = allocator.reserve_range(4 * PAGE).unwrap();
        (0..4).for_each(|_| range.grow(PAGE, StreamId::DEFAULT).unwrap());
        drop(range);
        let before = allocator.stats();
        assert_eq!((before.idle_bytes, before.reserved_bytes), (4 * PAGE, 4 * PAGE));
        allocator.alloc_raw(4 * PAGE, StreamId::DEFAULT).unwrap();
        let after = allocator.stats();
        assert_eq!((after.idle_bytes, after.reserved_bytes), (0, 4 * PAGE));
        assert_eq!(after.driver_calls[DriverCall::Create], before.driver_calls[DriverCall::Create]);
    }

    /// Idle chunks of many sizes are each looked at about once, not once for every chunk that is taken.
    #[test]
    fn idle_chunks_of_many_sizes_cost_no_more_than_they_are() {
        const PAGE: u64 = 2 * MIB;
        const SIZES: u64 = 64;
        let all = (1..=SIZES).sum::<u64>() * PAGE;
        let leave_idle = |allocator: &Allocator<ModelDriver>| {
            let grown = |pages: u64| {
                let mut range = allocator.reserve_range(all).unwrap();
                range.grow(pages * PAGE, StreamId::DEFAULT).unwrap();
                range
            };
            let ranges: Vec<_> = (1..=SIZES).map(grown).collect();
            drop(ranges);
            let stats = allocator.stats();
            assert_eq!((stats.idle_bytes, stats.reserved_bytes, stats.chunks), (all, all, SIZES));
        };
        let allocator = Allocator::builder(std::sync::Arc::new(ModelDriver::default())).build().unwrap();
        leave_idle(&allocator);
        let steps = steps_of(|| _ = allocator.alloc_raw(all, StreamId::DEFAULT).unwrap());
        assert_eq!((allocator.stats().idle_bytes, allocator.stats().chunks), (0, SIZES));
        assert!(steps <= 4 * SIZES, "{steps} steps of a block");

        let allocator = Allocator::builder(std::sync::Arc::new(ModelDriver::default())).build().unwrap();
        leave_idle(&allocator);
        let mut range = allocator.reserve_range(all).unwrap();
        let steps = steps_of(|| range.grow(all, StreamId::DEFAULT).unwrap());
        assert_eq!((allocator.stats().idle_bytes, allocator.stats().chunks), (0, SIZES));
        assert!(steps <= 4 * SIZES, "{steps} steps of a range");
    }
}
