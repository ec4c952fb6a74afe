//! Growable ranges: they grow, shrink and pass chunks to each other, within the same budget as heaps.

use gapless::allocator::{AllocError, Allocator, RangeError};
use gapless::driver::{
    DriverCall, DriverErrorKind, Fault, FaultDriver, HostConfig, HostDriver, ModelConfig, ModelDriver, WorkDriver,
};
use gapless::units::MIB;
use gapless::{ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;

fn model(pages: u64) -> Arc<ModelDriver> {
    Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() }))
}

#[test]
fn a_range_grows_and_shrinks_in_place() {
    let driver = model(16);
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let mut range = allocator.reserve_range(12 * PAGE).unwrap();
    let addr = range.addr();
    range.grow(5 * PAGE - 1, StreamId::DEFAULT).unwrap();
    assert_eq!((range.addr(), range.mapped_bytes(), allocator.reserved_bytes()), (addr, 5 * PAGE, 5 * PAGE));
    driver.fill(StreamId::DEFAULT, addr, 5 * PAGE, 1).unwrap();
    assert_eq!(range.shrink(2 * PAGE + 1).unwrap(), 2 * PAGE);
    allocator.check();
    range.grow(9 * PAGE, StreamId::DEFAULT).unwrap();
    assert_eq!(range.mapped_bytes(), 12 * PAGE);
    assert!(matches!(range.grow(1, StreamId::DEFAULT), Err(RangeError::Full { available: 0, .. })));
    allocator.check();
    drop(range);
    assert_eq!(allocator.stats().idle_bytes, 12 * PAGE);
    allocator.check();
    allocator.close().unwrap();
    assert!(driver.usage().is_empty(), "{:?}", driver.usage());
}

#[test]
fn memory_of_ranges_is_neither_free_nor_used_by_others() {
    let allocator = Allocator::builder(model(16)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let mut range = allocator.reserve_range(16 * PAGE).unwrap();
    range.grow(13 * PAGE, StreamId::DEFAULT).unwrap();
    let block = allocator.alloc_raw(PAGE / 2, StreamId::DEFAULT).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.range_bytes, stats.reserved_bytes), (13 * PAGE, 14 * PAGE));
    let error = allocator.alloc_raw(3 * PAGE, StreamId::DEFAULT).unwrap_err();
    let report = error.report().unwrap();
    assert_eq!((report.range_bytes, report.free_bytes, report.satisfiable), (13 * PAGE, 5 * PAGE / 2, false));
    assert_eq!((report.obtainable_bytes, report.pinned.by_live_bytes), (2 * PAGE, PAGE / 2));
    assert!(report.to_string().contains("ranges     26 MiB held by growable ranges"), "{report}");
    drop(range);
    assert_eq!(allocator.stats().range_bytes, 0);
    allocator.free(block).unwrap();
}

