//! The default budget is the device: what others free there may be had, and what they take is gone.

use gapless::allocator::{AllocError, Builder, OutOfMemory, RangeError};
use gapless::driver::{DriverCall, ModelConfig, ModelDriver};
use gapless::units::{MIB, StreamId};
use gapless::{Allocator, DeviceAddr};
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;
const PAGES: u64 = 32;
const STREAM: StreamId = StreamId::DEFAULT;

/// A device of 32 pages, of which others hold so many.
fn device(others: u64) -> Arc<ModelDriver> {
    let driver =
        ModelDriver::new(ModelConfig { granularity: PAGE, capacity_bytes: PAGES * PAGE, ..ModelConfig::default() });
    driver.set_external(others * PAGE);
    Arc::new(driver)
}

fn builder(driver: &Arc<ModelDriver>) -> Builder<ModelDriver> {
    Allocator::builder(Arc::clone(driver))
}

fn alloc(allocator: &Allocator<ModelDriver>, pages: u64) -> DeviceAddr {
    let outcome = allocator.alloc_raw(pages * PAGE, STREAM);
    allocator.check();
    outcome.unwrap()
}

fn refused(allocator: &Allocator<ModelDriver>, pages: u64) -> OutOfMemory {
    match allocator.alloc_raw(pages * PAGE, STREAM) {
        Err(AllocError::OutOfMemory(report)) => *report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_others_free_can_be_had() {
    let driver = device(24);
    let allocator = builder(&driver).build().unwrap();
    assert_eq!(allocator.budget(), 8 * PAGE);
    let first = alloc(&allocator, 6);
    let report = refused(&allocator, 10);
    assert!(!report.satisfiable && !report.stopped_by_budget, "{report}");
    assert!(report.verdict().starts_with("No allocator could have served this"), "{report}");
    driver.set_external(4 * PAGE);
    let second = alloc(&allocator, 22);
    assert_eq!(allocator.budget(), 28 * PAGE);
    driver.set_external(0);
    let third = alloc(&allocator, 4);
    for block in [first, second, third] {
        allocator.free(block).unwrap();
    }
    allocator.close().unwrap();
}

#[test]
fn what_others_take_is_gone() {
    let driver = device(0);
    let allocator = builder(&driver).build().unwrap();
    driver.set_external(30 * PAGE);
    let report = refused(&allocator, 3);
    assert!(report.verdict().starts_with("No allocator could have served this"), "{report}");
    assert_eq!((report.budget_bytes, report.others_bytes), (2 * PAGE, 30 * PAGE), "{report}");
    alloc(&allocator, 2);
    driver.set_external(20 * PAGE);
    alloc(&allocator, 10);
}

#[test]
fn a_full_device_may_be_free_later() {
    let driver = device(PAGES);
    let allocator = builder(&driver).build().unwrap();
    assert!(!refused(&allocator, 1).satisfiable);
    driver.set_external(0);
    alloc(&allocator, PAGES);
}

#[test]
fn a_further_allocator_leaves_what_it_frees() {
    let driver = device(0);
    let (first, second) = (builder(&driver).build().unwrap(), builder(&driver).keep_mappings().build().unwrap());
    let (a, b) = (alloc(&first, 16), alloc(&second, 16));
    let mut report = refused(&first, 1);
    assert_eq!(report.others_bytes, 16 * PAGE);
    report.add_elsewhere(second.reserved_bytes());
    assert_eq!((report.others_bytes, report.elsewhere_bytes), (0, 16 * PAGE));
    assert!(report.to_string().contains("elsewhere  32 MiB held by other allocators of this process"), "{report}");
    second.free(b).unwrap();
    second.close().unwrap();
    first.free(a).unwrap();
    alloc(&first, PAGES);
}

#[test]
fn growable_ranges_look_at_the_device_too() {
    let driver = device(30);
    let allocator = builder(&driver).build().unwrap();
    let mut range = allocator.reserve_range(PAGES * PAGE).unwrap();
    assert!(matches!(range.grow(3 * PAGE, STREAM), Err(RangeError::Alloc(AllocError::OutOfMemory(_)))));
    driver.set_external(0);
    range.grow(PAGES * PAGE, STREAM).unwrap();
    assert_eq!(range.mapped_bytes(), PAGES * PAGE);
}

#[test]
fn a_budget_that_was_set_stays_and_is_named() {
    let driver = device(8);
    for by_builder in [true, false] {
        let allocator = match by_builder {
            true => builder(&driver).budget(4 * PAGE).build().unwrap(),
            false => builder(&driver).build().unwrap(),
        };
        assert_eq!(allocator.has_set_budget(), by_builder);
        allocator.set_budget(4 * PAGE).unwrap();
        assert!(allocator.has_set_budget());
        let report = refused(&allocator, 5);
        assert!(report.stopped_by_budget && !report.satisfiable, "{report}");
        assert!(report.verdict().starts_with("The budget of 8 MiB that was set stops this"), "{report}");
        assert!(!report.to_string().contains("No allocator"), "{report}");
        // More than the device has: the device is what stops this one.
        let report = refused(&allocator, 25);
        assert!(!report.stopped_by_budget, "{report}");
        assert!(report.verdict().starts_with("No allocator could have served this"), "{report}");
        allocator.set_budget(5 * PAGE).unwrap();
        alloc(&allocator, 5);
        drop(allocator);
    }
}

#[test]
fn a_request_that_fails_asks_the_device_twice_at_most() {
    let driver = device(0);
    let allocator = builder(&driver).build().unwrap();
    alloc(&allocator, PAGES);
    let asked = || allocator.stats().driver_calls[DriverCall::MemoryInfo];
    let before = asked();
    refused(&allocator, 1);
    // Once more for the report.
    assert_eq!(asked() - before, 3);
}
