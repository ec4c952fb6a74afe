//! One stream and its heaps: blocks from cached memory, and addresses that are refused.

use super::table::{Goal, Random, Row, Table, fastest};
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::{GIB, KIB, MIB, TIB};
use gapless::{Allocator, DeviceAddr, StreamId};
use std::sync::Arc;

/// All rows.
pub fn rows(table: &mut Table) {
    cached_pair(table);
    refused(table);
    aligned(table);
    replaced(table);
}

fn allocator(bytes: u64) -> Allocator<ModelDriver> {
    let config =
        ModelConfig { capacity_bytes: bytes, max_mappings: usize::MAX, address_bits: 56, ..ModelConfig::default() };
    Allocator::builder(Arc::new(ModelDriver::new(config))).mapping_limit(usize::MAX).build().expect("it fits")
}

fn alloc(allocator: &Allocator<ModelDriver>, bytes: u64) -> DeviceAddr {
    allocator.alloc_raw(bytes, StreamId::DEFAULT).expect("the memory suffices")
}

fn free(allocator: &Allocator<ModelDriver>, addr: DeviceAddr) {
    allocator.free(addr).expect("the block is live");
}

fn cached_pair(table: &mut Table) {
    let allocator = allocator(4 * GIB);
    for (bytes, name) in [(4 * KIB, "cached pair of 4 KiB"), (2 * MIB, "cached pair of 2 MiB")] {
        let beside: Vec<_> = (0..8).map(|_| alloc(&allocator, bytes)).collect();
        let cost = fastest(2_500_000, || free(&allocator, alloc(&allocator, bytes)));
        table.row(name, 8, cost, Some(Goal::ns(30.0)));
        beside.into_iter().for_each(|addr| free(&allocator, addr));
    }
}

/// Frees an address inside a block, and one that was freed before, with many blocks around.
fn refused(table: &mut Table) {
    for blocks in [10_000, 1_000_000] {
        for bytes in [4 * KIB, MIB] {
            let allocator = allocator(2 * bytes * blocks);
            let live: Vec<_> = (0..blocks).map(|_| alloc(&allocator, bytes)).collect();
            let mut random = Random(7);
            let mut any = || live[random.below(blocks) as usize];
            let goal = Some(Goal::ns(5_000.0));
            let size = if bytes == MIB { "1 MiB" } else { "4 KiB" };
            let cost = fastest(1_000, || assert!(allocator.free(any().offset(bytes / 2)).is_err()));
            table.row(&format!("free inside one of n live blocks of {size}"), blocks, cost, goal);
            live.iter().step_by(2).for_each(|addr| free(&allocator, *addr));
            let mut freed = || live[random.below(blocks / 2) as usize * 2];
            let cost = fastest(1_000, || assert!(allocator.free(freed()).is_err()));
            table.row(&format!("double free, every other of n blocks of {size} free"), blocks, cost, goal);
        }
    }
}

/// An aligned request while many free blocks would be large enough without the alignment.
fn aligned(table: &mut Table) {
    for blocks in [1_000, 100_000] {
        let allocator = allocator(GIB + 8 * KIB * blocks);
        let spare = allocator.alloc_raw_aligned(64 * KIB - 512, 64 * KIB, StreamId::DEFAULT).expect("it fits");
        let live: Vec<_> = (0..2 * blocks).map(|_| alloc(&allocator, 4 * KIB - 512)).collect();
        let fits = |addr: &DeviceAddr| addr.0.next_multiple_of(32 * KIB) + 2 * KIB <= addr.0 + 4 * KIB - 512;
        live.iter().step_by(2).filter(|addr| !fits(addr)).for_each(|addr| free(&allocator, *addr));
        free(&allocator, spare);
        let cost = fastest(1_000, || {
            let addr = allocator.alloc_raw_aligned(2 * KIB, 32 * KIB, StreamId::DEFAULT).expect("it fits");
            free(&allocator, addr);
        });
        table.row("cached pair at a multiple of 32 KiB, n free blocks", blocks, cost, Some(Goal::ns(5_000.0)));
    }
}

/// Replaces random blocks by blocks of random sizes.
fn replaced(table: &mut Table) {
    const MIXED: [u64; 5] = [512, 4 * KIB, 64 * KIB, 2 * MIB, 64 * MIB];
    let mean = MIXED.iter().sum::<u64>() / MIXED.len() as u64;
    let mut few = None;
    for blocks in [10_000, 1_000_000] {
        let allocator = allocator((2 * mean * blocks).min(16 * TIB));
        let mut random = Random(0x9e37_79b9);
        let mut live: Vec<_> = (0..blocks).map(|_| alloc(&allocator, MIXED[random.below(5) as usize])).collect();
        let mut replace = || {
            let slot = random.below(blocks) as usize;
            free(&allocator, live[slot]);
            live[slot] = alloc(&allocator, MIXED[random.below(5) as usize]);
        };
        (0..2 * blocks).for_each(|_| replace());
        let cost = fastest(5_000_000, &mut replace);
        let what = "free and alloc of mixed sizes, n live blocks";
        match few {
            None => {
                few = Some(cost);
                table.row(what, blocks, cost, Some(Goal::ns(60.0)));
            }
            Some(few) => table.print(&Row {
                what,
                n: blocks,
                cost,
                baseline: Some(("10,000 blocks", few)),
                goal: Some(Goal::Times(3.0)),
            }),
        }
    }
}
