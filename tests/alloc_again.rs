//! Allocations at addresses that were handed out before.

use gapless::allocator::{AddressFacts, AllocAgainError, AllocError};
use gapless::driver::{
    DriverCall, DriverResult, EventHandle, Hook, Intercepted, ModelConfig, ModelDriver, StreamDriver, WorkDriver,
};
use gapless::{Allocator, ChunkPolicy, DeviceAddr, StreamId};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

fn allocator(pages: u64) -> Allocator<ModelDriver> {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() }));
    Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).keep_mappings().build().unwrap()
}

fn facts(outcome: Result<(), AllocAgainError>) -> AddressFacts {
    match outcome {
        Err(AllocAgainError::NotFree { facts, .. }) => facts,
        other => panic!("{other:?}"),
    }
}

#[test]
fn blocks_come_back_in_any_order() {
    let allocator = allocator(64);
    let sizes = [512, 70_000, 3 * PAGE, 1, PAGE / 2, 0];
    let blocks: Vec<(DeviceAddr, u64)> =
        sizes.iter().map(|&size| (allocator.alloc_raw(size, MAIN).unwrap(), size)).collect();
    for order in [[0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0], [2, 4, 0, 5, 3, 1]] {
        blocks.iter().for_each(|(addr, _)| allocator.free(*addr).unwrap());
        let before = allocator.stats();
        for number in order {
            let (addr, bytes) = blocks[number];
            allocator.alloc_again(addr, bytes).unwrap();
            assert_eq!(allocator.live_around(addr).map(|live| (live.addr, live.bytes)), Some((addr, bytes)));
            allocator.check();
        }
        let after = allocator.stats();
        assert_eq!(after.live_bytes, sizes.iter().sum::<u64>());
        assert_eq!(after.allocs, before.allocs + 6);
        assert_eq!(after.driver_calls.total(), before.driver_calls.total());
    }
    let other = allocator.alloc_raw(PAGE, MAIN).unwrap();
    assert!(blocks.iter().all(|(addr, _)| *addr != other));
}

/// Memory that comes back counts towards the peak, whether it was free at its place or had moved.
#[test]
fn what_comes_back_counts_towards_the_peak() {
    let allocator = allocator(16);
    let blocks = [(); 4].map(|()| allocator.alloc_raw(4 * PAGE, MAIN).unwrap());
    allocator.free(blocks[0]).unwrap();
    allocator.free(blocks[2]).unwrap();
    let moved = allocator.alloc_raw(8 * PAGE, MAIN).unwrap();
    for block in [moved, blocks[1], blocks[3]] {
        allocator.free(block).unwrap();
    }
    allocator.reset_peaks();
    let mut live = 0;
    for block in [blocks[1], blocks[0], blocks[2]] {
        allocator.alloc_again(block, 4 * PAGE).unwrap();
        live += 4 * PAGE;
        assert_eq!((allocator.stats().live_bytes, allocator.stats().peak_live_bytes), (live, live));
        allocator.check();
    }
    blocks[..3].iter().for_each(|block| allocator.free(*block).unwrap());
    assert_eq!((allocator.stats().live_bytes, allocator.stats().peak_live_bytes), (0, live));
    allocator.check();
}

/// The worked example of the documents: the chunks of A and C are mapped a second time for E, and A and C come back.
#[test]
fn memory_that_moved_is_brought_back() {
    let allocator = allocator(16);
    let blocks = [(); 4].map(|()| allocator.alloc_raw(4 * PAGE, MAIN).unwrap());
    allocator.free(blocks[0]).unwrap();
    allocator.free(blocks[2]).unwrap();
    let moved = allocator.alloc_raw(8 * PAGE, MAIN).unwrap();
    assert!(matches!(facts(allocator.alloc_again(blocks[0], 4 * PAGE)), AddressFacts::NeverAllocated));
    allocator.free(moved).unwrap();
    let calls = allocator.stats().driver_calls.total();
    for block in [blocks[2], blocks[0]] {
        allocator.alloc_again(block, 4 * PAGE).unwrap();
        allocator.check();
    }
    assert_eq!(allocator.stats().driver_calls.total(), calls);
    // Both states cannot be had at once.
    assert!(allocator.alloc_again(moved, 8 * PAGE).is_err());
    allocator.free(blocks[0]).unwrap();
    allocator.free(blocks[2]).unwrap();
    allocator.alloc_again(moved, 8 * PAGE).unwrap();
    allocator.check();
}

