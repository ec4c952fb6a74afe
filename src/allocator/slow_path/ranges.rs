//! Growable ranges: addresses that grow and shrink at their end, without a heap on top. Their chunks come from the same pool and
//! count against the same budget as those of the regions.

use super::super::error::{AllocError, RangeError};
use super::super::mappings::{Change, Mappings, NewView, view_at};
use super::super::shared::Shared;
use super::{Door, SlowPath};
use crate::driver::{Driver, MemoryDriver};
use crate::pages::{PageCount, PageIndex, PageRange};
use crate::physical::{ChunkId, LentTo};
use crate::segment::{Segment, View, ViewState};
use crate::stream::{Fence, StreamIndex};
use crate::units::{DeviceAddr, StreamId};

/// A reservation that is mapped from its start up to `mapped` pages.
#[derive(Debug)]
pub struct GrowableRange {
    /// First address.
    pub addr: DeviceAddr,
    /// Pages of addresses.
    pub pages: PageCount,
    /// Pages mapped, from the start.
    pub mapped: PageCount,
    /// Its kind: a growable range, or one that holds a registered block.
    pub lent_to: LentTo,
    /// Number of its segment.
    pub segment: usize,
    /// The streams that it was used with.
    users: Vec<StreamIndex>,
    /// Whether a mapping at the end could not be undone, so that it never grows again.
    pub given_up: bool,
}

impl GrowableRange {
    fn check_addresses(&self, pages: PageCount, requested: u64, page_bytes: u64) -> Result<(), RangeError> {
        let left = if self.given_up { PageCount::ZERO } else { self.pages - self.mapped };
        if self.given_up || pages > left {
            return Err(RangeError::Full { requested, available: left.bytes(page_bytes) });
        }
        Ok(())
    }

    pub fn note_user(&mut self, user: StreamIndex) {
        if !self.users.contains(&user) {
            self.users.push(user);
        }
    }

    fn last_view(&self, mapper: &Mappings) -> Option<View> {
        let last = self.end().0.checked_sub(1)?;
        mapper.segment(self.segment).table.view(PageIndex(last)).copied()
    }

    /// The page after the last that is mapped.
    fn end(&self) -> PageIndex {
        PageIndex(0) + self.mapped
    }
}

impl Door {
    /// Unmaps a range that is not needed any more, and returns its addresses. What cannot be returned now is left to
    /// [`SlowPath::settle_failures`] and, at the latest, to [`Door::tear_down`].
    pub fn drop_range<D: Driver>(&self, shared: &Shared<D>, range: &mut GrowableRange) {
        let gone = self.enter(shared, |path| {
            path.unmap_range_down_to(range, PageCount::ZERO)?;
            if range.given_up {
                return Ok(false);
            }
            path.vacate(range.segment)?;
            Ok::<_, AllocError>(true)
        });
        if !matches!(gone, Ok(true)) {
            let bytes = range.pages.bytes(shared.geometry.page_bytes);
            self.lock().leave_behind(range.addr, bytes);
        }
    }
}

