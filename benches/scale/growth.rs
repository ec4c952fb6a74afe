//! The slow path: what it costs the processor to map, move and release many chunks at once, without the driver's own time.

use super::table::{Cost, Goal, Random, Row, Table};
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::MIB;
use gapless::{Allocator, ChunkPolicy, DeviceAddr, StreamId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;
/// Most time a chunk.
const A_CHUNK: Option<Goal> = Some(Goal::ns(3_000.0));
/// Most that one request pays for views that others left, relative to a request that finds room for its own.
const AMORTISED: Option<Goal> = Some(Goal::Times(10.0));
/// Most that a request pays for chunks that it does not touch, relative to one beside a tenth of them.
const FLAT: Option<Goal> = Some(Goal::Times(1.2));

/// All rows.
pub fn rows(table: &mut Table) {
    for chunks in [1_000, 8_000, 32_000] {
        one_request(table, chunks);
        trim(table, chunks);
        gather(table, chunks);
    }
    beside_held(table);
    mapping_limit(table);
}

fn allocator(pages: u64, mapping_limit: usize) -> Allocator<ModelDriver> {
    let config = ModelConfig {
        capacity_bytes: pages * PAGE,
        granularity: PAGE,
        max_mappings: usize::MAX,
        address_bits: 56,
        ..ModelConfig::default()
    };
    let builder = Allocator::builder(Arc::new(ModelDriver::new(config))).mapping_limit(mapping_limit);
    builder.chunk_policy(ChunkPolicy::Fixed(PAGE)).build().expect("it fits")
}

fn alloc(allocator: &Allocator<ModelDriver>, pages: u64) -> DeviceAddr {
    allocator.alloc_raw(pages * PAGE, MAIN).expect("the memory suffices")
}

/// Runs `work` once, and returns what it costs for each of `count`.
fn once<T>(count: u64, work: impl FnOnce() -> T) -> Cost {
    let start = Instant::now();
    std::hint::black_box(work());
    Cost::per(start.elapsed(), count)
}

/// One request of n pages, from new chunks.
fn one_request(table: &mut Table, chunks: u64) {
    let allocator = allocator(chunks, usize::MAX);
    let cost = once(chunks, || alloc(&allocator, chunks));
    table.row("a chunk, in one request of n chunks", chunks, cost, A_CHUNK);
}

/// One request of n pages, from free chunks between live ones.
fn gather(table: &mut Table, chunks: u64) {
    let allocator = allocator(2 * chunks, usize::MAX);
    let blocks: Vec<_> = (0..2 * chunks).map(|_| alloc(&allocator, 1)).collect();
    blocks.iter().step_by(2).for_each(|block| allocator.free(*block).expect("live"));
    let cost = once(chunks, || alloc(&allocator, chunks));
    table.row("a chunk, moved for one request of n chunks", chunks, cost, A_CHUNK);
}

/// Requests that move a few chunks, while n are held and every other one is free.
fn beside_held(table: &mut Table) {
    const REQUESTS: u64 = 50;
    const ROUNDS: usize = 10;
    let mut few = None;
    for chunks in [1_000, 10_000] {
        let round = || {
            let allocator = allocator(chunks, usize::MAX);
            let blocks: Vec<_> = (0..chunks).map(|_| alloc(&allocator, 1)).collect();
            blocks.iter().step_by(2).for_each(|block| allocator.free(*block).expect("live"));
            once(REQUESTS, || (0..REQUESTS).for_each(|_| _ = alloc(&allocator, 4)))
        };
        // The fastest: a single one takes a third of a millisecond, and the machine may be away for half as long.
        let rounds = (0..ROUNDS).map(|_| round());
        let cost = rounds.min_by(|one, other| one.partial_cmp(other).expect("both are times")).expect("several rounds");
        let what = "a request that moves 4 chunks, n held";
        match few {
            None => {
                few = Some(cost);
                table.row(what, chunks, cost, None);
            }
            Some(few) => {
                table.print(&Row { what, n: chunks, cost, baseline: Some(("1,000 held", few)), goal: FLAT });
            }
        }
    }
}

/// A trim of n chunks that lie in one free block, and of n that lie between live ones.
fn trim(table: &mut Table, chunks: u64) {
    let one = allocator(chunks, usize::MAX);
    let block = alloc(&one, chunks);
    one.free(block).expect("live");
    let cost = once(chunks, || one.trim(0).expect("released"));
    table.row("a chunk, in a trim of n in one free block", chunks, cost, A_CHUNK);

    let apart = allocator(2 * chunks, usize::MAX);
    let blocks: Vec<_> = (0..2 * chunks).map(|_| alloc(&apart, 1)).collect();
    blocks.iter().step_by(2).for_each(|block| apart.free(*block).expect("live"));
    let cost = once(chunks, || apart.trim(0).expect("released"));
    table.row("a chunk, in a trim of n between live blocks", chunks, cost, A_CHUNK);
}

/// Requests that go on mapping at the limit of mappings: the driver calls of the worst of them for each page, relative to the
/// worst below the limit.
fn mapping_limit(table: &mut Table) {
    const PAGES: u64 = 8_192;
    const LIMIT: usize = 20_000;
    let allocator = allocator(PAGES, LIMIT);
    let calls = || allocator.stats().driver_calls.total();
    let (mut below, mut at_limit) = (0.0_f64, 0.0_f64);
    let mut held: VecDeque<(DeviceAddr, u64)> = VecDeque::new();
    let mut live = 0;
    let mut random = Random(3);
    for _ in 0..2_000 {
        let pages = 1 + random.below(PAGES / 16);
        while live + pages > PAGES {
            let (addr, pages) = held.pop_front().expect("something is live");
            allocator.free(addr).expect("live");
            live -= pages;
        }
        let worst = if allocator.stats().mappings < LIMIT as u64 - PAGES { &mut below } else { &mut at_limit };
        let before = calls();
        held.push_back((alloc(&allocator, pages), pages));
        live += pages;
        *worst = worst.max((calls() - before) as f64 / pages as f64);
    }
    table.print(&Row {
        what: "a page of a request at the limit of n mappings",
        n: LIMIT as u64,
        cost: Cost::Calls(at_limit),
        baseline: Some(("below it", Cost::Calls(below))),
        goal: AMORTISED,
    });
}