/// A part of what has moved is wanted: the rest is free afterwards, and comes back too.
#[test]
fn small_blocks_of_a_page_that_moved() {
    let allocator = allocator(8);
    let quarter = PAGE / 4;
    let blocks: Vec<DeviceAddr> = (0..16).map(|_| allocator.alloc_raw(quarter, MAIN).unwrap()).collect();
    let rest = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    blocks.iter().for_each(|addr| allocator.free(*addr).unwrap());
    let moved = allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
    allocator.free(moved).unwrap();
    for addr in blocks.iter().step_by(3) {
        allocator.alloc_again(*addr, quarter).unwrap();
        allocator.check();
    }
    assert_eq!(allocator.stats().live_bytes, 4 * PAGE + 6 * quarter);
    allocator.free(rest).unwrap();
}

#[test]
fn what_is_not_free_is_refused() {
    let allocator = allocator(32);
    let other = allocator.driver().create_stream().unwrap();
    let [one, two] = [(); 2].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
    let live = AddressFacts::Inside { start: one, bytes: PAGE };
    assert_eq!(facts(allocator.alloc_again(one, PAGE)), live);
    assert_eq!(facts(allocator.alloc_again(one.offset(512), 1)), live);
    allocator.free(one).unwrap();
    let reaching = AddressFacts::Inside { start: two, bytes: PAGE };
    assert_eq!(facts(allocator.alloc_again(one, PAGE + 1)), reaching);
    assert_eq!(facts(allocator.alloc_again(one.offset(100), 1)), AddressFacts::NeverAllocated);
    assert_eq!(facts(allocator.alloc_again(DeviceAddr(512), 1)), AddressFacts::Foreign);
    assert_eq!(facts(allocator.alloc_again(one, u64::MAX)), AddressFacts::NeverAllocated);
    allocator.keep_stream(other).unwrap();
    allocator.record_stream(two, other).unwrap();
    allocator.driver().hold(other);
    allocator.free(two).unwrap();
    assert_eq!(facts(allocator.alloc_again(two, PAGE)), AddressFacts::Freed { pending: true });
    let stats = allocator.stats();
    assert_eq!((stats.live_bytes, stats.live_allocations), (0, 0));
    allocator.check();
    allocator.driver().resume(other);
    assert!(allocator.live_around(one).is_none());
}

/// Memory that went back to the driver is not there any more, and nothing is mapped in its place.
#[test]
fn what_was_returned_is_not_there() {
    let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
    let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let [one, two] = [(); 2].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
    allocator.free(one).unwrap();
    allocator.trim(0).unwrap();
    // The other chunk is free now, and could be mapped there.
    allocator.free(two).unwrap();
    assert_eq!(facts(allocator.alloc_again(one, PAGE)), AddressFacts::NeverAllocated);
    assert_eq!((allocator.reserved_bytes(), allocator.stats().harvested_chunks), (PAGE, 0));
    allocator.check();
}

/// A block of another stream, whose memory moved to one of the default stream. That one has been freed, behind work that is still
/// running, and can be brought back. Returns the address of the first, and the stream.
fn of_another_stream(allocator: &Allocator<ModelDriver>) -> (DeviceAddr, StreamId) {
    let driver = allocator.driver();
    let stream = driver.create_stream().unwrap();
    allocator.keep_stream(stream).unwrap();
    let [block, between, last] = [2, 1, 1].map(|pages| allocator.alloc_raw(pages * PAGE, stream).unwrap());
    allocator.free(block).unwrap();
    allocator.free(last).unwrap();
    let moved = allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
    assert_eq!((allocator.stats().harvested_chunks, allocator.reserved_bytes()), (3, 4 * PAGE));
    allocator.free(between).unwrap();
    driver.hold(MAIN);
    driver.fill(MAIN, moved, 3 * PAGE, 1).unwrap();
    allocator.free(moved).unwrap();
    (block, stream)
}

/// The same, of a stream that has been forgotten and destroyed since.
fn of_a_destroyed_stream(allocator: &Allocator<ModelDriver>) -> DeviceAddr {
    let (block, stream) = of_another_stream(allocator);
    allocator.forget_stream(stream).unwrap();
    allocator.driver().destroy_stream(stream).unwrap();
    block
}

fn four_pages() -> Allocator<ModelDriver> {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 4 * PAGE, ..ModelConfig::default() }));
    Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap()
}

