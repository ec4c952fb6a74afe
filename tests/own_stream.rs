//! Recording a block on the stream that it belongs to: nothing has to be waited for.

use gapless::allocator::FreeError;
use gapless::driver::{ModelConfig, ModelDriver, WorkDriver};
use gapless::units::MIB;
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;

fn allocator(pages: u64) -> (Arc<ModelDriver>, Allocator<ModelDriver>) {
    let config = ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() };
    let driver = Arc::new(ModelDriver::new(config));
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    (driver, allocator)
}

#[test]
fn a_block_recorded_on_its_own_stream_is_reusable_at_once() {
    let (driver, allocator) = allocator(4);
    let other = driver.create_stream().unwrap();
    for home in [MAIN, other] {
        let block = allocator.alloc_raw(PAGE, home).unwrap();
        let calls = allocator.stats().driver_calls;
        for _ in 0..3 {
            allocator.record_stream(block, home).unwrap();
            allocator.free(block).unwrap();
            assert_eq!(allocator.stats().pending_bytes, 0);
            assert_eq!(allocator.alloc_raw(PAGE, home).unwrap(), block);
        }
        assert_eq!(allocator.stats().driver_calls, calls);
    }
}

#[test]
fn a_block_that_others_use_waits_for_them_only() {
    let (driver, allocator) = allocator(4);
    let other = driver.create_stream().unwrap();
    for streams in [[MAIN, other], [other, MAIN]] {
        let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
        for stream in streams {
            allocator.record_stream(block, stream).unwrap();
        }
        let snapshot = allocator.snapshot();
        let found = snapshot.regions.iter().flat_map(|region| &region.blocks).find(|found| found.addr == block);
        assert_eq!(found.unwrap().recorded_on, [other]);
        let before = allocator.stats();
        allocator.free(block).unwrap();
        let now = allocator.stats();
        assert_eq!(now.pending_bytes - before.pending_bytes, PAGE);
        assert_eq!(now.pending_allocations - before.pending_allocations, 1);
    }
}

/// A block that was reused across streams belongs to the stream it was allocated on: the stream of its region is another one, and
/// its work is waited for.
#[test]
fn the_owner_of_a_reused_block_is_another_stream() {
    let (driver, allocator) = allocator(1);
    let other = driver.create_stream().unwrap();
    let reused = allocator.alloc_raw(PAGE, MAIN).unwrap();
    allocator.free(reused).unwrap();
    assert_eq!(allocator.alloc_raw(PAGE, other).unwrap(), reused);
    allocator.record_stream(reused, MAIN).unwrap();
    let snapshot = allocator.snapshot();
    let block = snapshot.regions.iter().flat_map(|region| &region.blocks).find(|block| block.addr == reused).unwrap();
    assert_eq!((block.borrowed_by, &block.recorded_on[..]), (Some(other), &[MAIN][..]));
}

#[test]
fn what_is_not_live_is_refused_on_its_own_stream_too() {
    let (_, allocator) = allocator(4);
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    allocator.free(block).unwrap();
    for addr in [block, block.offset(512)] {
        assert!(matches!(allocator.record_stream(addr, MAIN), Err(FreeError::NotAllocated { .. })));
    }
}

#[test]
fn cached_memory_is_handed_out_without_a_driver_call() {
    let (driver, allocator) = allocator(4);
    let other = driver.create_stream().unwrap();
    assert_eq!(allocator.alloc_raw_cached(PAGE, 1, MAIN), None, "nothing is cached, and the stream is not known");
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    assert_eq!(allocator.alloc_raw_cached(PAGE, 1, MAIN), None, "nothing is free");
    allocator.free(block).unwrap();
    let calls = driver.calls();
    assert_eq!(allocator.alloc_raw_cached(PAGE + 1, 1, MAIN), None, "too little is free");
    assert_eq!(allocator.alloc_raw_cached(PAGE, 3, MAIN), None, "3 is no power of two");
    assert_eq!(allocator.alloc_raw_cached(PAGE, 4096, MAIN), Some(block));
    allocator.free(block).unwrap();
    assert_eq!(driver.calls(), calls);
    // A stream that is not kept could be another one by now: the driver would have to be asked.
    let block = allocator.alloc_raw(2 * PAGE, other).unwrap();
    allocator.free(block).unwrap();
    assert_eq!(allocator.alloc_raw_cached(2 * PAGE, 1, other), None);
    allocator.keep_stream(other).unwrap();
    assert_eq!(allocator.alloc_raw_cached(2 * PAGE, 1, other), Some(block));
    allocator.free(block).unwrap();
    allocator.check();
}
