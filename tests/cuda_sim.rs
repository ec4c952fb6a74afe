//! The CUDA driver without a GPU: loader, contexts, captures, errors and work, with the simulated `libcuda.so.1`.

mod simulated;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gapless::allocator::{AllocError, CloseError, PlainAllocator};
use gapless::driver::cuda::sys::{Optional, Required, cudaError_enum as code};
use gapless::driver::cuda::{CudaDriver, CudaVersion, Library, LoadError, OpenError, Sharing};
use gapless::driver::{DriverCall, DriverErrorKind, MemoryDriver, StreamDriver, WorkDriver};
use gapless::units::MIB;
use gapless::{Allocator, StreamId};
use simulated::{library, library_without, mapped, with_settings};

fn open() -> CudaDriver {
    simulated::open(simulated::builder()).unwrap()
}

/// Returns the library's functions, for calls that the driver does not offer.
fn raw() -> (Required, Optional) {
    // SAFETY: the simulated library's functions have the types of cuda.h.
    let required = unsafe { Required::new(library()) }.unwrap();
    // SAFETY: as above.
    let optional = unsafe { Optional::new(library()) }.unwrap();
    (required, optional)
}

fn current_context(api: &Required) -> usize {
    let mut context = std::ptr::null_mut();
    // SAFETY: the out-parameter is a valid pointer for the call.
    assert_eq!(unsafe { api.cuCtxGetCurrent(&raw mut context) }, code::CUDA_SUCCESS);
    context as usize
}

#[test]
fn opens_with_every_feature_that_works() {
    let driver = open();
    assert_eq!(driver.granularity(), 2 * MIB);
    assert!(driver.recommended_granularity() >= driver.granularity());
    assert!(driver.features().posix_fd && driver.features().rdma);
    assert_eq!(driver.info().name, "Simulated GPU 0");
    assert_eq!(driver.library().version(), CudaVersion(13_000));
    assert!(driver.library().file().ends_with(".so"), "{}", driver.library().file());

    let private = simulated::open(simulated::builder().sharing(Sharing::Never)).unwrap();
    assert!(!private.features().posix_fd && !private.features().rdma);
}

#[test]
fn bytes_stay_with_their_chunk_when_it_is_mapped_elsewhere() {
    let driver = open();
    let stream = driver.create_stream().unwrap();
    let page = driver.granularity();
    let range = driver.reserve(3 * page, page).unwrap();
    let chunk = driver.create(page).unwrap();
    driver.map(range, page, chunk).unwrap();
    driver.set_access(range, page).unwrap();
    driver.fill(stream, range, page, 7).unwrap();

    let alias = range.offset(2 * page);
    driver.map(alias, page, chunk).unwrap();
    driver.set_access(alias, page).unwrap();
    driver.verify(stream, alias, page, 7).unwrap();
    driver.synchronize(stream).unwrap();
    driver.unmap(range, page).unwrap();
    driver.verify(stream, alias, page, 7).unwrap();
    driver.synchronize(stream).unwrap();
    assert_eq!(driver.take_mismatches(), []);

    driver.verify(stream, alias, 100, 8).unwrap();
    driver.fill(stream, alias.offset(5), 13, 8).unwrap();
    driver.verify(stream, alias.offset(5), 13, 8).unwrap();
    driver.verify(stream, alias, page, 7).unwrap();
    driver.synchronize(stream).unwrap();
    let found = driver.take_mismatches();
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((found[0].seed, found[0].first), (8, 0));
    assert_eq!((found[1].seed, found[1].first / 8), (7, 0));
    assert!(found[1].first >= 5 && found[1].count <= 13, "{found:?}");
    assert_eq!(driver.take_mismatches(), []);

    driver.unmap(alias, page).unwrap();
    driver.release(chunk).unwrap();
    driver.address_free(range, 3 * page).unwrap();
    driver.destroy_stream(stream).unwrap();
}

#[test]
fn no_call_leaves_a_context_behind() {
    let (api, _) = raw();
    let driver = open();
    assert_eq!(current_context(&api), 0);
    let addr = mapped(&driver, driver.granularity());
    let event = driver.event_create().unwrap();
    driver.fill(StreamId::DEFAULT, addr, 64, 1).unwrap();
    driver.event_record(event, StreamId::DEFAULT).unwrap();
    driver.event_synchronize(event).unwrap();
    assert!(driver.event_query(event).unwrap());
    driver.memory_info().unwrap();
    driver.event_destroy(event).unwrap();
    driver.unmap(addr, driver.granularity()).unwrap();
    assert!(driver.unmap(addr, driver.granularity()).is_err());
    assert_eq!(current_context(&api), 0);
    drop(driver);
    assert_eq!(current_context(&api), 0);
}

