//! Contexts: which one a call runs in, whose default streams a thread means, and what is said once one is lost, with the
//! simulated `libcuda.so.1`.

mod simulated;

use gapless::driver::cuda::sys::{CUcontext, Required, cudaError_enum as code};
use gapless::driver::cuda::{CudaDriver, LEGACY_STREAM, PER_THREAD_STREAM};
use gapless::driver::{DriverErrorKind, MemoryDriver, StreamDriver, WorkDriver};
use gapless::units::MIB;
use gapless::{Allocator, DeviceAddr, StreamId};
use simulated::{library, with_settings};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

const MAIN: StreamId = StreamId::DEFAULT;
const DEFAULTS: [StreamId; 3] = [MAIN, LEGACY_STREAM, PER_THREAD_STREAM];

fn open(ordinal: u32) -> CudaDriver {
    simulated::open(simulated::builder().device(ordinal)).unwrap()
}

fn api() -> Required {
    // SAFETY: the simulated library's functions have the types of cuda.h.
    unsafe { Required::new(library()) }.unwrap()
}

fn current(api: &Required) -> CUcontext {
    let mut context = null_mut();
    // SAFETY: the out-parameter is a valid pointer for the call.
    assert_eq!(unsafe { api.cuCtxGetCurrent(&raw mut context) }, code::CUDA_SUCCESS);
    context
}

/// A function of the simulated library that the allocator does not call.
///
/// # Safety
/// It has the type `T`.
unsafe fn function<T: Copy>(name: &[u8]) -> T {
    // SAFETY: loading the simulated library runs nothing.
    let library = unsafe { libloading::Library::new(library()) }.unwrap();
    // SAFETY: the caller's part. The library is loaded for good, by the driver.
    unsafe { *library.get::<T>(name).unwrap() }
}

/// Makes a context of a program's own on a device, current from then on.
fn create_context(device: i32) -> CUcontext {
    type Create = unsafe extern "C" fn(*mut CUcontext, u32, i32) -> u32;
    // SAFETY: the function has this type.
    let create: Create = unsafe { function(b"cuCtxCreate_v2") };
    let mut context = null_mut();
    // SAFETY: the out-parameter is a valid pointer for the call.
    assert_eq!(unsafe { create(&raw mut context, 0, device) }, 0);
    context
}

/// Does what `cudaDeviceReset` does. No thread uses anything of the device.
fn reset(device: i32) {
    // SAFETY: the function has this type.
    let reset: unsafe extern "C" fn(i32) -> u32 = unsafe { function(b"cuDevicePrimaryCtxReset_v2") };
    // SAFETY: a number.
    assert_eq!(unsafe { reset(device) }, 0);
}

/// A green context of a device, and a stream of it.
struct Green {
    context: *mut c_void,
    stream: StreamId,
}

