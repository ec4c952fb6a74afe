//! Raw ranges: addresses that grow and shrink at their end, without a heap on top. Their chunks come from the same pool and
//! count against the same budget as those of the regions.

use super::super::error::AllocError;
use super::super::request::Request;
use super::super::shared::Shared;
use super::mapper::{Mapper, view_at};
use super::plan::{Source, claim_sources, free_chunks};
use super::{Door, SlowPath};
use crate::driver::{Driver, DriverError, DriverErrorKind, MemoryDriver};
use crate::physical::ChunkId;
use crate::segment::transaction::{Mapping, map_all};
use crate::segment::{Segment, View, ViewState};
use crate::stream::{Fence, StreamIndex};
use crate::units::{DeviceAddr, StreamId};

/// A reservation that is mapped from its start up to `mapped_pages`.
#[derive(Debug)]
pub struct RangeParts {
    /// First address.
    pub addr: DeviceAddr,
    /// Number of pages of addresses.
    pub pages: u64,
    /// Number of pages mapped, from the start.
    pub mapped_pages: u64,
    /// Number of its segment.
    segment: usize,
    /// The streams that it was used with.
    users: Vec<StreamIndex>,
    /// Whether a mapping at the end could not be undone, so that it never grows again.
    given_up: bool,
}

impl RangeParts {
    fn check_room(&self, pages: u64, requested: u64, page_bytes: u64) -> Result<(), AllocError> {
        let left = if self.given_up { 0 } else { self.pages - self.mapped_pages };
        if self.given_up || pages > left {
            return Err(AllocError::RangeFull { requested, available: left * page_bytes });
        }
        Ok(())
    }

    fn note_user(&mut self, user: StreamIndex) {
        if !self.users.contains(&user) {
            self.users.push(user);
        }
    }

    fn last_view(&self, mapper: &Mapper) -> Option<View> {
        mapper.segments[self.segment].table.view(self.mapped_pages.checked_sub(1)?).copied()
    }
}

impl Door {
    /// Unmaps a range that is not needed any more, and returns its addresses. What cannot be returned now is left to
    /// [`SlowPath::settle_left_behind`] and, at the latest, to [`Door::tear_down`].
    pub fn drop_range<D: Driver>(&self, shared: &Shared<D>, range: &mut RangeParts) {
        let gone = self.enter(shared, |path| {
            path.unmap_range_down_to(range, 0)?;
            if range.mapped_pages > 0 || range.given_up {
                return Ok(false);
            }
            path.vacate(range.segment)?;
            Ok(true)
        });
        if !matches!(gone, Ok(true)) {
            let bytes = range.pages * shared.geometry.page_bytes;
            self.mapper.lock().left_behind.push((range.addr, bytes));
        }
    }
}