#[test]
fn memory_changes_do_not_break_a_capture() {
    let (api, optional) = raw();
    let driver = open();
    let stream = driver.create_stream().unwrap();
    let raw_stream = std::ptr::with_exposed_provenance_mut(stream.as_raw() as usize);
    let addr = mapped(&driver, driver.granularity());
    driver.fill(stream, addr, 4096, 3).unwrap();
    driver.synchronize(stream).unwrap();
    let pending = driver.event_create().unwrap();
    driver.event_record(pending, StreamId::DEFAULT).unwrap();

    // Make the primary context current, as it is in a program that captures.
    let mut context = std::ptr::null_mut();
    // SAFETY: the out-parameter is a valid pointer for the call.
    unsafe { api.cuDevicePrimaryCtxRetain(&raw mut context, 0) };
    // SAFETY: retained just above.
    unsafe { api.cuCtxSetCurrent(context) };
    let begin = optional.cuStreamBeginCapture_v2.as_ref().unwrap();
    // SAFETY: a live stream; 0 is the global mode.
    assert_eq!(unsafe { begin(raw_stream, gapless::driver::cuda::sys::CUstreamCaptureMode_enum(0)) }.0, 0);
    assert!(driver.is_capturing(stream));
    assert!(!driver.is_capturing(StreamId::DEFAULT));

    let during = mapped(&driver, driver.granularity());
    driver.unmap(during, driver.granularity()).unwrap();
    driver.address_free(during, driver.granularity()).unwrap();
    driver.event_synchronize(pending).unwrap();
    assert!(driver.event_query(pending).unwrap());
    driver.memory_info().unwrap();
    let other = driver.create_stream().unwrap();
    driver.synchronize(other).unwrap();

    let mut graph = std::ptr::null_mut();
    let end = optional.cuStreamEndCapture.as_ref().unwrap();
    // SAFETY: a live stream and a valid out-parameter.
    assert_eq!(unsafe { end(raw_stream, &raw mut graph) }, code::CUDA_SUCCESS);
    assert!(!graph.is_null());
    assert!(!driver.is_capturing(stream));
    // SAFETY: no context is current afterwards, as before.
    unsafe { api.cuCtxSetCurrent(std::ptr::null_mut()) };
}

#[test]
fn streams_of_others_are_told_apart() {
    let driver = open();
    for stream in [simulated::stream(0), simulated::stream(1), simulated::stream(2)] {
        driver.check_stream(stream).unwrap();
        assert_eq!(driver.destroy_stream(stream).unwrap_err().kind, DriverErrorKind::InvalidHandle);
    }
    let stream = driver.create_stream().unwrap();
    driver.check_stream(stream).unwrap();
    assert_eq!(driver.check_stream(simulated::stream(0xdead_0000)).unwrap_err().kind, DriverErrorKind::InvalidHandle);
    driver.destroy_stream(stream).unwrap();
}

