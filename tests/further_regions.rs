//! Requests when live blocks fragment the addresses of a region while memory is free.

use gapless::allocator::Builder;
use gapless::driver::{MemoryDriver, ModelConfig, ModelDriver, WorkDriver};
use gapless::units::DeviceAddr;
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

/// Creates an allocator whose region of large blocks on `MAIN` is full except for a gap of four pages. It has two free
/// chunks of three pages each, not adjacent, whose last use another stream has not passed. One is too small for a
/// request of four pages, and both do not fit in the gap.
fn full_region() -> (Allocator<ModelDriver>, DeviceAddr) {
    const REGION_PAGES: u64 = 32;
    let capacity_bytes = (REGION_PAGES + 5) * PAGE;
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes, ..ModelConfig::default() }));
    let other = driver.create_stream().unwrap();
    let allocator = Allocator::builder(Arc::clone(&driver))
        .chunk_policy(ChunkPolicy::Fixed(3 * PAGE))
        .region_bytes(REGION_PAGES * PAGE)
        .build()
        .unwrap();
    allocator.keep_stream(other).unwrap();
    let alloc = |pages, stream| allocator.alloc_raw(pages * PAGE, stream).unwrap();
    for stream in [MAIN, other] {
        allocator.alloc_raw(1, stream).unwrap();
    }
    let [_first, gap, _last] = [alloc(1, MAIN), alloc(4, MAIN), alloc(REGION_PAGES - 5, MAIN)];
    allocator.free(gap).unwrap();
    allocator.trim(0).unwrap();
    let [chunk, _between, another] = [alloc(3, other), alloc(1, other), alloc(3, other)];
    driver.hold(other);
    allocator.free(chunk).unwrap();
    allocator.free(another).unwrap();
    assert_eq!((allocator.stats().host_waits, allocator.reserved_bytes()), (0, capacity_bytes));
    (allocator, gap)
}

