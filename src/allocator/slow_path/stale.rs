//! Stale views in the order in which they became stale, so that the oldest can go when mappings run short.
//!
//! - I1  every stale view whose last use may pass has an entry. An entry of a view that has become active again, or is gone, is
//!   dropped when it is met.
//!
//! Cost: constant for each view that becomes stale.

use super::super::error::AllocError;
use super::SlowPath;
use super::mapper::Mapper;
use crate::driver::{Driver, DriverError, DriverErrorKind};
use crate::physical::ViewAt;
use crate::segment::ViewState;
use crate::stream::Fence;
use std::collections::{HashSet, VecDeque};

/// Entries of views, oldest first.
#[derive(Debug, Default)]
pub struct StaleOrder {
    entries: VecDeque<(ViewAt, Fence)>,
}

impl StaleOrder {
    /// Number of entries, those that are out of date included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Mapper {
    /// Makes an active view stale, since the chunk's bytes are used elsewhere from now on.
    pub fn make_stale(&mut self, at: ViewAt, fence: Fence) {
        self.segments[at.segment as usize].table.set_state(at.page, ViewState::Stale(fence));
        self.stale_order.entries.push_back((at, fence));
        // Programs repeat themselves: most views become active again before they are old. Each entry that is dropped here
        // pays for one that was added.
        if self.stale_order.len() > 2 * self.pool.stale_views() + SPARE_ENTRIES {
            let mut order = std::mem::take(&mut self.stale_order);
            order.entries.retain(|(at, fence)| self.is_stale(*at, *fence));
            self.stale_order = order;
        }
    }

    /// Whether a view is stale whose last use ends with `fence`.
    fn is_stale(&self, at: ViewAt, fence: Fence) -> bool {
        let view = self.segments[at.segment as usize].table.view(at.page);
        view.is_some_and(|view| view.pages.start == at.page && view.state == ViewState::Stale(fence))
    }

    /// Asserts I1.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub fn check_stale_order(&self) {
        let listed: HashSet<(ViewAt, Fence)> = self.stale_order.entries.iter().copied().collect();
        for (number, segment) in self.segments.iter().enumerate() {
            for view in segment.table.iter() {
                if let ViewState::Stale(fence) = view.state
                    && fence.epoch != crate::stream::NEVER
                {
                    let at = super::mapper::view_at(number, view.pages.start);
                    assert!(listed.contains(&(at, fence)), "stale I1: the view at {at:?} has no entry");
                }
            }
        }
    }
}

/// Entries that may be out of date before they are looked for.
const SPARE_ENTRIES: usize = 1024;

/// Number of stale views that are removed at the limit of mappings for each mapping that is made: the next requests of that
/// size need remove none.
pub const DROPPED_FOR_EACH: usize = 4;

/// Which stale views to drop.
#[derive(Clone, Copy, Debug)]
pub struct Drop {
    /// Most that are dropped.
    pub most: usize,
    /// The search ends once more than these were looked at and not dropped, since their last use has not passed.
    pub patience: usize,
}

