//! The allocator for devices without virtual memory management: its figures, its report, and what goes back to the driver.

mod simulated;

use gapless::allocator::PlainAllocator;
use gapless::driver::cuda::PlainDevice;
use gapless::units::MIB;
use gapless::{GRANULE, StreamId};
use simulated::with_settings;

fn open() -> PlainDevice {
    simulated::builder().open_plain().unwrap()
}

fn with_device(test: &str, faults: &str, body: impl FnOnce()) {
    let settings = [("GAPLESS_SIM_NO_VMM", "1"), ("GAPLESS_SIM_CAPACITY", "64MiB"), ("GAPLESS_SIM_FAIL", faults)];
    with_settings(test, &settings, body);
}

/// Opens what the device can have, which remaps memory or not, and makes the trait's calls.
fn make_every_call(remaps: bool) {
    let allocator = simulated::builder().device_allocator().unwrap();
    assert_eq!(allocator.remaps(), remaps);
    let block = allocator.alloc_raw(5 * MIB, StreamId::DEFAULT).unwrap();
    allocator.record_stream(block, StreamId::DEFAULT).unwrap();
    assert_eq!(allocator.stats().live_bytes, 5 * MIB);
    allocator.free(block).unwrap();
    allocator.free(block).unwrap_err();
    allocator.record_stream(block, StreamId::DEFAULT).unwrap_err();
    assert!(allocator.alloc_raw(65 * MIB, StreamId::DEFAULT).unwrap_err().report().is_some());
}

#[test]
fn a_device_without_virtual_memory_has_the_plain_allocator() {
    with_device("a_device_without_virtual_memory_has_the_plain_allocator", "", || make_every_call(false));
}

#[test]
fn a_device_with_virtual_memory_has_the_allocator() {
    let settings = [("GAPLESS_SIM_CAPACITY", "64MiB")];
    with_settings("a_device_with_virtual_memory_has_the_allocator", &settings, || make_every_call(true));
}

#[test]
fn figures_follow_every_call() {
    with_device("figures_follow_every_call", "", || {
        let allocator = PlainAllocator::new(open());
        let blocks = [5 * MIB, 0, 100, 3 * MIB].map(|bytes| allocator.alloc_raw(bytes, StreamId::DEFAULT).unwrap());
        let stats = allocator.stats();
        assert_eq!((stats.allocs, stats.live_allocations, stats.live_bytes), (4, 4, 8 * MIB + 100));
        assert_eq!((stats.live_block_bytes, stats.reserved_bytes), (8 * MIB + 2 * GRANULE, 8 * MIB + 2 * GRANULE));
        assert_eq!(stats.budget_bytes, stats.fragmentation.free_bytes + stats.reserved_bytes);

        for _ in 0..2 {
            let error = allocator.alloc_raw(60 * MIB, simulated::stream(7)).unwrap_err();
            let report = error.report().unwrap();
            let device = report.device.unwrap();
            assert_eq!(
                (report.requested_bytes, report.stream, report.page_bytes),
                (60 * MIB, simulated::stream(7), GRANULE)
            );
            assert_eq!((report.live_bytes, report.live_block_bytes), (stats.live_bytes, stats.live_block_bytes));
            assert_eq!((report.reserved_bytes, report.free_bytes), (stats.reserved_bytes, device.free));
            assert_eq!(report.others_bytes, device.total - device.free - stats.reserved_bytes);
            assert_eq!(report.budget_bytes, device.free + stats.reserved_bytes);
            assert!(!report.satisfiable);
        }
        for block in [blocks[0], blocks[3]] {
            allocator.free(block).unwrap();
            allocator.free(block).unwrap_err();
            allocator.record_stream(block, simulated::stream(7)).unwrap_err();
        }
        let stats = allocator.stats();
        assert_eq!((stats.failed_allocs, stats.failed_driver_calls, stats.refused_frees), (2, 2, 2));
        assert_eq!((stats.allocs, stats.frees, stats.live_allocations), (4, 2, 2));
        assert_eq!((stats.live_bytes, stats.live_block_bytes, stats.poisoned), (100, 2 * GRANULE, 0));
        assert_eq!((stats.peak_live_bytes, stats.peak_reserved_bytes), (8 * MIB + 100, 8 * MIB + 2 * GRANULE));
        let figures = stats.figures();
        assert_eq!((figures.allocated_bytes, figures.freed_bytes), (8 * MIB + 100, 8 * MIB));
        assert_eq!((figures.created_bytes, figures.released_bytes), (8 * MIB + 2 * GRANULE, 8 * MIB));
        assert_eq!(
            (figures.peak_live_allocations, figures.peak_active_bytes),
            (4, 8 * MIB + 2 * GRANULE),
            "what was shown first"
        );
    });
}

#[test]
fn what_the_driver_does_not_free_is_counted() {
    with_device("what_the_driver_does_not_free_is_counted", "cuMemFree_v2:*:999", || {
        let allocator = PlainAllocator::new(open());
        for _ in 0..2 {
            let block = allocator.alloc_raw(MIB, StreamId::DEFAULT).unwrap();
            allocator.free(block).unwrap();
        }
        let stats = allocator.stats();
        assert_eq!((stats.failed_driver_calls, stats.poisoned, stats.live_allocations), (2, 2, 0));
    });
}

#[test]
fn what_is_dropped_goes_back() {
    with_device("what_is_dropped_goes_back", "", || {
        let (device, other) = (open(), open());
        let free = other.memory_info().unwrap().free;
        let allocator = PlainAllocator::new(device);
        let _leaked = allocator.alloc_raw(5 * MIB, StreamId::DEFAULT).unwrap();
        assert!(other.memory_info().unwrap().free <= free - 5 * MIB);
        drop(allocator);
        assert_eq!(other.memory_info().unwrap().free, free);
    });
}
