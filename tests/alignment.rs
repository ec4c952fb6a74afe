//! Requests at multiples of more than a granule, where that makes a difference.

use gapless::allocator::AllocError;
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::{DeviceAddr, KIB, MIB};
use gapless::{Allocator, StreamId};
use std::sync::Arc;

const STREAM: StreamId = StreamId::DEFAULT;

fn allocator(capacity_bytes: u64) -> Allocator<ModelDriver> {
    let driver = ModelDriver::new(ModelConfig { capacity_bytes, ..ModelConfig::default() });
    Allocator::builder(Arc::new(driver)).build().unwrap()
}

/// The memory is there; what is missing are addresses.
#[test]
fn an_alignment_beyond_the_addresses_of_a_region_is_too_large() {
    let allocator = allocator(64 * MIB);
    for alignment in [1 << 40, 1 << 63] {
        let error = allocator.alloc_raw_aligned(512, alignment, STREAM).unwrap_err();
        let AllocError::TooLarge { requested: 512, alignment: named, region_bytes } = error else { panic!("{error}") };
        assert_eq!(named, alignment);
        assert!(region_bytes < alignment && error.to_string().contains(&alignment.to_string()), "{error}");
        allocator.check();
    }
    assert_eq!(allocator.live_bytes(), 0);
    // With fewer addresses than that it may be served.
    let addr = allocator.alloc_raw_aligned(512, 32 * MIB, STREAM).unwrap();
    assert!(addr.is_aligned(32 * MIB));
    allocator.free(addr).unwrap();
    // Without memory it is a matter of memory.
    let error = allocator.alloc_raw_aligned(65 * MIB, 32 * MIB, STREAM).unwrap_err();
    assert!(error.report().is_some(), "{error}");
}

/// Free blocks that are large enough are not all looked at on the hot path, but before a request is refused.
#[test]
fn a_free_block_at_the_right_address_is_found_among_many_at_wrong_ones() {
    const SIZE: u64 = 4 * KIB - 512;
    let fits = |addr: &DeviceAddr| addr.0.next_multiple_of(32 * KIB) + 2 * KIB <= addr.0 + SIZE;
    let allocator = allocator(8 * MIB);
    let mut live: Vec<DeviceAddr> = std::iter::from_fn(|| allocator.alloc_raw(SIZE, STREAM).ok()).collect();
    live.sort_unstable();
    let right = live.iter().copied().rfind(fits).unwrap();
    // Every other one, so that none grow together.
    let before = live.iter().position(|addr| *addr == right).unwrap();
    let wrong: Vec<DeviceAddr> =
        live[..before].iter().rev().skip(1).step_by(2).filter(|addr| !fits(addr)).copied().collect();
    assert!(wrong.len() > 500);
    for addr in wrong.into_iter().chain([right]) {
        allocator.free(addr).unwrap();
    }
    let addr = allocator.alloc_raw_aligned(2 * KIB, 32 * KIB, STREAM).unwrap();
    assert_eq!(addr.0, right.0.next_multiple_of(32 * KIB));
    allocator.check();
}
