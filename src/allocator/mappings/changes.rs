//! Every change of what is mapped: on the device, in the page table, and in the chunk's list of views.
//!
//! ```text
//!                retire: mapped elsewhere                    remove
//!   Active ────────────────────────────▶ Stale(fence) ──────────────▶ unmapped
//!      ▲  ▲                                   │                          │
//!      │  └───────────── revive ──────────────┘                          │
//!      └────────────────────────── map ──────────────────────────────────┤
//!                                                                        │
//!                          Stale(NEVER) ◀── strand: could not be undone ─┘
//! ```

use super::{Mappings, view_at};
use crate::driver::{DriverError, DriverResult, MemoryDriver};
use crate::pages::{PageIndex, PageRange};
use crate::physical::{ChunkId, LentTo, ViewAt};
use crate::segment::listeners::MapListeners;
use crate::segment::transaction::{map_all, unmap};
use crate::segment::{Mapping, View, ViewState};
use crate::stream::Fence;

/// A change of a segment's mappings, made whole or not at all.
#[derive(Clone, Copy, Debug)]
pub struct Change<'c> {
    /// The segment.
    pub segment: usize,
    /// The new owner of the chunks, where that is not the heaps.
    pub lend_to: Option<LentTo>,
    /// What becomes of a mapping that was made and could not be removed again.
    pub stuck: ViewState,
    /// Stale views that become active again.
    pub revive: &'c [Revival],
    /// Mappings to make.
    pub map: &'c [NewView],
}

/// A stale view that becomes active again, since its chunk moves back.
#[derive(Clone, Copy, Debug)]
pub struct Revival {
    /// Its first page.
    pub page: PageIndex,
    /// Its chunk.
    pub chunk: ChunkId,
    /// The end of the chunk's use where it is active now.
    pub last_use: Fence,
}

/// A mapping to make.
#[derive(Clone, Copy, Debug)]
pub struct NewView {
    /// The chunk.
    pub chunk: ChunkId,
    /// Where to map it: as many pages as it has.
    pub pages: PageRange,
    /// The end of the chunk's use where it is active now. `None` for an idle one.
    pub last_use: Option<Fence>,
}

/// A change that was not made: the device and the books are as before, but for the mappings that are stuck.
#[derive(Debug)]
pub struct NotMapped {
    /// The driver's error, or that of a listener who refused.
    pub error: DriverError,
    /// Mappings that were made and could not be removed again.
    pub stuck: Vec<PageRange>,
}

impl Mappings {
    /// Makes a change: maps chunks with access, and notifies the listeners; then updates the books. Where a chunk was active
    /// before, that view becomes stale.
    ///
    /// # Errors
    /// [`NotMapped`].
    pub fn map(
        &mut self,
        driver: &impl MemoryDriver,
        listeners: &MapListeners,
        change: &Change<'_>,
    ) -> Result<(), NotMapped> {
        self.map_together(driver, listeners, std::slice::from_ref(change))
    }

