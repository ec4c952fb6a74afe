//! One test suite for all drivers: `suite` tests the contract, `misuse` violates it, and this file has the drivers.

mod cuda;
mod misuse;
mod suite;

use gapless::driver::{
    DriverErrorKind, DriverUsage, FaultDriver, HoldStreams, HostConfig, HostDriver, MemoryDriver, ModelConfig,
    ModelDriver, StreamDriver, Violation, WorkDriver,
};
use gapless::units::KIB;
use std::panic::{AssertUnwindSafe, catch_unwind};
use suite::Subject;

impl Subject for ModelDriver {
    const HAS_BYTES: bool = false;

    fn usage(&self) -> Option<DriverUsage> {
        Some(self.usage())
    }
}

impl Subject for HostDriver {
    const HAS_BYTES: bool = true;

    fn usage(&self) -> Option<DriverUsage> {
        Some(self.usage())
    }

    fn violations(&self) -> Vec<Violation> {
        self.take_violations()
    }
}

impl<D: Subject> Subject for FaultDriver<D> {
    const HAS_BYTES: bool = D::HAS_BYTES;

    fn usage(&self) -> Option<DriverUsage> {
        self.inner().usage()
    }

    fn violations(&self) -> Vec<Violation> {
        self.inner().violations()
    }
}

fn model() -> ModelDriver {
    ModelDriver::default()
}

fn host() -> HostDriver {
    HostDriver::new(HostConfig { capacity_bytes: 256 * PAGE, granularity: PAGE, ..HostConfig::default() }).unwrap()
}

const PAGE: u64 = 64 * KIB;

/// Defines one test per function of the suite, each with a new driver.
macro_rules! conformance {
    ($driver:ident, $make:expr, [$($test:ident),* $(,)?]) => {
        mod $driver {
            use super::*;
            $(#[test]
            fn $test() {
                suite::run(&$make, suite::$test);
            })*
        }
    };
    // Drivers whose streams can be held run the whole suite.
    ($driver:ident, $make:expr) => {
        conformance!($driver, $make, [
            the_page_is_a_constant_power_of_two,
            reservations_are_aligned_and_apart,
            addresses_cost_no_memory,
            malformed_and_oversized_reservations_are_errors,
            create_takes_memory_and_release_returns_it,
            too_much_memory_is_an_error_without_effect,
            memory_is_held_until_the_last_alias_is_unmapped,
            memory_is_held_while_its_handle_exists,
            one_call_may_cover_several_mappings,
            work_may_touch_any_part_of_a_mapped_range,
            a_wrong_byte_is_found,
            aliases_show_the_same_bytes,
            content_moves_with_the_chunk,
            work_on_a_stream_runs_in_order,
            an_event_completes_with_the_work_before_it,
            a_pending_event_may_be_destroyed,
            waits_order_work_across_streams,
            destroying_a_stream_waits_for_its_work,
            the_device_is_waited_for_on_every_stream,
            handles_come_back_for_other_streams,
            threads_may_call_at_the_same_time,
            one_handle_is_a_stream_of_each_thread,
            copies_go_to_the_host_and_back,
            a_held_stream_completes_on_request,
            a_wait_for_a_held_stream_holds_the_waiter,
            a_host_wait_completes_the_work_it_waits_for,
            an_event_is_its_last_recording,
            waiting_for_an_unrecorded_event_is_no_wait,
            a_wait_outlives_its_event,
            a_reuse_without_a_wait_is_detected,
            unknown_streams_are_refused,
            the_hold_of_one_threads_stream_leaves_the_others,
        ]);
    };
}

conformance!(on_model, model());
conformance!(on_model_with_fault, FaultDriver::new(model()));
conformance!(on_host, host());
conformance!(on_host_with_fault, FaultDriver::new(host()));
conformance!(
    on_cuda,
    cuda::exclusive().driver,
    [
        the_page_is_a_constant_power_of_two,
        reservations_are_aligned_and_apart,
        malformed_and_oversized_reservations_are_errors,
        one_call_may_cover_several_mappings,
        work_may_touch_any_part_of_a_mapped_range,
        a_wrong_byte_is_found,
        aliases_show_the_same_bytes,
        content_moves_with_the_chunk,
        work_on_a_stream_runs_in_order,
        an_event_completes_with_the_work_before_it,
        a_pending_event_may_be_destroyed,
        waits_order_work_across_streams,
        destroying_a_stream_waits_for_its_work,
        the_device_is_waited_for_on_every_stream,
        handles_come_back_for_other_streams,
        threads_may_call_at_the_same_time,
        one_handle_is_a_stream_of_each_thread,
        copies_go_to_the_host_and_back,
    ]
);

/// Tests that compare the device's free memory exactly, which other processes may change on a real device.
mod on_cuda_alone {
    use super::*;