impl Green {
    fn create(device: i32) -> Self {
        type Describe = unsafe extern "C" fn(*mut *mut c_void, *const [u32; 36], u32) -> u32;
        type Resource = unsafe extern "C" fn(i32, *mut [u32; 36], u32) -> u32;
        type Create = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, i32, u32) -> u32;
        type CreateStream = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, u32, i32) -> u32;
        // SAFETY: the function has this type.
        let get: Resource = unsafe { function(b"cuDeviceGetDevResource") };
        // SAFETY: as above.
        let describe: Describe = unsafe { function(b"cuDevResourceGenerateDesc") };
        // SAFETY: as above.
        let create: Create = unsafe { function(b"cuGreenCtxCreate") };
        // SAFETY: as above.
        let create_stream: CreateStream = unsafe { function(b"cuGreenCtxStreamCreate") };
        let (mut desc, mut context, mut stream) = (null_mut(), null_mut(), null_mut());
        let mut resource = [0; 36];
        // SAFETY: the out-parameter is valid for the call.
        assert_eq!(unsafe { get(device, &raw mut resource, 1) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { describe(&raw mut desc, &raw const resource, 1) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { create(&raw mut context, desc, device, 1) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { create_stream(&raw mut stream, context, 1, 0) }, 0);
        Self { context, stream: simulated::stream(stream as u64) }
    }

    /// The context as others are handed in.
    fn converted(&self) -> CUcontext {
        type Convert = unsafe extern "C" fn(*mut CUcontext, *mut c_void) -> u32;
        // SAFETY: the function has this type.
        let convert: Convert = unsafe { function(b"cuCtxFromGreenCtx") };
        let mut context = null_mut();
        // SAFETY: the out-parameter is valid for the call; the context exists.
        assert_eq!(unsafe { convert(&raw mut context, self.context) }, 0);
        context
    }

    fn destroy(self) {
        // SAFETY: the function has this type.
        let destroy: unsafe extern "C" fn(*mut c_void) -> u32 = unsafe { function(b"cuGreenCtxDestroy") };
        // SAFETY: the context exists.
        assert_eq!(unsafe { destroy(self.context) }, 0);
    }
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
            let refused = allocator.alloc_raw(100, stream).unwrap_err().to_string();
            assert!(refused.contains("hand in the handle of a stream"), "{refused}");
        }
        let mut theirs = std::ptr::null_mut();
        // SAFETY: the out-parameter is a valid pointer for the call.
        assert_eq!(unsafe { api.cuStreamCreate(&raw mut theirs, 1) }, code::CUDA_SUCCESS);
        let error = driver.check_stream(simulated::stream(theirs as u64)).unwrap_err();
        assert_eq!(error.kind, DriverErrorKind::InvalidHandle);
        assert_eq!(current(&api), own);
        for context in [std::ptr::null_mut(), primary, other_device] {
            make_current(&api, context);
            for stream in DEFAULTS {
                driver.check_stream(stream).unwrap();
            }
        }
        allocator.free(allocator.alloc_raw(100, MAIN).unwrap()).unwrap();
    });
}

/// They are told apart at every request, not only when they are first seen.
#[test]
fn a_change_of_context_is_noticed() {
    let (api, driver) = (api(), Arc::new(open(0)));
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    let kept: Vec<DeviceAddr> = DEFAULTS.iter().map(|stream| allocator.alloc_raw(MIB, *stream).unwrap()).collect();
    allocator.free(allocator.alloc_raw(MIB, MAIN).unwrap()).unwrap();
    let before = current(&api);
    create_context(0);
    for stream in DEFAULTS {
        let error = allocator.alloc_raw(MIB, stream).unwrap_err().to_string();
        assert!(error.contains("a context other than the primary one of device 0 is current"), "{error}");
        let error = allocator.record_stream(kept[0], stream).unwrap_err().to_string();
        assert!(error.contains("a context other than the primary one of device 0 is current"), "{error}");
        assert_eq!(allocator.alloc_raw_cached(MIB, 1, stream), None, "{stream}");
    }
    make_current(&api, before);
    for stream in DEFAULTS {
        allocator.free(allocator.alloc_raw(MIB, stream).unwrap()).unwrap();
        allocator.record_stream(kept[0], stream).unwrap();
    }
    assert!(allocator.alloc_raw_cached(MIB, 1, MAIN).is_some());
    allocator.check();
}