#[test]
fn a_range_takes_no_more_than_its_reservation() {
    let allocator = Allocator::builder(model(16)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let [mut giver, mut taker] = [6, 4].map(|pages| allocator.reserve_range(pages * PAGE).unwrap());
    giver.grow(6 * PAGE, StreamId::DEFAULT).unwrap();
    taker.grow(2 * PAGE, StreamId::DEFAULT).unwrap();
    match taker.take_from(&mut giver, 3 * PAGE, StreamId::DEFAULT) {
        Err(RangeError::Full { requested, available }) => {
            assert_eq!((requested, available), (3 * PAGE, 2 * PAGE));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((giver.mapped_bytes(), taker.mapped_bytes()), (6 * PAGE, 2 * PAGE));
    assert_eq!(taker.take_from(&mut giver, 2 * PAGE, StreamId::DEFAULT).unwrap(), 2 * PAGE, "to the last page");
    allocator.check();
}

#[test]
fn pages_return_to_their_former_range() {
    let allocator = Allocator::builder(model(16)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let [mut giver, mut taker] = [(); 2].map(|()| allocator.reserve_range(4 * PAGE).unwrap());
    giver.grow(2 * PAGE, StreamId::DEFAULT).unwrap();
    assert_eq!(taker.take_from(&mut giver, 2 * PAGE, StreamId::DEFAULT).unwrap(), 2 * PAGE);
    assert_eq!(giver.take_from(&mut taker, 2 * PAGE, StreamId::DEFAULT).unwrap(), 2 * PAGE);
    assert_eq!((giver.mapped_bytes(), taker.mapped_bytes()), (2 * PAGE, 0));
    allocator.check();
}

/// Pages that another range took from the end stay mapped there until the stream that took them has passed. That stream
/// is being captured, so nothing can wait for it.
#[test]
fn a_growth_behind_a_capture_is_refused() {
    let driver = model(16);
    let captured = driver.create_stream().unwrap();
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let [mut giver, mut taker] = [(); 2].map(|()| allocator.reserve_range(4 * PAGE).unwrap());
    giver.grow(2 * PAGE, StreamId::DEFAULT).unwrap();
    taker.take_from(&mut giver, PAGE, captured).unwrap();
    driver.begin_capture(captured);
    match giver.grow(PAGE, StreamId::DEFAULT) {
        Err(RangeError::Alloc(AllocError::CannotWait { stream })) => assert_eq!(stream, captured),
        other => panic!("{other:?}"),
    }
    assert_eq!(giver.mapped_bytes(), PAGE);
    allocator.check();
    driver.end_capture(captured);
    giver.grow(PAGE, StreamId::DEFAULT).unwrap();
    allocator.check();
}

/// The stream on which chunks pass from one range to another uses both, so either waits for it before it unmaps anything,
/// also when the chunks are mapped in one of them only.
#[test]
fn both_ranges_wait_for_the_stream_of_a_move() {
    let driver = model(16);
    let captured = driver.create_stream().unwrap();
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let [mut giver, mut taker] = [(); 2].map(|()| allocator.reserve_range(4 * PAGE).unwrap());
    giver.grow(3 * PAGE, StreamId::DEFAULT).unwrap();
    taker.take_from(&mut giver, PAGE, captured).unwrap();
    giver.grow(PAGE, StreamId::DEFAULT).unwrap();
    driver.begin_capture(captured);
    for range in [&mut giver, &mut taker] {
        let before = range.mapped_bytes();
        match range.shrink(PAGE) {
            Err(AllocError::CannotWait { stream }) => assert_eq!(stream, captured),
            other => panic!("{other:?}"),
        }
        assert_eq!(range.mapped_bytes(), before);
    }
    driver.end_capture(captured);
    for range in [&mut giver, &mut taker] {
        assert_eq!(range.shrink(PAGE).unwrap(), PAGE);
    }
    allocator.check();
}

/// The only free chunk is larger than the request, and the budget does not allow another one.
#[test]
fn a_chunk_too_large_for_a_range_is_recreated() {
    let allocator = Allocator::builder(model(2)).chunk_policy(ChunkPolicy::Fixed(2 * PAGE)).build().unwrap();
    let block = allocator.alloc_raw(2 * PAGE, StreamId::DEFAULT).unwrap();
    allocator.free(block).unwrap();
    let mut range = allocator.reserve_range(2 * PAGE).unwrap();
    range.grow(PAGE, StreamId::DEFAULT).unwrap();
    assert_eq!((range.mapped_bytes(), allocator.reserved_bytes()), (PAGE, PAGE));
    allocator.check();
}

#[test]
fn chunks_that_fit_are_not_recreated() {
    let driver = model(8);
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let block = allocator.alloc_raw(8 * PAGE, StreamId::DEFAULT).unwrap();
    allocator.free(block).unwrap();
    let mut range = allocator.reserve_range(8 * PAGE).unwrap();
    range.grow(6 * PAGE, StreamId::DEFAULT).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.driver_calls[DriverCall::Create], stats.driver_calls[DriverCall::Release]), (8, 0));
    assert_eq!((stats.cached_bytes, stats.idle_bytes), (2 * PAGE, 0), "no more than was needed");
    allocator.check();
}

#[test]
fn no_more_is_recreated_than_needed() {
    let chunks = ChunkPolicy::Fixed(4 * PAGE);
    let allocator = Allocator::builder(model(12)).chunk_policy(chunks).build().unwrap();
    let block = allocator.alloc_raw(12 * PAGE, StreamId::DEFAULT).unwrap();
    allocator.free(block).unwrap();
    let mut range = allocator.reserve_range(8 * PAGE).unwrap();
    range.grow(2 * PAGE, StreamId::DEFAULT).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.driver_calls[DriverCall::Release], stats.cached_bytes), (1, 8 * PAGE));
    allocator.check();
}

#[test]
fn a_range_takes_free_memory_of_the_heaps() {
    let driver = model(16);
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    let block = allocator.alloc_raw(14 * PAGE, StreamId::DEFAULT).unwrap();
    let mut range = allocator.reserve_range(16 * PAGE).unwrap();
    let error = range.grow(10 * PAGE, StreamId::DEFAULT).unwrap_err();
    assert!(!error.report().unwrap().satisfiable);
    assert_eq!(range.mapped_bytes(), 0);
    allocator.check();
    allocator.free(block).unwrap();
    range.grow(10 * PAGE, StreamId::DEFAULT).unwrap();
    allocator.check();
    let small = allocator.alloc_raw(6 * PAGE, StreamId::DEFAULT).unwrap();
    assert!(allocator.alloc_raw(PAGE, StreamId::DEFAULT).is_err());
    range.shrink(3 * PAGE).unwrap();
    allocator.alloc_raw(PAGE, StreamId::DEFAULT).unwrap();
    allocator.free(small).unwrap();
    allocator.check();
}