    /// As [`map`](Self::map), for changes of several segments: all of them or none.
    ///
    /// # Errors
    /// [`NotMapped`].
    pub fn map_together(
        &mut self,
        driver: &impl MemoryDriver,
        listeners: &MapListeners,
        changes: &[Change<'_>],
    ) -> Result<(), NotMapped> {
        let mut mappings = Vec::with_capacity(changes.iter().map(|change| change.map.len()).sum());
        for change in changes {
            mappings.extend(change.map.iter().map(|new| self.mapping(change.segment, new.pages, new.chunk)));
        }
        if let Err(failure) = map_all(driver, listeners, &mappings) {
            let stuck = changes.iter().flat_map(|change| self.strand(change, &failure.stuck)).collect();
            return Err(NotMapped { error: failure.error, stuck });
        }
        for change in changes {
            for revival in change.revive {
                self.revive(change.segment, revival);
            }
            for new in change.map {
                self.add(change, new);
            }
        }
        Ok(())
    }

    /// Makes an active view stale whose chunk is used nowhere else, since it could not be removed. All use through it is over when
    /// `last_use` has passed.
    pub fn set_aside(&mut self, at: ViewAt, last_use: Fence) {
        let chunk = self.view(at).chunk;
        self.retire(at, last_use);
        self.chunks.deactivate(chunk);
    }

    /// Removes a view, whose last use has completed, from the device and the books. With its active view, a chunk that was lent
    /// comes back.
    ///
    /// # Errors
    /// The driver's, or that of a listener who refused; nothing has changed.
    pub fn remove(&mut self, driver: &impl MemoryDriver, listeners: &MapListeners, at: ViewAt) -> DriverResult<()> {
        let view = *self.view(at);
        unmap(driver, listeners, &self.mapping(at.segment as usize, view.pages, view.chunk))?;
        self.segments[at.segment as usize].table.remove(at.page);
        self.chunks.drop_view(view.chunk, at);
        if view.state == ViewState::Active {
            self.chunks.set_lent_out(view.chunk, None);
        }
        Ok(())
    }

    /// The device's view of a mapping.
    fn mapping(&self, segment: usize, pages: PageRange, chunk: ChunkId) -> Mapping {
        let segment = &self.segments[segment];
        let (addr, bytes) = (segment.address(pages.start), pages.len().bytes(segment.page_bytes));
        Mapping { addr, bytes, chunk: self.chunks.get(chunk).handle }
    }

    /// Enters a mapping that was made: the chunk's one active view.
    fn add(&mut self, change: &Change<'_>, new: &NewView) {
        if let Some(before) = self.chunks.get(new.chunk).active {
            self.retire(before, new.last_use.expect("a chunk with an active view is in use there"));
            self.counts.remapped_chunks += u64::from(change.lend_to.is_none());
        }
        self.add_view(change.segment, View { chunk: new.chunk, pages: new.pages, state: ViewState::Active });
        let at = view_at(change.segment, new.pages.start);
        self.chunks.activate(new.chunk, at);
        if change.lend_to.is_some() {
            self.chunks.set_lent_out(new.chunk, change.lend_to);
        } else if let Some(kept) = &mut self.kept {
            kept.push((at, self.chunks.get(new.chunk).handle));
        }
    }

    /// Makes a stale view the chunk's active one again.
    fn revive(&mut self, segment: usize, revival: &Revival) {
        let before = self.chunks.get(revival.chunk).active.expect("a chunk that moves has an active view");
        self.retire(before, revival.last_use);
        self.segments[segment].table.set_state(revival.page, ViewState::Active);
        self.chunks.activate(revival.chunk, view_at(segment, revival.page));
        self.counts.remapped_chunks += 1;
        self.counts.reused_views += 1;
    }

    /// Makes an active view stale, since the chunk's bytes are used elsewhere from now on: by the caller, who activates another
    /// view of it.
    fn retire(&mut self, at: ViewAt, last_use: Fence) {
        self.segments[at.segment as usize].table.set_state(at.page, ViewState::Stale(last_use));
        self.note_stale(at, last_use);
    }

    /// Enters the mappings of a change that could be neither used nor removed. Returns their pages.
    fn strand(&mut self, change: &Change<'_>, stuck: &[Mapping]) -> Vec<PageRange> {
        let of_change = |mapping: &Mapping| {
            let address = |new: &&NewView| self.segments[change.segment].address(new.pages.start) == mapping.addr;
            change.map.iter().find(address).copied()
        };
        let stuck: Vec<NewView> = stuck.iter().filter_map(of_change).collect();
        for NewView { chunk, pages, .. } in &stuck {
            self.add_view(change.segment, View { chunk: *chunk, pages: *pages, state: change.stuck });
            let at = view_at(change.segment, pages.start);
            self.chunks.add_stale(*chunk, at);
            if let ViewState::Stale(last_use) = change.stuck
                && !change.stuck.is_stuck()
            {
                self.note_stale(at, last_use);
            }
        }
        if change.stuck.is_stuck() && !stuck.is_empty() {
            self.segments[change.segment].poisoned = true;
            self.counts.poisoned += 1;
        }
        stuck.iter().map(|new| new.pages).collect()
    }

    /// Adds a view to the page table of a segment.
    pub(super) fn add_view(&mut self, segment: usize, view: View) {
        let table = &mut self.segments[segment].table;
        let before = table.metadata_bytes();
        table.add(view);
        self.tables_bytes += table.metadata_bytes() - before;
    }
}
