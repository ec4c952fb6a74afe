//! Tests: what many streams, regions and pending blocks cost. They count: times would depend on the machine.

use super::{Allocator, ChunkPolicy, RegionKind};
use crate::driver::{CheckedDriver, Driver, DriverCall, ModelConfig, ModelDriver, WorkDriver};
use crate::sync::Ordering;
use crate::testing::{busy, steps_of};
use crate::units::{DeviceAddr, GIB, MIB, StreamId, TIB};
use std::sync::{Arc, OnceLock};

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;

fn model(capacity_bytes: u64) -> Arc<ModelDriver> {
    Arc::new(ModelDriver::new(ModelConfig { capacity_bytes, max_mappings: usize::MAX, ..ModelConfig::default() }))
}

/// A stream that the allocator may name at any time.
fn kept<D: CheckedDriver + WorkDriver>(allocator: &Allocator<D>) -> StreamId {
    let stream = allocator.driver().create_stream().unwrap();
    allocator.keep_stream(stream).unwrap();
    stream
}

/// Number of allocations so far that no cached block served.
fn slow_allocs<D: Driver>(allocator: &Allocator<D>) -> u64 {
    allocator.inner.shared.counters.slow_allocs.load(Ordering::Relaxed)
}

/// Number of rounds that those took.
fn rounds<D: Driver>(allocator: &Allocator<D>) -> u64 {
    allocator.inner.shared.counters.rounds.load(Ordering::Relaxed)
}

#[test]
fn thousands_of_streams_have_addresses() {
    for capacity in [80 * GIB, TIB] {
        let allocator = Allocator::builder(model(capacity)).build().unwrap();
        for number in 0..4000 {
            let block = allocator.alloc_raw(PAGE, kept(&allocator)).unwrap();
            if number % 2 == 0 {
                allocator.free(block).unwrap();
            }
        }
        allocator.check();
    }
}

/// Whenever a stream came, it can use what memory is left.
#[test]
fn late_streams_get_large_regions() {
    for capacity in [16 * GIB, 80 * GIB, TIB] {
        let driver = model(capacity);
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let mut streams = vec![MAIN];
        streams.extend((1..400).map(|_| kept(&allocator)));
        let mut blocks = Vec::new();
        for stream in &streams {
            blocks.push(allocator.alloc_raw(100, *stream).unwrap());
            blocks.push(allocator.alloc_raw(PAGE, *stream).unwrap());
        }
        for stream in [*streams.last().unwrap(), streams[streams.len() / 2], streams[5]] {
            for _ in 0..2 {
                let large = allocator.alloc_raw(capacity / 4, stream);
                allocator.free(large.unwrap_or_else(|error| panic!("{capacity}: {error}"))).unwrap();
            }
        }
        allocator.check();
        for block in blocks {
            allocator.free(block).unwrap();
        }
        assert_eq!(allocator.live_bytes(), 0);
        allocator.close().unwrap();
    }
}

/// The first stream's regions are as large as ever; others do with one or two regions of a kind for some memory.
#[test]
fn a_stream_has_few_regions() {
    let allocator = Allocator::builder(model(80 * GIB)).build().unwrap();
    for (number, most) in [(0, 1), (1, 1), (5, 1), (10, 2), (30, 6), (100, 9)] {
        let mut stream = MAIN;
        while allocator.inner.shared.streams.iter().count() <= number {
            stream = kept(&allocator);
            allocator.alloc_raw(PAGE, stream).unwrap();
        }
        let blocks: Vec<DeviceAddr> = (0..60).map(|_| allocator.alloc_raw(GIB, stream).unwrap()).collect();
        let state = allocator.inner.shared.streams.find(stream).unwrap().lock();
        let regions = state.regions.of_kind(RegionKind::Large).count();
        drop(state);
        assert!(regions <= most, "{regions} regions of stream {number}");
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
        allocator.trim(0).unwrap();
    }
}

