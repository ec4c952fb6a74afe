//! Carrying a plan out: the driver calls of a growth, all of them or none.
//!
//! Order: stale views out of the way, chunks back to the driver (when they are to be created again), new chunks, order
//! between streams, mappings and access; then the books. A failure undoes what was mapped and created, and gives the
//! claimed stretches back to the heaps.

use super::Inner;
use super::error::AllocError;
use super::mapper::Mapper;
use super::plan::{Backing, Plan, Source, view_at};
use crate::driver::{ChunkHandle, Driver, DriverError, DriverErrorKind, MemoryDriver};
use crate::heap::BlockState;
use crate::physical::{ChunkId, ViewAt};
use crate::segment::transaction::{Failure, Mapping, map_all};
use crate::segment::{View, ViewState};
use crate::stream::Fence;
use crate::sync::Ordering;
use crate::units::DeviceAddr;

/// What came of a plan.
#[derive(Debug)]
pub enum Outcome {
    /// The block is there.
    Done(DeviceAddr),
    /// The driver had no memory to create a chunk from, although the budget allows it. Nothing has changed.
    Refused(DriverError),
    /// Something has changed that a new plan has to take into account.
    Again,
}

impl<D: Driver> Inner<D> {
    pub(super) fn execute(
        &self,
        mapper: &mut Mapper,
        plan: Plan,
        waste: u16,
        created: &mut Vec<ChunkId>,
    ) -> Result<Outcome, AllocError> {
        if !plan.fill.is_empty() && mapper.mappings() + plan.fill.len() > self.geometry.mapping_limit {
            // Before anything else: among the views dropped may be some that the plan would take up again.
            match self.drop_stale_views(mapper) {
                Ok(0) => {}
                Ok(_) => {
                    self.abandon(mapper, &plan);
                    return Ok(Outcome::Again);
                }
                Err(error) => {
                    self.abandon(mapper, &plan);
                    return Err(error.into());
                }
            }
        }
        let mut backing: Vec<Option<ChunkId>> = Vec::with_capacity(plan.fill.len());
        match self.prepare(mapper, &plan, created, &mut backing) {
            Ok(Prepared::Ready) => {}
            Ok(Prepared::CannotOrder(chunk)) => {
                self.abandon(mapper, &plan);
                mapper.pool.bar(chunk);
                return Ok(Outcome::Again);
            }
            Err(error) => {
                self.abandon(mapper, &plan);
                return if error.kind == DriverErrorKind::OutOfMemory {
                    Ok(Outcome::Refused(error))
                } else {
                    Err(error.into())
                };
            }
        }
        let segment = self.target_segment(&plan);
        let page_bytes = self.geometry.page_bytes;
        let mappings: Vec<Mapping> = plan
            .fill
            .iter()
            .zip(&backing)
            .map(|(fill, chunk)| Mapping {
                addr: mapper.segments[segment].address(fill.page),
                bytes: u64::from(fill.pages) * page_bytes,
                chunk: mapper.pool.get(chunk.expect("prepared")).handle,
            })
            .collect();
        if let Err(failure) = map_all(&self.driver, &mappings) {
            return self.mapping_failed(mapper, &plan, failure);
        }
        Ok(Outcome::Done(self.commit(mapper, &plan, &backing, waste)))
    }

    /// Everything before the first mapping. On failure the chunks created so far are idle.
    fn prepare(
        &self,
        mapper: &mut Mapper,
        plan: &Plan,
        created: &mut Vec<ChunkId>,
        backing: &mut Vec<Option<ChunkId>>,
    ) -> Result<Prepared, DriverError> {
        let segment = self.target_segment(plan);
        for view in &plan.drop {
            self.unmap_view(mapper, view_at(segment, view.page))?;
        }
        for number in &plan.release {
            let source = plan.sources[*number];
            if !self.give_back(mapper, &source)? {
                return Ok(Prepared::CannotOrder(source.chunk));
            }
        }
        for fill in &plan.fill {
            backing.push(Some(match fill.backing {
                Backing::Idle(chunk) => chunk,
                Backing::Harvest(number) => plan.sources[number].chunk,
                Backing::Create => {
                    let handle = self.driver.create(u64::from(fill.pages) * self.geometry.page_bytes)?;
                    let chunk = mapper.pool.add(handle, fill.pages);
                    created.push(chunk);
                    chunk
                }
            }));
        }
        for (number, source) in plan.sources.iter().enumerate() {
            let foreign = source.stream != plan.request.stream;
            if foreign
                && !plan.release.contains(&number)
                && !self.order_behind(plan.request.stream, source.stream, source.epoch)?
            {
                return Ok(Prepared::CannotOrder(source.chunk));
            }
        }
        Ok(Prepared::Ready)
    }