impl<D: Driver> SlowPath<'_, D> {
    /// Unmaps the oldest stale views whose last use has completed. Returns their number.
    ///
    /// # Errors
    /// The driver's. What was unmapped before stays so.
    pub fn drop_stale_views(&mut self, drop: Drop) -> Result<usize, DriverError> {
        if self.shared.geometry.keeps_mappings {
            return Ok(0);
        }
        let (mut dropped, mut waiting) = (0, Vec::new());
        let result = loop {
            if dropped == drop.most || waiting.len() > drop.patience {
                break Ok(dropped);
            }
            let Some((at, fence)) = self.mapper.stale_order.entries.pop_front() else { break Ok(dropped) };
            if !self.mapper.is_stale(at, fence) {
                continue;
            }
            match self.progress().has_passed(fence.stream, fence.epoch) {
                Ok(true) => {}
                Ok(false) => {
                    waiting.push((at, fence));
                    continue;
                }
                Err(error) => {
                    waiting.push((at, fence));
                    break Err(error);
                }
            }
            match self.unmap_unless_refused(at) {
                Ok(true) => dropped += 1,
                Ok(false) => waiting.push((at, fence)),
                Err(error) => {
                    waiting.push((at, fence));
                    break Err(error);
                }
            }
        };
        // Behind the others: whoever comes next looks at those first.
        self.mapper.stale_order.entries.extend(waiting);
        result
    }

    /// After the driver has refused a sequence of `mappings` mappings, which was undone: makes room where its own limit may be the
    /// cause, so that the sequence can be tried again.
    ///
    /// # Errors
    /// What the driver said, where that is something else or there is no room to make. What was unmapped before stays so.
    pub fn make_room_after(&mut self, error: DriverError, mappings: usize) -> Result<(), AllocError> {
        let may_help = error.kind == DriverErrorKind::OutOfMemory;
        if may_help && self.make_room_for_mappings(mappings * DROPPED_FOR_EACH)? {
            return Ok(());
        }
        Err(self.mapping_error(error))
    }

    /// Where the driver makes no further mapping: unmaps up to `most` of the oldest stale views. If the last use of none has
    /// completed, the host waits for that of the oldest for which it can. Returns whether one was unmapped.
    ///
    /// # Errors
    /// The driver's. What was unmapped before stays so.
    fn make_room_for_mappings(&mut self, most: usize) -> Result<bool, DriverError> {
        let drop = Drop { most, patience: usize::MAX };
        if self.drop_stale_views(drop)? > 0 {
            return Ok(true);
        }
        if self.shared.geometry.keeps_mappings {
            return Ok(false);
        }
        let entries = self.mapper.stale_order.entries.iter();
        let mut fences: Vec<Fence> = entries.map(|(_, fence)| *fence).collect();
        fences.dedup();
        // Of a stream that cannot be waited for now, a later moment cannot either.
        let mut hopeless = HashSet::new();
        for fence in fences {
            // A view whose last use has completed is still there because a listener refuses to let it go.
            let passed = self.shared.streams.get(fence.stream).clock.lock().has_passed(fence.epoch);
            if passed || hopeless.contains(&fence.stream) {
                continue;
            }
            if !self.progress().wait_until_passed(fence.stream, fence.epoch)? {
                hopeless.insert(fence.stream);
            } else if self.drop_stale_views(drop)? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The error of a sequence of mappings that the driver did not make.
    pub fn mapping_error(&self, error: DriverError) -> AllocError {
        match error.kind {
            DriverErrorKind::OutOfMemory => {
                AllocError::OutOfMappings { mappings: self.mapper.mappings(), source: error }
            }
            _ => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::{Allocator, ChunkPolicy, VirtualRange};
    use crate::driver::{ModelConfig, ModelDriver};
    use crate::testing::assert_noticed;
    use crate::units::StreamId;
    use std::mem::ManuallyDrop;
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    fn allocator() -> Allocator<ModelDriver> {
        let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
        Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap()
    }

    /// Two ranges of so many pages, the first one mapped.
    fn ranges(allocator: &Allocator<ModelDriver>, pages: u64) -> [VirtualRange<ModelDriver>; 2] {
        let mut ranges = [(); 2].map(|()| allocator.reserve_range(pages * PAGE).unwrap());
        ranges[0].grow(pages * PAGE, MAIN).unwrap();
        ranges
    }

    /// Number of entries, and of stale views.
    fn counts(allocator: &Allocator<ModelDriver>) -> (usize, usize) {
        let mapper = allocator.inner.door.mapper.lock();
        (mapper.stale_order.entries.len(), mapper.pool.stale_views())
    }

    /// However often a page moves to and fro, entries of views that are gone do not pile up: there are twice as many as stale
    /// views, and some. To look for those that are out of date pays, since at least half of all are.
    #[test]
    fn entries_that_are_out_of_date_are_dropped_in_time() {
        let allocator = allocator();
        let mut many = ranges(&allocator, 3000);
        let [one, two] = &mut many;
        two.take_from(one, 3000 * PAGE, MAIN).unwrap();
        assert_eq!(counts(&allocator), (3000, 3000));
        let [mut here, mut there] = ranges(&allocator, 1);
        let (mut before, mut cleaned) = (3000, 0);
        let mut turn = || {
            there.take_from(&mut here, PAGE, MAIN).unwrap();
            std::mem::swap(&mut here, &mut there);
            let (entries, stale) = counts(&allocator);
            assert!(entries <= 2 * stale + SPARE_ENTRIES, "{entries} entries of {stale} stale views");
            cleaned += usize::from(entries < before);
            assert!(entries > before || 2 * entries <= before + 1, "{before} entries were looked at for {entries}");
            before = entries;
        };
        (0..10_000).for_each(|_| turn());
        // The stale views of one range go with it, and so do their entries.
        drop(many);
        (0..3000).for_each(|_| turn());
        assert!((4..10).contains(&cleaned), "{cleaned} times");
        allocator.check();
    }

    #[test]
    fn check_names_a_view_without_an_entry() {
        let with_a_stale_view = || {
            let allocator = ManuallyDrop::new(allocator());
            let [mut here, mut there] = ranges(&allocator, 1);
            there.take_from(&mut here, PAGE, MAIN).unwrap();
            std::mem::forget([here, there]);
            allocator
        };
        let lose = |allocator: &mut ManuallyDrop<Allocator<ModelDriver>>| {
            allocator.inner.door.mapper.lock().stale_order.entries.clear();
        };
        let check = |allocator: &ManuallyDrop<Allocator<ModelDriver>>| allocator.check();
        assert_noticed(with_a_stale_view, check, &[("stale I1: the view at", lose)]);
    }
}
