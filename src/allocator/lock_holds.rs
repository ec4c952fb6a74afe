//! Tests: how much is done while a stream is locked, and waits. They count: times would depend on the machine.

use super::{Allocator, Backup, ChunkPolicy};
use crate::driver::{DriverCall, ModelConfig, ModelDriver, WorkDriver};
use crate::testing::{busy, largest_request_of, longest_hold_of};
use crate::units::{DeviceAddr, KIB, MIB, StreamId};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;
/// Most steps in a heap while its stream is locked. Each takes some ten nanoseconds.
const MOST: u64 = 256;

/// An allocator whose memory is used up, and a further stream.
struct Full {
    allocator: Allocator<ModelDriver>,
    other: StreamId,
}

impl Full {
    /// Of `pages` pages.
    fn new(pages: u64) -> Self {
        let config = ModelConfig { capacity_bytes: pages * PAGE, max_mappings: usize::MAX, ..ModelConfig::default() };
        let builder = Allocator::builder(Arc::new(ModelDriver::new(config))).mapping_limit(usize::MAX);
        let builder = builder.chunk_policy(ChunkPolicy::Fixed(PAGE)).slack(f64::INFINITY);
        let allocator = builder.build().unwrap();
        let other = allocator.driver().create_stream().unwrap();
        allocator.keep_stream(other).unwrap();
        Self { allocator, other }
    }

    fn alloc(&self, pages: u64, stream: StreamId) -> DeviceAddr {
        self.allocator.alloc_raw(pages * PAGE, stream).unwrap()
    }

    fn every_other_free(&self, pages: u64, stream: StreamId) {
        let blocks: Vec<_> = (0..pages).map(|_| self.alloc(1, stream)).collect();
        blocks.iter().step_by(2).for_each(|block| self.allocator.free(*block).unwrap());
    }
}

/// Free chunks in one block of another stream.
fn in_one_block(chunks: u64) -> Full {
    let full = Full::new(chunks);
    let block = full.alloc(chunks, full.other);
    full.allocator.free(block).unwrap();
    full
}

/// Free chunks between live ones, of another stream.
fn between_live(chunks: u64) -> Full {
    let full = Full::new(2 * chunks);
    full.every_other_free(2 * chunks, full.other);
    full
}

/// Free chunks between live ones, and as many stale views of them and others, on the stream that grows.
fn with_stale_views(chunks: u64) -> Full {
    let full = Full::new(2 * chunks);
    let blocks: Vec<_> = (0..2 * chunks).map(|_| full.alloc(1, MAIN)).collect();
    blocks.iter().step_by(2).for_each(|block| full.allocator.free(*block).unwrap());
    let joined = full.alloc(chunks, MAIN);
    full.allocator.free(joined).unwrap();
    let apart: Vec<_> = (0..chunks).map(|_| full.alloc(1, MAIN)).collect();
    apart.iter().step_by(2).for_each(|block| full.allocator.free(*block).unwrap());
    blocks.iter().skip(1).step_by(2).step_by(2).for_each(|block| full.allocator.free(*block).unwrap());
    full
}

/// Free and unmapped blocks in turn, where a request fits over all of them.
fn in_turn(chunks: u64) -> Full {
    let full = Full::new(chunks + 1);
    let blocks: Vec<_> = (0..chunks).map(|_| full.alloc(1, MAIN)).collect();
    blocks.iter().step_by(2).for_each(|block| full.allocator.free(*block).unwrap());
    let away = full.alloc(chunks / 2, MAIN);
    blocks.iter().skip(1).step_by(2).for_each(|block| full.allocator.free(*block).unwrap());
    full.allocator.free(away).unwrap();
    full
}

/// Free chunks between live ones on each of several streams, and small blocks.
fn on_several_streams(chunks: u64) -> Full {
    const STREAMS: u64 = 8;
    let full = Full::new(2 * chunks + 64);
    for _ in 0..STREAMS {
        let stream = full.allocator.driver().create_stream().unwrap();
        full.allocator.keep_stream(stream).unwrap();
        let blocks: Vec<_> = (0..1000).map(|_| full.allocator.alloc_raw(10 * KIB, stream).unwrap()).collect();
        blocks.iter().step_by(2).for_each(|block| full.allocator.free(*block).unwrap());
        full.every_other_free(2 * chunks / STREAMS, stream);
    }
    // Streams have reused each other's blocks: what is pending is settled now.
    full.allocator.trim(u64::MAX).unwrap();
    full
}

/// Makes an allocator with so many free chunks.
type Setting = fn(u64) -> Full;

const SETTINGS: [(&str, Setting); 5] = [
    ("one block", in_one_block),
    ("between live blocks", between_live),
    ("stale views", with_stale_views),
    ("in turn", in_turn),
    ("several streams", on_several_streams),
];

/// Most steps under a stream's lock while `work` is done, for few chunks and for many.
fn assert_bounded(what: &str, most: u64, work: impl Fn(&Full, u64)) {
    for (name, setting) in SETTINGS {
        for chunks in [1_000, 16_000] {
            let full = setting(chunks);
            let longest = longest_hold_of(|| work(&full, chunks));
            assert!(longest > 0 && longest <= most, "{what}, {name}: {longest} steps at once for {chunks} chunks");
            full.allocator.check();
        }
    }
}

#[test]
fn a_growth_locks_no_stream_for_long() {
    assert_bounded("growth", MOST, |full, chunks| {
        full.alloc(chunks, MAIN);
    });
}

