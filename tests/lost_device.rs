//! An error after which the device is lost is remembered by every slow path, whichever of them meets it.

use gapless::allocator::AllocError;
use gapless::driver::{DriverCall, DriverErrorKind, Fault, FaultDriver, ModelDriver};
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 << 20;

type Driver = FaultDriver<ModelDriver>;

/// An allocator with four free chunks, and one page in use.
fn allocator() -> Allocator<Driver> {
    let driver = Arc::new(FaultDriver::new(ModelDriver::default()));
    let allocator =
        Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).budget(64 * PAGE).build().unwrap();
    let free = allocator.alloc_raw(4 * PAGE, StreamId::DEFAULT).unwrap();
    allocator.alloc_raw(PAGE, StreamId::DEFAULT).unwrap();
    allocator.free(free).unwrap();
    allocator
}

fn is_lost<T: std::fmt::Debug>(result: Result<T, AllocError>) -> bool {
    matches!(result, Err(AllocError::Driver(error)) if error.kind == DriverErrorKind::DeviceLost)
}

/// Every way into the slow path fails with the loss, and none of them calls the driver.
fn assert_lost(allocator: &Allocator<Driver>) {
    let before = allocator.stats().driver_calls;
    assert!(is_lost(allocator.alloc_raw(32 * PAGE, StreamId::DEFAULT)));
    assert!(is_lost(allocator.trim(0)));
    assert!(is_lost(allocator.set_budget(PAGE)));
    assert!(is_lost(allocator.reserve_range(PAGE)));
    assert_eq!(allocator.stats().driver_calls, before);
    assert_eq!(allocator.budget(), PAGE, "the new budget holds all the same");
    assert!(allocator.alloc_raw(PAGE, StreamId::DEFAULT).is_ok(), "cached memory needs no driver");
}

fn lose(allocator: &Allocator<Driver>, call: DriverCall) {
    allocator.driver().arm(Fault::nth(0, DriverErrorKind::DeviceLost).only([call]));
}

#[test]
fn a_growth_that_loses_the_device_is_remembered() {
    let allocator = allocator();
    lose(&allocator, DriverCall::Create);
    assert!(is_lost(allocator.alloc_raw(32 * PAGE, StreamId::DEFAULT)));
    allocator.driver().disarm();
    assert_lost(&allocator);
}

#[test]
fn a_trim_that_loses_the_device_is_remembered() {
    let allocator = allocator();
    lose(&allocator, DriverCall::Unmap);
    assert!(is_lost(allocator.trim(0)));
    allocator.driver().disarm();
    assert_lost(&allocator);
}

#[test]
fn a_lower_budget_that_loses_the_device_is_remembered() {
    let allocator = allocator();
    lose(&allocator, DriverCall::Unmap);
    assert!(is_lost(allocator.set_budget(PAGE)));
    allocator.driver().disarm();
    assert_lost(&allocator);
}

#[test]
fn a_range_that_loses_the_device_is_remembered() {
    let allocator = allocator();
    lose(&allocator, DriverCall::Reserve);
    assert!(is_lost(allocator.reserve_range(PAGE)));
    allocator.driver().disarm();
    assert_lost(&allocator);
}
