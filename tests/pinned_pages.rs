//! What blocks that stay pin beyond the pages that they use, with the default settings: a device is filled with pairs of a
//! large and a small block, the large ones are freed, and nearly all whole free pages are asked for in one request.

use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::{GIB, KIB, MIB};
use gapless::{Allocator, StreamId};
use std::collections::HashSet;
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;

/// Fills a device with pairs and frees the large block of each. Returns the allocator and the number of pages without a live
/// byte.
fn half_emptied(device: u64, large: u64, small: u64) -> (Allocator<ModelDriver>, u64) {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: device, ..ModelConfig::default() }));
    let allocator = Allocator::builder(driver).build().unwrap();
    let (mut large_blocks, mut small_blocks) = (Vec::new(), Vec::new());
    while let Ok(block) = allocator.alloc(large, MAIN) {
        large_blocks.push(block);
        small_blocks.extend(allocator.alloc(small, MAIN));
    }
    large_blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    let pages_of = |addr: u64| addr / PAGE..(addr + small).div_ceil(PAGE);
    let used: HashSet<u64> = small_blocks.iter().flat_map(|block| pages_of(block.0)).collect();
    (allocator, device / PAGE - used.len() as u64)
}

/// Asks for 95 % of the whole free pages.
fn assert_free_pages_are_served(device: u64, large: u64, small: u64) {
    let (allocator, free_pages) = half_emptied(device, large, small);
    if let Err(error) = allocator.alloc(free_pages * 95 / 100 * PAGE, MAIN) {
        panic!("{} GiB, pairs of {} MiB and {} KiB: {error}", device / GIB, large / MIB, small / KIB);
    }
    allocator.check();
}

#[test]
fn blocks_of_all_sizes_on_ten_gib() {
    for large in [30, 50, 100, 170, 300, 500] {
        for small in [512, 60 * KIB, 64 * KIB, 300 * KIB, MIB, 2 * MIB, 3 * MIB + 512, 4 * MIB] {
            assert_free_pages_are_served(10 * GIB, large * MIB, small);
        }
    }
}

#[test]
fn devices_of_all_sizes() {
    for device in [24, 80, 141, 192] {
        for (large, small) in [(30 * MIB, 64 * KIB), (100 * MIB, 64 * KIB), (170 * MIB, MIB), (500 * MIB, 4 * MIB)] {
            assert_free_pages_are_served(device * GIB, large, small);
        }
    }
}

#[test]
fn a_tebibyte() {
    for (large, small) in [(100 * MIB, 64 * KIB), (500 * MIB, 512), (500 * MIB, 4 * MIB)] {
        assert_free_pages_are_served(1024 * GIB, large, small);
    }
}