impl<D: Driver> SlowPath<'_, D> {
    /// Reserves a range of `bytes` of addresses, in whole pages.
    pub fn reserve_range(&mut self, bytes: u64) -> Result<RangeParts, AllocError> {
        let page_bytes = self.page_bytes();
        let pages = bytes.div_ceil(page_bytes).max(1);
        let too_large = || AllocError::TooLarge { requested: bytes, alignment: page_bytes, region_bytes: u64::MAX };
        let total = pages.checked_mul(page_bytes).ok_or_else(too_large)?;
        let addr = self.driver().reserve(total, page_bytes)?;
        // Numbers of ranges that are gone are used again.
        let segments = &mut self.mapper.segments;
        let vacant = segments.iter().position(|segment| segment.pages == 0);
        let segment = vacant.unwrap_or(segments.len());
        let fresh = Segment::new(addr, total, page_bytes);
        match vacant {
            Some(number) => segments[number] = fresh,
            None => segments.push(fresh),
        }
        Ok(RangeParts { addr, pages, mapped_pages: 0, segment, users: Vec::new(), given_up: false })
    }

    /// Maps at least `bytes` more at the end of a range.
    pub fn grow_range(&mut self, range: &mut RangeParts, bytes: u64, stream: StreamId) -> Result<(), AllocError> {
        let user = self.shared.streams.find_or_add(stream)?.index;
        let wanted = bytes.div_ceil(self.page_bytes());
        range.check_room(wanted, bytes, self.page_bytes())?;
        self.clear_stale(range.segment, range.mapped_pages, range.mapped_pages + wanted)?;
        let chunks = self.gather(wanted, bytes, user)?;
        self.map_at_end(range, &chunks)?;
        range.note_user(user);
        Ok(())
    }

    /// Unmaps up to `bytes` at the end of a range. Returns the number of bytes unmapped.
    pub fn shrink_range(&mut self, range: &mut RangeParts, bytes: u64) -> Result<u64, AllocError> {
        let before = range.mapped_pages;
        self.unmap_range_down_to(range, before.saturating_sub(bytes / self.page_bytes()))?;
        Ok((before - range.mapped_pages) * self.page_bytes())
    }

    fn unmap_range_down_to(&mut self, range: &mut RangeParts, floor: u64) -> Result<(), AllocError> {
        for user in &range.users {
            let open = self.shared.streams.get(*user).clock.lock().open();
            self.must_pass(*user, open)?;
        }
        while let Some(view) = range.last_view(&self.mapper).filter(|view| view.page >= floor) {
            // Where the chunk was taken from, it may still be mapped: only without any view is it of use to others.
            self.unmap_stale(view.chunk)?;
            self.unmap_view(view_at(range.segment, view.page))?;
            self.mapper.pool.set_lent_out(view.chunk, false);
            range.mapped_pages = view.page;
        }
        Ok(())
    }

    /// Moves whole chunks of up to `bytes` from the end of `from` to the end of `to`. Returns the number of bytes moved.
    pub fn move_range_end(
        &mut self,
        to: &mut RangeParts,
        from: &mut RangeParts,
        bytes: u64,
        stream: StreamId,
    ) -> Result<u64, AllocError> {
        let page_bytes = self.page_bytes();
        let user = self.shared.streams.find_or_add(stream)?.index;
        let floor = from.mapped_pages.saturating_sub(bytes / page_bytes);
        let views: Vec<View> = self.mapper.segments[from.segment]
            .table
            .views_in(floor, from.mapped_pages)
            .filter(|view| view.page >= floor)
            .copied()
            .collect();
        let Some(first) = views.first() else { return Ok(0) };
        let moved = from.mapped_pages - first.page;
        to.check_room(moved, moved * page_bytes, page_bytes)?;
        self.clear_stale(to.segment, to.mapped_pages, to.mapped_pages + moved)?;
        let chunks: Vec<ChunkId> = views.iter().map(|view| view.chunk).collect();
        self.map_at_end(to, &chunks)?;
        let epoch = self.shared.streams.get(user).clock.lock().open();
        let stale = ViewState::Stale(Fence { stream: user, epoch });
        for view in &views {
            self.mapper.segments[from.segment].table.set_state(view.page, stale);
        }
        from.mapped_pages = first.page;
        from.note_user(user);
        to.note_user(user);
        Ok(moved * page_bytes)
    }

    /// Maps chunks at the end of a range, all or none.
    fn map_at_end(&mut self, range: &mut RangeParts, chunks: &[ChunkId]) -> Result<(), AllocError> {
        let page_bytes = self.page_bytes();
        let mut page = range.mapped_pages;
        let mut mappings = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let chunk = self.mapper.pool.get(*chunk);
            let (addr, bytes) = (range.addr.offset(page * page_bytes), u64::from(chunk.pages) * page_bytes);
            mappings.push(Mapping { addr, bytes, chunk: chunk.handle });
            page += u64::from(chunk.pages);
        }
        if let Err(failure) = map_all(self.driver(), &mappings) {
            if !failure.stuck.is_empty() {
                self.give_up_end(range, chunks, &mappings, &failure.stuck);
            }
            return Err(failure.error.into());
        }
        for chunk in chunks {
            let pages = self.mapper.pool.get(*chunk).pages;
            let view = View { chunk: *chunk, page: range.mapped_pages, pages, state: ViewState::Active };
            self.mapper.segments[range.segment].table.add(view);
            self.mapper.pool.activate(*chunk, view_at(range.segment, view.page));
            self.mapper.pool.set_lent_out(*chunk, true);
            range.mapped_pages += u64::from(pages);
        }
        Ok(())
    }

    /// Mappings at the end of a range could not be undone: they stay in the books until the allocator goes, and the range
    /// never grows again.
    fn give_up_end(&mut self, range: &mut RangeParts, chunks: &[ChunkId], mappings: &[Mapping], stuck: &[Mapping]) {
        for (chunk, mapping) in chunks.iter().zip(mappings) {
            if stuck.iter().any(|other| other.addr == mapping.addr) {
                let page = (mapping.addr.0 - range.addr.0) / self.page_bytes();
                let pages = self.mapper.pool.get(*chunk).pages;
                let state = ViewState::Stale(Fence { stream: StreamIndex(0), epoch: u64::MAX });
                self.mapper.segments[range.segment].table.add(View { chunk: *chunk, page, pages, state });
                self.mapper.pool.add_stale(*chunk, view_at(range.segment, page));
            }
        }
        self.mapper.segments[range.segment].poisoned = true;
        self.mapper.poisoned += 1;
        range.given_up = true;
    }

    /// Waits until `stream` has passed `epoch`: where the host cannot wait for that, nothing may be unmapped.
    fn must_pass(&self, stream: StreamIndex, epoch: u64) -> Result<(), AllocError> {
        let streams = &self.shared.streams;
        if streams.wait_until_passed(stream, epoch)? {
            return Ok(());
        }
        Err(AllocError::CannotWait { stream: streams.get(stream).id })
    }

    /// Removes the stale views in pages `[start, end)` of a segment, waiting for their last use.
    fn clear_stale(&mut self, segment: usize, start: u64, end: u64) -> Result<(), AllocError> {
        let views: Vec<View> = self.mapper.segments[segment].table.views_in(start, end).copied().collect();
        for view in views {
            if let ViewState::Stale(fence) = view.state {
                self.must_pass(fence.stream, fence.epoch)?;
                self.unmap_view(view_at(segment, view.page))?;
            }
        }
        Ok(())
    }

    /// Removes the stale views of a chunk, waiting for their last use.
    fn unmap_stale(&mut self, chunk: ChunkId) -> Result<(), AllocError> {
        for at in self.mapper.pool.get(chunk).stale.clone() {
            if let ViewState::Stale(fence) = self.mapper.view(at).state {
                self.must_pass(fence.stream, fence.epoch)?;
            }
            self.unmap_view(at)?;
        }
        Ok(())
    }

    /// Returns the addresses of a range without active views to the driver, and frees its segment's number.
    fn vacate(&mut self, segment: usize) -> Result<(), AllocError> {
        let (base, pages) = (self.mapper.segments[segment].base, self.mapper.segments[segment].pages);
        self.clear_stale(segment, 0, pages)?;
        self.driver().address_free(base, pages * self.page_bytes())?;
        self.mapper.segments[segment] = Segment::new(DeviceAddr(0), 0, self.page_bytes());
        Ok(())
    }

    /// Tries again to unmap the dropped ranges that could not be. Returns whether a chunk became idle by it. One that fails
    /// again stays behind and keeps none of the others from going.
    ///
    /// # Errors
    /// The driver's, when the device is lost.
    pub fn settle_left_behind(&mut self) -> Result<bool, AllocError> {
        let idle = self.mapper.pool.idle_bytes();
        for (base, bytes) in self.mapper.left_behind.clone() {
            let of_range = |segment: &Segment| segment.base == base && segment.pages > 0 && !segment.poisoned;
            let Some(segment) = self.mapper.segments.iter().position(of_range) else { continue };
            match self.settle_segment(segment) {
                Ok(true) => self.mapper.left_behind.retain(|other| *other != (base, bytes)),
                Err(AllocError::Driver(error)) if error.kind.is_sticky() => return Err(error.into()),
                Ok(false) | Err(_) => {}
            }
        }
        Ok(self.mapper.pool.idle_bytes() > idle)
    }

    /// Unmaps all of a dropped range and returns its addresses. Returns false when a stream cannot be waited for.
    fn settle_segment(&mut self, segment: usize) -> Result<bool, AllocError> {
        let table = &self.mapper.segments[segment].table;
        let active: Vec<View> = table.iter().filter(|view| view.state == ViewState::Active).copied().collect();
        // Nobody knows any more who used it: every stream is waited for.
        if !active.is_empty() && !self.shared.streams.wait_for_all()? {
            return Ok(false);
        }
        for view in active {
            self.unmap_stale(view.chunk)?;
            self.unmap_view(view_at(segment, view.page))?;
            self.mapper.pool.set_lent_out(view.chunk, false);
        }
        self.vacate(segment)?;
        Ok(true)
    }

    /// Finds chunks of exactly `pages` pages in all: idle ones, then new ones; where the budget or the device has no more,
    /// free ones of the regions that fit, then new ones in the place of free ones that do not.
    fn gather(&mut self, pages: u64, requested: u64, user: StreamIndex) -> Result<Vec<ChunkId>, AllocError> {
        let (mut chunks, mut left) = (Vec::new(), pages);
        loop {
            let refused = self.take_and_create(&mut left, &mut chunks)?;
            if left == 0 {
                return Ok(chunks);
            }
            self.shared.streams.settle_pending()?;
            let found = self.make_idle(left)?
                || self.release_some(left)?
                || self.shared.streams.wait_for_pending()?
                || self.settle_left_behind()?;
            if !found {
                let request = Request::new(requested, pages * self.page_bytes(), 1);
                return Err(self.out_of_memory(&request, user, refused.as_ref()));
            }
        }
    }

    /// Takes idle chunks and creates new ones, for up to `left` pages. Returns the driver's answer when it had no more.
    fn take_and_create(
        &mut self,
        left: &mut u64,
        chunks: &mut Vec<ChunkId>,
    ) -> Result<Option<DriverError>, DriverError> {
        while *left > 0 {
            let idle = self.mapper.pool.idle_up_to(*left).find(|idle| !chunks.contains(idle));
            let chunk = match idle {
                Some(idle) => idle,
                None => {
                    let headroom = self.mapper.pool.headroom_pages();
                    if headroom == 0 {
                        break;
                    }
                    match self.create(self.mapper.sizes.for_range(headroom, *left)) {
                        Ok(chunk) => chunk,
                        Err(error) if error.kind == DriverErrorKind::OutOfMemory => return Ok(Some(error)),
                        Err(error) => return Err(error),
                    }
                }
            };
            *left -= u64::from(self.mapper.pool.get(chunk).pages);
            chunks.push(chunk);
        }
        Ok(None)
    }

    /// Makes free chunks of the regions idle, of up to `left` pages in all. Returns false when there is none left to try.
    fn make_idle(&mut self, left: u64) -> Result<bool, DriverError> {
        let claimed = self.claim_up_to(left);
        let mut outcome = Ok(());
        for source in &claimed {
            if outcome.is_ok() {
                outcome = self.take_out(source);
            }
            self.unclaim(source);
        }
        outcome.map(|()| !claimed.is_empty())
    }

    /// Claims free chunks of up to `left` pages in all, largest first.
    fn claim_up_to(&self, mut left: u64) -> Vec<Source> {
        let mut states = self.shared.streams.lock_all();
        let mut sources = free_chunks(&self.mapper, &states);
        sources.sort_by_key(|source| std::cmp::Reverse(source.pages));
        sources.retain(|source| {
            let take = u64::from(source.pages) <= left;
            if take {
                left -= u64::from(source.pages);
            }
            take
        });
        claim_sources(&mut states, sources.iter());
        sources
    }

    /// Makes a claimed free chunk idle, or bars it when a stream that used it cannot be waited for.
    fn take_out(&mut self, source: &Source) -> Result<(), DriverError> {
        let streams = &self.shared.streams;
        let mut passed = streams.wait_until_passed(source.stream, source.epoch)?;
        for at in self.mapper.pool.get(source.chunk).stale.clone() {
            if let ViewState::Stale(fence) = self.mapper.view(at).state {
                passed = passed && streams.wait_until_passed(fence.stream, fence.epoch)?;
            }
        }
        if !passed {
            self.mapper.pool.bar(source.chunk);
            return Ok(());
        }
        for at in self.mapper.views_of(source.chunk).into_iter().rev() {
            self.unmap_view(at)?;
        }
        Ok(())
    }

    /// Releases free chunks so that `left` pages may be created. Returns false when none went.
    fn release_some(&mut self, left: u64) -> Result<bool, DriverError> {
        let held = self.mapper.pool.held_pages();
        let keep = held.min(self.mapper.pool.budget_pages()).saturating_sub(left);
        self.trim_free(keep * self.page_bytes())?;
        Ok(self.mapper.pool.held_pages() < held)
    }
}
