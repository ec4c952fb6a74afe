//! Carrying a plan out: the driver calls of a growth, all of them or none.
//!
//! Order: stale views out of the way, free chunks released (when others are to be created in their place), new chunks,
//! order between streams, mappings and access; then the books. A failure undoes what was mapped and created, and returns the
//! claimed memory to the heaps.

use super::super::error::AllocError;
use super::super::mappings::{Change, NewView, NotMapped, Revival, view_at};
use super::SlowPath;
use super::plan::{Backing, Fill, Plan, Reuse, Source, States, free_chunks, unclaim, unclaim_target};
use super::stale::{DROPPED_FOR_EACH, Drop};
use crate::driver::{Driver, DriverError, DriverErrorKind, MemoryDriver};
use crate::heap::BlockState;
use crate::pages::{PageCount, PageRange};
use crate::physical::{ChunkId, ViewAt};
use crate::segment::ViewState;
use crate::stream::StreamIndex;
use crate::units::DeviceAddr;

/// The result of carrying out a plan.
#[derive(Debug)]
pub enum Outcome {
    /// The block is allocated.
    Done(DeviceAddr),
    /// The driver had no memory to create a chunk from, although the budget allows it. Nothing has changed.
    Refused(DriverError),
    /// Something has changed that a new plan has to take into account.
    Again,
}

/// The result of preparing a plan.
enum Prepared {
    /// The chunks for the plan's mappings, one each.
    Ready(Vec<ChunkId>),
    /// The host cannot wait for the last use of this chunk now: its stream is being captured, or a mapping of it is stuck, or a
    /// listener wants it to stay.
    CannotRelease(ChunkId),
    /// The driver refused to release a chunk. It is idle now, and held: what was to be created in its place would be too much.
    StaysIdle,
    /// Nothing can be ordered now behind the last use of what this stream has not passed: it is being captured, or may
    /// have been destroyed.
    CannotOrder(StreamIndex),
}

impl<'a, D: Driver> SlowPath<'a, D> {
    /// Carries out a plan.
    pub fn execute(&mut self, plan: Plan) -> Result<Outcome, AllocError> {
        match self.keep_within_mapping_limit(&plan) {
            Ok(true) => {}
            Ok(false) => {
                self.abandon(&plan);
                return Ok(Outcome::Again);
            }
            Err(error) => {
                self.abandon(&plan);
                return Err(error.into());
            }
        }
        let backing = match self.prepare(&plan) {
            Ok(Prepared::Ready(backing)) => backing,
            Ok(Prepared::CannotRelease(chunk)) => {
                self.abandon(&plan);
                self.mapper.bar(chunk);
                return Ok(Outcome::Again);
            }
            Ok(Prepared::StaysIdle) => {
                self.abandon(&plan);
                return Ok(Outcome::Again);
            }
            Ok(Prepared::CannotOrder(stream)) => {
                self.abandon(&plan);
                self.bar_chunks_of(stream);
                return Ok(Outcome::Again);
            }
            Err(error) => {
                self.abandon(&plan);
                return match error.kind {
                    DriverErrorKind::OutOfMemory => Ok(Outcome::Refused(error)),
                    _ => Err(error.into()),
                };
            }
        };
        match self.map(&plan, &backing) {
            Ok(()) => Ok(Outcome::Done(self.commit(&plan))),
            Err(failed) => self.mapping_failed(&plan, failed),
        }
    }

    /// Removes stale views where the plan's mappings would exceed the limit: a few times as many as the plan makes, so that each
    /// request pays for about what it maps. Returns false when it removed any, since the plan may have counted on them.
    fn keep_within_mapping_limit(&mut self, plan: &Plan) -> Result<bool, DriverError> {
        let limit = self.shared.geometry.mapping_limit;
        if plan.fill.is_empty() || self.mapper.mappings() + plan.fill.len() <= limit {
            return Ok(true);
        }
        let most = plan.fill.len() * DROPPED_FOR_EACH;
        Ok(self.drop_stale_views(Drop { most, patience: most })? == 0)
    }

    /// Everything before the first mapping. After a failure the chunks created so far are idle.
    fn prepare(&mut self, plan: &Plan) -> Result<Prepared, DriverError> {
        for page in &plan.unmap {
            self.unmap_view(view_at(plan.segment, *page))?;
        }
        for source in &plan.release {
            if !self.give_back(source)? {
                return Ok(Prepared::CannotRelease(source.chunk));
            }
            if self.mapper.chunks().has_idle(source.chunk) {
                return Ok(Prepared::StaysIdle);
            }
        }
        let mut backing = Vec::with_capacity(plan.fill.len());
        for fill in &plan.fill {
            backing.push(match fill.backing {
                Backing::Idle(chunk) => chunk,
                Backing::Remap(source) => source.chunk,
                Backing::Create => self.create(fill.pages.len())?,
            });
        }
        let waiter = plan.goal.stream;
        for source in plan.moved().filter(|source| source.stream != waiter) {
            if !self.progress().order_behind(waiter, source.stream, source.epoch)? {
                return Ok(Prepared::CannotOrder(source.stream));
            }
        }
        Ok(Prepared::Ready(backing))
    }

