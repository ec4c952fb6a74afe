//! Many streams, many regions, many pending blocks.

use super::table::{Cost, Goal, Row, Table, fastest};
use gapless::allocator::{Builder, ChunkPolicy};
use gapless::driver::{ModelConfig, ModelDriver, WorkDriver};
use gapless::units::{GIB, KIB, MIB};
use gapless::{Allocator, DeviceAddr, StreamId};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAIN: StreamId = StreamId::DEFAULT;
/// Numbers of streams.
const STREAMS: [u64; 3] = [1, 64, 1000];

/// All rows.
pub fn rows(table: &mut Table) {
    cached_pair(table);
    new_peak(table);
    reused(table);
    new_stream(table);
    another_stream(table);
    regions(table);
    pending(table);
    recorded(table);
}

fn builder() -> Builder<ModelDriver> {
    let config = ModelConfig { max_mappings: usize::MAX, ..ModelConfig::default() };
    Allocator::builder(Arc::new(ModelDriver::new(config)))
}

/// An allocator with `count` streams, each of which has a live block and a free one.
pub fn with_streams(count: u64) -> (Allocator<ModelDriver>, Vec<StreamId>) {
    let allocator = builder().build().expect("the settings are right");
    let mut streams = vec![MAIN];
    streams.extend((1..count).map(|_| new_kept(&allocator)));
    for stream in &streams {
        let [_live, free] = [(); 2].map(|()| alloc(&allocator, 4 * KIB, *stream));
        allocator.free(free).expect("the block is live");
    }
    (allocator, streams)
}

fn new_kept(allocator: &Allocator<ModelDriver>) -> StreamId {
    let stream = allocator.driver().create_stream().expect("the model has streams");
    allocator.keep_stream(stream).expect("few streams");
    stream
}

fn alloc(allocator: &Allocator<ModelDriver>, bytes: u64, stream: StreamId) -> DeviceAddr {
    allocator.alloc_raw(bytes, stream).expect("the memory suffices")
}

fn pair(allocator: &Allocator<ModelDriver>, bytes: u64, stream: StreamId) {
    allocator.free(alloc(allocator, bytes, stream)).expect("the block is live");
}

/// The row of `n` streams, beside that of one: at most `times` its cost.
fn row(table: &mut Table, what: &str, n: u64, cost: Cost, one: &mut Option<Cost>, times: f64) {
    match one {
        None => {
            *one = Some(cost);
            table.row(what, n, cost, None);
        }
        Some(one) => {
            let (baseline, goal) = (Some(("one stream", *one)), Some(Goal::Times(times)));
            table.print(&Row { what, n, cost, baseline, goal });
        }
    }
}

/// On each stream in turn: each pair reaches the peak of live bytes over all streams once more, or stays below it.
fn cached_pair(table: &mut Table) {
    for (what, higher) in [("", 0), (", below their peak", GIB)] {
        let mut one = None;
        for count in STREAMS {
            let (allocator, streams) = with_streams(count);
            pair(&allocator, higher, MAIN);
            let mut turn = (0..streams.len()).cycle();
            let cost = fastest(100_000, || pair(&allocator, 4 * KIB, streams[turn.next().unwrap_or(0)]));
            row(table, &format!("cached pair on n streams in turn{what}"), count, cost, &mut one, 1.5);
        }
    }
}

/// On one stream of n, each pair larger than the one before.
fn new_peak(table: &mut Table) {
    let mut one = None;
    for count in STREAMS {
        let (allocator, _) = with_streams(count);
        pair(&allocator, GIB, MAIN);
        allocator.reset_peaks();
        let mut bytes = 0;
        let cost = fastest(100_000, || {
            bytes += 512;
            pair(&allocator, bytes, MAIN);
        });
        row(table, "pair at a new peak, beside n streams", count, cost, &mut one, 2.0);
    }
}

/// A block of just the size is free on another stream.
fn reused(table: &mut Table) {
    let mut one = None;
    for count in STREAMS {
        let (allocator, _) = with_streams(count);
        pair(&allocator, 64 * MIB, MAIN);
        let stream = new_kept(&allocator);
        let cost = fastest(1000, || pair(&allocator, 64 * MIB, stream));
        row(table, "pair of a size that another of n streams has", count, cost, &mut one, 1.5);
    }
}

