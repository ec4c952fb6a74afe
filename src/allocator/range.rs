//! The lower layer on its own: a range of addresses that grows and shrinks at its end, without a heap on top. For
//! callers that bring an allocator of their own, or arrays whose address must not change.
//!
//! Chunks come from the same pool and count against the same budget as those of the heaps.

use super::error::AllocError;
use super::plan::{Request, Source, claim_sources, free_chunks, view_at};
use super::{Allocator, Inner, mapper::Mapper};
use crate::driver::{Driver, DriverError, DriverErrorKind, MemoryDriver};
use crate::physical::ChunkId;
use crate::segment::transaction::{Mapping, map_all};
use crate::segment::{Segment, View, ViewState};
use crate::stream::{Fence, StreamIndex};
use crate::sync::Arc;
use crate::units::{DeviceAddr, StreamId};

/// A reserved range of addresses, mapped from its start up to [`mapped_bytes`](Self::mapped_bytes).
///
/// Dropping it waits for the streams it was used with, and gives its chunks back to the allocator. Where that fails, the
/// next request that runs short of memory tries again, of a range or a block, a trim, and at the latest the allocator's end.
#[derive(Debug)]
pub struct VirtualRange<D: Driver> {
    inner: Arc<Inner<D>>,
    segment: usize,
    addr: DeviceAddr,
    pages: u64,
    mapped_pages: u64,
    users: Vec<StreamIndex>,
    /// A mapping at the end could not be undone.
    given_up: bool,
}

impl<D: Driver> Allocator<D> {
    /// Reserves `bytes` of addresses, rounded up to whole pages. Nothing is mapped yet.
    ///
    /// # Errors
    /// [`AllocError::Driver`] when the driver has no such range. [`AllocError::Forked`].
    pub fn reserve_range(&self, bytes: u64) -> Result<VirtualRange<D>, AllocError> {
        let page_bytes = self.inner.geometry.page_bytes;
        let pages = bytes.div_ceil(page_bytes).max(1);
        let too_large = || AllocError::TooLarge { requested: bytes, alignment: page_bytes, region_bytes: u64::MAX };
        let total = pages.checked_mul(page_bytes).ok_or_else(too_large)?;
        self.inner.expect_usable()?;
        let mut mapper = self.inner.mapper.lock();
        let addr = self.inner.note_loss(self.inner.driver.reserve(total, page_bytes))?;
        // Numbers of ranges that are gone are taken again.
        let vacant = mapper.segments.iter().position(|segment| segment.pages == 0);
        let segment = vacant.unwrap_or(mapper.segments.len());
        let fresh = Segment::new(addr, total, page_bytes);
        match vacant {
            Some(number) => mapper.segments[number] = fresh,
            None => mapper.segments.push(fresh),
        }
        drop(mapper);
        Ok(VirtualRange {
            inner: Arc::clone(&self.inner),
            segment,
            addr,
            pages,
            mapped_pages: 0,
            users: Vec::new(),
            given_up: false,
        })
    }
}

impl<D: Driver> VirtualRange<D> {
    /// First address. Never changes.
    pub fn addr(&self) -> DeviceAddr {
        self.addr
    }

    /// Bytes of addresses.
    pub fn reserved_bytes(&self) -> u64 {
        self.pages * self.inner.geometry.page_bytes
    }

