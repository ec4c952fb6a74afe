//! Page table of one segment: the view that each page belongs to.
//!
//! - I1  every page of a view refers to it, and no page refers to a view that does not exist.
//! - I2  a page is marked as mapped exactly when a view covers it, and as active exactly when that view is active. There are
//!   marks for some pages behind the highest as well.
//!
//! Memory: 4 bytes and 2 bits per page up to the highest page ever mapped, and one record per view.

use crate::pages::{PageCount, PageIndex, PageRange};
use crate::physical::ChunkId;
use crate::stream::{Fence, NEVER, StreamIndex};
use bitvec::vec::BitVec;

/// Whether a chunk's bytes are allocated through a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewState {
    /// They are. A chunk has at most one such view.
    Active,
    /// No longer: all use through the view is over when this fence has passed.
    Stale(Fence),
}

impl ViewState {
    /// Of a view that can be neither used nor removed: its last use never passes. `stream` is the one that asked for it.
    pub fn stuck(stream: StreamIndex) -> Self {
        Self::Stale(Fence { stream, epoch: NEVER })
    }

    /// Whether the view can be neither used nor removed.
    pub fn is_stuck(&self) -> bool {
        matches!(self, Self::Stale(fence) if fence.epoch == NEVER)
    }
}

/// One mapping of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The chunk that is mapped.
    pub chunk: ChunkId,
    /// The pages of the segment at which the chunk is mapped: as many as the chunk has.
    pub pages: PageRange,
    /// Whether the chunk's bytes are allocated through the view.
    pub state: ViewState,
}

/// Stands for "no view" in `view_of`.
const NONE: u32 = u32::MAX;

/// Number of bits by which the marks of pages grow: growing them bit by bit takes longer than setting them.
const BITS_AT_A_TIME: usize = 512;

/// The views of one segment, by page.
#[derive(Debug, Default)]
pub struct PageTable {
    view_of: Vec<u32>,
    mapped: BitVec,
    active: BitVec,
    views: Vec<Option<View>>,
    vacant: Vec<u32>,
    stale: usize,
}

impl PageTable {
    /// Returns the number of views.
    #[allow(clippy::len_without_is_empty, reason = "a count among others, not a collection's length")]
    pub fn len(&self) -> usize {
        self.views.len() - self.vacant.len()
    }

    /// Returns the number of stale views.
    pub fn stale(&self) -> usize {
        self.stale
    }

    /// Returns the number of mapped pages.
    pub fn mapped_pages(&self) -> PageCount {
        PageCount(self.mapped.count_ones() as u64)
    }

    /// Returns the page after the highest one that was ever mapped.
    pub fn top(&self) -> PageIndex {
        PageIndex(self.view_of.len() as u64)
    }

    /// Adds a view. Its pages must not be mapped.
    pub fn add(&mut self, view: View) {
        let pages = view.pages.as_usize();
        if self.view_of.len() < pages.end {
            self.view_of.resize(pages.end, NONE);
        }
        if self.mapped.len() < pages.end {
            let bits = pages.end.next_multiple_of(BITS_AT_A_TIME);
            self.mapped.resize(bits, false);
            self.active.resize(bits, false);
        }
        self.stale += usize::from(view.state != ViewState::Active);
        debug_assert!(self.mapped[pages.clone()].not_any(), "pages {pages:?} are mapped already");
        let id = match self.vacant.pop() {
            Some(id) => {
                self.views[id as usize] = Some(view);
                id
            }
            None => {
                self.views.push(Some(view));
                u32::try_from(self.views.len() - 1).expect("fewer than 2^32 views")
            }
        };
        self.view_of[pages.clone()].fill(id);
        self.mapped[pages.clone()].fill(true);
        self.active[pages].fill(view.state == ViewState::Active);
    }

    /// Removes the view that starts at `page`.
    ///
    /// # Panics
    /// Panics if no view starts there.
    pub fn remove(&mut self, page: PageIndex) -> View {
        let id = self.view_of[page.as_usize()];
        let view = self.views[id as usize].take().expect("I1: a page refers to a view that exists");
        assert_eq!(view.pages.start, page, "no view starts at the page");
        self.stale -= usize::from(view.state != ViewState::Active);
        self.vacant.push(id);
        let pages = view.pages.as_usize();
        self.view_of[pages.clone()].fill(NONE);
        self.mapped[pages.clone()].fill(false);
        self.active[pages].fill(false);
        view
    }

    /// Changes the state of the view that starts at `page`.
    ///
    /// # Panics
    /// Panics if `page` is not mapped.
    pub fn set_state(&mut self, page: PageIndex, state: ViewState) {
        let id = self.view_of[page.as_usize()];
        let view = self.views[id as usize].as_mut().expect("I1: a page refers to a view that exists");
        debug_assert_eq!(view.pages.start, page, "no view starts at the page");
        self.stale += usize::from(state != ViewState::Active);
        self.stale -= usize::from(view.state != ViewState::Active);
        view.state = state;
        let pages = view.pages.as_usize();
        self.active[pages].fill(state == ViewState::Active);
    }