    /// Bars the free chunks that nothing can be ordered behind: those of `stream` that it has not passed, and those of all
    /// streams that may have been destroyed. All at once, since what holds for one holds for all.
    fn bar_chunks_of(&mut self, stream: StreamIndex) {
        let mut coverable = self.progress().coverable();
        coverable[stream.0 as usize] = self.shared.streams.get(stream).clock.lock().passed();
        let sources = free_chunks(&self.mapper, &mut self.states());
        for source in sources.list.iter().filter(|source| source.epoch > coverable[source.stream.0 as usize]) {
            self.mapper.bar(source.chunk);
        }
    }

    /// Creates a chunk, which is idle.
    pub fn create(&mut self, pages: PageCount) -> Result<ChunkId, DriverError> {
        let handle = self.driver().create(pages.bytes(self.page_bytes()))?;
        let chunk = self.mapper.add_chunk(handle, pages);
        self.created.push(chunk);
        Ok(chunk)
    }

    /// Moves and maps the chunks of a plan, all or none.
    fn map(&mut self, plan: &Plan, backing: &[ChunkId]) -> Result<(), NotMapped> {
        let revival =
            |reuse: &Reuse| Revival { page: reuse.page, chunk: reuse.source.chunk, last_use: reuse.source.last_use() };
        let new_view = |(fill, chunk): (&Fill, &ChunkId)| NewView {
            chunk: *chunk,
            pages: fill.pages,
            last_use: fill.backing.source().map(Source::last_use),
        };
        let revive: Vec<Revival> = plan.reuse.iter().map(revival).collect();
        let map: Vec<NewView> = plan.fill.iter().zip(backing).map(new_view).collect();
        let (segment, stream) = (plan.segment, plan.goal.stream);
        let stuck = ViewState::stuck(stream);
        let change = Change { segment, lend_to: None, stuck, revive: &revive, map: &map };
        let (driver, listeners) = (self.driver(), self.listeners());
        self.mapper.map(driver, listeners, &change)
    }

    /// Removes one view, whose last use has completed.
    pub fn unmap_view(&mut self, at: ViewAt) -> Result<(), DriverError> {
        let (driver, listeners) = (self.driver(), self.listeners());
        self.mapper.remove(driver, listeners, at)
    }

