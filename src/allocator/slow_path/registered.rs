//! Registered blocks: each is one chunk in a growable range of its own, which nobody else takes anything from.

use super::super::error::AllocError;
use super::super::request::Request;
use super::SlowPath;
use super::ranges::GrowableRange;
use crate::driver::{Driver, MemoryDriver};
use crate::pages::PageCount;
use crate::physical::{ChunkId, IdleTaken, LentTo};
use crate::stream::StreamIndex;
use crate::units::StreamId;
use std::os::fd::OwnedFd;

impl<D: Driver> SlowPath<'_, D> {
    /// Maps one chunk of at least `bytes` at addresses of its own, for work on `stream`.
    pub fn alloc_registered(&mut self, bytes: u64, stream: StreamId) -> Result<GrowableRange, AllocError> {
        let user = self.shared.streams.find_or_add(stream)?.index;
        self.given = Some(user);
        // No device has more than fits into whole pages.
        let most = PageCount::within(u64::MAX, self.page_bytes());
        let pages = PageCount::covering(bytes, self.page_bytes()).clamp(PageCount::ONE, most);
        let chunk = self.whole_chunk(pages, bytes, user)?;
        let mut range = self.reserve_range(pages.bytes(self.page_bytes()))?;
        range.lent_to = LentTo::RegisteredBlock;
        if let Err(error) = self.map_at_end(&mut range, &[chunk], None) {
            self.leave_unmapped(&range);
            return Err(error);
        }
        range.note_user(user);
        Ok(range)
    }

    /// Exports all that a registered block has mapped.
    pub fn dma_buf(&self, block: &GrowableRange) -> Result<OwnedFd, AllocError> {
        Ok(self.driver().export_dma_buf(block.addr, block.mapped.bytes(self.page_bytes()))?)
    }

    /// Returns the addresses of a range whose only mapping failed; what cannot be returned is left behind.
    fn leave_unmapped(&mut self, range: &GrowableRange) {
        if range.given_up || self.vacate(range.segment).is_err() {
            let bytes = range.pages.bytes(self.page_bytes());
            self.mapper.leave_behind(range.addr, bytes);
        }
    }

    /// Finds one chunk of exactly `pages` pages: an idle one, or a new one, for which free memory goes back to the driver if need
    /// be.
    fn whole_chunk(&mut self, pages: PageCount, requested: u64, user: StreamIndex) -> Result<ChunkId, AllocError> {
        let mut looked = false;
        loop {
            let refused = match self.chunk_of(pages, &IdleTaken::default())? {
                Ok(chunk) => return Ok(chunk),
                Err(refused) => refused,
            };
            if self.settle_pending()? {
                continue;
            }
            // Where the driver refuses, the headroom is not there.
            let missing = if refused.is_some() { pages } else { pages - self.mapper.chunks().headroom_pages() };
            let found = (!std::mem::replace(&mut looked, true) && self.finds_more_on_device())
                || self.release_some(missing, &[])?
                || self.progress().wait_for_pending()?
                || self.wait_for_device()?
                || self.settle_failures()?;
            if !found {
                let request = Request::new(requested, pages.bytes(self.page_bytes()), 1);
                return Err(self.out_of_memory(&request, user, refused.as_ref()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::DriverErrorKind;
    use crate::driver::{DriverCall, Fault, FaultDriver, ModelConfig, ModelDriver};
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    type Device = FaultDriver<ModelDriver>;

    /// A device of so many pages, of which others hold some, and an allocator of single pages.
    fn device(pages: u64, of_others: u64) -> (Arc<Device>, Allocator<Device>) {
        let config = ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() };
        let driver = Arc::new(FaultDriver::new(ModelDriver::new(config)));
        driver.inner().set_external(of_others * PAGE);
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        (driver, allocator)
    }

    /// Two pages may be created, and six are free: a chunk of four pages takes two of those.
    #[test]
    fn what_may_be_created_is_not_released() {
        let (_, allocator) = device(8, 0);
        let block = allocator.alloc_raw(6 * PAGE, MAIN).unwrap();
        allocator.free(block).unwrap();
        let registered = allocator.alloc_registered(4 * PAGE, MAIN).unwrap();
        let stats = allocator.stats();
        assert_eq!((stats.registered_bytes, stats.cached_bytes), (4 * PAGE, 4 * PAGE));
        allocator.check();
        drop(registered);
    }

    #[test]
    fn what_others_have_freed_can_be_had() {
        let (driver, allocator) = device(8, 6);
        driver.inner().set_external(0);
        let registered = allocator.alloc_registered(8 * PAGE, MAIN).unwrap();
        assert_eq!((registered.bytes(), allocator.budget()), (8 * PAGE, 8 * PAGE));
        allocator.check();
    }

    /// Only a shortage is a reason to try again.
    #[test]
    fn other_errors_of_the_driver_are_the_callers() {
        let (driver, allocator) = device(8, 0);
        for kind in [DriverErrorKind::InvalidValue, DriverErrorKind::NotSupported] {
            driver.arm(Fault::nth(0, kind).only([DriverCall::Create]));
            let refused = allocator.alloc_registered(PAGE, MAIN);
            assert!(matches!(&refused, Err(AllocError::Driver(error)) if error.kind == kind), "{refused:?}");
            driver.disarm();
            allocator.check();
        }
    }
}
