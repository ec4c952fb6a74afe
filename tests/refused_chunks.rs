//! Requests when chunks of the usual size cannot be had, although the pages for a smaller one can.

use gapless::driver::{DriverCall, ModelConfig, ModelDriver};
use gapless::units::{GIB, MIB};
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;

/// Others have taken most of the device since the allocator was made: the driver has less than a chunk of the usual size.
#[test]
fn a_refused_chunk_is_tried_again_in_the_size_of_what_is_left() {
    for policy in [ChunkPolicy::Auto, ChunkPolicy::Fixed(64 * MIB)] {
        let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 80 * GIB, ..ModelConfig::default() }));
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(policy).build().unwrap();
        driver.set_external(80 * GIB - 15 * PAGE);
        allocator.alloc_raw(15 * PAGE, MAIN).unwrap();
        allocator.alloc_raw(1, MAIN).unwrap_err();
        // What the driver refused was not created.
        let stats = allocator.stats();
        assert!(stats.failed_driver_calls > 0);
        assert_eq!(stats.created_chunks, stats.chunks + stats.driver_calls[DriverCall::Release]);
        allocator.check();
    }
}

/// A range gave up a chunk of three pages, and a page of it is asked for.
#[test]
fn an_idle_chunk_that_is_too_large_is_created_again() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 3 * PAGE, ..ModelConfig::default() }));
    let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(3 * PAGE)).build().unwrap();
    let mut range = allocator.reserve_range(3 * PAGE).unwrap();
    range.grow(3 * PAGE, MAIN).unwrap();
    range.shrink(3 * PAGE).unwrap();
    assert_eq!(allocator.stats().idle_bytes, 3 * PAGE);
    allocator.alloc_raw(PAGE, MAIN).unwrap();
    allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    allocator.check();
}

/// The same, and a range grows by a page.
#[test]
fn a_range_has_an_idle_chunk_that_is_too_large_created_again() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 3 * PAGE, ..ModelConfig::default() }));
    let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(3 * PAGE)).build().unwrap();
    let mut range = allocator.reserve_range(3 * PAGE).unwrap();
    range.grow(3 * PAGE, MAIN).unwrap();
    range.shrink(3 * PAGE).unwrap();
    range.grow(PAGE, MAIN).unwrap();
    range.grow(2 * PAGE, MAIN).unwrap();
    allocator.check();
}