    /// Bytes that may be used, from the start.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped_pages * self.inner.geometry.page_bytes
    }

    /// Maps at least `bytes` more at the end, in whole pages, for work on `stream`. Without room in the budget it takes
    /// free memory of the heaps, for which it waits for the streams that used it. 0 bytes: `stream` is known to use the
    /// range from now on.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed, except for free memory that may have gone back to the driver.
    /// [`AllocError::RangeFull`] when the range has fewer addresses left. [`AllocError::CannotWait`] where chunks were
    /// taken from the end by a stream that is being captured now: it cannot be waited for until the capture ends.
    pub fn grow(&mut self, bytes: u64, stream: StreamId) -> Result<(), AllocError> {
        let inner = Arc::clone(&self.inner);
        inner.expect_usable()?;
        let user = inner.user(stream)?;
        let wanted = bytes.div_ceil(inner.geometry.page_bytes);
        if self.given_up || wanted > self.pages - self.mapped_pages {
            return Err(self.full(bytes));
        }
        let mut mapper = inner.mapper.lock();
        let end = self.mapped_pages + wanted;
        inner.note_loss(inner.clear_stale(&mut mapper, self.segment, self.mapped_pages, end))?;
        let mut created = Vec::new();
        let result = inner
            .gather(&mut mapper, wanted, bytes, user, &mut created)
            .and_then(|chunks| self.map_at_end(&mut mapper, &chunks));
        mapper.pool.lift_bars();
        match &result {
            Ok(()) => self.note_user(user),
            Err(_) => {
                for chunk in created {
                    if mapper.pool.idle().any(|idle| idle == chunk) {
                        inner.release_idle(&mut mapper, chunk);
                    }
                }
            }
        }
        inner.note_loss(result)
    }

    /// Unmaps up to `bytes` at the end: the whole chunks that lie in them, which become idle in the allocator. Waits for
    /// the streams that the range was used with. Returns the bytes unmapped.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; chunks unmapped before stay unmapped.
    pub fn shrink(&mut self, bytes: u64) -> Result<u64, AllocError> {
        let inner = Arc::clone(&self.inner);
        inner.expect_usable()?;
        let page_bytes = inner.geometry.page_bytes;
        let mut mapper = inner.mapper.lock();
        let floor = self.mapped_pages.saturating_sub(bytes / page_bytes);
        let before = self.mapped_pages;
        inner.note_loss(self.unmap_down_to(&mut mapper, floor))?;
        Ok((before - self.mapped_pages) * page_bytes)
    }

    fn unmap_down_to(&mut self, mapper: &mut Mapper, floor: u64) -> Result<(), AllocError> {
        let inner = Arc::clone(&self.inner);
        inner.wait_for_users(&self.users)?;
        while let Some(view) = self.last_view(mapper).filter(|view| view.page >= floor) {
            // Where the chunk was taken from, it may still be mapped: only without any view is it of use to others.
            inner.unmap_stale(mapper, view.chunk)?;
            inner.unmap_view(mapper, view_at(self.segment, view.page))?;
            mapper.pool.set_lent_out(view.chunk, false);
            self.mapped_pages = view.page;
        }
        Ok(())
    }

    /// Moves whole chunks of up to `bytes` from the end of `other` to the end of this range, contents and all, for work
    /// on `stream` that is ordered behind all other work on `other`'s end. Their order is kept. The new mapping is made
    /// before the old one is given up, and the host does not wait. Returns the bytes moved.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed. [`AllocError::RangeFull`] when this range has fewer addresses left.
    ///
    /// # Panics
    /// When the ranges belong to different allocators.
    pub fn take_from(&mut self, other: &mut Self, bytes: u64, stream: StreamId) -> Result<u64, AllocError> {
        assert!(Arc::ptr_eq(&self.inner, &other.inner), "ranges of two allocators share no chunks");
        let inner = Arc::clone(&self.inner);
        let page_bytes = inner.geometry.page_bytes;
        inner.expect_usable()?;
        let user = inner.user(stream)?;
        let mut mapper = inner.mapper.lock();
        let floor = other.mapped_pages.saturating_sub(bytes / page_bytes);
        let views: Vec<View> = mapper.segments[other.segment]
            .table
            .views_in(floor, other.mapped_pages)
            .filter(|view| view.page >= floor)
            .copied()
            .collect();
        let Some(first) = views.first() else { return Ok(0) };
        let moved = other.mapped_pages - first.page;
        if self.given_up || moved > self.pages - self.mapped_pages {
            return Err(self.full(moved * page_bytes));
        }
        let end = self.mapped_pages + moved;
        inner.note_loss(inner.clear_stale(&mut mapper, self.segment, self.mapped_pages, end))?;
        let chunks: Vec<ChunkId> = views.iter().map(|view| view.chunk).collect();
        inner.note_loss(self.map_at_end(&mut mapper, &chunks))?;
        let epoch = inner.streams.get(user).clock.lock().open();
        let fence = ViewState::Stale(Fence { stream: user, epoch });
        for view in &views {
            mapper.segments[other.segment].table.set_state(view.page, fence);
        }
        other.mapped_pages = first.page;
        other.note_user(user);
        self.note_user(user);
        Ok(moved * page_bytes)
    }

    fn full(&self, requested: u64) -> AllocError {
        let available = if self.given_up { 0 } else { self.reserved_bytes() - self.mapped_bytes() };
        AllocError::RangeFull { requested, available }
    }

    fn note_user(&mut self, user: StreamIndex) {
        if !self.users.contains(&user) {
            self.users.push(user);
        }
    }

    fn last_view(&self, mapper: &Mapper) -> Option<View> {
        mapper.segments[self.segment].table.view(self.mapped_pages.checked_sub(1)?).copied()
    }

    /// Maps chunks at the end, all or none.
    fn map_at_end(&mut self, mapper: &mut Mapper, chunks: &[ChunkId]) -> Result<(), AllocError> {
        let page_bytes = self.inner.geometry.page_bytes;
        let mut page = self.mapped_pages;
        let mut mappings = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let chunk = mapper.pool.get(*chunk);
            let (addr, bytes) = (self.addr.offset(page * page_bytes), u64::from(chunk.pages) * page_bytes);
            mappings.push(Mapping { addr, bytes, chunk: chunk.handle });
            page += u64::from(chunk.pages);
        }
        if let Err(failure) = map_all(&self.inner.driver, &mappings) {
            if !failure.stuck.is_empty() {
                self.give_up_end(mapper, chunks, &mappings, &failure.stuck);
            }
            return Err(failure.error.into());
        }
        for chunk in chunks {
            let pages = mapper.pool.get(*chunk).pages;
            let view = View { chunk: *chunk, page: self.mapped_pages, pages, state: ViewState::Active };
            mapper.segments[self.segment].table.add(view);
            mapper.pool.activate(*chunk, view_at(self.segment, view.page));
            mapper.pool.set_lent_out(*chunk, true);
            self.mapped_pages += u64::from(pages);
        }
        Ok(())
    }
}