/// Undefined behaviour on a device stops the process here.
#[test]
fn a_destroyed_handle_is_not_handed_in() {
    const INNER: &str = "GAPLESS_TEST_INNER";
    if std::env::var_os(INNER).is_some() {
        let driver = open();
        let stream = driver.create_stream().unwrap();
        driver.destroy_stream(stream).unwrap();
        let _ = driver.check_stream(stream);
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_destroyed_handle_is_not_handed_in", "--nocapture"])
        .env(INNER, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("was used after it had been destroyed"), "{text}");
}

#[test]
fn events_order_streams() {
    let driver = open();
    let (first, second) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
    let addr = mapped(&driver, driver.granularity());
    let event = driver.event_create().unwrap();
    driver.delay(first, Duration::from_millis(50)).unwrap();
    driver.fill(first, addr, 1 << 20, 11).unwrap();
    driver.event_record(event, first).unwrap();
    assert!(!driver.event_query(event).unwrap());
    driver.stream_wait(second, event).unwrap();
    driver.verify(second, addr, 1 << 20, 11).unwrap();
    driver.synchronize(second).unwrap();
    assert!(driver.event_query(event).unwrap());
    assert_eq!(driver.take_mismatches(), []);
}

#[test]
fn more_checks_than_slots_wait_their_turn() {
    let driver = open();
    let addr = mapped(&driver, driver.granularity());
    driver.fill(StreamId::DEFAULT, addr, 4096, 1).unwrap();
    for _ in 0..6000 {
        driver.verify(StreamId::DEFAULT, addr, 64, 1).unwrap();
    }
    driver.verify(StreamId::DEFAULT, addr, 64, 2).unwrap();
    driver.synchronize(StreamId::DEFAULT).unwrap();
    assert_eq!(driver.take_mismatches().len(), 1);
}

#[test]
fn reservations_of_odd_sizes_are_refused() {
    let driver = open();
    let page = driver.granularity();
    for (bytes, alignment) in [(0, page), (page + 1, page), (page, 3 * page), (page, page / 2)] {
        assert_eq!(driver.reserve(bytes, alignment).unwrap_err().kind, DriverErrorKind::InvalidValue);
    }
}

#[test]
fn an_access_to_unmapped_memory_loses_the_device() {
    with_settings("an_access_to_unmapped_memory_loses_the_device", &[], || {
        let driver = open();
        let page = driver.granularity();
        let addr = mapped(&driver, page);
        driver.unmap(addr, page).unwrap();
        driver.fill(StreamId::DEFAULT, addr, 8, 1).unwrap();
        let error = driver.synchronize(StreamId::DEFAULT).unwrap_err();
        assert_eq!((error.kind, error.code), (DriverErrorKind::DeviceLost, 700));
        assert!(driver.create(page).unwrap_err().kind.is_sticky());
        assert!(driver.event_create().unwrap_err().kind.is_sticky());
        drop(driver);
    });
}

#[test]
fn an_unknown_code_prints_its_number() {
    let settings = [("GAPLESS_SIM_FAIL", "cuMemMap:2:98765,cuMemGetInfo_v2:1:98765")];
    with_settings("an_unknown_code_prints_its_number", &settings, || {
        let driver = open(); // the check at opening maps once
        let page = driver.granularity();
        let addr = driver.reserve(page, page).unwrap();
        let chunk = driver.create(page).unwrap();
        let error = driver.map(addr, page, chunk).unwrap_err();
        assert_eq!((error.call, error.kind, error.code), (DriverCall::Map, DriverErrorKind::Other, 98_765));
        assert!(error.to_string().contains("98765"), "{error}");
        assert!(driver.memory_info().unwrap_err().to_string().contains("98765"));
        driver.map(addr, page, chunk).unwrap();
    });
}

fn load(path: &Path) -> Result<&'static Library, LoadError> {
    // SAFETY: a driver library, or none.
    unsafe { Library::open_from(path) }
}

#[test]
fn an_initialization_error_is_reported() {
    with_settings("an_initialization_error_is_reported", &[("GAPLESS_SIM_FAIL", "cuInit:*:98765")], || {
        let error = load(&library()).unwrap_err();
        assert!(matches!(&error, LoadError::Init(inner) if inner.code == 98_765), "{error}");
        assert!(error.to_string().contains("98765"), "{error}");
    });
}

#[test]
fn a_claimed_feature_that_fails_is_left_out() {
    with_settings("a_claimed_feature_that_fails_is_left_out", &[("GAPLESS_SIM_RDMA", "refused")], || {
        let driver = open();
        assert!(driver.info().rdma && !driver.features().rdma && driver.features().posix_fd);
        mapped(&driver, driver.granularity());
    });
}

#[test]
fn the_check_at_opening_leaves_nothing_behind() {
    // Each call of the first cycle fails in its turn: the next cycle, with fewer features, succeeds.
    for call in ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"] {
        let fault = format!("{call}:1:999");
        let settings = [("GAPLESS_SIM_FAIL", fault.as_str())];
        with_settings("the_check_at_opening_leaves_nothing_behind", &settings, || {
            let driver = open();
            let info = driver.memory_info().unwrap();
            assert_eq!(info.free, info.total);
            assert!(!driver.features().rdma);
        });
        if std::env::var_os("GAPLESS_TEST_INNER").is_some() {
            break; // one fault a process
        }
    }
}

/// Addresses are not freed where something is mapped, although the check has failed.
#[test]
fn what_the_check_could_not_unmap_keeps_its_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().to_str().unwrap();
    let settings =
        [("GAPLESS_SIM_FAIL", "cuMemUnmap:1:999"), ("GAPLESS_SIM_STRICT", "1"), ("GAPLESS_SIM_RECORD", record)];
    with_settings("what_the_check_could_not_unmap_keeps_its_addresses", &settings, || {
        assert!(!open().features().rdma, "the next cycle, with fewer features, succeeds");
        let folder = std::env::var_os("GAPLESS_SIM_RECORD").unwrap();
        let told = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        assert!(told.is_empty(), "a rule was broken: {told:?}");
    });
}

