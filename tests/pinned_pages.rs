//! How many pages blocks that stay pin beyond those that they use, with the default settings: a device, new or used before, is
//! filled with pairs of a large and a small block, the large ones are freed, and nearly all whole free pages are asked for in one
//! request.

use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::{GIB, KIB, MIB};
use gapless::{Allocator, StreamId};
use std::collections::HashSet;
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;

/// Whether all memory of a device was allocated and freed before.
#[derive(Clone, Copy, Debug)]
enum Device {
    New,
    Used,
}

/// Fills a device with pairs and frees the large block of each. Returns the allocator and the number of pages without a live
/// byte.
fn half_emptied(history: Device, device: u64, large: u64, small: u64) -> (Allocator<ModelDriver>, u64) {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: device, ..ModelConfig::default() }));
    let allocator = Allocator::builder(driver).build().unwrap();
    if let Device::Used = history {
        let blocks: Vec<_> = std::iter::from_fn(|| allocator.alloc_raw(GIB, MAIN).ok()).collect();
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    }
    let (mut large_blocks, mut small_blocks) = (Vec::new(), Vec::new());
    while let Ok(block) = allocator.alloc_raw(large, MAIN) {
        large_blocks.push(block);
        small_blocks.extend(allocator.alloc_raw(small, MAIN));
    }
    large_blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    let pages_of = |addr: u64| addr / PAGE..(addr + small).div_ceil(PAGE);
    let used: HashSet<u64> = small_blocks.iter().flat_map(|block| pages_of(block.0)).collect();
    (allocator, device / PAGE - used.len() as u64)
}

/// Asks for 95 % of the whole free pages.
fn assert_free_pages_are_served(history: Device, device: u64, large: u64, small: u64) {
    let (allocator, free_pages) = half_emptied(history, device, large, small);
    if let Err(error) = allocator.alloc_raw(free_pages * 95 / 100 * PAGE, MAIN) {
        panic!("{history:?}, {} GiB, pairs of {} MiB and {} KiB: {error}", device / GIB, large / MIB, small / KIB);
    }
    allocator.check();
}

#[test]
fn blocks_of_all_sizes_on_ten_gib() {
    for large in [30, 50, 100, 170, 300, 500] {
        for small in [512, 60 * KIB, 64 * KIB, 300 * KIB, MIB, 2 * MIB, 3 * MIB + 512, 4 * MIB] {
            assert_free_pages_are_served(Device::New, 10 * GIB, large * MIB, small);
        }
    }
}

#[test]
fn devices_of_all_sizes() {
    for device in [24, 80, 141, 192] {
        for (large, small) in [(30 * MIB, 64 * KIB), (100 * MIB, 64 * KIB), (170 * MIB, MIB), (500 * MIB, 4 * MIB)] {
            assert_free_pages_are_served(Device::New, device * GIB, large, small);
        }
    }
}

#[test]
fn a_tebibyte() {
    for (large, small) in [(100 * MIB, 64 * KIB), (500 * MIB, 512), (500 * MIB, 4 * MIB)] {
        assert_free_pages_are_served(Device::New, 1024 * GIB, large, small);
    }
}

/// Blocks below 2 MiB. What larger ones pin on a device that was used before has no bound yet.
#[test]
fn devices_that_were_used_before() {
    for device in [24, 80, 192] {
        for large in [30, 100, 128] {
            for small in [64 * KIB, 300 * KIB, MIB] {
                assert_free_pages_are_served(Device::Used, device * GIB, large * MIB - 64 * KIB, small);
            }
        }
    }
}
