//! From falling asleep back to awake: a sleep is undone, whatever the driver says.

use super::super::super::error::AllocError;
use super::super::SlowPath;
use super::pages::runs_where;
use super::{Copies, Phase, Place, Run, Sleeper, Unmapped};
use crate::driver::Driver;
use crate::pages::{PageCount, PageRange};
use crate::physical::ChunkId;
use crate::stream::StreamIndex;

impl<D: Driver> SlowPath<'_, D> {
    /// Undoes the sleep that is under way, whatever the driver says: what is live is awake, unless it is unmapped and the driver
    /// refuses to map it again. What copies may still read or write stays [in use](Phase::InUse).
    pub fn end_fall(&mut self, lane: StreamIndex) {
        match self.mapper.asleep().batches().last().map(|batch| batch.phase) {
            Some(Phase::Falling) => match self.shared.streams.progress(Some(lane)).wait_for_own() {
                Ok(()) => self.stay_awake(),
                Err(_) => {
                    self.record_copies(lane);
                    self.stay_awake_in_use(lane, Copies::MayBeUnderWay);
                }
            },
            Some(Phase::Unmapped) => self.map_unmapped(lane),
            Some(Phase::InUse | Phase::Asleep | Phase::Waking) | None => {}
        }
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

    /// Notes that `lane` uses what is live in the batch that falls asleep, so that what is freed waits for the copies.
    fn record_copies(&self, lane: StreamIndex) {
        for part in self.mapper.asleep().batches().last().map_or(&[][..], |batch| &batch.blocks) {
            self.with_state(part, |state| state.record_if_asleep(part.at(), lane));
        }
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

    /// Maps chunks again that were unmapped, where they were. Where the driver refuses, they stay without memory.
    pub fn map_back(&mut self, falling: &[Unmapped], lane: StreamIndex) {
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

    /// Ends the batch that falls asleep where nothing says when its uses are over: what is live is awake. What was freed meanwhile
    /// may be in use still: its pages stay until [`end_uses`](Self::end_uses), with nothing free in them. So do the blocks and the
    /// backup that copies may read and write.
    pub(super) fn stay_awake_in_use(&mut self, lane: StreamIndex, copies: Copies) {
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
        if copies == Copies::NotBegun {
            batch.blocks.clear();
            self.drop_unused_backups();
            if batch.runs.is_empty() {
                return;
            }
        }
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
    pub fn end_falling(&mut self, falling: &[Unmapped]) {
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
}

#[cfg(test)]
mod tests {
    use crate::allocator::error::{AllocError, SleepError};
    use crate::allocator::{Allocator, Asleep, Backup, ChunkPolicy, Wake};
    use crate::driver::{DriverCall, DriverError, DriverErrorKind, HoldStreams, ModelConfig, ModelDriver, WorkDriver};
    use crate::testing::{BusyDevice, busy};
    use crate::units::StreamId;
    use std::sync::Arc;

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

    /// As above, beside a block of which a part is asleep since before: that stays so, and wakes with its bytes.
    #[test]
    fn a_sleep_that_fails_twice_leaves_what_was_asleep() {
        let driver = busy(&Arc::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        // Three chunks, of which the second has parts of both.
        let [pinned, in_parts] = [(); 2].map(|()| allocator.alloc_raw(PAGE + PAGE / 2, MAIN).unwrap());
        assert_eq!(in_parts, pinned.offset(PAGE + PAGE / 2));
        driver.fill(MAIN, in_parts, PAGE + PAGE / 2, 1).unwrap();
        let pin = allocator.pin(pinned).unwrap();
        assert_eq!(allocator.sleep(Backup::Pinned).unwrap().asleep_bytes, PAGE);
        drop(pin);
        refuse_behind_copies(&driver, || {});
        allocator.sleep(Backup::Pinned).unwrap_err();
        driver.meanwhile(|_| Ok(()));
        allocator.check();
        let asleep = allocator.asleep();
        assert_eq!((asleep.asleep_bytes, asleep.live_bytes), (PAGE, PAGE), "{asleep:?}");
        assert!(allocator.backup_at(in_parts, PAGE / 2, |_| ()).unwrap().is_none(), "it is awake");
        assert_eq!(allocator.wake(Wake::default()).unwrap().mapped_bytes, PAGE);
        allocator.check();
        driver.verify(MAIN, in_parts, PAGE + PAGE / 2, 1).unwrap();
        [pinned, in_parts].iter().for_each(|block| allocator.free(*block).unwrap());
        allocator.close().unwrap();
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