/// Opens a device whose driver answers every `call` with `answer`, and checks the error.
fn opened_with(test: &str, call: &str, answer: u32, check: impl FnOnce(&OpenError)) {
    let fault = format!("{call}:*:{answer}");
    with_settings(test, &[("GAPLESS_SIM_FAIL", fault.as_str())], || {
        check(&simulated::open(simulated::builder()).unwrap_err());
    });
}

#[test]
fn a_trial_that_is_refused_as_not_supported_is_no_vmm() {
    opened_with("a_trial_that_is_refused_as_not_supported_is_no_vmm", "cuMemMap", 801, |error| {
        assert!(matches!(error, OpenError::NoVmm { .. }), "{error}");
    });
}

#[test]
fn a_trial_without_addresses_says_so() {
    opened_with("a_trial_without_addresses_says_so", "cuMemAddressReserve", 2, |error| {
        assert!(matches!(error, OpenError::NoAddresses { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("ulimit -v") && !text.contains("has no virtual memory management"), "{text}");
    });
}

#[test]
fn a_trial_that_fails_for_another_reason_says_which() {
    opened_with("a_trial_that_fails_for_another_reason_says_which", "cuMemSetAccess", 999, |error| {
        assert!(matches!(error, OpenError::Trial { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("999") && !text.contains("has no virtual memory management"), "{text}");
    });
}

#[test]
fn a_device_without_vmm_is_refused_with_a_way_out() {
    with_settings("a_device_without_vmm_is_refused_with_a_way_out", &[("GAPLESS_SIM_NO_VMM", "1")], || {
        let error = simulated::open(simulated::builder()).unwrap_err();
        assert!(matches!(error, OpenError::NoVmm { .. }), "{error}");
        assert!(error.to_string().contains("cuMemAlloc"), "{error}");

        let device = simulated::builder().open_plain().unwrap();
        assert!(!device.info().vmm);
        let allocator = PlainAllocator::new(device);
        let block = allocator.alloc_raw(5 * MIB, StreamId::DEFAULT).unwrap();
        let empty = allocator.alloc_raw(0, StreamId::DEFAULT).unwrap();
        assert_ne!(block, empty);
        allocator.record_stream(block, simulated::stream(2)).unwrap();
        let report = allocator.alloc_raw(2 << 30, StreamId::DEFAULT).unwrap_err();
        let report = report.report().unwrap();
        assert!(!report.satisfiable && report.driver_error.is_some(), "{report}");
        allocator.free(block).unwrap();
        assert!(allocator.free(block).is_err());
        let stats = allocator.stats();
        assert_eq!((stats.live_bytes, stats.peak_live_bytes, stats.cached_bytes), (0, 5 * MIB, 0));
        assert_eq!(
            (stats.driver_calls[DriverCall::Create], stats.driver_calls[DriverCall::Release], stats.host_waits),
            (3, 1, 1)
        );
        assert!(matches!(allocator.clone().close(), Err(CloseError::InUse(1))));
        assert!(matches!(allocator.close(), Err(CloseError::Leaked(leaks)) if leaks.len() == 1));
    });
}

/// An integrated device reports a quarter of its memory as free, and gives all of it.
#[test]
fn memory_that_the_machine_would_give_back_can_be_had() {
    let settings = [("GAPLESS_SIM_CAPACITY", "1GiB"), ("GAPLESS_SIM_SOFT", "768MiB")];
    with_settings("memory_that_the_machine_would_give_back_can_be_had", &settings, || {
        let driver = simulated::open(simulated::builder()).unwrap();
        assert!(driver.info().integrated);
        let allocator = Allocator::builder(Arc::new(driver)).build().unwrap();
        let block = allocator.alloc_raw(900 * MIB, StreamId::DEFAULT).unwrap();
        // The driver decides where the machine's word is too good.
        let error = allocator.alloc_raw(200 * MIB, StreamId::DEFAULT).unwrap_err();
        assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
        allocator.check();
        allocator.free(block).unwrap();
        allocator.close().unwrap();
    });
}

#[test]
fn no_device_and_old_drivers_have_different_errors() {
    let name = "no_device_and_old_drivers_have_different_errors";
    with_settings(name, &[("GAPLESS_SIM_DEVICES", "0"), ("CASE", "none")], no_device_or_old);
    with_settings(name, &[("GAPLESS_SIM_VERSION", "10010"), ("CASE", "old")], no_device_or_old);
    // Has virtual memory management and lacks a function that gapless needs.
    with_settings(name, &[("GAPLESS_SIM_VERSION", "11080"), ("CASE", "nearly")], no_device_or_old);
}

fn no_device_or_old() {
    let error = load(&library()).unwrap_err();
    let found = match std::env::var("CASE").unwrap().as_str() {
        "none" => {
            assert!(matches!(error, LoadError::NoDevice { .. }), "{error}");
            CudaVersion(13_000)
        }
        case => {
            let version = if case == "old" { CudaVersion(10_010) } else { CudaVersion(11_080) };
            assert!(matches!(&error, LoadError::DriverTooOld { found, .. } if *found == version), "{error}");
            assert!(error.to_string().contains(&version.to_string()), "{error}");
            assert!(error.to_string().contains("12.0"), "{error}");
            version
        }
    };
    // What the library is can be reported all the same.
    // SAFETY: it is a driver library.
    let file = unsafe { Library::find(Some(&library())) }.unwrap();
    assert_eq!((Some(found), std::fs::canonicalize(library()).unwrap()), (file.cuda, file.file.into()));
}

#[test]
fn libraries_that_cannot_be_used_have_their_own_errors() {
    let folder = tempfile::tempdir().unwrap();
    let error = load(&folder.path().join("libcuda.so.1")).unwrap_err();
    assert!(matches!(error, LoadError::LibraryNotFound { .. }), "{error}");
    let path = library_without("cuMemMap", folder.path());
    let error = load(&path).unwrap_err();
    assert!(matches!(error, LoadError::MissingSymbol { name: "cuMemMap", .. }), "{error}");
    let text = folder.path().join("libcuda.so.2");
    std::fs::write(&text, "not a library").unwrap();
    let error = load(&text).unwrap_err();
    assert!(matches!(error, LoadError::LibraryNotFound { .. }), "{error}");
}

#[test]
fn every_required_function_is_looked_up() {
    for name in gapless::driver::cuda::sys::REQUIRED.iter() {
        let folder = tempfile::tempdir().unwrap();
        let path = library_without(name, folder.path());
        let error = load(&path).unwrap_err();
        assert!(matches!(error, LoadError::MissingSymbol { name: found, .. } if found == *name), "{error}");
    }
}

#[test]
fn optional_functions_may_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = library_without("cuDeviceGetPCIBusId", folder.path());
    // SAFETY: it is a driver library.
    let builder = unsafe { CudaDriver::builder().library(path) };
    let driver = simulated::open(builder).unwrap();
    assert_eq!(driver.info().pci_bus_id, None);
}

#[test]
fn devices_are_independent() {
    let settings = [("GAPLESS_SIM_DEVICES", "2"), ("GAPLESS_SIM_CAPACITY", "64MiB")];
    with_settings("devices_are_independent", &settings, || {
        let one = simulated::open(simulated::builder().device(0).peers([1])).unwrap();
        let two = simulated::open(simulated::builder().device(1)).unwrap();
        let error = simulated::open(simulated::builder().device(2)).unwrap_err();
        assert!(matches!(error, OpenError::NoSuchDevice { ordinal: 2, count: 2 }), "{error}");
        let first = mapped(&one, 4 * MIB);
        let second = mapped(&two, 8 * MIB);
        assert_eq!(one.memory_info().unwrap().free, 60 * MIB);
        assert_eq!(two.memory_info().unwrap().free, 56 * MIB);
        let stream = two.create_stream().unwrap();
        assert!(one.check_stream(stream).is_err());
        one.fill(StreamId::DEFAULT, first, 100, 1).unwrap();
        two.fill(stream, second, 100, 2).unwrap();
        two.verify(stream, second, 100, 2).unwrap();
        two.synchronize(stream).unwrap();
        assert_eq!(two.take_mismatches(), []);
        assert_eq!(one.create(64 * MIB).unwrap_err().kind, DriverErrorKind::OutOfMemory);
        assert_eq!(one.create(4 * MIB + 1).unwrap_err().kind, DriverErrorKind::InvalidValue);
    });
}

/// The addresses of a process are everybody's: large reservations are refused from a quarter of them on.
#[test]
fn a_process_reserves_a_quarter_of_its_addresses() {
    with_settings("a_process_reserves_a_quarter_of_its_addresses", &[], || {
        let (one, other) = (open(), open());
        let page = one.granularity();
        let large = 16 << 40;
        let first = one.reserve(large, page).unwrap();
        let second = other.reserve(large, page).unwrap();
        assert_eq!(one.reserve(1 << 40, page).unwrap_err().kind, DriverErrorKind::OutOfMemory);
        let small = one.reserve(4 << 30, page).unwrap();
        other.address_free(second, large).unwrap();
        let third = one.reserve(1 << 40, page).unwrap();
        for (addr, bytes) in [(first, large), (small, 4 << 30), (third, 1 << 40)] {
            one.address_free(addr, bytes).unwrap();
        }
    });
}