impl<D: Driver> VirtualRange<D> {
    /// Mappings at the end could not be undone: they stay in the books until the allocator goes, and the range never
    /// grows again.
    fn give_up_end(&mut self, mapper: &mut Mapper, chunks: &[ChunkId], mappings: &[Mapping], stuck: &[Mapping]) {
        for (chunk, mapping) in chunks.iter().zip(mappings) {
            if stuck.iter().any(|other| other.addr == mapping.addr) {
                let page = (mapping.addr.0 - self.addr.0) / self.inner.geometry.page_bytes;
                let pages = mapper.pool.get(*chunk).pages;
                let state = ViewState::Stale(Fence { stream: StreamIndex(0), epoch: u64::MAX });
                mapper.segments[self.segment].table.add(View { chunk: *chunk, page, pages, state });
                mapper.pool.add_stale(*chunk, view_at(self.segment, page));
            }
        }
        mapper.segments[self.segment].poisoned = true;
        mapper.poisoned += 1;
        self.given_up = true;
    }
}

impl<D: Driver> Drop for VirtualRange<D> {
    fn drop(&mut self) {
        if self.inner.is_forked() {
            // All of it belongs to the process that built the allocator.
            return;
        }
        let empty = self.shrink(u64::MAX).is_ok() && self.mapped_pages == 0 && !self.given_up;
        let inner = Arc::clone(&self.inner);
        let mut mapper = inner.mapper.lock();
        if !empty || inner.vacate(&mut mapper, self.segment).is_err() {
            mapper.left_behind.push((self.addr, self.reserved_bytes()));
        }
    }
}

impl<D: Driver> Inner<D> {
    fn user(&self, stream: StreamId) -> Result<StreamIndex, AllocError> {
        match self.streams.find(stream) {
            Some(heap) => Ok(heap.index),
            None => Ok(self.add_stream(stream)?.index),
        }
    }

    /// What every call that talks to the driver asks first.
    fn expect_usable(&self) -> Result<(), AllocError> {
        if self.is_forked() {
            return Err(AllocError::Forked { built_in: self.process });
        }
        self.poison.get().map_or(Ok(()), |error| Err(error.clone().into()))
    }

    /// Passes a result on, and remembers an error after which the device is lost.
    fn note_loss<T, E: Into<AllocError>>(&self, result: Result<T, E>) -> Result<T, AllocError> {
        let result = result.map_err(Into::into);
        if let Err(AllocError::Driver(error)) = &result
            && error.kind.is_sticky()
        {
            let _ = self.poison.set(error.clone());
        }
        result
    }

