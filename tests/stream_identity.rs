//! Which stream a handle stands for: values that come back, streams that are gone, and the default stream of a thread.

#[path = "simulated/mod.rs"]
mod simulated;

use gapless::allocator::{AllocError, ChunkPolicy};
use gapless::driver::cuda::PER_THREAD_STREAM;
use gapless::driver::{DriverCall, ModelConfig, ModelDriver, WorkDriver};
use gapless::units::{KIB, MIB};
use gapless::{Allocator, DeviceAddr, StreamId};
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 64 * KIB;
const PAGES: u64 = 16;

fn device() -> (Arc<ModelDriver>, Allocator<ModelDriver>) {
    let config = ModelConfig { capacity_bytes: PAGES * PAGE, granularity: PAGE, ..ModelConfig::default() };
    let driver = Arc::new(ModelDriver::new(config));
    let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
    (driver, builder.build().unwrap())
}

/// A stream that is busy with a block that was freed on it.
fn busy(driver: &ModelDriver, allocator: &Allocator<ModelDriver>, bytes: u64) -> (StreamId, DeviceAddr) {
    let stream = driver.create_stream().unwrap();
    let block = allocator.alloc_raw(bytes, stream).unwrap();
    driver.hold(stream);
    driver.fill(stream, block, bytes, 1).unwrap();
    allocator.free(block).unwrap();
    (stream, block)
}

#[test]
fn a_stream_of_the_same_handle_is_another_one() {
    let (driver, allocator) = device();
    let (stream, block) = busy(&driver, &allocator, PAGE);
    driver.abandon_stream(stream).unwrap();
    let next = driver.create_stream().unwrap();
    assert_eq!(next, stream, "the value comes back");
    let other = allocator.alloc_raw(PAGE, next).unwrap();
    assert_ne!(other, block, "work of the destroyed stream may still use it");
    allocator.check();
    allocator.free(other).unwrap();
    allocator.close().unwrap();
}

/// The model panics when it is given the handle of a destroyed stream.
#[test]
fn a_destroyed_stream_is_waited_for_with_the_device() {
    let (driver, allocator) = device();
    let kept = driver.create_stream().unwrap();
    allocator.keep_stream(kept).unwrap();
    let (stream, _) = busy(&driver, &allocator, PAGES * PAGE);
    driver.abandon_stream(stream).unwrap();
    let all = allocator.alloc_raw(PAGES * PAGE, kept).unwrap();
    driver.fill(kept, all, PAGES * PAGE, 2).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.host_waits, stats.driver_calls[DriverCall::Synchronize]), (1, 1));
    allocator.check();
    allocator.free(all).unwrap();
    allocator.close().unwrap();
    assert!(driver.usage().chunks == 0);
}

#[test]
fn a_forgotten_stream_needs_no_wait_for_the_device() {
    let (driver, allocator) = device();
    let stream = driver.create_stream().unwrap();
    allocator.keep_stream(stream).unwrap();
    let block = allocator.alloc_raw(PAGES * PAGE, stream).unwrap();
    driver.fill(stream, block, PAGE, 1).unwrap();
    allocator.forget_stream(stream).unwrap();
    driver.destroy_stream(stream).unwrap();
    // Freed after its stream has ended: nothing was queued behind the last event.
    allocator.free(block).unwrap();
    let all = allocator.alloc_raw(PAGES * PAGE, StreamId::DEFAULT).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.host_waits, stats.driver_calls[DriverCall::Synchronize]), (0, 0));
    allocator.check();
    allocator.free(all).unwrap();
    allocator.forget_stream(simulated::stream(77)).unwrap();
    allocator.close().unwrap();
}

/// Streams that come and go take the places of those that are gone, with their addresses.
#[test]
fn many_short_lives_need_few_regions() {
    let (driver, allocator) = device();
    for round in 0..200 {
        let stream = driver.create_stream().unwrap();
        let block = allocator.alloc_raw(PAGE, stream).unwrap();
        driver.fill(stream, block, PAGE, round).unwrap();
        allocator.free(block).unwrap();
        if round % 3 == 0 {
            allocator.forget_stream(stream).unwrap();
        }
        driver.abandon_stream(stream).unwrap();
    }
    let regions = allocator.snapshot().regions.len();
    assert!(regions <= 40, "{regions} regions for 200 streams");
    let all = allocator.alloc_raw(PAGES * PAGE, StreamId::DEFAULT).unwrap();
    allocator.free(all).unwrap();
    allocator.close().unwrap();
}

