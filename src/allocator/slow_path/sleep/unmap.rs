//! From falling asleep to asleep: memory goes back to the driver, all of it or none.

use super::super::super::error::AllocError;
use super::super::super::mappings::{Change, NewView, view_at};
use super::super::super::streams::state::StreamState;
use super::super::SlowPath;
use super::mark::{blocks_in, claim_free};
use super::{Phase, Run, Sleeper};
use crate::driver::{Driver, DriverError, DriverErrorKind, HostMemory, MemoryDriver};
use crate::heap::BlockState;
use crate::pages::{PageIndex, PageRange};
use crate::physical::ChunkId;
use crate::segment::{View, ViewState};
use crate::stream::{Fence, StreamIndex};

/// The outcome of unmapping what was to sleep.
#[derive(Debug)]
pub enum FellAsleep {
    /// It sleeps: so many bytes of pages.
    All {
        /// The bytes.
        bytes: u64,
    },
    /// These chunks cannot be unmapped now: everything is awake.
    Not(Vec<ChunkId>),
}

/// An active view that is unmapped, or was.
#[derive(Clone, Copy, Debug)]
struct Unmapped {
    run: Run,
    chunk: ChunkId,
}

impl<D: Driver> SlowPath<'_, D> {
    /// Unmaps the batch that falls asleep, whose last uses have completed, and releases its chunks.
    ///
    /// # Errors
    /// The driver's. Everything is awake, unless the driver refuses to map something again: that is asleep then.
    pub fn unmap_falling(&mut self, lane: StreamIndex, backup: Option<HostMemory>) -> Result<FellAsleep, AllocError> {
        self.mapper.asleep_mut().batches_mut().last_mut().expect("a batch falls asleep").backup = backup;
        if let Err(error) = self.progress().settle_pending() {
            self.stay_awake();
            return Err(error.into());
        }
        let views = self.falling_views();
        let is_unfit = |view: &&Unmapped| !self.is_active(view) || !self.claim_rest(view);
        let unfit: Vec<ChunkId> = views.iter().filter(is_unfit).map(|view| view.chunk).collect();
        if !unfit.is_empty() {
            self.stay_awake();
            return Ok(FellAsleep::Not(unfit));
        }
        for (number, view) in views.iter().enumerate() {
            match self.unmap_chunk(view.chunk) {
                Ok(()) => {}
                Err(error) => {
                    self.map_back(&views[..=number], lane);
                    self.stay_awake();
                    return match error.kind {
                        DriverErrorKind::Refused => Ok(FellAsleep::Not(vec![view.chunk])),
                        _ => Err(error.into()),
                    };
                }
            }
        }
        for view in &views {
            self.release_idle(view.chunk);
        }
        self.shed_empty_pages();
        let before = self.mapper.asleep().pages();
        let batch = self.mapper.asleep_mut().batches_mut().last_mut().expect("a batch falls asleep");
        batch.phase = Phase::Asleep;
        self.shed_empty_pages();
        let pages = self.mapper.asleep().pages().saturating_sub(before);
        Ok(FellAsleep::All { bytes: pages.bytes(self.page_bytes()) })
    }

    /// The views in the batch that falls asleep: the active ones, unless a chunk has moved since it was marked.
    fn falling_views(&self) -> Vec<Unmapped> {
        let batch = self.mapper.asleep().batches().last().filter(|batch| batch.phase == Phase::Falling);
        let runs = batch.map_or(&[][..], |batch| &batch.runs);
        let of_run = |run: &Run| -> Vec<Unmapped> {
            let of_view = |view: &View| Unmapped { run: Run { pages: view.pages, ..*run }, chunk: view.chunk };
            self.mapper.segment(run.segment).table.views_in(run.pages).map(of_view).collect()
        };
        runs.iter().flat_map(of_run).collect()
    }

    /// Whether a view is its chunk's active one still. A chunk in which nothing but a block was that waited for a stream may have
    /// moved since.
    fn is_active(&self, view: &Unmapped) -> bool {
        self.mapper.chunks().get(view.chunk).active == Some(view_at(view.run.segment, view.run.pages.start))
    }

    /// Claims what has become free in a chunk since it was marked. Returns false where something else in it is in use.
    fn claim_rest(&self, view: &Unmapped) -> bool {
        let owner = view.run.owner;
        let bytes = view.run.pages.bytes(self.page_bytes());
        let mut state = self.shared.streams.get(owner.stream).lock();
        claim_free(&mut state, owner, &bytes);
        let Some(region) = state.regions.get(owner.region) else { return false };
        let live = blocks_in(region, &bytes, BlockState::Live);
        blocks_in(region, &bytes, BlockState::Pending).is_empty()
            && live.iter().all(|block| state.is_asleep((owner.region, block.offset)))
    }

    /// Removes all views of a chunk, the active one last.
    fn unmap_chunk(&mut self, chunk: ChunkId) -> Result<(), DriverError> {
        self.mapper.views_of(chunk).into_iter().rev().try_for_each(|at| self.unmap_view(at))
    }

    /// Maps chunks again that were unmapped, where they were. Where the driver refuses, the pages stay without memory.
    fn map_back(&mut self, views: &[Unmapped], lane: StreamIndex) {
        let is_gone = |view: &&Unmapped| self.mapper.chunks().get(view.chunk).active.is_none();
        let gone: Vec<Unmapped> = views.iter().filter(is_gone).copied().collect();
        let _ = self.map_views(&gone.iter().map(|view| (view.run, view.chunk)).collect::<Vec<_>>(), lane);
    }

    /// Maps idle chunks at asleep pages, all or none. What can neither be used nor removed is removed before the next attempt.
    pub fn map_views(&mut self, views: &[(Run, ChunkId)], lane: StreamIndex) -> Result<(), DriverError> {
        let new = |(run, chunk): &(Run, ChunkId)| NewView { chunk: *chunk, pages: run.pages, last_use: None };
        let by_segment = views.chunk_by(|(one, _), (other, _)| one.segment == other.segment);
        let parts: Vec<(usize, Vec<NewView>)> =
            by_segment.map(|part| (part[0].0.segment, part.iter().map(new).collect())).collect();
        let stuck = ViewState::Stale(over(lane));
        let changes: Vec<Change<'_>> = parts
            .iter()
            .map(|(segment, map)| Change { segment: *segment, lend_to: None, stuck, revive: &[], map })
            .collect();
        let (driver, listeners) = (self.driver(), self.listeners());
        self.mapper.map_together(driver, listeners, &changes).map_err(|failed| failed.error)
    }

    /// Ends a fall whose copies to `backup` failed, once those that were queued are over.
    ///
    /// # Errors
    /// The driver's: it goes on falling, so that nothing which a copy reads is unmapped, until [`end_fall`](Self::end_fall).
    pub fn abandon_fall(&mut self, lane: StreamIndex, backup: Option<HostMemory>) -> Result<(), AllocError> {
        self.mapper.asleep_mut().batches_mut().last_mut().expect("a batch falls asleep").backup = backup;
        self.end_fall(lane)
    }

    /// Ends what goes on falling, if anything does, once the copies are over.
    ///
    /// # Errors
    /// The driver's: it goes on.
    pub fn end_fall(&mut self, lane: StreamIndex) -> Result<(), AllocError> {
        if self.mapper.asleep().batches().last().is_some_and(|batch| batch.phase == Phase::Falling) {
            self.shared.streams.progress(Some(lane)).wait_for_own()?;
            self.stay_awake();
        }
        Ok(())
    }

    /// Ends the batch that falls asleep: blocks are awake, and free bytes free. What has no memory any more, since the driver
    /// refused to map it again, is asleep.
    pub fn stay_awake(&mut self) {
        let Some(mut batch) = self.mapper.asleep_mut().batches_mut().pop() else { return };
        debug_assert_eq!(batch.phase, Phase::Falling, "only what falls asleep can stay awake");
        let lost: Vec<Run> = batch.runs.iter().flat_map(|run| self.unmapped_in(run)).collect();
        let page_bytes = self.page_bytes();
        let sleepers = std::mem::take(&mut batch.blocks);
        let parts =
            |sleeper: &Sleeper| lost.iter().filter_map(|run| sleeper.within(run, page_bytes)).collect::<Vec<_>>();
        let still: Vec<Sleeper> = if lost.is_empty() { Vec::new() } else { sleepers.iter().flat_map(parts).collect() };
        for run in &batch.runs {
            self.unclaim_mapped(run);
        }
        sleepers.iter().for_each(|sleeper| self.wake_up(sleeper));
        for part in &still {
            self.with_state(part, |state| state.put_to_sleep(part.owner, part.block, part.range()));
        }
        if lost.is_empty() {
            self.give_back_host_memory(batch.backup);
            return;
        }
        (batch.phase, batch.runs, batch.blocks) = (Phase::Asleep, lost, still);
        self.mapper.asleep_mut().batches_mut().push(batch);
        self.shed_empty_pages();
    }

    /// Notes that a part of a block has its memory again.
    pub fn wake_up(&self, sleeper: &Sleeper) {
        self.with_state(sleeper, |state| state.wake_up(sleeper.owner, sleeper.block, &sleeper.range()));
    }

    fn with_state<T>(&self, sleeper: &Sleeper, work: impl FnOnce(&mut StreamState) -> T) -> T {
        work(&mut self.shared.streams.get(sleeper.owner.stream).lock())
    }

    /// The pages of a run that have no active view.
    fn unmapped_in(&self, run: &Run) -> Vec<Run> {
        let table = &self.mapper.segment(run.segment).table;
        runs_where(run, |page| !table.view(page).is_some_and(|view| view.state == ViewState::Active))
    }

    /// Makes the claimed bytes of a run free where they have memory.
    pub fn unclaim_mapped(&self, run: &Run) {
        let table = &self.mapper.segment(run.segment).table;
        let mapped = runs_where(run, |page| table.view(page).is_some_and(|view| view.state == ViewState::Active));
        let mut state = self.shared.streams.get(run.owner.stream).lock();
        let epoch = state.epoch;
        let Some(region) = state.region(run.owner.region) else { return };
        for part in mapped {
            let range = part.pages.bytes(region.page_bytes);
            for block in blocks_in(region, &range, BlockState::Claimed) {
                let (start, end) = (block.offset.max(range.start), (block.offset + block.size).min(range.end));
                region.heap.set(block.offset, start, end - start, BlockState::Free, epoch);
            }
        }
        state.dirty = true;
    }

    /// Makes those asleep pages unmapped in which nothing is live any more.
    pub fn shed_empty_pages(&mut self) {
        let mut batches = std::mem::take(self.mapper.asleep_mut().batches_mut());
        for batch in batches.iter_mut().filter(|batch| batch.phase == Phase::Asleep) {
            batch.blocks.retain(|sleeper| {
                self.with_state(sleeper, |state| state.is_asleep((sleeper.owner.region, sleeper.block)))
            });
            batch.runs = batch.runs.iter().flat_map(|run| self.shed(run)).collect();
        }
        let (empty, rest): (Vec<_>, Vec<_>) = batches.into_iter().partition(|batch| batch.runs.is_empty());
        *self.mapper.asleep_mut().batches_mut() = rest;
        for batch in empty {
            self.give_back_host_memory(batch.backup);
        }
    }

    /// Makes the pages of a run unmapped in which nothing is live. Returns the others.
    fn shed(&self, run: &Run) -> Vec<Run> {
        let mut state = self.shared.streams.get(run.owner.stream).lock();
        let Some(region) = state.region(run.owner.region) else { return Vec::new() };
        let (page_bytes, range) = (region.page_bytes, run.pages.bytes(region.page_bytes));
        let live: Vec<PageRange> = blocks_in(region, &range, BlockState::Live)
            .iter()
            .map(|block| PageRange::around(&(block.offset..block.offset + block.size), page_bytes))
            .collect();
        let is_live = |page: PageIndex| {
            let at = live.partition_point(|pages| pages.end <= page);
            live.get(at).is_some_and(|pages| pages.start <= page)
        };
        for empty in runs_where(run, |page| !is_live(page)) {
            let start = empty.pages.start.offset(page_bytes);
            let first = region.heap.block_around(start).expect("the page lies in the heap").offset;
            region.set_pages(first, empty.pages, BlockState::Hole);
        }
        runs_where(run, is_live)
    }

    /// Gives memory of the host back; what the driver refuses to take is kept for the end.
    pub fn give_back_host_memory(&mut self, memory: Option<HostMemory>) {
        if let Some(memory) = memory
            && self.driver().host_free(memory).is_err()
        {
            self.mapper.asleep_mut().leave_over(memory);
        }
    }
}

