//! The number of mappings that are kept, with the allocator's own limit and with a lower limit of the driver.

use gapless::allocator::{AllocError, MapListener, MappedRange, Refusal};
use gapless::driver::{DriverCall, DriverErrorKind, ModelConfig, ModelDriver, WorkDriver};
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

/// Allocates four adjacent pages. The first and the third are moved to a block after them and leave stale views, which
/// makes six mappings. One more page makes seven. Returns the number of mappings after that.
fn mappings_after(limit: usize, driver_limit: usize) -> u64 {
    let config = ModelConfig { capacity_bytes: 5 * PAGE, max_mappings: driver_limit, ..ModelConfig::default() };
    let driver = Arc::new(ModelDriver::new(config));
    let allocator =
        Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).mapping_limit(limit).build().unwrap();
    let alloc = |pages| allocator.alloc_raw(pages * PAGE, StreamId::DEFAULT).unwrap();
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
    let pages: Vec<_> = (0..4).map(|_| allocator.alloc_raw(PAGE, stream).unwrap()).collect();
    driver.hold(stream);
    for page in [pages[0], pages[2]] {
        driver.fill(stream, page, PAGE, 1).unwrap();
        allocator.free(page).unwrap();
    }
    allocator.alloc_raw(2 * PAGE, stream).unwrap();
    allocator.alloc_raw(PAGE, stream).unwrap();
    assert_eq!((allocator.stats().mappings, allocator.stats().host_waits), (7, 0));
    allocator.check();
    driver.complete(stream);
}

/// The number of mappings in the error of a request that the driver had no mapping for.
fn out_of_mappings<T: std::fmt::Debug>(served: Result<T, AllocError>) -> usize {
    match served {
        Err(AllocError::OutOfMappings { mappings, cause }) => {
            assert_eq!((cause.call, cause.kind), (DriverCall::SetAccess, DriverErrorKind::OutOfMemory));
            mappings
        }
        other => panic!("{other:?}"),
    }
}

/// A device of eight pages that makes six mappings, and an allocator that has made them: two are of pages that have moved
/// away behind work that is still running, and which an event covers unless its stream is `captured` since.
fn at_the_drivers_limit(captured: bool) -> (Arc<ModelDriver>, Allocator<ModelDriver>) {
    let config = ModelConfig { capacity_bytes: 8 * PAGE, max_mappings: 6, ..ModelConfig::default() };
    let driver = Arc::new(ModelDriver::new(config));
    let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
    let allocator = builder.slack(1.0).build().unwrap();
    let pages: Vec<_> = (0..4).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
    driver.hold(MAIN);
    for page in [pages[0], pages[2]] {
        driver.fill(MAIN, page, PAGE, 1).unwrap();
        allocator.free(page).unwrap();
    }
    if captured {
        driver.begin_capture(MAIN);
    }
    allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    assert_eq!((allocator.stats().mappings, allocator.stats().host_waits), (6, 0));
    (driver, allocator)
}

/// The host waits for what still uses the oldest stale view, which makes room. The model panics where memory in use is unmapped.
#[test]
fn at_the_drivers_limit_the_host_waits_for_stale_views() {
    let (_, allocator) = at_the_drivers_limit(false);
    allocator.alloc_raw(PAGE, MAIN).unwrap();
    assert_eq!((allocator.stats().mappings, allocator.stats().host_waits), (5, 1));
    allocator.check();
}

/// Where no event covers the work of a stream that is being captured, the device cannot be waited for.
#[test]
fn a_capture_is_not_waited_for_to_make_room() {
    let (driver, allocator) = at_the_drivers_limit(true);
    assert_eq!(out_of_mappings(allocator.alloc_raw(PAGE, MAIN)), 6);
    assert_eq!((allocator.reserved_bytes(), allocator.stats().host_waits), (4 * PAGE, 0));
    allocator.check();
    driver.end_capture(MAIN);
    allocator.alloc_raw(PAGE, MAIN).unwrap();
    allocator.check();
}

/// Growable ranges have to make room as well, with and without a wait.
#[test]
fn stale_views_make_room_for_ranges() {
    for (completes, waits) in [(true, 0), (false, 1)] {
        let (driver, allocator) = at_the_drivers_limit(false);
        if completes {
            driver.resume(MAIN);
        }
        let mut range = allocator.reserve_range(2 * PAGE).unwrap();
        range.grow(PAGE, MAIN).unwrap();
        assert_eq!((allocator.stats().mappings, allocator.stats().host_waits), (5, waits));
        range.grow(PAGE, MAIN).unwrap();
        assert_eq!(out_of_mappings(allocator.alloc_registered(PAGE, MAIN)), 6);
        allocator.check();
        drop(range);
        assert_eq!(allocator.stats().mappings, 4);
        allocator.check();
    }
}

/// Refuses every unmap.
struct Holder;

impl MapListener for Holder {
    fn on_map(&self, _: MappedRange) -> Result<(), Refusal> {
        Ok(())
    }

    fn before_unmap(&self, _: MappedRange) -> Result<(), Refusal> {
        Err(Refusal::new("not now"))
    }
}

/// Views that a listener keeps make no room, and are not waited for again and again.
#[test]
fn what_a_listener_keeps_makes_no_room() {
    let (_, allocator) = at_the_drivers_limit(false);
    let holder = allocator.listeners().add(Arc::new(Holder)).unwrap();
    assert_eq!(out_of_mappings(allocator.alloc_raw(PAGE, MAIN)), 6);
    assert_eq!(out_of_mappings(allocator.alloc_raw(PAGE, MAIN)), 6);
    assert_eq!(allocator.stats().host_waits, 1);
    allocator.listeners().remove(holder).unwrap();
    allocator.alloc_raw(PAGE, MAIN).unwrap();
    allocator.check();
}

/// No mapping can be removed: the error says so, with the driver's, and nothing has changed.
#[test]
fn too_many_live_mappings_are_an_error_of_their_own() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { max_mappings: 2, ..ModelConfig::default() }));
    let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let alloc = || allocator.alloc_raw(PAGE, StreamId::DEFAULT);
    let blocks = [alloc().unwrap(), alloc().unwrap()];
    assert_eq!(out_of_mappings(alloc()), 2);
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
        held.push_back((allocator.alloc_raw(pages * PAGE, StreamId::DEFAULT).unwrap(), pages));
        live += pages;
        assert!(calls() - before <= 10 * pages, "{} calls for {pages} pages in round {round}", calls() - before);
        assert!(allocator.stats().mappings <= LIMIT as u64);
        limited += u64::from(allocator.stats().driver_calls[DriverCall::Unmap] > unmapped);
    }
    allocator.check();
    assert!(limited > 10, "only {limited} requests met the limit");
}
