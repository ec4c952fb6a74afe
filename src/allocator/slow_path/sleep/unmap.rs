//! From falling asleep to asleep: memory is unmapped, all of it or none, and then goes back to the driver.

use super::super::super::error::AllocError;
use super::super::SlowPath;
use super::mark::{blocks_in, claim_free};
use super::{Phase, Place, Run, Unmapped};
use crate::driver::{Driver, DriverError, DriverErrorKind};
use crate::heap::BlockState;
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

    /// The chunks of the batch that was unmapped, which are idle.
    pub fn take_withheld(&mut self) -> Vec<Unmapped> {
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
    use std::sync::atomic::{AtomicBool, Ordering};
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
}