    /// As [`unmap_view`](Self::unmap_view). Returns false when a listener refused.
    pub fn unmap_unless_refused(&mut self, at: ViewAt) -> Result<bool, DriverError> {
        match self.unmap_view(at) {
            Err(error) if error.kind == DriverErrorKind::Refused => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Releases a claimed free chunk, waiting for its streams. Returns false when the host cannot wait for one of them, or a
    /// listener refused to see it unmapped.
    ///
    /// Views that were unmapped before a failure stay unmapped: the chunk is then free with fewer views, or idle.
    pub fn give_back(&mut self, source: &Source) -> Result<bool, DriverError> {
        let progress = self.progress();
        if !progress.wait_until_passed(source.stream, source.epoch)? {
            return Ok(false);
        }
        for at in self.mapper.chunks().get(source.chunk).stale.clone().into_iter().rev() {
            if let ViewState::Stale(fence) = self.mapper.view(at).state
                && !progress.wait_until_passed(fence.stream, fence.epoch)?
            {
                return Ok(false);
            }
            if !self.unmap_unless_refused(at)? {
                return Ok(false);
            }
        }
        let active = self.mapper.chunks().get(source.chunk).active.expect("a source has an active view");
        if !self.unmap_unless_refused(active)? {
            return Ok(false);
        }
        self.release_idle(source.chunk);
        Ok(true)
    }

    /// Marks as unmapped where the chunks of a finished growth were before, and allocates the block.
    fn commit(&mut self, plan: &Plan) -> DeviceAddr {
        for source in plan.sources() {
            self.mark_unmapped(source);
        }
        // Whoever sees the block sees the chunks behind it.
        self.publish();
        self.allocate(plan)
    }

    /// Marks as unmapped where a claimed chunk was.
    fn mark_unmapped(&self, source: &Source) {
        self.states().with(source.stream, |state| {
            let region = state.region(source.region).expect("sources come from regions");
            region.set_pages(source.pages.start.offset(region.page_bytes), source.pages, BlockState::Hole);
        });
    }

    /// Allocates the block of a plan whose mappings are made.
    fn allocate(&self, plan: &Plan) -> DeviceAddr {
        let request = &plan.goal.request;
        let mut state = self.shared.streams.get(plan.goal.stream).lock();
        let epoch = state.epoch;
        let region = state.region(plan.goal.region).expect("the plan was made for it");
        let (start, len) = (plan.claim.start, plan.claim.end - plan.claim.start);
        // What is left beside the block has passed only when the waits just arranged have: the epoch that was open when the
        // plan was made may have been sealed before them.
        region.heap.set(start, start, len, BlockState::Claimed, epoch);
        region.heap.take_live(start, plan.start, request.size, request.waste());
        let addr = region.base.offset(plan.start);
        state.count_alloc(request.size, request.waste());
        addr
    }

    /// Returns everything that a plan claimed to the heaps.
    pub fn abandon(&self, plan: &Plan) {
        for source in plan.sources() {
            // A chunk that was to be released may be unmapped already.
            self.unclaim(source);
        }
        unclaim_target(&mut self.states(), &plan.goal, &plan.before);
    }

    /// Ends the claim on a chunk: its bytes are free where it is still mapped, else unmapped.
    pub fn unclaim(&self, source: &Source) {
        self.states().with(source.stream, |state| unclaim(&self.mapper, state, source));
    }

    /// The streams' states, in pieces.
    pub fn states(&self) -> States<'a, D> {
        States::in_pieces(&self.shared.streams)
    }

    fn mapping_failed(&mut self, plan: &Plan, failed: NotMapped) -> Result<Outcome, AllocError> {
        self.abandon(plan);
        if !failed.stuck.is_empty() {
            self.give_up(plan, &failed.stuck);
        }
        self.make_room_after(failed.error, plan.fill.len())?;
        Ok(Outcome::Again)
    }

    /// Takes pages of a plan's target, where mappings are stuck, out of use for good.
    fn give_up(&self, plan: &Plan, stuck: &[PageRange]) {
        let mut state = self.shared.streams.get(plan.goal.stream).lock();
        let region = state.region(plan.goal.region).expect("the plan was made for it");
        for pages in stuck {
            let offset = pages.start.offset(region.page_bytes);
            let block = region.heap.block_around(offset).expect("the offset lies in the heap");
            region.set_pages(block.offset, *pages, BlockState::Claimed);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{DriverCall, ModelConfig, ModelDriver, WorkDriver};
    use crate::units::StreamId;
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    /// At the limit of mappings, the allocator's or the driver's, a request removes four stale views for each mapping that it
    /// makes.
    #[test]
    fn a_request_removes_four_stale_views_for_each_mapping() {
        for (limit, limit_of_driver) in [(40, 100), (100, 40)] {
            let config = ModelConfig { max_mappings: limit_of_driver, ..ModelConfig::default() };
            let builder = Allocator::builder(Arc::new(ModelDriver::new(config))).chunk_policy(ChunkPolicy::Fixed(PAGE));
            let allocator = builder.mapping_limit(limit).build().unwrap();
            let [mut giver, mut taker] = [(); 2].map(|()| allocator.reserve_range(20 * PAGE).unwrap());
            giver.grow(20 * PAGE, MAIN).unwrap();
            taker.take_from(&mut giver, 20 * PAGE, MAIN).unwrap();
            assert_eq!(allocator.stats().mappings, 40);
            let block = allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
            assert_eq!(allocator.stats().mappings, 40 - 3 * 4 + 3);
            allocator.check();
            allocator.free(block).unwrap();
        }
    }

    /// Two pages of a stream that is being captured would be the cheapest for a request, since they are still mapped where it is
    /// wanted; but nothing can be ordered behind their last use. Those that the stream freed before, and has passed, serve it.
    #[test]
    fn what_a_captured_stream_has_passed_can_be_had() {
        let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 7 * PAGE, ..ModelConfig::default() }));
        let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
        let allocator = builder.slack(f64::INFINITY).build().unwrap();
        let captured = driver.create_stream().unwrap();
        allocator.keep_stream(captured).unwrap();
        let early = [(); 4].map(|()| allocator.alloc_raw(PAGE, captured).unwrap());
        let wanted = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
        allocator.free(wanted).unwrap();
        // The page that may still be created, and the two that are free.
        let late = allocator.alloc_raw(3 * PAGE, captured).unwrap();
        assert_eq!((allocator.stats().harvested_chunks, allocator.stats().reserved_bytes), (2, 7 * PAGE));
        allocator.free(early[0]).unwrap();
        allocator.free(early[2]).unwrap();
        allocator.inner.shared.streams.progress(None).refresh_clocks(true).unwrap();
        allocator.free(late).unwrap();
        driver.begin_capture(captured);
        let block = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
        let stats = allocator.stats();
        assert_eq!((stats.harvested_chunks, stats.driver_calls[DriverCall::Synchronize]), (4, 0));
        allocator.check();
        driver.end_capture(captured);
        allocator.free(block).unwrap();
    }
}
