//! Contexts: which one a call runs in, whose default streams a thread means, and what is said once one is lost, with the
//! simulated `libcuda.so.1`.

mod simulated;

use gapless::driver::cuda::sys::{CUcontext, Required, cudaError_enum as code};
use gapless::driver::cuda::{CudaDriver, LEGACY_STREAM, PER_THREAD_STREAM};
use gapless::driver::{DriverErrorKind, MemoryDriver, StreamDriver, WorkDriver};
use gapless::units::MIB;
use gapless::{Allocator, DeviceAddr, StreamId};
use simulated::{library, with_settings};
use std::sync::Arc;
use std::time::Duration;

const MAIN: StreamId = StreamId::DEFAULT;
const DEFAULTS: [StreamId; 3] = [MAIN, LEGACY_STREAM, PER_THREAD_STREAM];

fn open(ordinal: u32) -> CudaDriver {
    CudaDriver::builder().library(library()).device(ordinal).open().unwrap()
}

fn api() -> Required {
    // SAFETY: the simulated library's functions have the types of cuda.h.
    unsafe { Required::new(library()) }.unwrap()
}

fn current(api: &Required) -> CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the out-parameter is a valid pointer for the call.
    assert_eq!(unsafe { api.cuCtxGetCurrent(&raw mut context) }, code::CUDA_SUCCESS);
    context
}

/// Makes a context of a program's own on a device, current from then on.
fn create_context(device: i32) -> CUcontext {
    // SAFETY: loading the simulated library runs nothing.
    let raw = unsafe { libloading::Library::new(library()) }.unwrap();
    type Create = unsafe extern "C" fn(*mut CUcontext, u32, i32) -> u32;
    // SAFETY: the function has this type.
    let create = unsafe { raw.get::<Create>(b"cuCtxCreate_v2\0") }.unwrap();
    let mut context = std::ptr::null_mut();
    // SAFETY: the out-parameter is a valid pointer for the call.
    assert_eq!(unsafe { create(&raw mut context, 0, device) }, 0);
    context
}

fn make_current(api: &Required, context: CUcontext) {
    // SAFETY: null, or a context of the library.
    assert_eq!(unsafe { api.cuCtxSetCurrent(context) }, code::CUDA_SUCCESS);
}

/// Every call about streams and events works on a thread without a context, and in that of another device, and leaves the
/// thread as it was.
#[test]
fn no_call_needs_a_current_context() {
    with_settings("no_call_needs_a_current_context", &[("GAPLESS_SIM_DEVICES", "2")], || {
        let (api, driver) = (api(), open(0));
        let _other = open(1);
        let mut theirs = std::ptr::null_mut();
        // SAFETY: the out-parameter is a valid pointer for the call.
        unsafe { api.cuDevicePrimaryCtxRetain(&raw mut theirs, 1) };
        for context in [std::ptr::null_mut(), theirs, create_context(0)] {
            make_current(&api, context);
            let stream = driver.create_stream().unwrap();
            driver.check_stream(stream).unwrap();
            assert!(!driver.is_capturing(stream));
            let event = driver.event_create().unwrap();
            driver.delay(stream, Duration::from_millis(5)).unwrap();
            driver.event_record(event, stream).unwrap();
            assert!(!driver.event_query(event).unwrap());
            driver.stream_wait(MAIN, event).unwrap();
            driver.event_synchronize(event).unwrap();
            assert!(driver.event_query(event).unwrap());
            driver.event_destroy(event).unwrap();
            driver.synchronize(stream).unwrap();
            driver.destroy_stream(stream).unwrap();
            driver.synchronize_device().unwrap();
            assert_eq!(current(&api), context);
        }
    });
}