    fn wait_for_users(&self, users: &[StreamIndex]) -> Result<(), AllocError> {
        for user in users {
            let open = self.streams.get(*user).clock.lock().open();
            self.must_pass(*user, open)?;
        }
        Ok(())
    }

    /// Waits until `stream` has passed `epoch`; where that cannot be waited for, nothing may be unmapped.
    fn must_pass(&self, stream: StreamIndex, epoch: u64) -> Result<(), AllocError> {
        if self.wait_until_passed(stream, epoch)? {
            return Ok(());
        }
        Err(AllocError::CannotWait { stream: self.stream_id(stream) })
    }

    /// Removes the stale views in `[start, end)` of a segment, waiting for their last use.
    fn clear_stale(&self, mapper: &mut Mapper, segment: usize, start: u64, end: u64) -> Result<(), AllocError> {
        let views: Vec<View> = mapper.segments[segment].table.views_in(start, end).copied().collect();
        for view in views {
            if let ViewState::Stale(fence) = view.state {
                self.must_pass(fence.stream, fence.epoch)?;
                self.unmap_view(mapper, view_at(segment, view.page))?;
            }
        }
        Ok(())
    }

    /// Removes the stale views of a chunk, waiting for their last use.
    fn unmap_stale(&self, mapper: &mut Mapper, chunk: ChunkId) -> Result<(), AllocError> {
        for at in mapper.pool.get(chunk).stale.clone() {
            if let ViewState::Stale(fence) = mapper.view(at).state {
                self.must_pass(fence.stream, fence.epoch)?;
            }
            self.unmap_view(mapper, at)?;
        }
        Ok(())
    }

    /// Gives the addresses of a range without active views back, and its segment's number free.
    fn vacate(&self, mapper: &mut Mapper, segment: usize) -> Result<(), AllocError> {
        let (base, pages) = (mapper.segments[segment].base, mapper.segments[segment].pages);
        self.clear_stale(mapper, segment, 0, pages)?;
        self.driver.address_free(base, pages * self.geometry.page_bytes)?;
        mapper.segments[segment] = Segment::new(DeviceAddr(0), 0, self.geometry.page_bytes);
        Ok(())
    }

    /// Once more for the ranges whose end did not work out. True when that made a chunk idle. One that fails again stays
    /// behind and keeps none of the others from going.
    ///
    /// # Errors
    /// The driver's, when the device is lost.
    pub(super) fn settle_left_behind(&self, mapper: &mut Mapper) -> Result<bool, AllocError> {
        let idle = mapper.pool.idle_bytes();
        for (base, bytes) in mapper.left_behind.clone() {
            let of_range = |segment: &Segment| segment.base == base && segment.pages > 0 && !segment.poisoned;
            let Some(segment) = mapper.segments.iter().position(of_range) else { continue };
            match self.settle_segment(mapper, segment) {
                Ok(true) => mapper.left_behind.retain(|other| *other != (base, bytes)),
                Err(AllocError::Driver(error)) if error.kind.is_sticky() => return Err(error.into()),
                Ok(false) | Err(_) => {}
            }
        }
        Ok(mapper.pool.idle_bytes() > idle)
    }

    /// Unmaps all of a dropped range and gives its addresses back. False when a stream cannot be waited for.
    fn settle_segment(&self, mapper: &mut Mapper, segment: usize) -> Result<bool, AllocError> {
        let active: Vec<View> =
            mapper.segments[segment].table.iter().filter(|view| view.state == ViewState::Active).copied().collect();
        // Who used it went with the range: every stream is waited for.
        if !active.is_empty() && !self.wait_for_all()? {
            return Ok(false);
        }
        for view in active {
            self.unmap_stale(mapper, view.chunk)?;
            self.unmap_view(mapper, view_at(segment, view.page))?;
            mapper.pool.set_lent_out(view.chunk, false);
        }
        self.vacate(mapper, segment)?;
        Ok(true)
    }