/// A range takes free chunks of the streams.
#[test]
fn a_range_locks_no_stream_for_long() {
    assert_bounded("range", MOST, |full, chunks| {
        let mut range = full.allocator.reserve_range(chunks * PAGE).unwrap();
        range.grow(chunks * PAGE, MAIN).unwrap();
    });
}

#[test]
fn figures_lock_no_stream_for_long() {
    assert_bounded("statistics", MOST, |full, _| drop(full.allocator.stats()));
    // A block is a step, and nothing else is done with it.
    assert_bounded("snapshot", 1100, |full, _| drop(full.allocator.snapshot()));
    assert_bounded("report", 1100, |full, chunks| {
        full.allocator.alloc_raw(3 * chunks * PAGE, MAIN).unwrap_err();
    });
}

#[test]
fn a_trim_locks_no_stream_for_long() {
    assert_bounded("trim", MOST, |full, _| assert!(full.allocator.trim(0).unwrap().released_bytes > 0));
}

/// All blocks of a chunk are marked at once.
#[test]
fn a_sleep_and_a_wake_lock_no_stream_for_long() {
    assert_bounded("sleep", 1100, |full, _| {
        assert!(full.allocator.sleep(Backup::Pinned).unwrap().released_bytes > 0);
    });
    assert_bounded("wake", 1100, |full, _| {
        full.allocator.sleep(Backup::Discard).unwrap();
        full.allocator.wake(Duration::ZERO).unwrap();
    });
}

/// Chunks with few blocks are marked one at a time, too.
#[test]
fn a_sleep_marks_few_blocks_at_once() {
    let full = between_live(1_000);
    let longest = longest_hold_of(|| {
        full.allocator.sleep(Backup::Discard).unwrap();
    });
    assert!(longest > 0 && longest <= 100, "{longest} steps at once");
    full.allocator.check();
}

/// Blocks that other streams have used are freed a few at a time, once those have passed.
#[test]
fn settling_locks_no_stream_for_long() {
    for blocks in [1_000, 16_000] {
        let full = Full::new(64);
        let used: Vec<_> = (0..blocks).map(|_| full.allocator.alloc_raw(4 * KIB, MAIN).unwrap()).collect();
        used.iter().for_each(|block| full.allocator.record_stream(*block, full.other).unwrap());
        used.iter().for_each(|block| full.allocator.free(*block).unwrap());
        assert_eq!(full.allocator.stats().pending_bytes, blocks * 4 * KIB);
        let longest = longest_hold_of(|| _ = full.allocator.trim(u64::MAX).unwrap());
        assert!(longest > 0 && longest <= MOST, "{longest} steps at once for {blocks} blocks");
        assert_eq!(full.allocator.stats().pending_bytes, 0);
        full.allocator.check();
    }
}

/// What a piece of the work finds is collected in memory that is there: to get more takes the longer, the more there is already.
/// A heap that has more blocks than ever gets a larger table all the same, which is empty.
#[test]
fn no_list_grows_while_a_stream_is_locked() {
    const CHUNKS: u64 = 4_000;
    let assert_small = |what: &str, settings: &[(&str, Setting)], work: fn(&Full)| {
        for (name, setting) in settings {
            let full = setting(CHUNKS);
            let largest = largest_request_of(|| work(&full));
            assert!(largest < 8 * CHUNKS as usize + 1_000, "{what}, {name}: {largest} bytes at once");
        }
    };
    assert_small("growth", &SETTINGS, |full| _ = full.alloc(CHUNKS, MAIN));
    assert_small("statistics", &SETTINGS, |full| drop(full.allocator.stats()));
    assert_small("trim", &SETTINGS, |full| _ = full.allocator.trim(0).unwrap());
    // In the others, marking cuts blocks up.
    let few_blocks = [SETTINGS[1], SETTINGS[2], SETTINGS[4]];
    assert_small("sleep", &few_blocks, |full| _ = full.allocator.sleep(Backup::Pinned).unwrap());
    assert_small("wake", &few_blocks, |full| {
        full.allocator.sleep(Backup::Discard).unwrap();
        full.allocator.wake(Duration::ZERO).unwrap();
    });
}

/// Reads statistics at every call that maps, in the midst of a growth: on its very thread, which would wait for itself.
#[test]
fn statistics_wait_for_no_growth() {
    let config = ModelConfig { capacity_bytes: 8 * PAGE, ..ModelConfig::default() };
    let driver = busy(&Arc::new(ModelDriver::new(config)));
    let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
    let allocator = builder.build().unwrap();
    let (during, reserved_pages) = (allocator.clone(), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&reserved_pages);
    driver.meanwhile(move |call| {
        if call == Some(DriverCall::Map) {
            let stats = during.stats();
            assert_eq!(stats.reserved_bytes, during.reserved_bytes());
            assert!(stats.live_bytes <= stats.reserved_bytes && stats.fragmentation.free_bytes <= 8 * PAGE);
            noted.lock().unwrap().push(stats.reserved_bytes / PAGE);
        }
        Ok(())
    });
    let block = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    allocator.alloc_raw(PAGE, MAIN).unwrap();
    allocator.free(block).unwrap();
    allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    // As before the growth that is under way.
    let seen = reserved_pages.lock().unwrap().clone();
    assert!(seen.starts_with(&[0, 0, 2]) && seen.iter().skip(3).all(|pages| *pages == 3), "{seen:?}");
    assert_eq!(allocator.stats().live_bytes, 5 * PAGE);
    allocator.check();
}