#[test]
fn a_stream_that_is_kept_waits_on_the_device() {
    let allocator = four_pages();
    let (block, _) = of_another_stream(&allocator);
    allocator.alloc_again(block, 2 * PAGE).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.host_waits, stats.driver_calls[DriverCall::StreamWait]), (0, 2), "one for each page");
    allocator.check();
    allocator.free(block).unwrap();
    allocator.close().unwrap();
}

/// The driver must not be asked to order a stream behind others that has been destroyed: the host waits, unless all work has
/// completed. The model panics where the handle is used.
#[test]
fn the_host_waits_in_the_place_of_a_destroyed_stream() {
    for (completes, waits) in [(false, 1), (true, 0)] {
        let allocator = four_pages();
        let block = of_a_destroyed_stream(&allocator);
        assert_eq!(allocator.stats().host_waits, 0);
        if completes {
            allocator.driver().resume(MAIN);
        }
        allocator.alloc_again(block, 2 * PAGE).unwrap();
        assert_eq!(allocator.live_around(block).map(|live| (live.addr, live.bytes)), Some((block, 2 * PAGE)));
        let stats = allocator.stats();
        assert_eq!((stats.host_waits, stats.driver_calls[DriverCall::StreamWait]), (waits, 0));
        allocator.check();
        allocator.free(block).unwrap();
        allocator.close().unwrap();
    }
}

/// A block that was freed while its stream, which has been destroyed since, was still at work on it. It has not moved.
fn freed_on_a_busy_stream(allocator: &Allocator<ModelDriver>, is_kept: bool) -> (DeviceAddr, EventHandle) {
    let driver = allocator.driver();
    let stream = driver.create_stream().unwrap();
    if is_kept {
        allocator.keep_stream(stream).unwrap();
    }
    let block = allocator.alloc_raw(PAGE, stream).unwrap();
    driver.delay(stream, Duration::from_secs(1)).unwrap();
    driver.fill(stream, block, PAGE, 1).unwrap();
    let end = driver.event_create().unwrap();
    driver.event_record(end, stream).unwrap();
    allocator.free(block).unwrap();
    if is_kept {
        allocator.forget_stream(stream).unwrap();
    }
    driver.abandon_stream(stream).unwrap();
    (block, end)
}

/// Nobody can order work behind a stream that is not there any more: the host has waited for it when its block comes back.
#[test]
fn the_work_of_a_destroyed_stream_is_over_when_its_block_comes_back() {
    for is_kept in [true, false] {
        let allocator = four_pages();
        let (block, end) = freed_on_a_busy_stream(&allocator, is_kept);
        assert!(!allocator.driver().event_query(end).unwrap());
        allocator.alloc_again(block, PAGE).unwrap();
        assert!(allocator.driver().event_query(end).unwrap(), "kept {is_kept}: the block is in use");
        assert_eq!(allocator.stats().host_waits, 1);
        allocator.free(block).unwrap();
        allocator.alloc_again(block, PAGE).unwrap();
        allocator.check();
        allocator.driver().event_destroy(end).unwrap();
        allocator.free(block).unwrap();
        allocator.close().unwrap();
    }
}

/// The same where a part of the block has moved, and is free at its new place.
#[test]
fn the_work_of_a_destroyed_stream_is_over_when_a_part_of_its_block_comes_back() {
    for is_kept in [true, false] {
        let allocator = four_pages();
        let driver = allocator.driver();
        let stream = driver.create_stream().unwrap();
        if is_kept {
            allocator.keep_stream(stream).unwrap();
        }
        let [first, second] = [(); 2].map(|()| allocator.alloc_raw(PAGE, stream).unwrap());
        assert_eq!(second, first.offset(PAGE));
        allocator.free(second).unwrap();
        let moved = allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
        assert!(allocator.stats().harvested_chunks > 0);
        allocator.free(moved).unwrap();
        driver.delay(stream, Duration::from_secs(1)).unwrap();
        driver.fill(stream, first, PAGE, 1).unwrap();
        let end = driver.event_create().unwrap();
        driver.event_record(end, stream).unwrap();
        allocator.free(first).unwrap();
        if is_kept {
            allocator.forget_stream(stream).unwrap();
        }
        driver.abandon_stream(stream).unwrap();
        allocator.alloc_again(first, 2 * PAGE).unwrap();
        assert!(driver.event_query(end).unwrap(), "kept {is_kept}: the block is in use");
        allocator.check();
        driver.event_destroy(end).unwrap();
    }
}

