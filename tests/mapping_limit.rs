//! The number of mappings that are kept, with the allocator's own limit and with a lower limit of the driver.

use gapless::allocator::AllocError;
use gapless::driver::{DriverCall, DriverErrorKind, ModelConfig, ModelDriver, WorkDriver};
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 << 20;

/// Allocates four adjacent pages. The first and the third are moved to a block after them and leave stale views, which
/// makes six mappings. One more page makes seven. Returns the number of mappings after that.
fn mappings_after(limit: usize, driver_limit: usize) -> u64 {
    let config = ModelConfig { capacity_bytes: 5 * PAGE, max_mappings: driver_limit, ..ModelConfig::default() };
    let driver = Arc::new(ModelDriver::new(config));
    let allocator =
        Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).mapping_limit(limit).build().unwrap();
    let alloc = |pages| allocator.alloc(pages * PAGE, StreamId::DEFAULT).unwrap();
    let pages: Vec<_> = (0..4).map(|_| alloc(1)).collect();
    allocator.free(pages[0]).unwrap();
    allocator.free(pages[2]).unwrap();
    let joined = alloc(2);
    assert_eq!((allocator.stats().reserved_bytes, allocator.stats().mappings), (4 * PAGE, 6));
    alloc(1);
    allocator.check();
    allocator.free(joined).unwrap();
    allocator.stats().mappings
}

#[test]
fn stale_views_are_removed_when_there_are_too_many_mappings() {
    assert_eq!(mappings_after(100, 100), 7);
    assert_eq!(mappings_after(7, 100), 7, "the limit is not exceeded");
    assert_eq!(mappings_after(6, 100), 5, "both stale views were removed");
    assert_eq!(mappings_after(100, 7), 7);
    assert_eq!(mappings_after(100, 6), 5, "both stale views were removed because of the driver's limit");
}

/// Work through a stale view is running: it stays, beyond the allocator's limit. The model panics where memory in use is unmapped.
#[test]
fn views_in_use_are_not_removed_for_the_limit() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 5 * PAGE, ..ModelConfig::default() }));
    let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).mapping_limit(6);
    let (allocator, stream) = (builder.build().unwrap(), StreamId::DEFAULT);
    let pages: Vec<_> = (0..4).map(|_| allocator.alloc(PAGE, stream).unwrap()).collect();
    driver.hold(stream);
    for page in [pages[0], pages[2]] {
        driver.fill(stream, page, PAGE, 1).unwrap();
        allocator.free(page).unwrap();
    }
    allocator.alloc(2 * PAGE, stream).unwrap();
    allocator.alloc(PAGE, stream).unwrap();
    assert_eq!((allocator.stats().mappings, allocator.stats().host_waits), (7, 0));
    allocator.check();
    driver.complete(stream);
}

/// No mapping can be removed: the driver's error is returned, and nothing has changed.
#[test]
fn too_many_live_mappings_return_the_drivers_error() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { max_mappings: 2, ..ModelConfig::default() }));
    let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let alloc = || allocator.alloc(PAGE, StreamId::DEFAULT);
    let blocks = [alloc().unwrap(), alloc().unwrap()];
    assert!(matches!(alloc(), Err(AllocError::Driver(error)) if error.kind == DriverErrorKind::OutOfMemory));
    allocator.check();
    assert_eq!(allocator.reserved_bytes(), 2 * PAGE);
    allocator.free(blocks[1]).unwrap();
    assert_eq!(alloc().unwrap(), blocks[1]);
}

/// At the limit, a request removes a few views for each mapping that it makes, not all that others left.
#[test]
fn no_request_pays_for_the_views_of_all_others() {
    const PAGES: u64 = 64;
    const LIMIT: usize = 150;
    let config = ModelConfig { capacity_bytes: PAGES * PAGE, ..ModelConfig::default() };
    let builder = Allocator::builder(Arc::new(ModelDriver::new(config)));
    let allocator = builder.chunk_policy(ChunkPolicy::Fixed(PAGE)).mapping_limit(LIMIT).build().unwrap();
    let calls = || allocator.stats().driver_calls.total();
    let (mut held, mut live, mut limited) = (std::collections::VecDeque::new(), 0, 0);
    for round in 0..2_000_u64 {
        let pages = 1 + round * round % 13;
        while live + pages > PAGES {
            let (block, pages) = held.pop_front().unwrap();
            allocator.free(block).unwrap();
            live -= pages;
        }
        let (before, unmapped) = (calls(), allocator.stats().driver_calls[DriverCall::Unmap]);
        held.push_back((allocator.alloc(pages * PAGE, StreamId::DEFAULT).unwrap(), pages));
        live += pages;
        assert!(calls() - before <= 10 * pages, "{} calls for {pages} pages in round {round}", calls() - before);
        assert!(allocator.stats().mappings <= LIMIT as u64);
        limited += u64::from(allocator.stats().driver_calls[DriverCall::Unmap] > unmapped);
    }
    allocator.check();
    assert!(limited > 10, "only {limited} requests met the limit");
}