#[test]
fn the_budget_can_be_raised() {
    let driver = model(80 * GIB);
    let allocator = Allocator::builder(Arc::clone(&driver)).budget(GIB).build().unwrap();
    assert!(allocator.alloc_raw(8 * GIB, MAIN).unwrap_err().to_string().contains("out of memory"));
    allocator.set_budget(80 * GIB).unwrap();
    let block = allocator.alloc_raw(8 * GIB, MAIN).unwrap();
    allocator.check();
    allocator.free(block).unwrap();
    // What others held at the start.
    let driver = model(80 * GIB);
    driver.set_external(79 * GIB);
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    driver.set_external(0);
    allocator.set_budget(70 * GIB).unwrap();
    allocator.alloc_raw(20 * GIB, MAIN).unwrap();
    // More than the device has is not free.
    allocator.set_budget(u64::MAX).unwrap();
    assert!(allocator.stats().fragmentation.free_bytes <= 80 * GIB);
    assert_eq!(allocator.budget(), u64::MAX);
}

/// Regions without end: a cached block in the last one is found without the slow path.
#[test]
fn a_cached_block_is_found_in_any_region() {
    let builder = Allocator::builder(model(80 * GIB)).chunk_policy(ChunkPolicy::Fixed(64 * MIB));
    let allocator = builder.region_bytes(64 * MIB).build().unwrap();
    let blocks: Vec<DeviceAddr> = (0..400).map(|_| allocator.alloc_raw(64 * MIB, MAIN).unwrap()).collect();
    assert!(allocator.inner.shared.streams.find(MAIN).unwrap().lock().regions.iter().count() >= 400);
    let before = slow_allocs(&allocator);
    for block in [399, 7, 200] {
        allocator.free(blocks[block]).unwrap();
        for bytes in [64 * MIB, PAGE, 3 * PAGE] {
            for _ in 0..3 {
                let again = allocator.alloc_raw(bytes, MAIN).unwrap();
                assert_eq!(again, blocks[block]);
                allocator.check();
                allocator.free(again).unwrap();
            }
        }
        assert_eq!(allocator.alloc_raw_aligned(64 * MIB, PAGE, MAIN).unwrap(), blocks[block]);
    }
    assert_eq!(slow_allocs(&allocator), before);
}

/// A stream that finds a block of another of just its size gets one of its own after a few times.
#[test]
fn a_stream_reuses_blocks_of_others_a_few_times_only() {
    for bytes in [PAGE, 64 * MIB] {
        let allocator = Allocator::builder(model(80 * GIB)).build().unwrap();
        let stream = kept(&allocator);
        let block = allocator.alloc_raw(bytes, MAIN).unwrap();
        allocator.free(block).unwrap();
        let events = allocator.stats().driver_calls[DriverCall::EventRecord];
        for _ in 0..1000 {
            let block = allocator.alloc_raw(bytes, stream).unwrap();
            allocator.free(block).unwrap();
        }
        let stats = allocator.stats();
        assert_eq!((stats.borrowed, slow_allocs(&allocator)), (4, 1 + 4 + 1), "{bytes} bytes");
        assert!(stats.driver_calls[DriverCall::EventRecord] - events <= 12);
        allocator.check();
    }
}

/// Streams that take turns have their own blocks after a few, though they use much less than a page each.
#[test]
fn streams_in_turn_keep_their_blocks() {
    let allocator = Allocator::builder(model(80 * GIB)).build().unwrap();
    let mut streams = vec![MAIN];
    streams.extend((1..1000).map(|_| kept(&allocator)));
    let _live: Vec<_> = streams.iter().map(|stream| allocator.alloc_raw(4096, *stream).unwrap()).collect();
    let turn = || {
        for stream in &streams {
            let block = allocator.alloc_raw(4096, *stream).unwrap();
            allocator.free(block).unwrap();
        }
    };
    (0..6).for_each(|_| turn());
    let before = slow_allocs(&allocator);
    (0..6).for_each(|_| turn());
    assert_eq!(slow_allocs(&allocator), before);
    allocator.check();
}