#[test]
fn contents_move_with_their_chunks() {
    let config = HostConfig { capacity_bytes: 64 << 16, granularity: 1 << 16, ..HostConfig::default() };
    let driver = Arc::new(HostDriver::new(config).unwrap());
    let page = 1 << 16;
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(page)).build().unwrap();
    let stream = driver.create_stream().unwrap();
    let mut one = allocator.reserve_range(8 * page).unwrap();
    let mut two = allocator.reserve_range(8 * page).unwrap();
    one.grow(4 * page, stream).unwrap();
    two.grow(page, stream).unwrap();
    driver.fill(stream, one.addr(), 2 * page, 7).unwrap();
    driver.fill(stream, one.addr().offset(2 * page), 2 * page, 9).unwrap();
    let waits = allocator.stats().host_waits;
    assert_eq!(two.take_from(&mut one, 2 * page, stream).unwrap(), 2 * page);
    assert_eq!(allocator.stats().host_waits, waits, "the host does not wait");
    assert_eq!((one.mapped_bytes(), two.mapped_bytes()), (2 * page, 3 * page));
    driver.verify(stream, two.addr().offset(page), 2 * page, 9).unwrap();
    driver.verify(stream, one.addr(), 2 * page, 7).unwrap();
    allocator.check();
    one.grow(3 * page, stream).unwrap();
    driver.fill(stream, one.addr().offset(2 * page), 3 * page, 11).unwrap();
    driver.verify(stream, two.addr().offset(page), 2 * page, 9).unwrap();
    driver.synchronize(stream).unwrap();
    assert!(driver.take_mismatches().is_empty() && driver.take_violations().is_empty());
    allocator.check();
    drop((one, two));
    allocator.close().unwrap();
    driver.destroy_stream(stream).unwrap();
    assert!(driver.usage().is_empty(), "{:?}", driver.usage());
}

#[test]
fn nothing_is_unmapped_while_a_user_is_captured() {
    let driver = model(8);
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let stream = driver.create_stream().unwrap();
    let mut range = allocator.reserve_range(4 * PAGE).unwrap();
    range.grow(2 * PAGE, stream).unwrap();
    driver.begin_capture(stream);
    assert!(range.shrink(PAGE).is_err());
    assert_eq!(range.mapped_bytes(), 2 * PAGE);
    allocator.check();
    driver.end_capture(stream);
    assert_eq!(range.shrink(PAGE).unwrap(), PAGE);
    allocator.check();
}

#[test]
fn a_growth_that_cannot_be_undone_stays_accounted_for() {
    // Both mappings stay, or only the first one because the second was never made.
    for (first, call) in [(0, DriverCall::SetAccess), (1, DriverCall::Map)] {
        let driver = Arc::new(FaultDriver::new(ModelDriver::new(ModelConfig::default())));
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let mut range = allocator.reserve_range(8 * PAGE).unwrap();
        range.grow(PAGE, StreamId::DEFAULT).unwrap();
        let fault = Fault::nth(first, DriverErrorKind::InvalidValue).only([call, DriverCall::Unmap]);
        driver.arm(fault.from_then_on());
        assert!(range.grow(2 * PAGE, StreamId::DEFAULT).is_err());
        driver.disarm();
        assert_eq!((range.mapped_bytes(), allocator.stats().poisoned), (PAGE, 1));
        allocator.check();
        assert!(range.grow(PAGE, StreamId::DEFAULT).is_err(), "the following addresses are in use");
        drop(range);
        allocator.close().unwrap();
        assert!(driver.inner().usage().is_empty(), "{call:?}: {:?}", driver.inner().usage());
    }
}