/// The first pair of a stream, after n that were destroyed without a word.
fn new_stream(table: &mut Table) {
    for count in [256, 1000] {
        let allocator = builder().build().expect("the settings are right");
        let driver = Arc::clone(allocator.driver());
        let ended = |stream| driver.abandon_stream(stream).expect("it exists");
        let streams: Vec<StreamId> =
            (0..count).map(|_| driver.create_stream().expect("the model has streams")).collect();
        for stream in streams {
            pair(&allocator, 2 * MIB, stream);
            ended(stream);
        }
        let (mut spent, mut worst, pairs) = (Duration::ZERO, Duration::ZERO, 200);
        for _ in 0..pairs {
            let stream = driver.create_stream().expect("the model has streams");
            let start = Instant::now();
            pair(&allocator, 2 * MIB, stream);
            let took = start.elapsed();
            (spent, worst) = (spent + took, worst.max(took));
            ended(stream);
        }
        let goal = Some(Goal::ns(50_000.0));
        table.row("first pair of a stream after n that ended", count, Cost::per(spent, pairs), goal);
        table.row("first pair of a stream after n that ended, slowest", count, Cost::per(worst, 1), None);
    }
}

/// The first pair of a stream beside n others, and of one that comes after n that were forgotten.
fn another_stream(table: &mut Table) {
    let goal = Some(Goal::ns(50_000.0));
    for count in [64, 1000, 4000] {
        let (allocator, _) = with_streams(count);
        let cost = first_pairs(&allocator, || new_kept(&allocator));
        table.row("first pair of a stream beside n others", count, cost, goal);
    }
    for count in [64, 1000, 4000] {
        let (allocator, streams) = with_streams(count);
        for stream in &streams[1..] {
            allocator.forget_stream(*stream).expect("it is known");
        }
        let cost = first_pairs(&allocator, || new_kept(&allocator));
        table.row("first pair of a stream after n forgotten ones", count, cost, goal);
    }
}

/// The first pair of each of some streams.
fn first_pairs(allocator: &Allocator<ModelDriver>, mut stream: impl FnMut() -> StreamId) -> Cost {
    let pairs = 50;
    let start = Instant::now();
    (0..pairs).for_each(|_| pair(allocator, 4 * KIB, stream()));
    Cost::per(start.elapsed(), pairs)
}

/// A block in the last region.
fn regions(table: &mut Table) {
    for count in [1, 400] {
        let builder = builder().region_bytes(64 * MIB).chunk_policy(ChunkPolicy::Fixed(64 * MIB));
        let allocator = builder.build().expect("the settings are right");
        let blocks: Vec<DeviceAddr> = (0..count).map(|_| alloc(&allocator, 64 * MIB, MAIN)).collect();
        blocks.last().into_iter().for_each(|last| allocator.free(*last).expect("the block is live"));
        let cost = fastest(10_000, || pair(&allocator, 64 * MIB, MAIN));
        table.row("cached pair in the last of n regions", count, cost, Some(Goal::ns(300.0)));
    }
}

/// An allocation that no cached block serves, while blocks wait for a stream that does not advance.
fn pending(table: &mut Table) {
    for count in [1_000, 100_000] {
        let allocator = builder().build().expect("the settings are right");
        let other = new_kept(&allocator);
        allocator.driver().hold(other);
        let blocks: Vec<DeviceAddr> = (0..count).map(|_| alloc(&allocator, 512, MAIN)).collect();
        for block in blocks {
            allocator.record_stream(block, other).expect("the block is live");
            allocator.free(block).expect("the block is live");
        }
        let mut bytes = 0;
        let cost = fastest(10, || {
            bytes += 2 * MIB;
            alloc(&allocator, bytes, MAIN);
        });
        table.row("slow path with n pending blocks", count, cost, Some(Goal::ns(200_000.0)));
    }
}

/// A block that n streams use: for each of them, what it costs to record it, and to free and settle it.
fn recorded(table: &mut Table) {
    let goal = Some(Goal::ns(1_000.0));
    for count in [64, 1000, 4000] {
        let (allocator, streams) = with_streams(count);
        // The last first: the order must not matter.
        let (mut record, mut settle) = (Duration::MAX, Duration::MAX);
        for _ in 0..5 {
            let block = alloc(&allocator, 4 * KIB, MAIN);
            let start = Instant::now();
            for stream in streams.iter().rev() {
                allocator.record_stream(block, *stream).expect("the block is live");
            }
            record = record.min(start.elapsed());
            let start = Instant::now();
            allocator.free(block).expect("the block is live");
            allocator.trim(u64::MAX).expect("nothing is released");
            settle = settle.min(start.elapsed());
        }
        table.row("a stream, where a block is recorded on n", count, Cost::per(record, count), goal);
        table.row("a stream, where a block of n is freed and settled", count, Cost::per(settle, count), goal);
    }
}