    fn target_segment(&self, plan: &Plan) -> usize {
        let mut state = self.streams.get(plan.request.stream).lock();
        state.region(plan.request.region).expect("the plan was made for it").segment
    }

    /// Removes one view, whose last use has completed, from the device and the books.
    pub(super) fn unmap_view(&self, mapper: &mut Mapper, at: ViewAt) -> Result<(), DriverError> {
        let segment = &mut mapper.segments[at.segment as usize];
        let view = *segment.table.view(at.page).expect("a chunk's view is in the page table");
        self.driver.unmap(segment.address(view.page), u64::from(view.pages) * segment.page_bytes)?;
        segment.table.remove(at.page);
        mapper.pool.drop_view(view.chunk, at);
        Ok(())
    }

    /// Gives a claimed free chunk back to the driver, waiting for its streams. False when one of them is being captured.
    ///
    /// What was unmapped before a failure stays unmapped: the chunk is then free with fewer views, or idle.
    pub(super) fn give_back(&self, mapper: &mut Mapper, source: &Source) -> Result<bool, DriverError> {
        if !self.wait_until_passed(source.stream, source.epoch)? {
            return Ok(false);
        }
        let stale = mapper.pool.get(source.chunk).stale.clone();
        for at in stale {
            if let ViewState::Stale(fence) = mapper.view(at).state
                && !self.wait_until_passed(fence.stream, fence.epoch)?
            {
                return Ok(false);
            }
            self.unmap_view(mapper, at)?;
        }
        let active = mapper.pool.get(source.chunk).active.expect("a source has an active view");
        self.unmap_view(mapper, active)?;
        self.release_idle(mapper, source.chunk);
        Ok(true)
    }