    macro_rules! alone {
        ($($test:ident),* $(,)?) => {
            $(#[test]
            fn $test() {
                if cuda::on_device() {
                    eprintln!("skipped: other processes may use the device's memory");
                    return;
                }
                suite::run(&cuda::exclusive().driver, suite::$test);
            })*
        };
    }

    alone!(
        addresses_cost_no_memory,
        create_takes_memory_and_release_returns_it,
        too_much_memory_is_an_error_without_effect,
        memory_is_held_until_the_last_alias_is_unmapped,
        memory_is_held_while_its_handle_exists,
    );
}

#[test]
fn model_panics_on_misuse() {
    for case in misuse::cases::<ModelDriver>() {
        let driver = model();
        let panic = catch_unwind(AssertUnwindSafe(|| (case.run)(&driver))).expect_err(case.name);
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains(case.rule), "{}: '{}' is not in '{text}'", case.name, case.rule);
        driver.usage();
    }
}

#[test]
fn host_refuses_and_records_misuse() {
    for case in misuse::cases::<HostDriver>() {
        let driver = host();
        let error = (case.run)(&driver).expect_err(case.name);
        let expected = [DriverErrorKind::InvalidValue, DriverErrorKind::InvalidHandle];
        assert!(expected.contains(&error.kind) && error.text.contains(case.rule), "{}: {error}", case.name);
        let violations = driver.take_violations();
        assert!(matches!(&violations[..], [only] if only.text == error.text), "{}: {violations:?}", case.name);
    }
}

/// What a copy uses is neither shown nor freed; what it only reads may be read.
#[test]
fn host_refuses_memory_of_the_host_that_copies_use() {
    let driver = host();
    let mapped = suite::Mapped::new(&driver, 1, 1);
    let memory = driver.host_alloc(16).unwrap();
    let (lane, refused) = (driver.create_stream().unwrap(), DriverErrorKind::InvalidValue);
    let read = || driver.host_read(memory, 0, 16, &mut |_| ()).map_err(|error| error.kind);
    let write = || driver.host_write(memory, 0, 16, &mut |_| ()).map_err(|error| error.kind);
    driver.hold(lane);
    driver.copy_in(lane, mapped.addr, memory, 0, 16).unwrap();
    assert_eq!((read(), write()), (Ok(()), Err(refused)));
    driver.copy_out(lane, memory, 0, mapped.addr, 16).unwrap();
    assert_eq!((read(), write()), (Err(refused), Err(refused)));
    assert_eq!(driver.host_free(memory).map_err(|error| error.kind), Err(refused));
    driver.complete(lane);
    assert_eq!((read(), write()), (Ok(()), Ok(())));
    driver.host_free(memory).unwrap();
    assert_eq!(driver.take_violations().len(), 4);
}

#[test]
fn other_processes_take_memory() {
    let (model, host) = (model(), host());
    let total = model.memory_info().unwrap().total;
    model.set_external(total - 2 * model.granularity());
    host.set_external(254 * PAGE);
    fn leaves_two_pages(driver: &impl Subject) {
        let page = driver.granularity();
        assert_eq!(driver.memory_info().unwrap().free, 2 * page);
        let chunk = driver.create(2 * page).unwrap();
        assert_eq!(suite::kind(driver.create(page)), Some(DriverErrorKind::OutOfMemory));
        driver.release(chunk).unwrap();
    }
    leaves_two_pages(&model);
    leaves_two_pages(&host);
    model.set_external(u64::MAX);
    assert_eq!(model.memory_info().unwrap().free, 0);
}

#[test]
fn mappings_are_limited() {
    fn allows_three_mappings(driver: &impl Subject) {
        let page = driver.granularity();
        let addr = driver.reserve(4 * page, page).unwrap();
        let chunk = driver.create(page).unwrap();
        for index in 0..4 {
            driver.map(addr.offset(index * page), page, chunk).unwrap();
        }
        assert_eq!(suite::kind(driver.set_access(addr, 4 * page)), Some(DriverErrorKind::OutOfMemory));
        driver.set_access(addr, 3 * page).unwrap();
        let last = addr.offset(3 * page);
        assert_eq!(suite::kind(driver.set_access(last, page)), Some(DriverErrorKind::OutOfMemory));
        driver.unmap(addr, page).unwrap();
        driver.set_access(last, page).unwrap();
        driver.unmap(addr.offset(page), 3 * page).unwrap();
        driver.release(chunk).unwrap();
        driver.address_free(addr, 4 * page).unwrap();
    }
    suite::run(&ModelDriver::new(ModelConfig { max_mappings: 3, ..ModelConfig::default() }), allows_three_mappings);
    let config = HostConfig { granularity: PAGE, max_mappings: 3, ..HostConfig::default() };
    suite::run(&HostDriver::new(config).unwrap(), allows_three_mappings);
}
