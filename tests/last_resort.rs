//! Requests when no page is left: any free block that is large enough is used.

use gapless::driver::{DriverCall, ModelConfig, ModelDriver, WorkDriver};
use gapless::units::{DeviceAddr, KIB, MIB};
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;

/// Creates a device of two pages, both pinned by live blocks of `MAIN`: 1.5 MiB of the page of large blocks and 1.9 MiB
/// of the page of small blocks are free. The stream is held, so that it does not pass their last use.
fn pinned() -> (Arc<ModelDriver>, Allocator<ModelDriver>, [DeviceAddr; 2]) {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 2 * PAGE, ..ModelConfig::default() }));
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let large = [512 * KIB, 1536 * KIB].map(|bytes| allocator.alloc_raw(bytes, MAIN).unwrap());
    let small: Vec<_> = (0..PAGE / (32 * KIB)).map(|_| allocator.alloc_raw(32 * KIB, MAIN).unwrap()).collect();
    assert_eq!(allocator.reserved_bytes(), 2 * PAGE);
    driver.hold(MAIN);
    allocator.free(large[1]).unwrap();
    small[2..].iter().for_each(|block| allocator.free(*block).unwrap());
    (driver, allocator, [large[1], small[2]])
}

#[test]
fn parts_of_pages_of_another_stream() {
    let (driver, allocator, [large, small]) = pinned();
    let other = driver.create_stream().unwrap();
    // The request is ordered after the held stream on the device; the host does not wait.
    assert_eq!(allocator.alloc_raw(MIB, other).unwrap(), large);
    let stats = allocator.stats();
    assert_eq!((stats.host_waits, stats.driver_calls[DriverCall::StreamWait], stats.borrowed), (0, 1, 1));
    // From the region of small blocks.
    assert_eq!(allocator.alloc_raw(1800 * KIB, other).unwrap(), small);
    let left = allocator.alloc_raw(512 * KIB, other).unwrap();
    assert_eq!(left, large.offset(MIB));
    let report = allocator.alloc_raw(512 * KIB, other).unwrap_err();
    assert!(!report.report().unwrap().satisfiable_by_whole_pages);
    allocator.check();
    for block in [large, small, left] {
        allocator.free(block).unwrap();
    }
    driver.resume(MAIN);
    allocator.check();
    allocator.close().unwrap_err();
}

#[test]
fn parts_of_pages_of_the_other_size_class() {
    let (_, allocator, [large, small]) = pinned();
    assert_eq!(allocator.alloc_raw(1536 * KIB, MAIN).unwrap(), large);
    assert_eq!(allocator.alloc_raw(1024 * KIB, MAIN).unwrap(), small);
    assert_eq!(allocator.stats().host_waits, 0);
    allocator.check();
}

#[test]
fn at_an_alignment_inside_a_block() {
    let (driver, allocator, [large, _]) = pinned();
    let other = driver.create_stream().unwrap();
    let block = allocator.alloc_raw_aligned(MIB, MIB, other).unwrap();
    assert_eq!(block, large.offset(512 * KIB));
    allocator.check();
}

#[test]
fn not_behind_a_stream_that_is_captured() {
    let (driver, allocator, _) = pinned();
    let other = driver.create_stream().unwrap();
    driver.begin_capture(MAIN);
    assert!(allocator.alloc_raw(MIB, other).is_err());
    allocator.check();
    driver.end_capture(MAIN);
    allocator.alloc_raw(MIB, other).unwrap();
    allocator.check();
}

/// A wait on the captured stream would invalidate the capture, so the host waits.
#[test]
fn a_stream_that_is_captured_does_not_wait() {
    let (driver, allocator, _) = pinned();
    let other = driver.create_stream().unwrap();
    driver.begin_capture(other);
    let part = allocator.alloc_raw(MIB, other).unwrap();
    assert_eq!((allocator.stats().host_waits, allocator.stats().driver_calls[DriverCall::StreamWait]), (1, 0));
    // The same for whole pages.
    for leak in allocator.live() {
        allocator.free(leak.addr).unwrap();
    }
    let page = allocator.alloc_raw(PAGE, other).unwrap();
    assert_eq!((allocator.stats().host_waits, allocator.stats().driver_calls[DriverCall::StreamWait]), (2, 0));
    allocator.check();
    driver.end_capture(other);
    allocator.free(page).unwrap();
    assert_ne!(part, page);
    allocator.close().unwrap();
}
