//! The check of what ties chunks, their views and page tables.

use super::{Mappings, view_at};
use crate::physical::{LentTo, ViewAt};
use crate::segment::ViewState;
use std::collections::BTreeMap;

impl Mappings {
    /// Asserts M1 to M4, and what chunks, page tables and the order of stale views promise themselves. Where `asleep` says so,
    /// nothing is mapped now.
    ///
    /// # Panics
    /// Panics if one does not hold; the message names it, with its number in `docs/internals/mechanisms.md`, if it has one there.
    pub fn check(&self, asleep: impl Fn(ViewAt) -> bool) {
        self.chunks.check();
        self.check_kept(asleep);
        self.check_stale_order();
        self.check_views();
        self.check_loans();
        self.check_counts();
    }

    /// Asserts M1, and the first half of M2.
    fn check_views(&self) {
        let mut active_views = BTreeMap::new();
        for (number, segment) in self.segments.iter().enumerate() {
            segment.table.check();
            for view in segment.table.iter() {
                let at = view_at(number, view.pages.start);
                let chunk = self.chunks.get(view.chunk);
                assert_eq!(chunk.pages, view.pages.len(), "a chunk is mapped whole");
                match view.state {
                    ViewState::Active => {
                        assert_eq!(chunk.active, Some(at), "invariant 1: a chunk has one active view");
                        let twice = active_views.insert(view.chunk, at);
                        assert!(twice.is_none(), "invariant 1: two active views of {:?}", view.chunk);
                    }
                    ViewState::Stale(_) => assert!(chunk.stale.contains(&at), "a stale view is known to its chunk"),
                }
            }
        }
    }

    /// Asserts the second half of M2, and that a registered block is alone.
    fn check_loans(&self) {
        for (id, chunk) in self.chunks.iter().filter(|(_, chunk)| chunk.lent_out.is_some()) {
            assert!(chunk.active.is_some(), "M2: {id:?} is lent and not mapped");
        }
        for (id, chunk) in self.chunks.iter().filter(|(_, chunk)| chunk.lent_out == Some(LentTo::RegisteredBlock)) {
            let segment = chunk.active.map(|at| &self.segments[at.segment as usize]);
            let alone = segment.is_some_and(|it| it.pages == chunk.pages && it.table.len() == 1);
            assert!(alone, "invariant 7: the registered block of {id:?} is one chunk, alone in its addresses");
        }
    }

    /// Asserts M4.
    fn check_kept(&self, asleep: impl Fn(ViewAt) -> bool) {
        for (at, handle) in self.kept.iter().flatten().filter(|(at, _)| !asleep(**at)) {
            let view = self.segments[at.segment as usize].table.view(at.page);
            let chunk = view.filter(|view| view.pages.start == at.page).map(|view| self.chunks.get(view.chunk));
            assert_eq!(chunk.map(|chunk| chunk.handle), Some(*handle), "invariant 10: the mapping at {at:?} has gone");
        }
    }

