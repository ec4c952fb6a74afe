//! Where memory is mapped when there are few addresses between live blocks.

use gapless::driver::{ModelConfig, ModelDriver, WorkDriver};
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

/// A gap of two pages between live blocks, no budget for new chunks, and one free chunk of three pages whose last use
/// another stream has not passed: the chunk is mapped after the last block, not over the one after the gap.
#[test]
fn a_chunk_is_not_mapped_beyond_its_gap() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 5 * PAGE, ..ModelConfig::default() }));
    let other = driver.create_stream().unwrap();
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(3 * PAGE)).build().unwrap();
    allocator.keep_stream(other).unwrap();
    let alloc = |pages, stream| allocator.alloc_raw(pages * PAGE, stream).unwrap();
    let blocks = [(); 4].map(|()| alloc(1, MAIN));
    allocator.free(blocks[1]).unwrap();
    allocator.free(blocks[2]).unwrap();
    allocator.trim(0).unwrap();
    let elsewhere = alloc(3, other);
    driver.hold(other);
    allocator.free(elsewhere).unwrap();
    let block = alloc(1, MAIN);
    assert_eq!(block, blocks[3].offset(PAGE));
    allocator.check();
}

/// The same with a gap larger than the request: five pages, of which two are needed, and a free chunk of six.
#[test]
fn a_chunk_is_not_mapped_beyond_the_spare_pages_of_its_gap() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 8 * PAGE, ..ModelConfig::default() }));
    let other = driver.create_stream().unwrap();
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(6 * PAGE)).build().unwrap();
    allocator.keep_stream(other).unwrap();
    let alloc = |pages, stream| allocator.alloc_raw(pages * PAGE, stream).unwrap();
    let [_first, gap, last] = [alloc(1, MAIN), alloc(5, MAIN), alloc(1, MAIN)];
    allocator.free(gap).unwrap();
    allocator.trim(0).unwrap();
    let elsewhere = alloc(6, other);
    driver.hold(other);
    allocator.free(elsewhere).unwrap();
    assert_eq!(alloc(2, MAIN), last.offset(PAGE));
    allocator.check();
}

#[test]
fn a_gap_is_filled_to_its_end() {
    let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
    let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let alloc = |pages| allocator.alloc_raw(pages * PAGE, MAIN).unwrap();
    let blocks = [alloc(1), alloc(3), alloc(1)];
    allocator.free(blocks[1]).unwrap();
    allocator.trim(0).unwrap();
    assert_eq!(alloc(3), blocks[1]);
    allocator.check();
}

/// A free page after an unmapped one: only the page before it is mapped.
#[test]
fn a_free_block_is_grown_downwards() {
    let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
    let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let alloc = |pages| allocator.alloc_raw(pages * PAGE, MAIN).unwrap();
    let blocks = [alloc(1), alloc(4), alloc(1), alloc(1)];
    allocator.free(blocks[1]).unwrap();
    allocator.trim(0).unwrap();
    allocator.free(blocks[2]).unwrap();
    assert_eq!(allocator.reserved_bytes(), 3 * PAGE);
    assert_eq!(alloc(2).offset(PAGE), blocks[2]);
    assert_eq!(allocator.reserved_bytes(), 4 * PAGE);
    allocator.check();
}