impl<D: Driver> SlowPath<'_, D> {
    /// Reserves a range of `bytes` of addresses, in whole pages.
    pub fn reserve_range(&mut self, bytes: u64) -> Result<GrowableRange, AllocError> {
        let page_bytes = self.page_bytes();
        // No driver has as many pages as there are in 2^64 bytes: it refuses.
        let most = PageCount::within(u64::MAX, page_bytes);
        let pages = PageCount::covering(bytes, page_bytes).clamp(PageCount::ONE, most);
        let total = pages.bytes(page_bytes);
        let addr = self.driver().reserve(total, page_bytes)?;
        // Numbers of ranges that are gone are used again.
        let segment = self.mapper.add_segment_in_vacant(addr, total);
        Ok(GrowableRange {
            addr,
            pages,
            mapped: PageCount::ZERO,
            lent_to: LentTo::Range,
            segment,
            users: Vec::new(),
            given_up: false,
        })
    }

    /// Maps at least `bytes` more at the end of a range.
    pub fn grow_range(&mut self, range: &mut GrowableRange, bytes: u64, stream: StreamId) -> Result<(), RangeError> {
        let user = self.shared.streams.find_or_add(stream)?.index;
        self.given = Some(user);
        let wanted = PageCount::covering(bytes, self.page_bytes());
        range.check_addresses(wanted, bytes, self.page_bytes())?;
        self.clear_stale(range.segment, PageRange::new(range.end(), wanted))?;
        let chunks = self.gather(wanted, bytes, user)?;
        self.map_at_end(range, &chunks, None)?;
        range.note_user(user);
        Ok(())
    }

    /// Notes that a range is used with `stream`.
    pub fn note_range_user(&mut self, range: &mut GrowableRange, stream: StreamId) -> Result<(), AllocError> {
        range.note_user(self.shared.streams.find_or_add(stream)?.index);
        Ok(())
    }

    /// Unmaps up to `bytes` at the end of a range. Returns the number of bytes unmapped.
    pub fn shrink_range(&mut self, range: &mut GrowableRange, bytes: u64) -> Result<u64, AllocError> {
        let before = range.mapped;
        self.unmap_range_down_to(range, before.saturating_sub(PageCount::within(bytes, self.page_bytes())))?;
        Ok((before - range.mapped).bytes(self.page_bytes()))
    }

    fn unmap_range_down_to(&mut self, range: &mut GrowableRange, floor: PageCount) -> Result<(), AllocError> {
        for user in &range.users {
            let open = self.shared.streams.get(*user).clock.lock().open();
            self.must_pass(*user, open)?;
        }
        let floor = PageIndex(0) + floor;
        while let Some(view) = range.last_view(&self.mapper).filter(|view| view.pages.start >= floor) {
            // Where the chunk was taken from, it may still be mapped: only without any view is it of use to others.
            self.unmap_stale(view.chunk)?;
            self.unmap_view(view_at(range.segment, view.pages.start))?;
            range.mapped = view.pages.start.count_before();
        }
        Ok(())
    }

    /// Moves whole chunks of up to `bytes` from the end of `from` to the end of `to`. Returns the number of bytes moved.
    pub fn move_range_end(
        &mut self,
        to: &mut GrowableRange,
        from: &mut GrowableRange,
        bytes: u64,
        stream: StreamId,
    ) -> Result<u64, RangeError> {
        let page_bytes = self.page_bytes();
        let user = self.shared.streams.find_or_add(stream)?.index;
        self.given = Some(user);
        let floor = PageIndex(0) + from.mapped.saturating_sub(PageCount::within(bytes, page_bytes));
        let views: Vec<View> = self
            .mapper
            .segment(from.segment)
            .table
            .views_in(PageRange { start: floor, end: from.end() })
            .filter(|view| view.pages.start >= floor)
            .copied()
            .collect();
        let Some(first) = views.first() else { return Ok(0) };
        let kept = first.pages.start.count_before();
        let moved = from.mapped - kept;
        to.check_addresses(moved, moved.bytes(page_bytes), page_bytes)?;
        self.clear_stale(to.segment, PageRange::new(to.end(), moved))?;
        let chunks: Vec<ChunkId> = views.iter().map(|view| view.chunk).collect();
        self.map_at_end(to, &chunks, Some(user))?;
        from.mapped = kept;
        from.note_user(user);
        to.note_user(user);
        Ok(moved.bytes(page_bytes))
    }

    /// Maps chunks at the end of a range, all or none. `user` is the stream that uses them where they are now, if one does.
    pub fn map_at_end(
        &mut self,
        range: &mut GrowableRange,
        chunks: &[ChunkId],
        user: Option<StreamIndex>,
    ) -> Result<(), AllocError> {
        loop {
            let views = self.views_at_end(range, chunks, user);
            let lend_to = Some(range.lent_to);
            let stuck = ViewState::stuck(StreamIndex(0));
            let change = Change { segment: range.segment, lend_to, stuck, revive: &[], map: &views };
            let (driver, listeners) = (self.driver(), self.listeners());
            match self.mapper.map(driver, listeners, &change) {
                Ok(()) => {
                    range.mapped += views.iter().map(|view| view.pages.len()).sum();
                    return Ok(());
                }
                Err(failed) if failed.stuck.is_empty() => self.make_room_after(failed.error, views.len())?,
                Err(failed) => {
                    // Something is at its end until the allocator goes: the range never grows again.
                    range.given_up = true;
                    return Err(self.mapping_error(failed.error));
                }
            }
        }
    }

    /// The mappings of chunks at the end of a range, one behind the other.
    fn views_at_end(&self, range: &GrowableRange, chunks: &[ChunkId], user: Option<StreamIndex>) -> Vec<NewView> {
        let open = |stream| self.shared.streams.get(stream).clock.lock().open();
        let last_use = user.map(|stream| Fence { stream, epoch: open(stream) });
        let mut end = range.end();
        let view = |chunk: &ChunkId| {
            let pages = PageRange::new(end, self.mapper.chunks().get(*chunk).pages);
            end = pages.end;
            NewView { chunk: *chunk, pages, last_use }
        };
        chunks.iter().map(view).collect()
    }

    /// Waits until `stream` has passed `epoch`: where the host cannot wait for that, nothing may be unmapped.
    fn must_pass(&self, stream: StreamIndex, epoch: u64) -> Result<(), AllocError> {
        if self.progress().wait_until_passed(stream, epoch)? {
            return Ok(());
        }
        Err(AllocError::CannotWait { stream: self.shared.streams.get(stream).id() })
    }

    /// Removes the stale views in `pages` of a segment, waiting for their last use.
    pub fn clear_stale(&mut self, segment: usize, pages: PageRange) -> Result<(), AllocError> {
        let views: Vec<View> = self.mapper.segment(segment).table.views_in(pages).copied().collect();
        for view in views {
            if let ViewState::Stale(fence) = view.state {
                self.must_pass(fence.stream, fence.epoch)?;
                self.unmap_view(view_at(segment, view.pages.start))?;
            }
        }
        Ok(())
    }

    /// Removes the stale views of a chunk, waiting for their last use.
    fn unmap_stale(&mut self, chunk: ChunkId) -> Result<(), AllocError> {
        for at in self.mapper.chunks().get(chunk).stale.clone() {
            if let ViewState::Stale(fence) = self.mapper.view(at).state {
                self.must_pass(fence.stream, fence.epoch)?;
            }
            self.unmap_view(at)?;
        }
        Ok(())
    }

    /// Returns the addresses of a range without active views to the driver, and frees its segment's number.
    pub fn vacate(&mut self, segment: usize) -> Result<(), AllocError> {
        let (base, pages) = (self.mapper.segment(segment).base, self.mapper.segment(segment).pages);
        self.clear_stale(segment, PageRange::new(PageIndex(0), pages))?;
        self.driver().address_free(base, pages.bytes(self.page_bytes()))?;
        self.mapper.vacate(segment);
        Ok(())
    }

    /// Tries again to unmap the dropped ranges that could not be. Returns whether a chunk became idle by it. One that fails
    /// again stays behind and keeps none of the others from going.
    ///
    /// # Errors
    /// The driver's, when the device is lost.
    pub fn settle_left_behind(&mut self) -> Result<bool, AllocError> {
        let idle = self.mapper.chunks().idle_bytes();
        for (base, bytes) in self.mapper.left_behind().to_vec() {
            let of_range =
                |segment: &Segment| segment.base == base && segment.pages > PageCount::ZERO && !segment.poisoned;
            let Some(segment) = self.mapper.segments().iter().position(of_range) else { continue };
            match self.settle_segment(segment) {
                Ok(true) => self.mapper.forget_left_behind((base, bytes)),
                Err(AllocError::Driver(error)) if error.kind.is_sticky() => return Err(error.into()),
                Ok(false) | Err(_) => {}
            }
        }
        Ok(self.mapper.chunks().idle_bytes() > idle)
    }

    /// Bytes that are mapped in dropped ranges which could not be unmapped yet.
    pub fn left_behind_bytes(&self) -> u64 {
        let is_left = |segment: &&Segment| self.mapper.left_behind().iter().any(|(base, _)| *base == segment.base);
        let views = self.mapper.segments().iter().filter(is_left).flat_map(|segment| segment.table.iter());
        let active = views.filter(|view| view.state == ViewState::Active);
        active.map(|view| view.pages.len().bytes(self.page_bytes())).sum()
    }

    /// Unmaps all of a dropped range and returns its addresses. Returns false when a stream cannot be waited for.
    fn settle_segment(&mut self, segment: usize) -> Result<bool, AllocError> {
        let table = &self.mapper.segment(segment).table;
        let active: Vec<View> = table.iter().filter(|view| view.state == ViewState::Active).copied().collect();
        // Nobody knows any more who used it: every stream is waited for.
        if !active.is_empty() && !self.progress().wait_for_all()? {
            return Ok(false);
        }
        for view in active {
            self.unmap_stale(view.chunk)?;
            self.unmap_view(view_at(segment, view.pages.start))?;
        }
        self.vacate(segment)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::error::{AllocError, RangeError};
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{DriverCall, DriverErrorKind, Fault, FaultDriver, ModelConfig, ModelDriver, WorkDriver};
    use crate::units::StreamId;
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    type Device = FaultDriver<ModelDriver>;

    /// A device of so many pages, and an allocator of single pages.
    fn device(pages: u64) -> (Arc<Device>, Allocator<Device>) {
        let config = ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() };
        let driver = Arc::new(FaultDriver::new(ModelDriver::new(config)));
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        (driver, allocator)
    }

    /// Pages that came from another range are of use to everybody once they are given up: nothing maps them there either.
    #[test]
    fn pages_that_were_taken_from_a_range_become_idle() {
        let (_, allocator) = device(2);
        let [mut giver, mut taker] = [(); 2].map(|()| allocator.reserve_range(2 * PAGE).unwrap());
        giver.grow(2 * PAGE, MAIN).unwrap();
        taker.take_from(&mut giver, 2 * PAGE, MAIN).unwrap();
        assert_eq!(allocator.stats().mappings, 4);
        taker.shrink(2 * PAGE).unwrap();
        assert_eq!((allocator.stats().mappings, allocator.stats().idle_bytes), (0, 2 * PAGE));
        let block = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
        allocator.check();
        allocator.free(block).unwrap();
    }

    /// The wait for a range's users failed when it was dropped: it is unmapped later, when they have been waited for. The model
    /// panics where memory in use is unmapped.
    #[test]
    fn a_range_left_behind_is_waited_for() {
        let (driver, allocator) = device(2);
        let mut range = allocator.reserve_range(2 * PAGE).unwrap();
        range.grow(2 * PAGE, MAIN).unwrap();
        driver.inner().hold(MAIN);
        driver.fill(MAIN, range.addr(), 2 * PAGE, 1).unwrap();
        driver.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::EventSynchronize]));
        drop(range);
        assert_eq!((driver.fired(), allocator.stats().range_bytes), (1, 2 * PAGE));
        driver.disarm();
        assert_eq!(allocator.trim(0).unwrap().released_bytes, 2 * PAGE);
        assert_eq!(driver.inner().host_waits(), 1);
        allocator.check();
        allocator.close().unwrap();
        assert!(driver.inner().usage().is_empty());
    }

    /// Mappings that could not be undone stay until the allocator ends. Nobody waits for the whole device because of it.
    #[test]
    fn a_range_that_is_given_up_costs_no_wait() {
        let (driver, allocator) = device(8);
        let mut range = allocator.reserve_range(4 * PAGE).unwrap();
        range.grow(PAGE, MAIN).unwrap();
        let calls = [DriverCall::SetAccess, DriverCall::Unmap];
        driver.arm(Fault::nth(0, DriverErrorKind::Other).only(calls).from_then_on());
        range.grow(2 * PAGE, MAIN).unwrap_err();
        driver.disarm();
        drop(range);
        let stats = allocator.stats();
        assert_eq!((stats.mappings, stats.idle_bytes, stats.driver_calls[DriverCall::Synchronize]), (2, PAGE, 0));
        allocator.check();
        allocator.close().unwrap();
        assert!(driver.inner().usage().is_empty());
    }

    /// A growth that takes what is free in the heaps and is still short has looked at the device once, and so has a registered
    /// block. Once more for the report.
    #[test]
    fn a_growth_that_fails_looks_at_the_device_once() {
        for registered in [false, true] {
            let (_, allocator) = device(8);
            let blocks = [2, 6].map(|pages| allocator.alloc_raw(pages * PAGE, MAIN).unwrap());
            allocator.free(blocks[0]).unwrap();
            let mut range = allocator.reserve_range(4 * PAGE).unwrap();
            let refused = match registered {
                true => allocator.alloc_registered(4 * PAGE, MAIN).map(drop).map_err(RangeError::from),
                false => range.grow(4 * PAGE, MAIN),
            };
            assert!(matches!(&refused, Err(RangeError::Alloc(AllocError::OutOfMemory(_)))), "{refused:?}");
            assert_eq!(allocator.stats().driver_calls[DriverCall::MemoryInfo], 2, "registered: {registered}");
            allocator.check();
            allocator.free(blocks[1]).unwrap();
        }
    }

    /// The device has no more than at the last look: the driver is not asked for the same chunk again.
    #[test]
    fn a_refused_chunk_is_not_asked_for_again() {
        for registered in [false, true] {
            let (driver, allocator) = device(8);
            driver.arm(Fault::nth(0, DriverErrorKind::OutOfMemory).only([DriverCall::Create]).from_then_on());
            let mut range = allocator.reserve_range(4 * PAGE).unwrap();
            let refused = match registered {
                true => allocator.alloc_registered(PAGE, MAIN).map(drop).map_err(RangeError::from),
                false => range.grow(PAGE, MAIN),
            };
            assert!(refused.unwrap_err().report().unwrap().driver_error.is_some());
            assert_eq!(driver.fired(), 1, "registered: {registered}");
            allocator.check();
        }
    }

    /// Of four idle chunks of a page two are released for a chunk of two pages.
    #[test]
    fn no_more_idle_chunks_are_released_than_needed() {
        let (_, allocator) = device(4);
        let mut range = allocator.reserve_range(4 * PAGE).unwrap();
        range.grow(4 * PAGE, MAIN).unwrap();
        drop(range);
        let block = allocator.alloc_registered(2 * PAGE, MAIN).unwrap();
        let stats = allocator.stats();
        assert_eq!((stats.registered_bytes, stats.idle_bytes), (2 * PAGE, 2 * PAGE));
        allocator.check();
        drop(block);
    }
}