    /// Asserts M3. With M1, a chunk's list has no view either that is in no page table.
    fn check_counts(&self) {
        let views: usize = self.segments.iter().map(|segment| segment.table.len()).sum();
        assert_eq!(views, self.mappings(), "mappings");
        let tables: u64 = self.segments.iter().map(|segment| segment.table.metadata_bytes()).sum();
        assert_eq!(tables, self.tables_bytes, "memory of page tables");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{ChunkHandle, ModelConfig, ModelDriver};
    use crate::pages::{PageCount, PageIndex, PageRange};
    use crate::physical::ChunkId;
    use crate::segment::View;
    use crate::stream::{Fence, StreamIndex};
    use crate::testing::{Break, assert_noticed};
    use crate::units::StreamId;
    use std::mem::ManuallyDrop;
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    /// An allocator that a test breaks, and that is therefore never closed.
    type Broken = ManuallyDrop<Allocator<ModelDriver>>;

    /// A live block over two single pages, which are still mapped where they were before; and two that moved to a range.
    fn allocator() -> Broken {
        let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 6 * PAGE, ..ModelConfig::default() }));
        let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let blocks = [(); 4].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
        let mut ranges = [(); 2].map(|()| allocator.reserve_range(2 * PAGE).unwrap());
        ranges[0].grow(2 * PAGE, MAIN).unwrap();
        let [from, to] = &mut ranges;
        to.take_from(from, PAGE, MAIN).unwrap();
        std::mem::forget(ranges);
        allocator.free(blocks[0]).unwrap();
        allocator.free(blocks[2]).unwrap();
        allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
        ManuallyDrop::new(allocator)
    }

    fn with(allocator: &Broken, change: impl FnOnce(&mut Mappings)) {
        allocator.inner.door.with_mappings(change);
    }

    /// A place in a region where nothing is mapped.
    fn elsewhere() -> ViewAt {
        ViewAt { segment: 0, page: PageIndex(40) }
    }

    /// The first chunk with a stale view, that and its active one.
    fn moved(mappings: &Mappings) -> (ChunkId, ViewAt, ViewAt) {
        let moved = |(id, chunk): (ChunkId, &crate::physical::Chunk)| Some((id, *chunk.stale.first()?, chunk.active?));
        mappings.chunks.iter().find_map(moved).unwrap()
    }

    fn set_state(mappings: &mut Mappings, at: ViewAt, state: ViewState) {
        mappings.segments[at.segment as usize].table.set_state(at.page, state);
    }

    /// The first chunk that belongs to a range.
    fn lent(mappings: &Mappings) -> ChunkId {
        mappings.chunks.iter().find(|(_, chunk)| chunk.lent_out.is_some()).unwrap().0
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<Broken>] = &[
            ("invariant 1: a chunk has one active view", |allocator| {
                with(allocator, |it| it.chunks.activate(ChunkId(0), elsewhere()));
            }),
            ("invariant 1: a chunk has one active view", |allocator| {
                // In the page table alone.
                with(allocator, |it| {
                    let (_, stale, _) = moved(it);
                    set_state(it, stale, ViewState::Active);
                });
            }),
            ("a stale view is known to its chunk", |allocator| {
                with(allocator, |it| {
                    let (_, _, active) = moved(it);
                    let last_use = Fence { stream: StreamIndex(0), epoch: 1 };
                    set_state(it, active, ViewState::Stale(last_use));
                    it.note_stale(active, last_use);
                });
            }),
            ("a stale view is known to its chunk", |allocator| {
                // In the chunk's list it has gone.
                with(allocator, |it| {
                    let (chunk, stale, _) = moved(it);
                    it.chunks.drop_view(chunk, stale);
                });
            }),
            ("a chunk is mapped whole", |allocator| {
                with(allocator, |it| {
                    let pages = PageRange::new(elsewhere().page, PageCount(2));
                    it.add_view(0, View { chunk: ChunkId(0), pages, state: ViewState::Active });
                });
            }),
            ("mappings", |allocator| with(allocator, |it| it.chunks.add_stale(ChunkId(0), elsewhere()))),
            ("memory of page tables", |allocator| with(allocator, |it| it.tables_bytes += 1)),
            ("M2: ChunkId", |allocator| {
                with(allocator, |it| {
                    let id = it.chunks.add(ChunkHandle(77), PageCount::ONE);
                    it.chunks.set_lent_out(id, Some(LentTo::Range));
                });
            }),
            ("invariant 10: the mapping at", |allocator| {
                with(allocator, |it| it.kept.get_or_insert_default().extend([(elsewhere(), ChunkHandle(77))]));
            }),
            ("invariant 7: the registered block", |allocator| {
                with(allocator, |it| it.chunks.set_lent_out(ChunkId(0), Some(LentTo::RegisteredBlock)));
            }),
            ("invariant 7: the registered block", |allocator| {
                // One chunk, but not all of its addresses.
                with(allocator, |it| {
                    let chunk = lent(it);
                    it.chunks.set_lent_out(chunk, Some(LentTo::RegisteredBlock));
                });
            }),
        ];
        assert_noticed(allocator, |allocator| allocator.check(), breaks);
    }
}