    /// False when a stream cannot be waited for.
    fn wait_for_all(&self) -> Result<bool, DriverError> {
        for stream in self.streams.iter() {
            let open = stream.clock.lock().open();
            if !self.wait_until_passed(stream.index, open)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Chunks of exactly `pages` pages in all: idle ones, then new ones; where the budget or the device has no room, free
    /// ones of the heaps that fit, then new ones in the place of free ones that do not.
    fn gather(
        &self,
        mapper: &mut Mapper,
        pages: u64,
        requested: u64,
        user: StreamIndex,
        created: &mut Vec<ChunkId>,
    ) -> Result<Vec<ChunkId>, AllocError> {
        let (mut chunks, mut left) = (Vec::new(), pages);
        loop {
            let refused = self.take_and_create(mapper, &mut left, &mut chunks, created)?;
            if left == 0 {
                return Ok(chunks);
            }
            self.settle_pending()?;
            let found = self.make_idle(mapper, left)?
                || self.make_room(mapper, left)?
                || self.wait_for_pending()?
                || self.settle_left_behind(mapper)?;
            if !found {
                let size = pages * self.geometry.page_bytes;
                let request = Request::new(user, size, 1);
                return Err(self.out_of_memory(mapper, requested, request, refused.as_ref()));
            }
        }
    }

    /// Takes idle chunks and creates new ones, for up to `left` pages; returns what the driver said when it had no more.
    fn take_and_create(
        &self,
        mapper: &mut Mapper,
        left: &mut u64,
        chunks: &mut Vec<ChunkId>,
        created: &mut Vec<ChunkId>,
    ) -> Result<Option<DriverError>, DriverError> {
        while *left > 0 {
            if let Some(idle) = mapper.pool.idle_up_to(*left).find(|idle| !chunks.contains(idle)) {
                *left -= u64::from(mapper.pool.get(idle).pages);
                chunks.push(idle);
                continue;
            }
            let headroom = mapper.pool.headroom_pages();
            if headroom == 0 {
                break;
            }
            let size = mapper.sizes.next_chunk_pages(headroom);
            let got = size.min(u32::try_from((*left).min(headroom)).unwrap_or(u32::MAX));
            match self.driver.create(u64::from(got) * self.geometry.page_bytes) {
                Ok(handle) => {
                    let chunk = mapper.pool.add(handle, got);
                    created.push(chunk);
                    chunks.push(chunk);
                    *left -= u64::from(got);
                }
                Err(error) if error.kind == DriverErrorKind::OutOfMemory => return Ok(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Takes free chunks of the heaps, of up to `left` pages in all, out of them. False when there is none left to try.
    fn make_idle(&self, mapper: &mut Mapper, mut left: u64) -> Result<bool, DriverError> {
        let claimed = {
            let mut states = self.lock_all();
            let mut sources = free_chunks(mapper, &states);
            sources.sort_by_key(|source| std::cmp::Reverse(source.pages));
            sources.retain(|source| {
                let take = u64::from(source.pages) <= left;
                if take {
                    left -= u64::from(source.pages);
                }
                take
            });
            claim_sources(&mut states, &sources);
            sources
        };
        let mut outcome = Ok(());
        for source in &claimed {
            if outcome.is_ok() {
                outcome = self.take_out(mapper, source);
            }
            self.unclaim(mapper, source);
        }
        outcome.map(|()| !claimed.is_empty())
    }

    /// Makes a claimed free chunk idle, or bars it when a stream that used it cannot be waited for.
    fn take_out(&self, mapper: &mut Mapper, source: &Source) -> Result<(), DriverError> {
        let mut passed = self.wait_until_passed(source.stream, source.epoch)?;
        for at in mapper.pool.get(source.chunk).stale.clone() {
            if let ViewState::Stale(fence) = mapper.view(at).state {
                passed = passed && self.wait_until_passed(fence.stream, fence.epoch)?;
            }
        }
        if !passed {
            mapper.pool.bar(source.chunk);
            return Ok(());
        }
        for at in mapper.views_of(source.chunk).into_iter().rev() {
            self.unmap_view(mapper, at)?;
        }
        Ok(())
    }

    /// Gives free chunks back to the driver so that `left` pages may be created. False when none went.
    fn make_room(&self, mapper: &mut Mapper, left: u64) -> Result<bool, DriverError> {
        let held = mapper.pool.held_pages();
        let keep = held.min(mapper.pool.budget_pages()).saturating_sub(left);
        self.trim_free(mapper, keep * self.geometry.page_bytes)?;
        Ok(mapper.pool.held_pages() < held)
    }
}