/// They have the memory and the events of the primary context. Its own default stream is another one than the device's.
#[test]
fn streams_of_a_green_context_are_streams_of_the_device() {
    with_settings("streams_of_a_green_context_are_streams_of_the_device", &[("GAPLESS_SIM_DEVICES", "2")], || {
        let (api, driver) = (api(), Arc::new(open(0)));
        let allocator = Allocator::builder(Arc::clone(&driver)).budget(64 * MIB).build().unwrap();
        let (green, other) = (Green::create(0), Green::create(1));
        let stream = green.stream;
        assert!(driver.check_stream(other.stream).unwrap_err().to_string().contains("not a stream of device 0"));

        // Recorded there: it waits for that stream.
        let block = allocator.alloc_raw(4 * MIB, MAIN).unwrap();
        driver.delay(stream, Duration::from_millis(50)).unwrap();
        driver.fill(stream, block, 4 * MIB, 1).unwrap();
        allocator.record_stream(block, stream).unwrap();
        allocator.free(block).unwrap();
        let next = allocator.alloc_raw(4 * MIB, MAIN).unwrap();
        assert_ne!(next, block, "work of the green context's stream may still use it");
        allocator.free(next).unwrap();

        // Allocated there: what fills the device orders itself behind it, or waits.
        allocator.keep_stream(stream).unwrap();
        let block = allocator.alloc_raw(4 * MIB, stream).unwrap();
        driver.delay(stream, Duration::from_millis(50)).unwrap();
        driver.fill(stream, block, 4 * MIB, 2).unwrap();
        driver.verify(stream, block, 4 * MIB, 2).unwrap();
        allocator.free(block).unwrap();
        let all = allocator.alloc_raw(64 * MIB, MAIN).unwrap();
        driver.fill(MAIN, all, 64 * MIB, 3).unwrap();
        driver.synchronize_device().unwrap();
        assert_eq!(driver.take_mismatches(), []);
        allocator.free(all).unwrap();
        allocator.check();

        let before = current(&api);
        make_current(&api, green.converted());
        let error = allocator.alloc_raw(MIB, MAIN).unwrap_err().to_string();
        assert!(error.contains("a context other than the primary one of device 0 is current"), "{error}");
        allocator.free(allocator.alloc_raw(MIB, stream).unwrap()).unwrap();
        make_current(&api, before);

        allocator.forget_stream(stream).unwrap();
        green.destroy();
        let error = allocator.alloc_raw(MIB, stream).unwrap_err().to_string();
        assert!(error.contains("917"), "{error}");
        allocator.close().unwrap();
    });
}

/// After `cudaDeviceReset` an allocator serves nothing more and gives its memory back, which survives the reset. Whoever opens the
/// device again can use it.
#[test]
fn a_reset_is_noticed() {
    with_settings("a_reset_is_noticed", &[], || {
        let driver = Arc::new(open(0));
        let free = driver.memory_info().unwrap().free;
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let stream = driver.create_stream().unwrap();
        allocator.keep_stream(stream).unwrap();
        let blocks = [MAIN, stream].map(|stream| allocator.alloc_raw(4 * MIB, stream).unwrap());
        reset(0);
        for block in blocks {
            allocator.free(block).unwrap();
        }
        for error in [
            allocator.alloc_raw(100 * MIB, MAIN).unwrap_err().to_string(),
            allocator.trim(0).unwrap_err().to_string(),
            driver.check_stream(stream).unwrap_err().to_string(),
        ] {
            assert!(error.contains("the primary context of device 0 was reset"), "{error}");
            assert!(error.contains("cuCtxGetId") && error.contains("CUDA_ERROR_CONTEXT_IS_DESTROYED"), "{error}");
        }
        drop(allocator);
        let opened = open(0);
        assert_eq!(opened.memory_info().unwrap().free, free);
        // The context that is there now is another one.
        assert_eq!(driver.memory_info().unwrap_err().kind, DriverErrorKind::DeviceLost);
        let again = Allocator::builder(Arc::new(opened)).build().unwrap();
        again.free(again.alloc_raw(MIB, MAIN).unwrap()).unwrap();
        again.close().unwrap();
    });
}

/// The error with which the device was lost, and not that a stream is none of it.
#[test]
fn a_lost_context_is_what_the_first_message_says() {
    with_settings("a_lost_context_is_what_the_first_message_says", &[], || {
        let driver = Arc::new(open(0));
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let block = allocator.alloc_raw(MIB, MAIN).unwrap();
        let (seen, other) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
        driver.fill(MAIN, DeviceAddr(4096), 8, 1).unwrap();
        assert!(driver.synchronize(MAIN).unwrap_err().kind.is_sticky());
        let error = driver.check_stream(seen).unwrap_err();
        assert_eq!((error.kind, error.code), (DriverErrorKind::DeviceLost, 700));
        for text in [
            allocator.alloc_raw(MIB, other).unwrap_err().to_string(),
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
    let error = driver.check_stream(simulated::stream(0xdead_0000)).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::InvalidHandle);
    assert!(error.to_string().contains("not a stream of device 0's primary context"), "{error}");
    assert_eq!(driver.granularity(), 2 * MIB);
}