    /// Returns the view that covers `page`.
    pub fn view(&self, page: PageIndex) -> Option<&View> {
        let id = *self.view_of.get(page.as_usize())?;
        if id == NONE { None } else { self.views[id as usize].as_ref() }
    }

    /// Returns the views that overlap `pages`, in address order.
    pub fn views_in(&self, pages: PageRange) -> impl Iterator<Item = &View> {
        let mut at = pages.start;
        let end = pages.end.min(self.top());
        std::iter::from_fn(move || {
            while at < end {
                #[cfg(test)]
                crate::testing::step();
                if let Some(view) = self.view(at) {
                    at = view.pages.end;
                    return Some(view);
                }
                let skip = self.mapped[at.as_usize()..end.as_usize()].first_one()?;
                at = at + PageCount(skip as u64);
            }
            None
        })
    }

    /// Returns the views that lie in `pages` whole, in address order.
    pub fn views_within(&self, pages: PageRange) -> impl Iterator<Item = &View> {
        self.views_in(pages).filter(move |view| pages.contains(view.pages))
    }

    /// Returns the same from the last one down. Pages that are not mapped end the walk.
    pub fn views_within_down(&self, pages: PageRange) -> impl Iterator<Item = &View> {
        let mut end = pages.end;
        std::iter::from_fn(move || {
            #[cfg(test)]
            crate::testing::step();
            let last = end.0.checked_sub(1).map(PageIndex).filter(|last| *last >= pages.start)?;
            let view = self.view(last)?;
            end = view.pages.start;
            Some(view)
        })
        .filter(move |view| pages.contains(view.pages))
    }

