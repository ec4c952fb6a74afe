//! Access given again: to everything that is mapped, after further devices were added to the driver.

use super::super::error::AllocError;
use super::SlowPath;
use crate::driver::{Driver, MemoryDriver};
use crate::pages::PageRange;
use crate::segment::{Segment, View};

impl<D: Driver> SlowPath<'_, D> {
    /// Calls `set_access` for everything that is mapped, once for each run of adjacent mappings: stale views as well, since
    /// they become active again without a driver call. Changes nothing in the books.
    pub fn renew_access(&self) -> Result<(), AllocError> {
        for segment in self.mapper.segments() {
            for run in runs(segment) {
                self.driver().set_access(segment.address(run.start), run.len().bytes(segment.page_bytes))?;
            }
        }
        Ok(())
    }
}

/// The runs of adjacent views of a segment, in address order, without those that are stuck: nobody uses them again, and they
/// may never have had access.
fn runs(segment: &Segment) -> Vec<PageRange> {
    let usable = |view: &&View| !view.state.is_stuck();
    let mut runs: Vec<PageRange> = Vec::new();
    for view in segment.table.views_in(PageRange { start: Default::default(), end: segment.table.top() }).filter(usable)
    {
        match runs.last_mut() {
            Some(run) if run.end == view.pages.start => run.end = view.pages.end,
            _ => runs.push(view.pages),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{DriverCall, DriverErrorKind, Fault, FaultDriver, ModelConfig, ModelDriver};
    use crate::units::StreamId;
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    /// One run for blocks side by side, one for what was mapped a second time behind unmapped addresses, one for each other
    /// segment.
    #[test]
    fn every_run_is_renewed_once() {
        let driver = ModelDriver::new(ModelConfig { capacity_bytes: 8 * PAGE, ..ModelConfig::default() });
        let allocator =
            Allocator::builder(Arc::new(driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().expect("an allocator");
        let renewed = || {
            let before = allocator.stats().driver_calls;
            allocator.renew_access().unwrap();
            allocator.check();
            let calls = allocator.stats().driver_calls.since(&before);
            assert_eq!(calls.total(), calls[DriverCall::SetAccess], "nothing else is called");
            calls[DriverCall::SetAccess]
        };
        assert_eq!(renewed(), 0, "nothing is mapped");
        let blocks: Vec<_> = (0..5).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
        assert_eq!(renewed(), 1);
        let mut range = allocator.reserve_range(4 * PAGE).unwrap();
        range.grow(2 * PAGE, MAIN).unwrap();
        assert_eq!(renewed(), 2);
        // The free pages move behind the last block: their old views are stale, and still mapped in the run.
        allocator.free(blocks[0]).unwrap();
        allocator.free(blocks[2]).unwrap();
        let small = allocator.alloc_raw(100, MAIN).unwrap();
        assert_eq!(renewed(), 3);
        let joined = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
        assert_eq!(renewed(), 3, "a stale view is renewed with its neighbours");
        for block in [blocks[1], blocks[3], blocks[4], small, joined] {
            allocator.free(block).unwrap();
        }
    }

    /// A mapping that could be neither given access nor removed is left out, and so cannot make the rest fail.
    #[test]
    fn what_is_stuck_is_left_out() {
        let driver = Arc::new(FaultDriver::new(ModelDriver::default()));
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let before = allocator.alloc_raw(PAGE, MAIN).unwrap();
        let calls = [DriverCall::SetAccess, DriverCall::Unmap];
        driver.arm(Fault::nth(0, DriverErrorKind::Other).only(calls).from_then_on());
        assert!(allocator.alloc_raw(2 * PAGE, MAIN).is_err());
        driver.disarm();
        let behind = allocator.alloc_raw(PAGE, MAIN).unwrap();
        assert_eq!((allocator.stats().poisoned, behind.offset_from(before)), (1, Some(3 * PAGE)));
        let before_renewal = allocator.stats().driver_calls;
        allocator.renew_access().unwrap();
        let calls = allocator.stats().driver_calls.since(&before_renewal);
        assert_eq!(calls[DriverCall::SetAccess], 2, "one run before what is stuck, and one behind it");
        allocator.free(before).unwrap();
        allocator.free(behind).unwrap();
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let driver = Arc::new(FaultDriver::new(ModelDriver::default()));
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let (block, small) = (allocator.alloc_raw(3 * PAGE, MAIN).unwrap(), allocator.alloc_raw(100, MAIN).unwrap());
        for n in 0..2 {
            driver.arm(Fault::nth(n, DriverErrorKind::OutOfMemory).only([DriverCall::SetAccess]));
            assert!(allocator.renew_access().is_err());
            driver.disarm();
            allocator.check();
        }
        allocator.renew_access().unwrap();
        allocator.free(block).unwrap();
        allocator.free(small).unwrap();
        allocator.close().unwrap();
    }
}
