//! Stale views in the order in which they became stale, so that the oldest can go when mappings run short.
//!
//! - I1  every stale view that may go once its last use has passed has an entry; none has one where mappings are kept. An entry
//!   of a view that has become active again, or is gone, is dropped when it is met.
//!
//! Cost: constant for each view that becomes stale.

use super::{Mappings, view_at};
use crate::physical::ViewAt;
use crate::segment::ViewState;
use crate::stream::Fence;
use std::collections::{HashSet, VecDeque};

/// Entries of views, oldest first.
#[derive(Debug, Default)]
pub struct StaleOrder {
    entries: VecDeque<(ViewAt, Fence)>,
}

/// Entries that may be out of date before they are looked for.
const SPARE_ENTRIES: usize = 1024;

impl Mappings {
    /// Adds a view that has just become stale, if it may ever go.
    pub(super) fn note_stale(&mut self, at: ViewAt, last_use: Fence) {
        if self.kept.is_some() {
            return;
        }
        self.stale_order.entries.push_back((at, last_use));
        // Programs repeat themselves: most views become active again before they are old. Each entry that is dropped here
        // pays for one that was added.
        if self.stale_order.entries.len() > 2 * self.chunks.stale_views() + SPARE_ENTRIES {
            let mut order = std::mem::take(&mut self.stale_order);
            order.entries.retain(|(at, last_use)| self.is_stale(*at, *last_use));
            self.stale_order = order;
        }
    }

    /// Takes the oldest stale view off the list, with the end of its last use. Whoever does not remove it puts it back.
    pub fn take_oldest_stale(&mut self) -> Option<(ViewAt, Fence)> {
        loop {
            let (at, last_use) = self.stale_order.entries.pop_front()?;
            if self.is_stale(at, last_use) {
                return Some((at, last_use));
            }
        }
    }

    /// Puts stale views that were taken back, behind the others: whoever comes next looks at those first.
    pub fn put_back_stale(&mut self, views: Vec<(ViewAt, Fence)>) {
        self.stale_order.entries.extend(views);
    }

    /// The ends of the last uses of the stale views, oldest first.
    pub fn ends_of_stale(&self) -> Vec<Fence> {
        let mut ends: Vec<Fence> = self.stale_order.entries.iter().map(|(_, last_use)| *last_use).collect();
        ends.dedup();
        ends
    }

    /// Whether a view is stale whose last use ends with `last_use`.
    fn is_stale(&self, at: ViewAt, last_use: Fence) -> bool {
        let view = self.segments[at.segment as usize].table.view(at.page);
        view.is_some_and(|view| view.pages.start == at.page && view.state == ViewState::Stale(last_use))
    }

    /// Asserts I1.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub(super) fn check_stale_order(&self) {
        if self.kept.is_some() {
            assert!(self.stale_order.entries.is_empty(), "stale I1: a mapping that is kept may go");
            return;
        }
        let listed: HashSet<(ViewAt, Fence)> = self.stale_order.entries.iter().copied().collect();
        for (number, segment) in self.segments.iter().enumerate() {
            for view in segment.table.iter().filter(|view| !view.state.is_stuck()) {
                if let ViewState::Stale(last_use) = view.state {
                    let at = view_at(number, view.pages.start);
                    assert!(listed.contains(&(at, last_use)), "stale I1: the view at {at:?} has no entry");
                }
            }
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
        allocator.inner.door.with_mappings(|it| (it.stale_order.entries.len(), it.chunks.stale_views()))
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
            allocator.inner.door.with_mappings(|it| it.stale_order.entries.clear());
        };
        let check = |allocator: &ManuallyDrop<Allocator<ModelDriver>>| allocator.check();
        assert_noticed(with_a_stale_view, check, &[("stale I1: the view at", lose)]);
    }
}