/// Without headroom there is nothing else to do.
#[test]
fn without_headroom_a_stream_goes_on_reusing_blocks_of_others() {
    let allocator = Allocator::builder(model(32 * PAGE)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let stream = kept(&allocator);
    let blocks: Vec<DeviceAddr> = (0..32).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
    allocator.free(blocks[3]).unwrap();
    for _ in 0..20 {
        let block = allocator.alloc_raw(PAGE, stream).unwrap();
        assert_eq!(block, blocks[3]);
        allocator.free(block).unwrap();
    }
    allocator.check();
}

/// The default stream frees all the time. A stream that grows where there is headroom wants none of that memory.
#[test]
fn no_event_is_recorded_before_memory_is_wanted() {
    let allocator = Allocator::builder(model(80 * GIB)).slack(f64::INFINITY).build().unwrap();
    let stream = kept(&allocator);
    for size in 1..50 {
        let block = allocator.alloc_raw(size * PAGE + 512, MAIN).unwrap();
        let other = allocator.alloc_raw(size * PAGE, stream).unwrap();
        allocator.free(block).unwrap();
        let _ = other;
    }
    assert_eq!(allocator.stats().driver_calls[DriverCall::EventRecord], 0);
}

/// Whatever the order in which they are recorded.
#[test]
fn a_block_of_many_streams_costs_little_for_each() {
    for count in [100, 1600] {
        let allocator = Allocator::builder(model(80 * GIB)).build().unwrap();
        let block = allocator.alloc_raw(512, MAIN).unwrap();
        let mut users: Vec<StreamId> = (0..count).map(|_| kept(&allocator)).collect();
        users.reverse();
        users.rotate_left(count / 3);
        for _ in 0..2 {
            let steps = steps_of(|| users.iter().for_each(|user| allocator.record_stream(block, *user).unwrap()));
            assert!(steps <= 20 * count as u64, "{steps} steps to record {count} streams");
        }
        allocator.free(block).unwrap();
        let streams = &allocator.inner.shared.streams;
        let steps = steps_of(|| streams.progress(None).settle_pending().unwrap());
        assert!(steps <= 3 * count as u64, "{steps} steps to settle a block of {count} streams");
        let stats = allocator.stats();
        assert_eq!((stats.pending_bytes, stats.driver_calls[DriverCall::EventQuery]), (0, count as u64));
        allocator.check();
    }
}

/// A stream that is still at work keeps the block, and those that come after it are not asked before it has passed.
#[test]
fn a_block_of_many_streams_waits_for_each() {
    let driver = model(80 * GIB);
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    let block = allocator.alloc_raw(512, MAIN).unwrap();
    let users: Vec<StreamId> = (0..5).map(|_| kept(&allocator)).collect();
    users.iter().for_each(|user| allocator.record_stream(block, *user).unwrap());
    users.iter().for_each(|user| driver.hold(*user));
    allocator.free(block).unwrap();
    let streams = &allocator.inner.shared.streams;
    let queries = || allocator.stats().driver_calls[DriverCall::EventQuery];
    for (passed, asked) in [(1, 2), (3, 3), (4, 2), (0, 1)] {
        let before = queries();
        users[..passed].iter().for_each(|user| driver.complete(*user));
        streams.progress(None).settle_pending().unwrap();
        assert_eq!((queries() - before, allocator.stats().pending_bytes), (asked, 512), "{passed} have passed");
        allocator.check();
    }
    driver.complete(users[4]);
    streams.progress(None).settle_pending().unwrap();
    assert_eq!(allocator.stats().pending_bytes, 0);
    allocator.check();
}

/// Beside others, and in the place of one that was forgotten.
#[test]
fn a_new_stream_costs_as_much_as_the_first() {
    for count in [50, 3000] {
        let allocator = Allocator::builder(model(80 * GIB)).build().unwrap();
        let pair = |stream| {
            let block = allocator.alloc_raw(512, stream).unwrap();
            allocator.free(block).unwrap();
        };
        let mut streams = vec![MAIN];
        streams.extend((1..count).map(|_| kept(&allocator)));
        streams.iter().for_each(|stream| pair(*stream));
        let steps = steps_of(|| pair(kept(&allocator)));
        assert!(steps <= 400, "{steps} steps beside {count} streams");
        streams[1..].iter().for_each(|stream| allocator.forget_stream(*stream).unwrap());
        allocator.inner.shared.streams.progress(None).refresh_clocks(false).unwrap();
        for _ in 0..3 {
            let steps = steps_of(|| pair(kept(&allocator)));
            assert!(steps <= 400, "{steps} steps after {count} streams");
        }
        assert_eq!(allocator.inner.shared.streams.iter().count(), count + 1);
        allocator.check();
    }
}

/// One query for each stream that blocks wait for, however many blocks wait.
#[test]
fn pending_blocks_cost_a_query_a_stream() {
    let driver = model(80 * GIB);
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    let others = [kept(&allocator), kept(&allocator)];
    for other in others {
        driver.hold(other);
    }
    // A region of large blocks.
    let first = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let blocks: Vec<DeviceAddr> = (0..10_000).map(|_| allocator.alloc_raw(512, MAIN).unwrap()).collect();
    for (number, block) in blocks.iter().enumerate() {
        allocator.record_stream(*block, others[number % 2]).unwrap();
        allocator.free(*block).unwrap();
    }
    let queries = || driver.calls()[DriverCall::EventQuery];
    let before = queries();
    let events = driver.usage().events;
    let large = allocator.alloc_raw(256 * PAGE, MAIN).unwrap();
    let asked = queries() - before;
    assert!(asked <= 6, "{asked} queries: two looks at three streams");
    assert!(driver.usage().events <= events + 3);
    allocator.check();
    assert_eq!(allocator.stats().pending_bytes, 512 * 10_000);
    driver.complete(others[0]);
    let larger = allocator.alloc_raw(257 * PAGE, MAIN).unwrap();
    assert_eq!(allocator.stats().pending_bytes, 512 * 5_000);
    allocator.check();
    driver.complete(others[1]);
    allocator.alloc_raw(258 * PAGE, MAIN).unwrap();
    assert_eq!(allocator.stats().pending_bytes, 0);
    allocator.check();
    [first, large, larger].into_iter().for_each(|block| allocator.free(block).unwrap());
}

#[test]
fn a_block_is_freed_while_the_host_waits_for_a_user() {
    let driver = busy(&model(80 * GIB));
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    let stream = kept(&allocator);
    let recorded = allocator.alloc_raw(PAGE, MAIN).unwrap();
    allocator.record_stream(recorded, stream).unwrap();
    let own = allocator.alloc_raw(PAGE, stream).unwrap();
    driver.inner().hold(stream);
    allocator.free(own).unwrap();
    let (during, freed) = (allocator.clone(), Arc::new(OnceLock::new()));
    let noted = Arc::clone(&freed);
    driver.meanwhile(move |call| {
        if call == Some(DriverCall::EventSynchronize) {
            // On this very thread: it would wait for itself, if a lock that a free takes were held.
            let free = during.inner.shared.streams.find(stream).unwrap().clock.try_lock().is_some();
            noted.get_or_init(|| free && during.free(recorded).is_ok());
        }
        Ok(())
    });
    allocator.trim(0).unwrap();
    assert_eq!(freed.get(), Some(&true));
    allocator.check();
}

/// Streams come and go. What a new one costs does not grow with those that have ended.
#[test]
fn a_new_stream_costs_no_more_after_many() {
    for forgotten in [false, true] {
        let driver = model(80 * GIB);
        // Without slack the memory of other streams is wanted.
        let allocator = Allocator::builder(Arc::clone(&driver)).slack(1.0).build().unwrap();
        let use_and_end = |stream| {
            let block = allocator.alloc_raw(PAGE, stream).unwrap();
            allocator.free(block).unwrap();
            if forgotten {
                allocator.forget_stream(stream).unwrap();
            }
            driver.abandon_stream(stream).unwrap();
        };
        let all: Vec<StreamId> = (0..256).map(|_| driver.create_stream().unwrap()).collect();
        all.into_iter().for_each(use_and_end);
        let (before, rounds_before) = (driver.calls(), rounds(&allocator));
        for _ in 0..64 {
            use_and_end(driver.create_stream().unwrap());
        }
        let after = driver.calls();
        let calls = |call| after[call] - before[call];
        // The end of a stream that is not forgotten is never reported: once in a while the device is waited for.
        assert!(calls(DriverCall::Synchronize) <= if forgotten { 0 } else { 64 / 16 });
        assert!(calls(DriverCall::EventQuery) <= 2 * 64);
        assert!(calls(DriverCall::Create) <= 16);
        // Memory of streams that may have ended is not looked for stream by stream.
        let taken = rounds(&allocator) - rounds_before;
        assert!(taken <= 3 * 64, "{taken} rounds for 64 allocations");
    }
}