    /// Gives an idle chunk back to the driver. Should the driver refuse, it stays idle.
    pub(super) fn release_idle(&self, mapper: &mut Mapper, chunk: ChunkId) {
        let handle = mapper.pool.get(chunk).handle;
        if self.driver.release(handle).is_ok() {
            mapper.pool.remove(chunk);
        } else {
            self.counters.undo_failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes the stale views whose last use has completed: when the driver's limit of mappings is near.
    pub(super) fn drop_stale_views(&self, mapper: &mut Mapper) -> Result<usize, DriverError> {
        let stale: Vec<(ViewAt, Fence)> = mapper
            .segments
            .iter()
            .enumerate()
            .flat_map(|(number, segment)| {
                segment.table.iter().filter_map(move |view| match view.state {
                    ViewState::Stale(fence) => Some((view_at(number, view.page), fence)),
                    ViewState::Active => None,
                })
            })
            .collect();
        let mut dropped = 0;
        for (at, fence) in stale {
            if self.has_passed(fence.stream, fence.epoch)? {
                self.unmap_view(mapper, at)?;
                dropped += 1;
            }
        }
        Ok(dropped)
    }

    /// Writes a finished growth into the books.
    fn commit(&self, mapper: &mut Mapper, plan: &Plan, backing: &[Option<ChunkId>], waste: u16) -> DeviceAddr {
        let page_bytes = self.geometry.page_bytes;
        let segment = self.target_segment(plan);
        let move_to = |mapper: &mut Mapper, source: &Source| {
            let from = mapper.pool.get(source.chunk).active.expect("a source has an active view");
            let fence = Fence { stream: source.stream, epoch: source.epoch };
            mapper.segments[from.segment as usize].table.set_state(from.page, ViewState::Stale(fence));
            mapper.harvested_chunks += 1;
        };
        for (page, number) in &plan.reuse {
            let source = &plan.sources[*number];
            move_to(mapper, source);
            mapper.segments[segment].table.set_state(*page, ViewState::Active);
            mapper.pool.activate(source.chunk, view_at(segment, *page));
            mapper.reused_views += 1;
        }
        for (fill, chunk) in plan.fill.iter().zip(backing) {
            let chunk = chunk.expect("prepared");
            if let Backing::Harvest(number) = fill.backing {
                move_to(mapper, &plan.sources[number]);
            }
            let view = View { chunk, page: fill.page, pages: fill.pages, state: ViewState::Active };
            mapper.segments[segment].table.add(view);
            mapper.pool.activate(chunk, view_at(segment, fill.page));
        }
        for source in &plan.sources {
            let mut state = self.streams.get(source.stream).lock();
            let region = state.region(source.region).expect("sources come from regions");
            let (start, len) = (source.page * page_bytes, u64::from(source.pages) * page_bytes);
            region.heap.set(start, start, len, BlockState::Hole, 0);
        }
        let mut state = self.streams.get(plan.request.stream).lock();
        let epoch = state.epoch;
        let region = state.region(plan.request.region).expect("the plan was made for it");
        // What is left beside the request has passed only when the waits just arranged have: the epoch that was open
        // when the plan was made may have been sealed before them.
        region.heap.set(plan.claim.0, plan.claim.0, plan.claim.1, BlockState::Claimed, epoch);
        region.heap.take_live(plan.claim.0, plan.start, plan.request.size, waste);
        let addr = region.base.offset(plan.start);
        state.count_alloc(plan.request.size, waste);
        addr
    }

    /// Gives everything that a plan claimed back to the heaps.
    fn abandon(&self, mapper: &Mapper, plan: &Plan) {
        for source in &plan.sources {
            // A chunk that was to be given back may be unmapped already.
            self.unclaim(mapper, source);
        }
        let mut state = self.streams.get(plan.request.stream).lock();
        let epoch = state.epoch;
        let region = state.region(plan.request.region).expect("the plan was made for it");
        for piece in &plan.before {
            // Epochs may have started anew since: what was freed before counts as freed now.
            region.heap.set(piece.start, piece.start, piece.len, piece.state, piece.epoch.min(epoch));
        }
    }

    fn mapping_failed(&self, mapper: &mut Mapper, plan: &Plan, failure: Failure) -> Result<Outcome, AllocError> {
        self.abandon(mapper, plan);
        if !failure.stuck.is_empty() {
            self.poison_target(mapper, plan, &failure.stuck);
        }
        if failure.error.kind == DriverErrorKind::OutOfMemory && self.drop_stale_views(mapper)? > 0 {
            // The driver's own limit of mappings: there is room for more now.
            return Ok(Outcome::Again);
        }
        Err(failure.error.into())
    }

    /// Takes the addresses of mappings that could not be undone out of use for good, and their chunks with them.
    fn poison_target(&self, mapper: &mut Mapper, plan: &Plan, stuck: &[Mapping]) {
        let segment = self.target_segment(plan);
        let page_bytes = self.geometry.page_bytes;
        let by_handle: Vec<(ChunkHandle, ChunkId)> = mapper.pool.iter().map(|(id, chunk)| (chunk.handle, id)).collect();
        let mut state = self.streams.get(plan.request.stream).lock();
        for mapping in stuck {
            let offset = mapping.addr.offset_from(mapper.segments[segment].base).expect("mapped in the segment");
            let chunk = by_handle.iter().find(|(handle, _)| *handle == mapping.chunk).expect("a chunk of the pool").1;
            let pages = u32::try_from(mapping.bytes / page_bytes).expect("chunks have 32-bit page counts");
            let view = View {
                chunk,
                page: offset / page_bytes,
                pages,
                state: ViewState::Stale(Fence { stream: plan.request.stream, epoch: u64::MAX }),
            };
            mapper.segments[segment].table.add(view);
            mapper.pool.add_stale(chunk, view_at(segment, view.page));
            let region = state.region(plan.request.region).expect("the plan was made for it");
            let block = region.heap.block_around(offset).expect("the offset lies in the heap");
            region.heap.set(block.offset, offset, mapping.bytes, BlockState::Claimed, 0);
        }
        mapper.segments[segment].poisoned = true;
        mapper.poisoned += 1;
    }
}

/// What preparing came to.
enum Prepared {
    Ready,
    /// Nothing can be ordered behind the last use of this chunk now: its stream is being captured, or a mapping of it is
    /// stuck.
    CannotOrder(ChunkId),
}