/// A block that outlives its stream belongs to whoever takes the stream's place.
#[test]
fn a_block_outlives_its_stream() {
    let (driver, allocator) = device();
    let stream = driver.create_stream().unwrap();
    let block = allocator.alloc_raw(4 * PAGE, stream).unwrap();
    driver.fill(stream, block, 4 * PAGE, 1).unwrap();
    allocator.forget_stream(stream).unwrap();
    driver.destroy_stream(stream).unwrap();
    let next = driver.create_stream().unwrap();
    let other = allocator.alloc_raw((PAGES - 4) * PAGE, next).unwrap();
    allocator.free(block).unwrap();
    allocator.free(other).unwrap();
    let all = allocator.alloc_raw(PAGES * PAGE, next).unwrap();
    allocator.check();
    allocator.free(all).unwrap();
    allocator.close().unwrap();
}

/// While a capture is under way the device cannot be waited for; afterwards it can.
#[test]
fn a_capture_puts_off_the_wait_for_the_device() {
    let (driver, allocator) = device();
    let (stream, _) = busy(&driver, &allocator, PAGES * PAGE);
    driver.abandon_stream(stream).unwrap();
    driver.begin_capture(StreamId::DEFAULT);
    let refused = allocator.alloc_raw(PAGES * PAGE, StreamId::DEFAULT).unwrap_err();
    assert!(matches!(refused, AllocError::OutOfMemory(_)), "{refused}");
    assert_eq!(driver.calls()[DriverCall::Synchronize], 0, "it would break the capture");
    driver.end_capture(StreamId::DEFAULT);
    let all = allocator.alloc_raw(PAGES * PAGE, StreamId::DEFAULT).unwrap();
    allocator.free(all).unwrap();
    allocator.close().unwrap();
}

/// Handle 2 is a stream of its own on every thread: a block freed on one is not handed out at once on another.
#[test]
fn the_default_streams_of_threads_are_different() {
    let driver = Arc::new(simulated::open(simulated::builder()).unwrap());
    let allocator = Allocator::builder(Arc::clone(&driver)).budget(64 * MIB).build().unwrap();
    let (here, there) = (allocator.clone(), Arc::clone(&driver));
    let first = std::thread::spawn(move || {
        let block = here.alloc_raw(4 * MIB, PER_THREAD_STREAM).unwrap();
        there.delay(PER_THREAD_STREAM, Duration::from_millis(50)).unwrap();
        there.fill(PER_THREAD_STREAM, block, 4 * MIB, 1).unwrap();
        here.free(block).unwrap();
        block
    })
    .join()
    .unwrap();
    let second = allocator.alloc_raw(4 * MIB, PER_THREAD_STREAM).unwrap();
    assert_ne!(first, second, "the other thread's stream may still use it");
    driver.fill(PER_THREAD_STREAM, second, 4 * MIB, 2).unwrap();
    driver.verify(PER_THREAD_STREAM, second, 4 * MIB, 2).unwrap();
    driver.synchronize(PER_THREAD_STREAM).unwrap();
    assert_eq!(driver.take_mismatches(), []);
    // All of the budget, whoever used it: the device is waited for.
    allocator.free(second).unwrap();
    let all = allocator.alloc_raw(64 * MIB, PER_THREAD_STREAM).unwrap();
    driver.fill(PER_THREAD_STREAM, all, 64 * MIB, 3).unwrap();
    driver.verify(PER_THREAD_STREAM, all, 64 * MIB, 3).unwrap();
    driver.synchronize(PER_THREAD_STREAM).unwrap();
    assert_eq!(driver.take_mismatches(), []);
    allocator.free(all).unwrap();
    allocator.check();
    allocator.close().unwrap();
}
