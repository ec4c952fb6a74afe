//! Blocks that lie within one chunk each, as long as memory is not short.

use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::{GIB, KIB, MIB};
use gapless::{Allocator, ChunkPolicy, DeviceAddr, StreamId};
use std::sync::Arc;

const MAIN: StreamId = StreamId::DEFAULT;

fn allocator(bytes: u64, policy: ChunkPolicy, keeps: bool) -> Allocator<ModelDriver> {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: bytes, ..ModelConfig::default() }));
    let builder = Allocator::builder(driver).chunk_policy(policy).whole_blocks();
    if keeps { builder.keep_mappings() } else { builder }.build().unwrap()
}

fn chunks(allocator: &Allocator<ModelDriver>, block: DeviceAddr) -> usize {
    allocator.pin(block).unwrap().chunks().unwrap().len()
}

/// Sizes that follow no pattern: from 64 KiB to 64 MiB, and each as often in bytes as in number.
fn sizes() -> impl Iterator<Item = (u64, u64)> {
    let mut state = 1_u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let magnitude = 16 + (state >> 60) % 10;
        ((1 << magnitude) + ((state >> 20) & ((1 << magnitude) - 1)), state >> 33)
    })
}

#[test]
fn every_block_lies_in_one_chunk_whatever_was_freed_before() {
    for (policy, keeps) in [(ChunkPolicy::Auto, true), (ChunkPolicy::Auto, false), (ChunkPolicy::Fixed(4 * MIB), true)]
    {
        let allocator = allocator(1024 * GIB, policy, keeps);
        let mut live: Vec<DeviceAddr> = Vec::new();
        for (bytes, choice) in sizes().take(3000) {
            if live.len() > 60 {
                // Neighbours are freed together, so that free memory of several chunks would meet.
                live.sort_unstable();
                let first = choice as usize % (live.len() - 8);
                live.drain(first..first + 8).for_each(|block| allocator.free(block).unwrap());
            }
            let block = allocator.alloc_raw(bytes, MAIN).unwrap();
            assert_eq!(chunks(&allocator, block), 1, "{policy:?}: {bytes} bytes");
            live.push(block);
        }
        allocator.check();
        let stats = allocator.stats();
        assert!(stats.reserved_bytes < 3 * stats.peak_live_bytes, "{policy:?}: {stats:?}");
    }
}

#[test]
fn blocks_below_a_page_share_chunks() {
    let allocator = allocator(64 * GIB, ChunkPolicy::Auto, true);
    let total: u64 =
        sizes().map(|(bytes, _)| bytes).filter(|bytes| *bytes < 2 * MIB).take(500).fold(0, |sum, bytes| {
            allocator.alloc_raw(bytes, MAIN).unwrap();
            sum + bytes
        });
    let held = allocator.stats().reserved_bytes;
    assert!(held * 4 < total * 5, "{held} for {total}");
}

#[test]
fn once_memory_is_short_free_bytes_serve() {
    for keeps in [true, false] {
        let allocator = allocator(32 * MIB, ChunkPolicy::Auto, keeps);
        let blocks = [(); 4].map(|()| allocator.alloc_raw(8 * MIB, MAIN).unwrap());
        assert_eq!(blocks.map(|block| chunks(&allocator, block)), [1; 4]);
        allocator.free(blocks[0]).unwrap();
        allocator.free(blocks[2]).unwrap();
        let joined = allocator.alloc_raw(16 * MIB, MAIN).unwrap();
        assert!(chunks(&allocator, joined) > 1);
        allocator.check();
        assert!(allocator.alloc_raw(2 * MIB, MAIN).is_err());
    }
}

#[test]
fn a_device_that_has_less_than_the_budget_says_when_memory_is_short() {
    let allocator = allocator(32 * MIB, ChunkPolicy::Auto, true);
    let blocks = [(); 2].map(|()| allocator.alloc_raw(8 * MIB, MAIN).unwrap());
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.driver().set_external(12 * MIB);
    let joined = allocator.alloc_raw(16 * MIB, MAIN).unwrap();
    assert!(chunks(&allocator, joined) > 1);
    allocator.check();
}

#[test]
fn alignment_holds() {
    let allocator = allocator(64 * GIB, ChunkPolicy::Auto, true);
    for alignment in [512, MIB, 2 * MIB, 64 * MIB, GIB] {
        for bytes in [100 * KIB, 5 * MIB] {
            let block = allocator.alloc_raw_aligned(bytes, alignment, MAIN).unwrap();
            assert_eq!((block.0 % alignment, chunks(&allocator, block)), (0, 1), "{bytes} bytes at {alignment}");
        }
    }
    allocator.check();
}