/// 0, 1 and 2 on a thread with a context of its own on the device are streams of that context. With another device's
/// context current, or with none, they are this device's.
#[test]
fn default_streams_of_another_context_are_told_apart() {
    with_settings("default_streams_of_another_context_are_told_apart", &[("GAPLESS_SIM_DEVICES", "2")], || {
        let (api, driver) = (api(), Arc::new(open(0)));
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let mut contexts = [std::ptr::null_mut(); 2];
        for (device, context) in contexts.iter_mut().enumerate() {
            // SAFETY: the out-parameter is a valid pointer for the call.
            assert_eq!(unsafe { api.cuDevicePrimaryCtxRetain(context, device as i32) }, code::CUDA_SUCCESS);
        }
        let [primary, other_device] = contexts;
        let own = create_context(0);
        for stream in DEFAULTS {
            let error = driver.check_stream(stream).unwrap_err();
            assert_eq!(error.kind, DriverErrorKind::InvalidHandle);
            assert!(
                error.to_string().contains("a context other than the primary one of device 0 is current"),
                "{error}"
            );
            let refused = allocator.alloc(100, stream).unwrap_err().to_string();
            assert!(refused.contains("hand in the handle of a stream"), "{refused}");
        }
        let mut theirs = std::ptr::null_mut();
        // SAFETY: the out-parameter is a valid pointer for the call.
        assert_eq!(unsafe { api.cuStreamCreate(&raw mut theirs, 1) }, code::CUDA_SUCCESS);
        let error = driver.check_stream(StreamId(theirs as u64)).unwrap_err();
        assert_eq!(error.kind, DriverErrorKind::InvalidHandle);
        assert_eq!(current(&api), own);
        for context in [std::ptr::null_mut(), primary, other_device] {
            make_current(&api, context);
            for stream in DEFAULTS {
                driver.check_stream(stream).unwrap();
            }
        }
        allocator.free(allocator.alloc(100, MAIN).unwrap()).unwrap();
    });
}

/// They are told apart at every request, not only when they are first seen.
#[test]
fn a_change_of_context_is_noticed() {
    let (api, driver) = (api(), Arc::new(open(0)));
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    let kept: Vec<DeviceAddr> = DEFAULTS.iter().map(|stream| allocator.alloc(MIB, *stream).unwrap()).collect();
    allocator.free(allocator.alloc(MIB, MAIN).unwrap()).unwrap();
    let before = current(&api);
    create_context(0);
    for stream in DEFAULTS {
        let error = allocator.alloc(MIB, stream).unwrap_err().to_string();
        assert!(error.contains("a context other than the primary one of device 0 is current"), "{error}");
        let error = allocator.record_stream(kept[0], stream).unwrap_err().to_string();
        assert!(error.contains("a context other than the primary one of device 0 is current"), "{error}");
        assert_eq!(allocator.alloc_cached(MIB, 1, stream), None, "{stream}");
    }
    make_current(&api, before);
    for stream in DEFAULTS {
        allocator.free(allocator.alloc(MIB, stream).unwrap()).unwrap();
        allocator.record_stream(kept[0], stream).unwrap();
    }
    assert!(allocator.alloc_cached(MIB, 1, MAIN).is_some());
    allocator.check();
}

/// The error with which the device was lost, and not that a stream is none of it.
#[test]
fn a_lost_context_is_what_the_first_message_says() {
    with_settings("a_lost_context_is_what_the_first_message_says", &[], || {
        let driver = Arc::new(open(0));
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let block = allocator.alloc(MIB, MAIN).unwrap();
        let (seen, other) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
        driver.fill(MAIN, DeviceAddr(4096), 8, 1).unwrap();
        assert!(driver.synchronize(MAIN).unwrap_err().kind.is_sticky());
        let error = driver.check_stream(seen).unwrap_err();
        assert_eq!((error.kind, error.code), (DriverErrorKind::DeviceLost, 700));
        for text in [
            allocator.alloc(MIB, other).unwrap_err().to_string(),
            allocator.record_stream(block, other).unwrap_err().to_string(),
        ] {
            assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)") && !text.contains("not a stream"), "{text}");
        }
    });
}

/// A handle that is no stream is still none.
#[test]
fn an_unknown_handle_is_refused() {
    let driver = open(0);
    let error = driver.check_stream(StreamId(0xdead_0000)).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::InvalidHandle);
    assert!(error.to_string().contains("not a stream of device 0's primary context"), "{error}");
    assert_eq!(driver.granularity(), 2 * MIB);
}
