//! The slow path of an allocation, in the order that costs least: memory that other streams are done with, a growth, a
//! wait, and in the end the report.

use super::error::AllocError;
use super::execute::Outcome;
use super::mapper::Mapper;
use super::plan::{Allowance, Request, plan};
use super::state::{AllStates, RegionKind, Sharers, StreamHeap, live_bytes};
use super::{Inner, directory::Arena, directory::Owner, state::Region};
use crate::driver::{Driver, DriverError, DriverErrorKind, MemoryDriver};
use crate::heap::Heap;
use crate::physical::ChunkId;
use crate::segment::Segment;
use crate::stream::{Fence, StreamIndex};
use crate::sync::Ordering;
use crate::units::DeviceAddr;

/// Slots of the first arena: two streams.
pub const FIRST_ARENA_SLOTS: usize = 4;
/// Epochs of one stream that may be sealed and not passed before no more are sealed in passing.
const MAX_SEALED: usize = 4;
/// Of other streams' free blocks that fit, how many are looked at.
const LOOK_AT: usize = 8;

impl<D: Driver> Inner<D> {
    /// Serves a request that the cached blocks of its own stream could not serve.
    #[cold]
    pub(super) fn alloc_slow(
        &self,
        heap: &StreamHeap,
        bytes: u64,
        size: u64,
        waste: u16,
        alignment: u64,
    ) -> Result<DeviceAddr, AllocError> {
        let request = Request { stream: heap.index, kind: RegionKind::of(size), size, alignment };
        if self.is_forked() {
            return Err(AllocError::Forked { built_in: self.process });
        }
        if let Some(error) = self.poison.get() {
            return Err(error.clone().into());
        }
        let mut mapper = self.mapper.lock();
        self.ensure_region(&mut mapper, heap, request.kind)?;
        let mut created = Vec::new();
        let result = self.search(&mut mapper, heap, request, bytes, waste, &mut created);
        mapper.pool.lift_bars();
        if result.is_err() {
            // What this call created and could not use goes back: nothing has changed.
            for chunk in created {
                if mapper.pool.idle().any(|idle| idle == chunk) {
                    self.release_idle(&mut mapper, chunk);
                }
            }
        }
        drop(mapper);
        if let Err(AllocError::Driver(error)) = &result
            && error.kind.is_sticky()
        {
            let _ = self.poison.set(error.clone());
        }
        result
    }

    fn search(
        &self,
        mapper: &mut Mapper,
        heap: &StreamHeap,
        request: Request,
        bytes: u64,
        waste: u16,
        created: &mut Vec<ChunkId>,
    ) -> Result<DeviceAddr, AllocError> {
        let mut refused: Option<DriverError> = None;
        let mut recreate = false;
        loop {
            self.settle_pending()?;
            if let Some(addr) = self.alloc_cached(heap, request, waste) {
                return Ok(addr);
            }
            let tight = mapper.pool.headroom_pages() == 0;
            let beyond_slack = mapper.pool.held_pages() >= self.slack_pages(self.peak.peak());
            self.refresh_clocks(heap.index, tight || beyond_slack)?;
            if let Some(addr) = self.borrow(heap.index, request, waste, tight) {
                return Ok(addr);
            }
            if tight && let Some(addr) = self.alloc_fragment(heap, request, waste) {
                return Ok(addr);
            }
            let passed: Vec<u64> = self.streams.iter().map(|stream| stream.clock.lock().passed()).collect();
            let planned = {
                let mut states = self.lock_all();
                let mut allowance = self.allowance(mapper, &states, request.size, recreate);
                if refused.is_some() {
                    (allowance.soft_pages, allowance.hard_pages) = (0, 0);
                }
                plan(mapper, &mut states, &passed, request, allowance)
            };
            match planned {
                Some(plan) => match self.execute(mapper, plan, waste, created)? {
                    Outcome::Done(addr) => return Ok(addr),
                    Outcome::Refused(error) if refused.is_none() => refused = Some(error),
                    Outcome::Refused(error) => return Err(self.out_of_memory(mapper, bytes, request, Some(&error))),
                    Outcome::Again => {}
                },
                None if !recreate => recreate = true,
                None if self.wait_for_pending()? => {}
                None if self.settle_left_behind(mapper)? => {}
                None => return Err(self.out_of_memory(mapper, bytes, request, refused.as_ref())),
            }
        }
    }

    /// What may be created now.
    fn allowance(&self, mapper: &Mapper, states: &AllStates<'_>, size: u64, recreate: bool) -> Allowance {
        let hard_pages = mapper.pool.headroom_pages();
        let peak = self.peak.peak().max(live_bytes(states).saturating_add(size));
        let limit = self.slack_pages(peak);
        let soft_pages = hard_pages.min(limit.saturating_sub(mapper.pool.held_pages()));
        Allowance { soft_pages, hard_pages, recreate }
    }

    /// Pages that may be held before what is free is remapped, with this peak of live bytes.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bound")]
    fn slack_pages(&self, peak_live_bytes: u64) -> u64 {
        (peak_live_bytes as f64 * self.geometry.slack / self.geometry.page_bytes as f64).min(1e18) as u64
    }