#[test]
fn memory_that_a_range_leaves_behind_serves_the_next_request() {
    type Subject = Allocator<FaultDriver<ModelDriver>>;
    let next_range = |allocator: &Subject| {
        let mut range = allocator.reserve_range(8 * PAGE).unwrap();
        range.grow(8 * PAGE, StreamId::DEFAULT).unwrap();
    };
    let next_block = |allocator: &Subject| {
        let block = allocator.alloc_raw(8 * PAGE, StreamId::DEFAULT).unwrap();
        allocator.free(block).unwrap();
    };
    let trim = |allocator: &Subject| assert_eq!(allocator.trim(0).unwrap().held_bytes, 0);
    let requests: [&dyn Fn(&Subject); 3] = [&next_range, &next_block, &trim];
    for request in requests {
        for call in [DriverCall::EventRecord, DriverCall::Unmap, DriverCall::AddressFree] {
            let config = ModelConfig { capacity_bytes: 8 * PAGE, ..ModelConfig::default() };
            let driver = Arc::new(FaultDriver::new(ModelDriver::new(config)));
            let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
            let allocator = builder.build().unwrap();
            let mut range = allocator.reserve_range(8 * PAGE).unwrap();
            range.grow(7 * PAGE, StreamId::DEFAULT).unwrap();
            driver.fill(StreamId::DEFAULT, range.addr(), 7 * PAGE, 1).unwrap();
            driver.arm(Fault::nth(0, DriverErrorKind::InvalidValue).only([call]));
            drop(range);
            assert_eq!(driver.fired(), 1, "{call:?}");
            driver.disarm();
            allocator.check();
            request(&allocator);
            allocator.check();
            allocator.close().unwrap();
            assert!(driver.inner().usage().is_empty(), "{call:?}: {:?}", driver.inner().usage());
        }
    }
}

#[test]
fn a_range_that_cannot_be_unmapped_does_not_keep_others() {
    let config = ModelConfig { capacity_bytes: 8 * PAGE, ..ModelConfig::default() };
    let driver = Arc::new(FaultDriver::new(ModelDriver::new(config)));
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let ranges = [0, 1].map(|_| {
        let mut range = allocator.reserve_range(4 * PAGE).unwrap();
        range.grow(4 * PAGE, StreamId::DEFAULT).unwrap();
        range
    });
    driver.arm(Fault::nth(0, DriverErrorKind::InvalidValue).only([DriverCall::Unmap]).from_then_on());
    drop(ranges);
    driver.arm(Fault::nth(0, DriverErrorKind::InvalidValue).only([DriverCall::Unmap]));
    let block = allocator.alloc_raw(4 * PAGE, StreamId::DEFAULT).unwrap();
    assert_eq!(driver.fired(), 1, "the first range could not be unmapped again");
    driver.disarm();
    allocator.check();
    allocator.free(block).unwrap();
    allocator.close().unwrap();
    assert!(driver.inner().usage().is_empty(), "{:?}", driver.inner().usage());
}

#[test]
fn dropped_ranges_leave_no_metadata() {
    let allocator = Allocator::builder(model(16)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let turn = || {
        let mut range = allocator.reserve_range(12 * PAGE).unwrap();
        range.grow(5 * PAGE, StreamId::DEFAULT).unwrap();
        allocator.stats().metadata_bytes
    };
    let first = turn();
    assert!((0..100).all(|_| turn() == first), "a dropped range leaves metadata");
}

#[test]
fn a_range_keeps_its_allocator_alive() {
    let driver = model(16);
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let mut range = allocator.reserve_range(12 * PAGE).unwrap();
    range.grow(PAGE, StreamId::DEFAULT).unwrap();
    drop(allocator);
    range.grow(2 * PAGE, StreamId::DEFAULT).unwrap();
    driver.fill(StreamId::DEFAULT, range.addr(), 3 * PAGE, 1).unwrap();
    assert_eq!(range.shrink(PAGE).unwrap(), PAGE);
    drop(range);
    assert!(driver.usage().is_empty(), "{:?}", driver.usage());
}

#[test]
fn other_errors_are_not_taken_for_a_full_device() {
    for kind in [DriverErrorKind::InvalidValue, DriverErrorKind::NotSupported] {
        let driver = Arc::new(FaultDriver::new(ModelDriver::new(ModelConfig::default())));
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let mut range = allocator.reserve_range(4 * PAGE).unwrap();
        driver.arm(Fault::nth(0, kind).only([DriverCall::Create]));
        let result = range.grow(PAGE, StreamId::DEFAULT);
        assert!(
            matches!(&result, Err(RangeError::Alloc(AllocError::Driver(error))) if error.kind == kind),
            "{result:?}"
        );
        range.grow(PAGE, StreamId::DEFAULT).unwrap();
        allocator.check();
    }
}

/// The driver refuses, and says so: no setting of regions has a say in a growable range.
#[test]
fn an_absurd_reservation_is_refused_by_the_driver() {
    let allocator = Allocator::builder(model(16)).build().unwrap();
    for bytes in [u64::MAX, u64::MAX - PAGE, 1 << 60] {
        match allocator.reserve_range(bytes) {
            Err(AllocError::Driver(error)) => assert_eq!(error.kind, DriverErrorKind::OutOfMemory, "{error}"),
            other => panic!("{other:?}"),
        }
    }
    allocator.check();
    allocator.close().unwrap();
}
