//! The pages of a batch: which of them have memory, and what is in them.

use super::super::super::streams::state::StreamState;
use super::super::SlowPath;
use super::mark::blocks_in;
use super::{Batch, Phase, Run, Sleeper};
use crate::driver::Driver;
use crate::heap::{Block, BlockState};
use crate::pages::{PageIndex, PageRange};
use crate::segment::ViewState;

impl<D: Driver> SlowPath<'_, D> {
    /// Notes that a part of a block has its memory again.
    pub fn wake_up(&self, sleeper: &Sleeper) {
        self.with_state(sleeper, |state| state.wake_up(sleeper.owner, sleeper.block, &sleeper.range()));
    }

    /// Calls `work` with what is kept of the stream of a part.
    pub fn with_state<T>(&self, sleeper: &Sleeper, work: impl FnOnce(&mut StreamState) -> T) -> T {
        self.shared.streams.get(sleeper.owner.stream).piece(work)
    }

    /// The pages of a run that have no active view.
    pub fn unmapped_in(&self, run: &Run) -> Vec<Run> {
        runs_where(run, |page| !self.is_mapped(run, page))
    }

    /// The pages of a run that have an active view.
    pub fn mapped_in(&self, run: &Run) -> Vec<Run> {
        runs_where(run, |page| self.is_mapped(run, page))
    }

    fn is_mapped(&self, run: &Run, page: PageIndex) -> bool {
        let table = &self.mapper.segment(run.segment).table;
        table.view(page).is_some_and(|view| view.state == ViewState::Active)
    }

    /// Makes the claimed bytes of a run free where they have memory.
    pub fn unclaim_mapped(&self, run: &Run) {
        let stream = self.shared.streams.get(run.owner.stream);
        for part in self.mapped_in(run).into_iter().flat_map(Run::by_page) {
            stream.piece(|state| {
                let epoch = state.epoch;
                let Some(region) = state.region(run.owner.region) else { return };
                let range = part.pages.bytes(region.page_bytes);
                for block in blocks_in(region, &range, BlockState::Claimed) {
                    let (start, end) = (block.offset.max(range.start), (block.offset + block.size).min(range.end));
                    region.heap.set(block.offset, start, end - start, BlockState::Free, epoch);
                }
                state.dirty = true;
            });
        }
    }

    /// Makes those asleep pages unmapped in which nothing is live any more, unless chunks sleep whole.
    pub fn shed_empty_pages(&mut self) {
        let mut batches = std::mem::take(self.mapper.asleep_mut().batches_mut());
        for batch in batches.iter_mut().filter(|batch| batch.phase == Phase::Asleep) {
            if batch.chunks.is_empty() {
                batch.runs = batch.runs.iter().flat_map(|run| self.shed(run)).collect();
            }
            // Behind the pages, so that all that is left has its pages: others free meanwhile.
            batch.blocks.retain(|sleeper| self.with_state(sleeper, |state| state.is_asleep(sleeper.at())));
        }
        let is_empty = |batch: &Batch| batch.phase == Phase::Asleep && batch.runs.is_empty();
        let (empty, rest): (Vec<_>, Vec<_>) = batches.into_iter().partition(is_empty);
        *self.mapper.asleep_mut().batches_mut() = rest;
        for mut batch in empty {
            self.take_over_backup(&mut batch);
        }
        self.drop_unused_backups();
    }

    /// Makes the pages of a run unmapped in which nothing is live. Returns the others.
    fn shed(&self, run: &Run) -> Vec<Run> {
        let page_bytes = self.page_bytes();
        let around = |block: &Block| PageRange::around(&(block.offset..block.offset + block.size), page_bytes);
        let live: Vec<PageRange> = self.live_in(run).iter().map(around).collect();
        let is_live = |page: PageIndex| {
            let at = live.partition_point(|pages| pages.end <= page);
            live.get(at).is_some_and(|pages| pages.start <= page)
        };
        let stream = self.shared.streams.get(run.owner.stream);
        for empty in runs_where(run, |page| !is_live(page)).into_iter().flat_map(Run::by_page) {
            stream.piece(|state| {
                let region = state.region(run.owner.region).expect("asleep pages are of a region");
                let start = empty.pages.start.offset(page_bytes);
                let first = region.heap.block_around(start).expect("the page lies in the heap").offset;
                region.set_pages(first, empty.pages, BlockState::Hole);
            });
        }
        runs_where(run, is_live)
    }

    /// The live blocks in asleep pages. None comes meanwhile.
    pub fn live_in(&self, run: &Run) -> Vec<Block> {
        let stream = self.shared.streams.get(run.owner.stream);
        let mut live: Vec<Block> = Vec::new();
        for part in run.by_page() {
            let before = live.last().map(|block| block.offset);
            live.extend(stream.piece(|state| {
                let region = state.regions.get(run.owner.region).expect("asleep pages are of a region");
                let mut blocks = blocks_in(region, &part.pages.bytes(region.page_bytes), BlockState::Live);
                blocks.retain(|block| Some(block.offset) > before);
                blocks
            }));
        }
        live
    }
}

/// The parts of a run whose pages all are of a kind.
pub fn runs_where(run: &Run, is_it: impl Fn(PageIndex) -> bool) -> Vec<Run> {
    let mut parts: Vec<Run> = Vec::new();
    for page in (run.pages.start.0..run.pages.end.0).map(PageIndex).filter(|page| is_it(*page)) {
        let next = PageIndex(page.0 + 1);
        match parts.last_mut() {
            Some(last) if last.pages.end == page => last.pages.end = next,
            _ => parts.push(Run { pages: PageRange { start: page, end: next }, ..*run }),
        }
    }
    parts
}