    /// The hot path once more, under the mapper's lock.
    fn alloc_cached(&self, heap: &StreamHeap, request: Request, waste: u16) -> Option<DeviceAddr> {
        let mut state = heap.lock();
        let addr = state.take(request.kind, request.size, waste, request.alignment)?;
        drop(state);
        Some(addr)
    }

    /// For a small request when there is no room left: a free block among the large ones that is smaller than a page.
    /// Its pages are pinned already, so nothing is lost.
    fn alloc_fragment(&self, heap: &StreamHeap, request: Request, waste: u16) -> Option<DeviceAddr> {
        if request.kind == RegionKind::Large {
            return None;
        }
        let mut state = heap.lock();
        let found = state.region(RegionKind::Large)?.heap.best_fit(request.size)?;
        if found.size >= self.geometry.page_bytes {
            return None;
        }
        state.take(RegionKind::Large, request.size, waste, request.alignment)
    }

    /// Takes a block of another stream that has passed its last use: one of the very size, or a piece of a page; once
    /// there is no room left, any, since the alternative is to take the chunks from under it.
    fn borrow(&self, borrower: StreamIndex, request: Request, waste: u16, tight: bool) -> Option<DeviceAddr> {
        for lender in self.streams.iter().filter(|stream| stream.index != borrower) {
            let passed = lender.clock.lock().passed();
            let mut state = lender.lock();
            let epoch_base = state.epoch_base;
            let page_bytes = self.geometry.page_bytes;
            let Some(region) = state.region(request.kind) else { continue };
            let fits = |size: u64| tight || size < page_bytes || size == request.size;
            let found = region.heap.free_blocks_from(request.size).take(LOOK_AT).find(|block| {
                let epoch = region.heap.block(block.offset).expect("indexed").epoch;
                let aligned = region.base.offset(block.offset).is_aligned(request.alignment);
                epoch_base + u64::from(epoch) <= passed && fits(block.size) && aligned
            });
            let Some(found) = found else { continue };
            region.heap.take_live(found.offset, found.offset, request.size, waste);
            region.heap.share(found.offset).expect("just made live");
            let addr = region.base.offset(found.offset);
            state.sharers.insert((request.kind, found.offset), Sharers { home: borrower, others: Vec::new() });
            state.count_alloc(request.size, waste);
            self.counters.borrowed.fetch_add(1, Ordering::Relaxed);
            return Some(addr);
        }
        None
    }

    /// Makes sure that the stream has the region, reserving addresses if need be.
    fn ensure_region(&self, mapper: &mut Mapper, heap: &StreamHeap, kind: RegionKind) -> Result<(), DriverError> {
        if heap.lock().regions[kind as usize].is_some() {
            return Ok(());
        }
        let owner = Owner { stream: heap.index, kind };
        let (base, bytes) = loop {
            let slot = self.directory.arenas().find_map(|arena| Some((arena.take_slot(owner)?, arena.slot_bytes())));
            match slot {
                Some(slot) => break slot,
                None => self.add_arena(mapper)?,
            }
        };
        let page_bytes = self.geometry.page_bytes;
        let segment = mapper.segments.len();
        mapper.segments.push(Segment::new(base, bytes, page_bytes));
        heap.lock().regions[kind as usize] = Some(Region { heap: Heap::new(bytes), base, segment, page_bytes });
        Ok(())
    }