/// The parts of a run whose pages all are of a kind.
fn runs_where(run: &Run, is_it: impl Fn(PageIndex) -> bool) -> Vec<Run> {
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

/// A fence that has passed.
pub fn over(stream: StreamIndex) -> Fence {
    Fence { stream, epoch: 0 }
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, Backup, ChunkPolicy};
    use crate::driver::{DriverCall, HoldStreams, ModelConfig, ModelDriver, WorkDriver};
    use crate::testing::busy;
    use crate::units::StreamId;
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    /// While a sleep copies, a block that waited for a stream becomes free, and its chunk moves: what is allocated and pinned there
    /// stays awake.
    #[test]
    fn a_chunk_that_moves_during_the_copies_stays_awake() {
        let config = ModelConfig { capacity_bytes: 4 * PAGE, ..ModelConfig::default() };
        let driver = busy(&Arc::new(ModelDriver::new(config)));
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let other = driver.create_stream().unwrap();
        allocator.keep_stream(other).unwrap();
        let [first, waits, last] = [(); 3].map(|()| allocator.alloc(PAGE, MAIN).unwrap());
        driver.hold(other);
        driver.fill(other, waits, PAGE, 1).unwrap();
        allocator.record_stream(waits, other).unwrap();
        allocator.free(waits).unwrap();
        let moved = Arc::new(OnceLock::new());
        let (device, others, noted) = (Arc::clone(&driver), allocator.clone(), Arc::clone(&moved));
        driver.meanwhile(move |call| {
            if call == Some(DriverCall::CopyOut) && noted.get().is_none() {
                device.complete(other);
                let pin = others.pin(others.alloc(2 * PAGE, MAIN).unwrap()).unwrap();
                assert!(noted.set(pin).is_ok());
            }
            Ok(())
        });
        let slept = allocator.sleep(Backup::Pinned).unwrap();
        driver.meanwhile(|_| Ok(()));
        allocator.check();
        assert_eq!(allocator.stats().harvested_chunks, 1);
        let pinned = Arc::into_inner(moved).unwrap().into_inner().unwrap();
        let moved = pinned.addr();
        driver.fill(MAIN, moved, 2 * PAGE, 1).unwrap();
        assert_eq!((slept.asleep_bytes, allocator.reserved_bytes()), (2 * PAGE, 2 * PAGE), "{slept:?}");
        driver.resume(other);
        drop(pinned);
        allocator.wake(Duration::ZERO).unwrap();
        [first, last, moved].iter().for_each(|block| allocator.free(*block).unwrap());
        allocator.check();
    }
}
