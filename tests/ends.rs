//! The end of an allocator whose streams cannot be waited for.

use gapless::allocator::CloseError;
use gapless::driver::{
    DriverCall, DriverErrorKind, HoldStreams, HostConfig, HostDriver, ModelConfig, ModelDriver, WorkDriver,
};
use gapless::{Allocator, StreamId};
use std::sync::Arc;

fn model() -> Arc<ModelDriver> {
    Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 64 << 20, ..ModelConfig::default() }))
}

/// A stream is destroyed while its work is queued: the whole device is waited for in its place.
#[test]
fn a_stream_that_was_destroyed_is_waited_for_with_the_device() {
    let driver = model();
    let (stream, other) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    let block = allocator.alloc_raw(4 << 20, stream).unwrap();
    driver.hold(other);
    driver.fill(other, block, 4 << 20, 1).unwrap();
    allocator.free(block).unwrap();
    driver.destroy_stream(stream).unwrap();
    let before = driver.calls()[DriverCall::Synchronize];
    allocator.close().unwrap();
    assert_eq!(driver.calls()[DriverCall::Synchronize], before + 1);
    assert_eq!(driver.usage().chunks, 0);
}

/// During a capture nothing can be waited for: what may be in use stays mapped.
#[test]
fn nothing_is_unmapped_that_cannot_be_waited_for() {
    let driver = model();
    let (stream, other) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
    for keeps in [false, true] {
        let builder = Allocator::builder(Arc::clone(&driver));
        let allocator = if keeps { builder.keep_mappings() } else { builder }.build().unwrap();
        let block = allocator.alloc_raw(4 << 20, stream).unwrap();
        // A replay, which is not reported to the allocator.
        driver.hold(other);
        driver.fill(other, block, 4 << 20, 1).unwrap();
        allocator.free(block).unwrap();
        driver.begin_capture(stream);
        let before = driver.usage();
        let error = allocator.close().unwrap_err();
        assert!(matches!(error, CloseError::Driver(error) if error.kind == DriverErrorKind::Capturing));
        assert_eq!(driver.usage(), before, "all as it was");
        driver.end_capture(stream);
        driver.complete(other);
    }
}

/// A program that has waited need not wait again.
#[test]
fn closing_after_a_wait_works_during_a_capture() {
    let driver = model();
    let stream = driver.create_stream().unwrap();
    let allocator = Allocator::builder(Arc::clone(&driver)).keep_mappings().build().unwrap();
    let block = allocator.alloc_raw(4 << 20, stream).unwrap();
    driver.fill(stream, block, 4 << 20, 1).unwrap();
    allocator.free(block).unwrap();
    driver.synchronize(stream).unwrap();
    driver.begin_capture(StreamId::DEFAULT);
    allocator.close_after_wait().unwrap();
    driver.end_capture(StreamId::DEFAULT);
    let usage = driver.usage();
    assert_eq!((usage.chunks, usage.mappings, usage.reservations, usage.events), (0, 0, 0, 0));
}

/// Replays run on streams that the allocator does not know.
#[test]
fn an_allocator_that_keeps_its_mappings_waits_for_the_device() {
    let driver = Arc::new(HostDriver::new(HostConfig { capacity_bytes: 64 << 20, ..HostConfig::default() }).unwrap());
    let (stream, other) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
    let allocator = Allocator::builder(Arc::clone(&driver)).keep_mappings().build().unwrap();
    let block = allocator.alloc_raw(4 << 20, stream).unwrap();
    driver.hold(other);
    driver.fill(other, block, 4 << 20, 1).unwrap();
    allocator.free(block).unwrap();
    allocator.close().unwrap();
    assert_eq!(driver.take_violations(), []);
}