/// Something that another thread does right after the first wait of the host.
struct AfterWait(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hook for AfterWait {
    fn around<T>(&self, call: DriverCall, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        let outcome = run();
        if matches!(call, DriverCall::Synchronize | DriverCall::EventSynchronize)
            && let Some(what) = self.0.lock().unwrap().take()
        {
            std::thread::spawn(what).join().unwrap();
        }
        outcome
    }
}

/// The same where another thread frees a part of the bytes while the host waits for the rest.
#[test]
fn what_is_freed_during_the_wait_is_waited_for_as_well() {
    for has_moved in [false, true] {
        let model = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 4 * PAGE, ..ModelConfig::default() }));
        let driver = Arc::new(Intercepted::with_hook(Arc::clone(&model), AfterWait(Mutex::default())));
        let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
        let allocator = builder.build().unwrap();
        let stream = driver.create_stream().unwrap();
        let [first, second, third] = [(); 3].map(|()| allocator.alloc_raw(PAGE, stream).unwrap());
        if has_moved {
            allocator.free(third).unwrap();
            let moved = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
            allocator.free(moved).unwrap();
        }
        let end = driver.event_create().unwrap();
        driver.delay(stream, Duration::from_secs(1)).unwrap();
        driver.fill(stream, first, PAGE, 1).unwrap();
        allocator.free(first).unwrap();
        let (theirs, model) = (allocator.clone(), Arc::clone(&model));
        *driver.hook().0.lock().unwrap() = Some(Box::new(move || {
            model.delay(stream, Duration::from_secs(1)).unwrap();
            model.fill(stream, second, PAGE, 1).unwrap();
            model.event_record(end, stream).unwrap();
            theirs.free(second).unwrap();
            model.abandon_stream(stream).unwrap();
        }));
        allocator.alloc_again(first, if has_moved { 3 } else { 2 } * PAGE).unwrap();
        assert!(driver.hook().0.lock().unwrap().is_none(), "the host has not waited");
        assert!(driver.event_query(end).unwrap(), "moved {has_moved}: the block is in use");
        allocator.check();
        driver.event_destroy(end).unwrap();
    }
}

/// While a stream is captured the host cannot wait for the device.
#[test]
fn a_block_of_a_destroyed_stream_does_not_come_back_during_a_capture() {
    let allocator = four_pages();
    let (block, end) = freed_on_a_busy_stream(&allocator, false);
    allocator.alloc_raw(1, MAIN).unwrap();
    allocator.driver().begin_capture(MAIN);
    assert!(matches!(allocator.alloc_again(block, PAGE), Err(AllocAgainError::Alloc(AllocError::CannotWait { .. }))));
    assert!(allocator.live_around(block).is_none());
    allocator.check();
    allocator.driver().end_capture(MAIN);
    allocator.alloc_again(block, PAGE).unwrap();
    allocator.driver().event_destroy(end).unwrap();
}

/// A stream that is kept runs later work behind what it did before, so that the host need not wait.
#[test]
fn a_block_of_a_stream_that_is_kept_comes_back_at_once() {
    let allocator = four_pages();
    let stream = allocator.driver().create_stream().unwrap();
    allocator.keep_stream(stream).unwrap();
    let block = allocator.alloc_raw(PAGE, stream).unwrap();
    allocator.driver().hold(stream);
    allocator.driver().fill(stream, block, PAGE, 1).unwrap();
    allocator.free(block).unwrap();
    allocator.alloc_again(block, PAGE).unwrap();
    assert_eq!(allocator.stats().host_waits, 0);
    allocator.free(block).unwrap();
}

/// No event shows when the stream that is being captured has passed its last use of the memory, and nothing can be ordered behind
/// it: the memory stays where it is.
#[test]
fn what_cannot_be_waited_for_does_not_come_back() {
    let allocator = four_pages();
    let block = of_a_destroyed_stream(&allocator);
    allocator.driver().begin_capture(MAIN);
    assert!(matches!(facts(allocator.alloc_again(block, 2 * PAGE)), AddressFacts::NeverAllocated));
    allocator.check();
    allocator.driver().end_capture(MAIN);
    allocator.alloc_again(block, 2 * PAGE).unwrap();
    allocator.check();
    allocator.free(block).unwrap();
    allocator.close().unwrap();
}