/// A device of 36 pages, and regions of 32.
fn more_than_a_region() -> Builder<ModelDriver> {
    let driver = ModelDriver::new(ModelConfig { capacity_bytes: 36 * PAGE, ..ModelConfig::default() });
    Allocator::builder(Arc::new(driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).region_bytes(32 * PAGE)
}

/// Both chunks are mapped in a new region, and the host does not wait.
#[test]
fn a_region_is_added_when_addresses_run_out() {
    let (allocator, gap) = full_region();
    let regions = allocator.snapshot().regions.len();
    let block = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    assert_ne!(block, gap);
    assert_eq!((allocator.snapshot().regions.len(), allocator.stats().host_waits), (regions + 1, 0));
    allocator.check();
    // Free memory in the new region is found, but the first region is tried first.
    allocator.free(block).unwrap();
    assert_eq!(allocator.alloc_raw(6 * PAGE, MAIN).unwrap(), block);
    assert_eq!(allocator.snapshot().regions.len(), regions + 1);
    allocator.free(block).unwrap();
    let small = allocator.alloc_raw(PAGE, MAIN).unwrap();
    assert_eq!(small, block);
    allocator.check();
}

/// A region of 32 pages is one live block. A region is added whether the request's pages come from the budget or from
/// idle chunks. If there are no pages, no region is added.
#[test]
fn chunks_are_counted_wherever_they_are() {
    for idle in [false, true] {
        let allocator = more_than_a_region().build().unwrap();
        let alloc = |pages| allocator.alloc_raw(pages * PAGE, MAIN);
        alloc(32).unwrap();
        if idle {
            let mut range = allocator.reserve_range(4 * PAGE).unwrap();
            range.grow(4 * PAGE, MAIN).unwrap();
            range.shrink(4 * PAGE).unwrap();
        }
        assert_eq!(allocator.stats().idle_bytes, if idle { 4 * PAGE } else { 0 });
        alloc(5).unwrap_err();
        assert_eq!(allocator.snapshot().regions.len(), 1);
        alloc(4).unwrap();
        assert_eq!(allocator.snapshot().regions.len(), 2);
        allocator.check();
    }
}

/// Epochs are renumbered in all regions: what was freed in a further one does not count as freed in an epoch to come.
#[test]
fn epochs_are_renumbered_in_all_regions() {
    let allocator = more_than_a_region().epoch_limit(8).build().unwrap();
    let [_region, further] = [32, 4].map(|pages| allocator.alloc_raw(pages * PAGE, MAIN).unwrap());
    assert_eq!(allocator.snapshot().regions.len(), 2);
    let stream = allocator.watch_stream(MAIN).unwrap();
    let seal = || assert!(stream.mark().has_passed().unwrap());
    (0..6).for_each(|_| seal());
    allocator.free(further).unwrap();
    for _ in 0..4 {
        seal();
        allocator.check();
    }
}

/// A stream's free memory in a further region serves another stream, where it is a page and a half and no page is free.
#[test]
fn blocks_of_further_regions_are_reused_across_streams() {
    let allocator = more_than_a_region().build().unwrap();
    let other = allocator.driver().create_stream().unwrap();
    let [_region, _before, lent] =
        [32 * PAGE, 2 * PAGE + PAGE / 2, PAGE + PAGE / 2].map(|bytes| allocator.alloc_raw(bytes, MAIN).unwrap());
    assert_eq!((allocator.snapshot().regions.len(), allocator.stats().reserved_bytes), (2, 36 * PAGE));
    allocator.free(lent).unwrap();
    assert_eq!(allocator.alloc_raw(PAGE + PAGE / 4, other).unwrap(), lent);
    assert_eq!(allocator.stats().borrowed, 1);
    allocator.check();
}

/// Further regions do not help a request with an alignment larger than a region.
#[test]
fn no_region_is_added_if_it_would_not_help() {
    let (allocator, _) = full_region();
    let regions = allocator.snapshot().regions.len();
    for _ in 0..2 {
        allocator.alloc_raw_aligned(4 * PAGE, 1 << 36, MAIN).unwrap_err();
    }
    assert_eq!(allocator.snapshot().regions.len(), regions);
    allocator.check();
}

/// All other addresses are reserved by others: the host waits for the other stream, and one of its chunks is recreated
/// in the missing size.
#[test]
fn a_chunk_is_recreated_if_there_are_no_more_addresses() {
    let (allocator, gap) = full_region();
    for bytes in (0..64).map(|halvings| (1u64 << 63) >> halvings).take_while(|bytes| *bytes >= PAGE) {
        while allocator.driver().reserve(bytes, PAGE).is_ok() {}
    }
    assert_eq!(allocator.alloc_raw(4 * PAGE, MAIN).unwrap(), gap);
    assert_eq!(allocator.stats().host_waits, 1);
    allocator.check();
}

/// J. M. Robson's adversary ("Bounds for some functions concerning dynamic storage allocation", 1974): it doubles the
/// size of its requests, and each time frees all but one block in every window of that size, so that no free run is
/// that long. Half of the memory is always free, and every request must succeed.
#[test]
fn an_adversary_that_fragments_addresses() {
    for bits in [6, 8, 10] {
        let budget = 1u64 << bits;
        let driver =
            Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: budget * PAGE, ..ModelConfig::default() }));
        let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let mut live: Vec<(DeviceAddr, u64)> = Vec::new();
        let mut residue = 0;
        for size in (0..bits).map(|step| 1u64 << step) {
            // True for the one block of a window that is kept: the one at this page of the window.
            let stays =
                |residue: u64, (addr, pages): (DeviceAddr, u64)| (residue + size - addr.0 / PAGE % size) % size < pages;
            let gain = |residue| -> u64 {
                live.iter().filter(|block| stays(residue, **block)).map(|(_, pages)| size - (*pages).min(size)).sum()
            };
            if gain(residue + size / 2) > gain(residue) {
                residue += size / 2;
            }
            let (kept, freed): (Vec<_>, Vec<_>) = live.iter().copied().partition(|block| stays(residue, *block));
            freed.iter().for_each(|(addr, _)| allocator.free(*addr).unwrap());
            live = kept;
            let used: u64 = live.iter().map(|(_, pages)| pages).sum();
            for _ in 0..(budget - used) / size {
                live.push((allocator.alloc_raw(size * PAGE, MAIN).unwrap(), size));
            }
            allocator.check();
        }
        assert_eq!(allocator.live_bytes(), budget * PAGE);
        assert_eq!(allocator.stats().host_waits, 0);
    }
}

/// A stale view whose last use is running is in the way: it is not unmapped for the addresses, though the very next epoch would
/// allow it. The model panics where memory in use is unmapped.
#[test]
fn a_view_in_use_is_not_unmapped_for_its_addresses() {
    const REGION_PAGES: u64 = 32;
    let capacity_bytes = REGION_PAGES * PAGE;
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes, ..ModelConfig::default() }));
    let allocator = Allocator::builder(Arc::clone(&driver))
        .chunk_policy(ChunkPolicy::Fixed(PAGE))
        .region_bytes(REGION_PAGES * PAGE)
        .build()
        .unwrap();
    let alloc = |pages| allocator.alloc_raw(pages * PAGE, MAIN).unwrap();
    let [first, between, second, third, _last] = [8, 1, 7, 8, 8].map(alloc);
    driver.hold(MAIN);
    for (block, pages) in [(first, 8), (second, 7)] {
        driver.fill(MAIN, block, pages * PAGE, 1).unwrap();
        allocator.free(block).unwrap();
    }
    // Their chunks move to a further region, behind the work on the same stream. Where they were, they are still in use.
    let moved = alloc(15);
    assert_eq!(allocator.snapshot().regions.len(), 2);
    allocator.free(between).unwrap();
    allocator.free(third).unwrap();
    // In the first region, nine pages would be there with those of the second block.
    let next = alloc(9);
    assert!(next > moved, "{next} beside {moved}");
    assert_eq!(allocator.stats().host_waits, 0);
    allocator.check();
    driver.complete(MAIN);
    for block in [moved, next] {
        allocator.free(block).unwrap();
    }
}
