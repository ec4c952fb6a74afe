//! Settings of the builder at the edges of their ranges.

use gapless::Allocator;
use gapless::allocator::{AllocError, BuildError, Builder, ChunkPolicy, FreeError, StreamError};
use gapless::driver::{ModelConfig, ModelDriver, WorkDriver};
use gapless::units::{GIB, KIB, MIB, StreamId, TIB};
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;

fn builder() -> Builder<ModelDriver> {
    Allocator::builder(Arc::new(ModelDriver::default()))
}

/// Returns a builder on a device with pages of `granularity` bytes.
fn with_pages_of(granularity: u64) -> Builder<ModelDriver> {
    Allocator::builder(Arc::new(ModelDriver::new(ModelConfig { granularity, ..ModelConfig::default() })))
}

fn refused(builder: Builder<ModelDriver>) -> &'static str {
    match builder.build() {
        Err(BuildError::Setting { name, .. }) => name,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_budget_is_a_page_or_more() {
    assert_eq!(refused(builder().budget(PAGE - 1)), "budget");
    let allocator = builder().budget(PAGE).build().unwrap();
    assert_eq!((allocator.budget(), allocator.snapshot().budget_bytes), (PAGE, PAGE));
    let block = allocator.alloc_raw(PAGE, StreamId::DEFAULT).unwrap();
    assert!(matches!(allocator.alloc_raw(1, StreamId::DEFAULT), Err(AllocError::OutOfMemory(_))));
    allocator.free(block).unwrap();
    allocator.close().unwrap();
}

#[test]
fn a_page_is_a_granule_or_more() {
    assert_eq!(refused(with_pages_of(256)), "granularity");
    let allocator = with_pages_of(512).slack(1.0).build().unwrap();
    allocator.alloc_raw(513, StreamId::DEFAULT).unwrap();
    assert_eq!(allocator.reserved_bytes(), 1024);
}

#[test]
fn slack_is_one_or_more() {
    assert_eq!(refused(builder().slack(0.999)), "slack");
    assert_eq!(refused(builder().slack(f64::NAN)), "slack");
    assert!(builder().slack(1.0).build().is_ok() && builder().slack(f64::INFINITY).build().is_ok());
}

#[test]
fn a_chunk_and_the_mappings_are_not_nothing() {
    assert_eq!(refused(builder().chunk_policy(ChunkPolicy::Fixed(0))), "chunk_policy");
    assert_eq!(refused(builder().mapping_limit(0)), "mapping_limit");
    assert!(builder().chunk_policy(ChunkPolicy::Fixed(1)).mapping_limit(1).build().is_ok());
}

#[test]
fn a_first_region_is_no_larger_than_others() {
    assert_eq!(refused(builder().region_bytes(64 * MIB).first_region_bytes(64 * MIB + 1)), "first_region_bytes");
    assert!(builder().region_bytes(64 * MIB).first_region_bytes(64 * MIB).build().is_ok());
    assert!(builder().first_region_bytes(u64::MAX).build().is_ok(), "beside the default, as much as there can be");
}

#[test]
fn the_largest_request_is_a_region() {
    let largest =
        |builder: Builder<ModelDriver>| match builder.build().unwrap().alloc_raw(u64::MAX / 2, StreamId::DEFAULT) {
            Err(AllocError::TooLarge { region_bytes, .. }) => region_bytes,
            other => panic!("{other:?}"),
        };
    assert_eq!(largest(builder().region_bytes(1)), 64 * MIB, "at least 32 pages");
    assert_eq!(largest(with_pages_of(64 * KIB).region_bytes(1)), 2 * MIB, "with any page size");
    assert_eq!(largest(builder().region_bytes(100 * MIB)), 128 * MIB, "rounded up to a power of two");
    assert_eq!(largest(builder().region_bytes(u64::MAX)), 64 * TIB, "at most what fits in a device's addresses");
    let by_default = "by default at least four times the memory of the device: the budget may be raised";
    assert_eq!(largest(builder().budget(40 * MIB)), 512 * GIB, "{by_default}");
    assert_eq!(largest(builder().budget(100 * GIB)), 512 * GIB, "{by_default}, or the budget");
    assert_eq!(largest(builder().budget(TIB)), 4 * TIB, "{by_default}, or the budget");
}

#[test]
fn too_many_streams_are_refused() {
    let driver = Arc::new(ModelDriver::default());
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    let block = allocator.alloc_raw(PAGE, StreamId::DEFAULT).unwrap();
    let known = (1..).find_map(|known| {
        let stream = driver.create_stream().unwrap();
        let refused = allocator.record_stream(block, stream).err()?;
        assert!(matches!(refused, FreeError::Stream(StreamError::TooMany { limit }) if limit == known), "{refused}");
        let refused = allocator.alloc_raw(PAGE, stream).err()?;
        assert!(matches!(refused, AllocError::Stream(StreamError::TooMany { limit }) if limit == known), "{refused}");
        Some(known)
    });
    assert_eq!(allocator.stats().streams, known.unwrap() as u64);
    allocator.check();
    allocator.free(block).unwrap();
}

/// A budget of less than a whole number of pages allows the whole ones.
#[test]
fn what_does_not_fill_a_page_is_not_used() {
    let allocator = builder().chunk_policy(gapless::ChunkPolicy::Fixed(PAGE)).build().unwrap();
    for (bytes, pages) in [(2 * PAGE - 1, 1), (2 * PAGE, 2), (3 * PAGE + 1, 3)] {
        allocator.set_budget(bytes).unwrap();
        let blocks: Vec<_> = (0..pages).map(|_| allocator.alloc_raw(PAGE, StreamId::DEFAULT).unwrap()).collect();
        let more = allocator.alloc_raw(PAGE, StreamId::DEFAULT);
        assert!(matches!(more, Err(AllocError::OutOfMemory(_))), "{bytes} bytes allow more than {pages} pages");
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    }
}