    /// Returns all views in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = &View> {
        self.views.iter().flatten()
    }

    /// Returns `true` if all of `pages` are in active views.
    pub fn all_active(&self, pages: PageRange) -> bool {
        pages.end <= self.top() && self.active[pages.as_usize()].all()
    }

    /// Returns `true` if none of `pages` is in an active view.
    pub fn none_active(&self, pages: PageRange) -> bool {
        let pages = PageRange { end: pages.end.min(self.top()), ..pages };
        pages.is_empty() || self.active[pages.as_usize()].not_any()
    }

    /// Returns the host memory that the table uses, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        (self.view_of.capacity() * 4
            + (self.mapped.capacity() + self.active.capacity()) / 8
            + self.views.capacity() * size_of::<Option<View>>()) as u64
    }

    /// Asserts I1 and I2.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check(&self) {
        let mut covered = PageCount::ZERO;
        for (id, view) in self.views.iter().enumerate().filter_map(|(id, view)| view.map(|view| (id, view))) {
            let (view_of, active) = (&self.view_of[view.pages.as_usize()], &self.active[view.pages.as_usize()]);
            let first = view.pages.as_usize().start;
            let astray = view_of.iter().position(|of| *of as usize != id);
            assert_eq!(astray, None, "I1: page {}", first + astray.unwrap_or(0));
            let wrong = if view.state == ViewState::Active { active.first_zero() } else { active.first_one() };
            assert_eq!(wrong, None, "I2: page {}", first + wrong.unwrap_or(0));
            covered += view.pages.len();
        }
        let stale = self.iter().filter(|view| view.state != ViewState::Active).count();
        assert_eq!(stale, self.stale, "I2: stale views");
        assert_eq!(covered, self.mapped_pages(), "I2: pages mapped without a view");
        let referring = self.view_of.iter().filter(|id| **id != NONE).count() as u64;
        assert_eq!(PageCount(referring), covered, "I1: pages without a view");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Break, assert_noticed};
    use proptest::prelude::*;

    const PAGES: u64 = 48;

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange { start: PageIndex(start), end: PageIndex(end) }
    }

    #[derive(Clone, Debug)]
    enum TableOp {
        Add { page: u64, pages: u64, stale: bool },
        Remove(usize),
        SetState { which: usize, stale: bool },
    }

    fn table_op() -> impl Strategy<Value = TableOp> {
        prop_oneof![
            3 => (0..PAGES, 1..9u64, any::<bool>())
                .prop_map(|(page, pages, stale)| TableOp::Add { page, pages: pages.min(PAGES - page), stale }),
            1 => any::<usize>().prop_map(TableOp::Remove),
            2 => (any::<usize>(), any::<bool>()).prop_map(|(which, stale)| TableOp::SetState { which, stale }),
        ]
    }

    fn state(stale: bool) -> ViewState {
        if stale { ViewState::Stale(Fence { stream: StreamIndex(3), epoch: 9 }) } else { ViewState::Active }
    }

    /// Compares the result of every query with a plain list of views.
    fn assert_same(table: &PageTable, views: &[View], top: PageIndex) {
        table.check();
        let covering = |page: u64| views.iter().find(|view| view.pages.contains(pages(page, page + 1)));
        assert_eq!(table.len(), views.len());
        assert_eq!(table.iter().count(), views.len());
        assert_eq!(table.stale(), views.iter().filter(|view| view.state != ViewState::Active).count());
        assert_eq!(table.mapped_pages(), views.iter().map(|view| view.pages.len()).sum());
        assert_eq!(table.top(), top);
        for start in 0..PAGES + 2 {
            assert_eq!(table.view(PageIndex(start)), covering(start));
            for end in start..PAGES + 2 {
                let range = pages(start, end);
                let touches = |view: &View| start < end && view.pages.start < range.end && range.start < view.pages.end;
                let mut touching: Vec<View> = views.iter().copied().filter(touches).collect();
                touching.sort_unstable_by_key(|view| view.pages.start);
                assert_eq!(table.views_in(range).copied().collect::<Vec<_>>(), touching, "{start}..{end}");
                let active =
                    (start..end).filter(|page| covering(*page).is_some_and(|view| view.state == ViewState::Active));
                let active = active.count() as u64;
                assert_eq!(table.none_active(range), active == 0, "{start}..{end}");
                if range.end <= top {
                    assert_eq!(table.all_active(range), active == end - start, "{start}..{end}");
                } else {
                    assert!(!table.all_active(range));
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        #[test]
        fn agrees_with_a_list_of_views(ops in prop::collection::vec(table_op(), 1..40)) {
            let mut table = PageTable::default();
            let mut views: Vec<View> = Vec::new();
            let mut top = PageIndex(0);
            for (number, op) in ops.into_iter().enumerate() {
                match op {
                    TableOp::Add { page, pages: count, stale } => {
                        let view = View {
                            chunk: ChunkId(number as u32),
                            pages: pages(page, page + count),
                            state: state(stale),
                        };
                        if views.iter().any(|other| view.pages.start < other.pages.end && other.pages.start < view.pages.end) {
                            continue;
                        }
                        table.add(view);
                        views.push(view);
                        top = top.max(view.pages.end);
                    }
                    TableOp::Remove(which) if !views.is_empty() => {
                        let view = views.swap_remove(which % views.len());
                        prop_assert_eq!(table.remove(view.pages.start), view);
                    }
                    TableOp::SetState { which, stale } if !views.is_empty() => {
                        let which = which % views.len();
                        views[which].state = state(stale);
                        table.set_state(views[which].pages.start, state(stale));
                    }
                    _ => {}
                }
                assert_same(&table, &views, top);
            }
        }
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<PageTable>] = &[
            ("I1: page 3", |table| table.view_of[3] = NONE),
            ("I1: pages without a view", |table| table.view_of[0] = 0),
            ("I2: page 2", |table| table.active.set(2, false)),
            ("I2: page 5", |table| table.active.set(5, true)),
            ("I2: stale views", |table| table.stale = 2),
            ("I2: pages mapped without a view", |table| table.mapped.set(0, true)),
        ];
        let table = || {
            let mut table = PageTable::default();
            table.add(View { chunk: ChunkId(0), pages: pages(2, 4), state: state(false) });
            table.add(View { chunk: ChunkId(1), pages: pages(5, 6), state: state(true) });
            table
        };
        assert_noticed(table, PageTable::check, breaks);
    }

    #[test]
    fn memory_is_proportional_to_pages() {
        let mut table = PageTable::default();
        table.add(View { chunk: ChunkId(0), pages: pages(0, 1 << 16), state: ViewState::Active });
        let per_page = table.metadata_bytes() as f64 / f64::from(1 << 16);
        assert!((4.25..4.5).contains(&per_page), "{per_page} bytes per page");
        table.remove(PageIndex(0));
        let before = table.metadata_bytes();
        for page in 0..1000 {
            table.add(View { chunk: ChunkId(1), pages: pages(page, page + 1), state: ViewState::Active });
        }
        assert!(table.metadata_bytes() > before + 1000 * size_of::<View>() as u64, "one record per view");
    }

    #[test]
    fn views_are_added_and_removed_as_a_whole() {
        let mut table = PageTable::default();
        let view = |chunk, pages| View { chunk: ChunkId(chunk), pages, state: ViewState::Active };
        table.add(view(0, pages(4, 6)));
        table.add(view(1, pages(6, 7)));
        table.add(view(2, pages(20, 28)));
        table.check();
        let starts = |range| table.views_in(range).map(|view| view.pages.start.0).collect::<Vec<_>>();
        assert_eq!(
            (starts(pages(0, 100)), starts(pages(5, 6)), starts(pages(7, 20))),
            (vec![4, 6, 20], vec![4], vec![])
        );
        assert!(table.all_active(pages(4, 7)) && !table.all_active(pages(4, 8)) && table.none_active(pages(7, 20)));
        table.set_state(PageIndex(4), ViewState::Stale(Fence { stream: StreamIndex(0), epoch: 1 }));
        assert!(table.none_active(pages(4, 6)) && table.view(PageIndex(5)).is_some());
        table.check();
        assert_eq!(table.remove(PageIndex(4)).pages, pages(4, 6));
        table.check();
        assert!(table.view(PageIndex(5)).is_none() && table.view(PageIndex(1000)).is_none());
        assert_eq!((table.len(), table.mapped_pages(), table.top()), (2, PageCount(9), PageIndex(28)));
    }
}