    /// Reserves another arena: as many slots as wished, fewer or smaller ones where the driver has no room for them.
    fn add_arena(&self, mapper: &mut Mapper) -> Result<(), DriverError> {
        let (mut slot_bytes, mut slots) = (self.geometry.slot_bytes, mapper.next_arena_slots);
        loop {
            match self.driver.reserve(slot_bytes * slots as u64, self.geometry.page_bytes) {
                Ok(base) => {
                    mapper.next_arena_slots = slots * 2;
                    let added = self.directory.add(Arena::new(base, slot_bytes, slots));
                    assert!(added, "arenas double in size: the address space ends first");
                    return Ok(());
                }
                Err(error) if error.kind == DriverErrorKind::OutOfMemory && slots > 1 => slots /= 2,
                Err(error)
                    if error.kind == DriverErrorKind::OutOfMemory && slot_bytes > self.geometry.page_bytes * 32 =>
                {
                    slot_bytes /= 2;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Learns which pending blocks are free by now.
    pub(super) fn settle_pending(&self) -> Result<(), DriverError> {
        for stream in self.streams.iter() {
            stream.clock.lock().poll(&self.driver, &self.events)?;
        }
        for stream in self.streams.iter() {
            let pending = {
                let mut state = stream.lock();
                if state.pending.is_empty() {
                    continue;
                }
                std::mem::take(&mut state.pending)
            };
            let mut failure = None;
            let (over, mut waiting): (Vec<_>, Vec<_>) = pending.into_iter().partition(|block| {
                block.fences.iter().all(|fence| {
                    self.has_passed(fence.stream, fence.epoch).unwrap_or_else(|error| {
                        failure = Some(error);
                        false
                    })
                })
            });
            let mut state = stream.lock();
            let epoch = state.epoch;
            for block in over {
                state.region(block.kind).expect("a pending block has a region").heap.settle(block.offset, epoch);
            }
            waiting.append(&mut state.pending);
            state.pending = waiting;
            drop(state);
            if let Some(error) = failure {
                return Err(error);
            }
        }
        Ok(())
    }

    /// True when `stream` has passed `epoch`, sealing it if that was not done yet.
    pub(super) fn has_passed(&self, stream: StreamIndex, epoch: u64) -> Result<bool, DriverError> {
        let stream = self.streams.get(stream);
        let mut clock = stream.clock.lock();
        if epoch <= clock.passed() {
            return Ok(true);
        }
        if epoch >= clock.open() && !self.seal(stream, &mut clock)? {
            return Ok(false);
        }
        Ok(epoch <= clock.poll(&self.driver, &self.events)?)
    }

    /// Records an event for the open epoch of a stream. False while it cannot be done.
    pub(super) fn seal(
        &self,
        stream: &StreamHeap,
        clock: &mut crate::stream::StreamClock,
    ) -> Result<bool, DriverError> {
        {
            // Stamp frees from now on with the next epoch first: a free that slips in before the event is covered by it
            // and only believed to be later.
            let mut state = stream.lock();
            if state.epoch >= self.geometry.epoch_limit {
                drop(state);
                self.renumber(stream, clock)?;
                state = stream.lock();
            }
            state.epoch += 1;
            state.dirty = false;
        }
        let sealed = match clock.seal(&self.driver, &self.events) {
            // Its owner has destroyed the stream: nothing can be learned about it any more, which concerns what was
            // freed on it and nothing else.
            Err(error) if error.kind == DriverErrorKind::InvalidHandle => Ok(false),
            sealed => sealed,
        };
        if !matches!(sealed, Ok(true)) {
            let mut state = stream.lock();
            state.epoch -= 1;
            state.dirty = true;
        }
        sealed
    }

    /// Starts the 32-bit epochs of a stream's blocks anew, once in 2^32 seals: waits for the stream to pass them all.
    fn renumber(&self, stream: &StreamHeap, clock: &mut crate::stream::StreamClock) -> Result<(), DriverError> {
        if clock.open() > clock.passed() + 1 {
            self.counters.host_waits.fetch_add(1, Ordering::Relaxed);
            clock.wait(clock.open() - 1, &self.driver, &self.events)?;
        }
        let mut state = stream.lock();
        let by = state.epoch - 1;
        state.epoch -= by;
        state.epoch_base += u64::from(by);
        for kind in RegionKind::ALL {
            if let Some(region) = state.region(kind) {
                region.heap.renumber(by);
            }
        }
        Ok(())
    }

    /// Seals and polls the other streams, so that what they are done with is known; and the stream itself as well when
    /// free chunks may go back to the driver.
    fn refresh_clocks(&self, own: StreamIndex, own_too: bool) -> Result<(), DriverError> {
        for stream in self.streams.iter().filter(|stream| own_too || stream.index != own) {
            let mut clock = stream.clock.lock();
            if stream.lock().dirty && clock.sealed() < MAX_SEALED {
                self.seal(stream, &mut clock)?;
            }
            clock.poll(&self.driver, &self.events)?;
        }
        Ok(())
    }

    /// Waits for the oldest pending block of any stream that can be waited for. False when there is none.
    pub(super) fn wait_for_pending(&self) -> Result<bool, DriverError> {
        for stream in self.streams.iter() {
            let pending: Vec<Vec<Fence>> = stream.lock().pending.iter().map(|block| block.fences.clone()).collect();
            for fences in pending {
                // A block is settled by the wait only when all its users have passed; else the caller comes back for ever.
                let mut passed = true;
                for fence in fences {
                    passed = passed && self.wait_until_passed(fence.stream, fence.epoch)?;
                }
                if passed {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Blocks the host until `stream` has passed `epoch`. False when that cannot be waited for (a capture in progress).
    pub(super) fn wait_until_passed(&self, stream: StreamIndex, epoch: u64) -> Result<bool, DriverError> {
        if self.has_passed(stream, epoch)? {
            return Ok(true);
        }
        let mut clock = self.streams.get(stream).clock.lock();
        if epoch >= clock.open() {
            return Ok(false);
        }
        self.counters.host_waits.fetch_add(1, Ordering::Relaxed);
        clock.wait(epoch, &self.driver, &self.events)?;
        Ok(true)
    }

    /// Makes the device run later work of `waiter` behind `epoch` of `stream`. False when that cannot be arranged.
    pub(super) fn order_behind(
        &self,
        waiter: StreamIndex,
        stream: StreamIndex,
        epoch: u64,
    ) -> Result<bool, DriverError> {
        if self.has_passed(stream, epoch)? {
            return Ok(true);
        }
        let clock = self.streams.get(stream).clock.lock();
        if epoch >= clock.open() {
            return Ok(false);
        }
        clock.hold_back(self.streams.get(waiter).id, epoch, &self.driver)?;
        Ok(true)
    }
}
