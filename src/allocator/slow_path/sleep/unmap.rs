//! From falling asleep to asleep: memory is unmapped, all of it or none, and then goes back to the driver.

use super::super::super::error::AllocError;
use super::super::super::streams::state::StreamState;
use super::super::SlowPath;
use super::mark::{blocks_in, claim_free};
use super::whole::WholeChunk;
use super::{Batch, Phase, Place, Run, Sleeper, Unmapped};
use crate::driver::{Driver, DriverError, DriverErrorKind};
use crate::heap::{Block, BlockState};
use crate::pages::{PageCount, PageIndex, PageRange};
use crate::physical::ChunkId;
use crate::segment::{View, ViewState};
use crate::stream::{Fence, StreamIndex};

/// The outcome of unmapping what was to sleep.
#[derive(Debug)]
pub enum FellAsleep {
    /// It is unmapped.
    All,
    /// These chunks cannot be unmapped now: everything is awake.
    Not(Vec<ChunkId>),
}

impl<D: Driver> SlowPath<'_, D> {
    /// Unmaps the batch that falls asleep, whose last uses have completed, and withholds its chunks.
    ///
    /// # Errors
    /// The driver's. Everything is awake, unless the driver refuses to map something again: that is asleep then.
    pub fn unmap_falling(&mut self, lane: StreamIndex) -> Result<FellAsleep, AllocError> {
        if let Err(error) = self.settle_pending() {
            self.stay_awake();
            return Err(error.into());
        }
        let falling = match self.falling() {
            Ok(falling) => falling,
            Err(unfit) => {
                self.stay_awake();
                return Ok(FellAsleep::Not(unfit));
            }
        };
        self.leave_what_went();
        for (number, Unmapped { chunk, .. }) in falling.iter().enumerate() {
            if let Err(error) = self.unmap_chunk(*chunk) {
                self.map_back(&falling[..=number], lane);
                self.end_falling(&falling);
                return match error.kind {
                    DriverErrorKind::Refused => Ok(FellAsleep::Not(vec![*chunk])),
                    _ => Err(error.into()),
                };
            }
        }
        let chunks = if self.sleeps_whole() { self.whole_chunks(&falling) } else { Vec::new() };
        self.claim_stale_places(&chunks);
        falling.iter().for_each(|it| self.mapper.withhold(it.chunk));
        let batch = self.mapper.asleep_mut().batches_mut().last_mut().expect("a batch falls asleep");
        (batch.phase, batch.chunks, batch.withheld) = (Phase::Unmapped, chunks, falling);
        Ok(FellAsleep::All)
    }

    /// Releases the chunks of the batch that was unmapped: it is asleep. Returns the bytes of the pages.
    pub fn release_unmapped(&mut self) -> u64 {
        for Unmapped { chunk, .. } in self.take_withheld() {
            self.release_idle(chunk);
        }
        self.shed_empty_pages();
        let before = self.mapper.asleep().pages();
        self.mapper.asleep_mut().batches_mut().last_mut().expect("a batch was unmapped").phase = Phase::Asleep;
        self.shed_empty_pages();
        self.mapper.asleep().pages().saturating_sub(before).bytes(self.page_bytes())
    }

    /// Maps the batch again that was unmapped: it is awake.
    fn map_unmapped(&mut self, lane: StreamIndex) {
        let falling = self.take_withheld();
        let batch = self.mapper.asleep_mut().batches_mut().last_mut().expect("a batch was unmapped");
        let chunks = std::mem::take(&mut batch.chunks);
        self.unclaim_stale_places(&chunks);
        self.map_back(&falling, lane);
        self.end_falling(&falling);
    }

    /// The chunks of the batch that was unmapped, which are idle.
    fn take_withheld(&mut self) -> Vec<Unmapped> {
        let batch = self.mapper.asleep_mut().batches_mut().last_mut().expect("a batch was unmapped");
        let withheld = std::mem::take(&mut batch.withheld);
        withheld.iter().for_each(|it| self.mapper.end_withholding(it.chunk));
        withheld
    }

    /// The chunks of the batch that falls asleep. What has become free in them since they were marked is claimed.
    ///
    /// # Errors
    /// Those that cannot be unmapped now.
    fn falling(&self) -> Result<Vec<Unmapped>, Vec<ChunkId>> {
        let batch = self.mapper.asleep().batches().last().filter(|batch| batch.phase == Phase::Falling);
        let (mut falling, mut unfit) = (Vec::new(), Vec::new());
        for run in batch.map_or(&[][..], |batch| &batch.runs) {
            for view in self.mapper.segment(run.segment).table.views_in(run.pages) {
                let here = Run { pages: view.pages, ..*run };
                // A chunk in which nothing was but a block that waited for a stream may have moved since.
                let is_fit = view.state == ViewState::Active && self.claim_rest(&here);
                let places = match self.sleeps_whole() {
                    true => self.places_of(view.chunk),
                    false => Some(vec![Place { run: here, state: ViewState::Active }]),
                };
                match places.filter(|_| is_fit) {
                    Some(places) => falling.push(Unmapped { chunk: view.chunk, places }),
                    None => unfit.push(view.chunk),
                }
            }
        }
        if unfit.is_empty() { Ok(falling) } else { Err(unfit) }
    }

    /// Takes the pages out of the batch that falls asleep whose chunk went elsewhere since they were marked. Nothing keeps others
    /// from mapping something there.
    fn leave_what_went(&mut self) {
        let Some(mut batch) = self.mapper.asleep_mut().batches_mut().pop() else { return };
        batch.runs = batch.runs.iter().flat_map(|run| self.mapped_in(run)).collect();
        self.mapper.asleep_mut().batches_mut().push(batch);
    }

    /// What is known of chunks that sleep whole. Their bytes are in the backup one behind the other.
    fn whole_chunks(&self, falling: &[Unmapped]) -> Vec<WholeChunk> {
        let mut end = 0;
        let whole = |Unmapped { places, .. }: &Unmapped| {
            let place = end;
            end += places[0].run.pages.len().bytes(self.page_bytes());
            WholeChunk { places: places.clone(), place }
        };
        falling.iter().map(whole).collect()
    }

    /// Claims what has become free in an active view since it was marked. Returns false where something else in it is in use.
    fn claim_rest(&self, run: &Run) -> bool {
        let owner = run.owner;
        let bytes = run.pages.bytes(self.page_bytes());
        self.shared.streams.get(owner.stream).piece(|state| {
            claim_free(state, owner, &bytes);
            let Some(region) = state.regions.get(owner.region) else { return false };
            let live = blocks_in(region, &bytes, BlockState::Live);
            blocks_in(region, &bytes, BlockState::Pending).is_empty()
                && live.iter().all(|block| state.is_asleep((owner.region, block.offset)))
        })
    }

    /// Removes all views of a chunk, the active one last.
    fn unmap_chunk(&mut self, chunk: ChunkId) -> Result<(), DriverError> {
        self.mapper.views_of(chunk).into_iter().rev().try_for_each(|at| self.unmap_view(at))
    }

    /// Maps chunks again that were unmapped, where they were. Where the driver refuses, they stay without memory.
    fn map_back(&mut self, falling: &[Unmapped], lane: StreamIndex) {
        let is_gone = |(place, chunk): &(Place, ChunkId)| !self.has_view(place, *chunk);
        let all = falling.iter().flat_map(|it| it.places.iter().map(|place| (*place, it.chunk)));
        let gone: Vec<(Place, ChunkId)> = all.filter(is_gone).collect();
        if self.map_places(&gone, lane).is_err() {
            // Of one that is not mapped wherever it was, nothing stays mapped.
            gone.iter().for_each(|(_, chunk)| self.take_down(*chunk, lane));
        }
    }

    /// Whether a chunk is mapped at a place.
    fn has_view(&self, place: &Place, chunk: ChunkId) -> bool {
        self.mapper.segment(place.run.segment).table.view(place.run.pages.start).is_some_and(|view| view.chunk == chunk)
    }

    /// Removes the views of a chunk. What cannot be removed is a stale view, which goes before something is mapped there again.
    pub fn take_down(&mut self, chunk: ChunkId, lane: StreamIndex) {
        for at in self.mapper.views_of(chunk).into_iter().rev() {
            if self.unmap_view(at).is_err() && self.mapper.view(at).state == ViewState::Active {
                self.mapper.set_aside(at, over(lane));
            }
        }
    }

    /// Maps idle chunks at places of what sleeps, all or none. What can neither be used nor removed is removed before the next
    /// attempt.
    pub fn map_places(&mut self, places: &[(Place, ChunkId)], lane: StreamIndex) -> Result<(), DriverError> {
        let view = |(place, chunk): &(Place, ChunkId)| {
            (place.run.segment, View { chunk: *chunk, pages: place.run.pages, state: place.state })
        };
        let views: Vec<(usize, View)> = places.iter().map(view).collect();
        let (driver, listeners) = (self.driver(), self.listeners());
        let restored = self.mapper.restore(driver, listeners, &views, ViewState::Stale(over(lane)));
        restored.map_err(|failed| failed.error)
    }

    /// Undoes the sleep that is under way, whatever the driver says: what is live is awake, unless it is unmapped and the driver
    /// refuses to map it again. What copies may still read or write stays [in use](Phase::InUse).
    pub fn end_fall(&mut self, lane: StreamIndex) {
        match self.mapper.asleep().batches().last().map(|batch| batch.phase) {
            Some(Phase::Falling) => match self.shared.streams.progress(Some(lane)).wait_for_own() {
                Ok(()) => self.stay_awake(),
                Err(_) => {
                    self.record_copies(lane);
                    self.stay_awake_in_use(lane);
                }
            },
            Some(Phase::Unmapped) => self.map_unmapped(lane),
            Some(Phase::InUse | Phase::Asleep | Phase::Waking) | None => {}
        }
    }

    /// Notes that `lane` uses what is live in the batch that falls asleep, so that what is freed waits for the copies.
    fn record_copies(&self, lane: StreamIndex) {
        for part in self.mapper.asleep().batches().last().map_or(&[][..], |batch| &batch.blocks) {
            self.with_state(part, |state| state.record_if_asleep(part.at(), lane));
        }
    }

    /// Ends the batch that may be in use, if there is one, once nothing uses it: its free bytes are free, and its backup goes.
    /// Returns whether there was one.
    ///
    /// # Errors
    /// [`AllocError::CannotWait`] during a capture, and the driver's: it stays.
    pub fn end_uses(&mut self, lane: StreamIndex) -> Result<bool, AllocError> {
        if !self.is_in_use() {
            return Ok(false);
        }
        self.order_behind_users(lane)?;
        self.shared.streams.progress(Some(lane)).wait_for_own()?;
        self.stay_awake();
        Ok(true)
    }

    /// Ends what an earlier sleep has left, before something else falls asleep or wakes.
    ///
    /// # Errors
    /// As [`end_uses`](Self::end_uses).
    pub fn end_earlier(&mut self, lane: StreamIndex) -> Result<(), AllocError> {
        // Still under way only where its end could not be entered, as on a thread that was inside.
        self.end_fall(lane);
        self.end_uses(lane).map(drop)
    }

    /// As [`end_uses`](Self::end_uses), for who is short of memory. Returns whether some is free that was not.
    ///
    /// # Errors
    /// The driver's, when the device is lost.
    pub fn settle_uses(&mut self) -> Result<bool, AllocError> {
        if !self.is_in_use() {
            return Ok(false);
        }
        let ended = self.lane().and_then(|lane| self.end_uses(lane));
        match ended {
            Err(AllocError::Driver(error)) if error.kind.is_sticky() => Err(error.into()),
            ended => Ok(ended.unwrap_or(false)),
        }
    }

    /// Whether memory may be in use since a sleep failed.
    fn is_in_use(&self) -> bool {
        self.mapper.asleep().batches().last().is_some_and(|batch| batch.phase == Phase::InUse)
    }

    /// Ends the batch that falls asleep where nothing says when its uses are over: what is live is awake. What was freed meanwhile
    /// may be in use still: its pages stay until [`end_uses`](Self::end_uses), with nothing free in them, and so does the backup.
    pub fn stay_awake_in_use(&mut self, lane: StreamIndex) {
        let mut batch = self.mapper.asleep_mut().batches_mut().pop().expect("a batch falls asleep");
        let page_bytes = self.page_bytes();
        let is_freed = |sleeper: &&Sleeper| {
            self.with_state(sleeper, |state| {
                let was_freed = !state.is_asleep(sleeper.at());
                state.wake_up(sleeper.owner, sleeper.block, &sleeper.range());
                was_freed
            })
        };
        let freed: Vec<Sleeper> = batch.blocks.iter().filter(is_freed).copied().collect();
        let in_use = |run: &Run, page| {
            let page = Run { pages: PageRange::new(page, PageCount::ONE), ..*run };
            freed.iter().any(|sleeper| sleeper.within(&page, page_bytes).is_some())
        };
        let runs = std::mem::take(&mut batch.runs);
        for run in runs.iter().flat_map(|run| runs_where(run, |page| !in_use(run, page))) {
            self.unclaim_mapped(&run);
        }
        batch.runs = runs.iter().flat_map(|run| runs_where(run, |page| in_use(run, page))).collect();
        batch.phase = Phase::InUse;
        self.mapper.asleep_mut().batches_mut().push(batch);
        // The wait for the device may be possible where the order was not. Else what comes next tries again.
        let _ = self.end_uses(lane);
    }

    /// Ends the batch that falls asleep, of which nothing was unmapped: blocks are awake, and free bytes free.
    pub fn stay_awake(&mut self) {
        self.end_falling(&[]);
    }

    /// As [`stay_awake`](Self::stay_awake). What of the `falling` chunks has no memory any more, since the driver refused to map it
    /// again, is asleep.
    fn end_falling(&mut self, falling: &[Unmapped]) {
        let Some(mut batch) = self.mapper.asleep_mut().batches_mut().pop() else { return };
        debug_assert!(
            matches!(batch.phase, Phase::Falling | Phase::Unmapped | Phase::InUse),
            "only what has its memory can stay awake"
        );
        let lost: Vec<Run> = batch.runs.iter().flat_map(|run| self.unmapped_in(run)).collect();
        let page_bytes = self.page_bytes();
        let sleepers = std::mem::take(&mut batch.blocks);
        let mut still: Vec<Sleeper> = Vec::new();
        for sleeper in &sleepers {
            let first = still.len();
            still.extend(lost.iter().filter_map(|run| sleeper.within(run, page_bytes)));
            // At once: what is freed has no memory in part.
            self.with_state(sleeper, |state| {
                state.wake_up(sleeper.owner, sleeper.block, &sleeper.range());
                let parts = still[first..].iter();
                parts.for_each(|part| state.put_to_sleep(part.owner, part.block, part.range()));
            });
        }
        // Until then, what is freed is claimed.
        for run in &batch.runs {
            self.unclaim_mapped(run);
        }
        if lost.is_empty() {
            self.take_over_backup(&mut batch);
            self.drop_unused_backups();
            return;
        }
        if self.sleeps_whole() {
            batch.chunks = self.whole_chunks(falling);
            batch.chunks.retain(|chunk| !self.unmapped_in(&chunk.active()).is_empty());
            self.claim_stale_places(&batch.chunks);
        }
        (batch.phase, batch.runs, batch.blocks) = (Phase::Asleep, lost, still);
        self.mapper.asleep_mut().batches_mut().push(batch);
        self.shed_empty_pages();
    }

    /// Notes that a part of a block has its memory again.
    pub fn wake_up(&self, sleeper: &Sleeper) {
        self.with_state(sleeper, |state| state.wake_up(sleeper.owner, sleeper.block, &sleeper.range()));
    }

    /// Calls `work` with what is kept of the stream of a part.
    pub fn with_state<T>(&self, sleeper: &Sleeper, work: impl FnOnce(&mut StreamState) -> T) -> T {
        self.shared.streams.get(sleeper.owner.stream).piece(work)
    }

    /// The pages of a run that have no active view.
    fn unmapped_in(&self, run: &Run) -> Vec<Run> {
        runs_where(run, |page| !self.is_mapped(run, page))
    }

    /// The pages of a run that have an active view.
    fn mapped_in(&self, run: &Run) -> Vec<Run> {
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
    use crate::allocator::error::{AllocError, SleepError};
    use crate::allocator::{Allocator, Asleep, Backup, ChunkPolicy, Wake};
    use crate::driver::{DriverCall, DriverError, DriverErrorKind, HoldStreams, ModelConfig, ModelDriver, WorkDriver};
    use crate::testing::{BusyDevice, busy};
    use crate::units::StreamId;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    /// Has `driver` refuse everything behind the first copy to the host, with which `amid` runs.
    fn refuse_behind_copies(driver: &BusyDevice, amid: impl Fn() + Send + 'static) {
        let mut copies = false;
        driver.meanwhile(move |call| match call {
            Some(call) if copies => Err(DriverError::new(call, DriverErrorKind::Other, "refused by the test")),
            Some(DriverCall::CopyOut) => {
                copies = true;
                amid();
                Ok(())
            }
            _ => Ok(()),
        });
    }

    /// While a sleep copies, a block that waited for a stream becomes free, and its chunk moves: what is allocated and pinned there
    /// stays awake.
    #[test]
    fn a_chunk_that_moves_during_the_copies_stays_awake() {
        let config = ModelConfig { capacity_bytes: 4 * PAGE, ..ModelConfig::default() };
        let driver = busy(&Arc::new(ModelDriver::new(config)));
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let other = driver.create_stream().unwrap();
        allocator.keep_stream(other).unwrap();
        let [first, waits, last] = [(); 3].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
        driver.hold(other);
        driver.fill(other, waits, PAGE, 1).unwrap();
        allocator.record_stream(waits, other).unwrap();
        allocator.free(waits).unwrap();
        let moved = Arc::new(OnceLock::new());
        let (device, others, noted) = (Arc::clone(&driver), allocator.clone(), Arc::clone(&moved));
        driver.meanwhile(move |call| {
            if call == Some(DriverCall::CopyOut) && noted.get().is_none() {
                device.complete(other);
                let pin = others.pin(others.alloc_raw(2 * PAGE, MAIN).unwrap()).unwrap();
                assert!(noted.set(pin).is_ok());
                others.check();
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

    /// While a sleep copies, a block that waited for a stream becomes free, and its chunk goes back to the driver: what is
    /// allocated there before the sleep is over stays awake.
    #[test]
    fn what_is_mapped_where_a_chunk_went_during_the_copies_stays_awake() {
        let driver = busy(&Arc::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let other = driver.create_stream().unwrap();
        allocator.keep_stream(other).unwrap();
        let [first, waits, last] = [(); 3].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
        driver.hold(other);
        driver.fill(other, waits, PAGE, 1).unwrap();
        allocator.record_stream(waits, other).unwrap();
        allocator.free(waits).unwrap();
        let others = allocator.clone();
        let gone = Arc::new(AtomicBool::new(false));
        let (device, noted) = (Arc::clone(&driver), Arc::clone(&gone));
        driver.meanwhile(move |call| {
            if call == Some(DriverCall::CopyOut) && !noted.swap(true, Ordering::Relaxed) {
                device.complete(other);
                assert_eq!(others.trim(0).unwrap().released_bytes, PAGE);
            }
            Ok(())
        });
        let mut falling = allocator.begin_sleep(Backup::Pinned).unwrap();
        driver.meanwhile(|_| Ok(()));
        assert!(gone.load(Ordering::Relaxed));
        falling.unmap().unwrap();
        allocator.check();
        assert_eq!(allocator.alloc_raw(PAGE, MAIN).unwrap(), waits);
        driver.fill(MAIN, waits, PAGE, 1).unwrap();
        allocator.check();
        assert_eq!(falling.finish().unwrap().asleep_bytes, 2 * PAGE);
        allocator.check();
        driver.resume(other);
        allocator.wake(Duration::ZERO).unwrap();
        driver.verify(MAIN, waits, PAGE, 1).unwrap();
        [first, waits, last].iter().for_each(|block| allocator.free(*block).unwrap());
        allocator.close().unwrap();
    }

    /// The driver does not say when the copies of a sleep are over, nor while it is undone: everything is awake. What the copies
    /// may read or write is nobody else's until they are over, which a request that runs short waits for.
    #[test]
    fn a_sleep_that_fails_twice_leaves_nothing_asleep() {
        let config = ModelConfig { capacity_bytes: 3 * PAGE, ..ModelConfig::default() };
        let driver = busy(&Arc::new(ModelDriver::new(config)));
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let [kept, freed_awake, freed_amid] = [(); 3].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
        allocator.sleep(Backup::Pinned).unwrap();
        allocator.wake(Wake { retain: true, ..Wake::default() }).unwrap();
        let lane = allocator.inner.door.mapper.lock().asleep().lane.unwrap();
        driver.hold(lane);
        let others = allocator.clone();
        refuse_behind_copies(&driver, move || others.free(freed_amid).unwrap());
        let refused = allocator.sleep(Backup::Pinned).unwrap_err();
        assert!(matches!(&refused, SleepError::Alloc(AllocError::Driver(_))), "{refused}");
        allocator.trim(u64::MAX).unwrap();
        let awake = |backup_bytes| Asleep { backup_bytes, ..Asleep::default() };
        assert_eq!(allocator.asleep(), awake(3 * PAGE));
        allocator.check();
        drop(allocator.pin(kept).unwrap());
        allocator.free(freed_awake).unwrap();
        assert_eq!(allocator.stats().pending_bytes, PAGE);
        allocator.alloc_raw(PAGE, MAIN).unwrap_err();
        driver.meanwhile(|_| Ok(()));
        allocator.check();
        driver.resume(lane);
        assert_eq!(allocator.alloc_raw(2 * PAGE, MAIN).unwrap(), freed_awake);
        assert_eq!(allocator.asleep(), awake(0));
        allocator.check();
        [kept, freed_awake].iter().for_each(|block| allocator.free(*block).unwrap());
        allocator.close().unwrap();
        assert!(driver.inner().usage().is_empty());
    }

    /// As above, and nothing is freed: the backup stays, since copies may write to it, until the next call that can wait for them.
    #[test]
    fn the_backup_of_a_sleep_that_fails_twice_outlives_the_copies() {
        let driver = busy(&Arc::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
        refuse_behind_copies(&driver, || {});
        allocator.sleep(Backup::Pinned).unwrap_err();
        allocator.trim(u64::MAX).unwrap();
        assert_eq!(allocator.asleep(), Asleep { backup_bytes: PAGE, ..Asleep::default() });
        driver.meanwhile(|_| Ok(()));
        allocator.trim(0).unwrap();
        assert_eq!(allocator.asleep(), Asleep::default());
        allocator.check();
        allocator.free(block).unwrap();
        allocator.close().unwrap();
    }

    /// The copies of a sleep fail, and another stream is being captured by then: the order behind all was made before, so that
    /// everything is awake again, and the error is that of the copy.
    #[test]
    fn copies_that_fail_beside_a_capture_leave_nothing_asleep() {
        let driver = busy(&Arc::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let other = driver.create_stream().unwrap();
        allocator.keep_stream(other).unwrap();
        let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
        let beside = allocator.alloc_raw(PAGE, other).unwrap();
        driver.fill(other, beside, PAGE, 1).unwrap();
        let device = Arc::clone(&driver);
        driver.meanwhile(move |call| match call {
            Some(call @ DriverCall::CopyOut) => {
                device.inner().begin_capture(other);
                Err(DriverError::new(call, DriverErrorKind::Other, "refused by the test"))
            }
            _ => Ok(()),
        });
        let refused = allocator.sleep(Backup::Pinned).unwrap_err();
        driver.meanwhile(|_| Ok(()));
        assert!(
            matches!(&refused, SleepError::Alloc(AllocError::Driver(error)) if error.call == DriverCall::CopyOut),
            "{refused}"
        );
        allocator.check();
        drop(allocator.pin(block).unwrap());
        driver.inner().end_capture(other);
        [block, beside].iter().for_each(|block| allocator.free(*block).unwrap());
        allocator.check();
    }
}
