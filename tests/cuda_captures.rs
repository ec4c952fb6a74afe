//! The rules of captures and graphs that a device has, in the simulated `libcuda.so.1`.

mod simulated;

use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::sys::{CUgraph, CUgraphExec, CUstream, Optional, Required, cudaError_enum as code};
use gapless::driver::{DriverError, DriverErrorKind, MemoryDriver, StreamDriver, WorkDriver};
use gapless::units::MIB;
use gapless::{Allocator, DeviceAddr, StreamId};
use simulated::{library, with_settings};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The driver, with its context current on this thread as in a program that captures. Captures concern all threads of a
/// process, so tests run one after another.
struct Api {
    driver: CudaDriver,
    required: Required,
    optional: Optional,
    _alone: MutexGuard<'static, ()>,
}

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

fn api() -> Api {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = simulated::open(simulated::builder()).unwrap();
    // SAFETY: the simulated library's functions have the types of cuda.h.
    let required = unsafe { Required::new(library()) }.unwrap();
    // SAFETY: as above.
    let optional = unsafe { Optional::new(library()) }.unwrap();
    let mut context = null_mut();
    // SAFETY: the out-parameter is valid.
    unsafe { required.cuDevicePrimaryCtxRetain(&raw mut context, 0) };
    // SAFETY: retained just above.
    unsafe { required.cuCtxSetCurrent(context) };
    Api { driver, required, optional, _alone: alone }
}

fn result_of(error: &DriverError) -> code {
    code(u32::try_from(error.code).expect("a result code"))
}

fn raw(stream: StreamId) -> CUstream {
    std::ptr::with_exposed_provenance_mut(stream.as_raw() as usize)
}

impl Api {
    fn begin(&self, stream: StreamId, mode: u32) {
        let begin = self.optional.cuStreamBeginCapture_v2.as_ref().unwrap();
        let mode = gapless::driver::cuda::sys::CUstreamCaptureMode_enum(mode);
        // SAFETY: a stream of this device.
        assert_eq!(unsafe { begin(raw(stream), mode) }, code::CUDA_SUCCESS);
    }

    /// Ends the capture, and makes a graph of it that can be launched.
    fn end(&self, stream: StreamId) -> Result<CUgraphExec, code> {
        let end = self.optional.cuStreamEndCapture.as_ref().unwrap();
        let mut graph: CUgraph = null_mut();
        // SAFETY: a stream of this device, and a valid out-parameter.
        let result = unsafe { end(raw(stream), &raw mut graph) };
        if result != code::CUDA_SUCCESS {
            return Err(result);
        }
        let instantiate = self.optional.cuGraphInstantiateWithFlags.as_ref().unwrap();
        let mut exec = null_mut();
        // SAFETY: the graph was made just above.
        assert_eq!(unsafe { instantiate(&raw mut exec, graph, 0) }, code::CUDA_SUCCESS);
        Ok(exec)
    }

    /// Puts this thread into another capture mode, and returns the one before.
    fn exchange_mode(&self, mode: u32) -> u32 {
        let mut mode = gapless::driver::cuda::sys::CUstreamCaptureMode_enum(mode);
        // SAFETY: the parameter is valid.
        assert_eq!(unsafe { self.required.cuThreadExchangeStreamCaptureMode(&raw mut mode) }, code::CUDA_SUCCESS);
        mode.0
    }

    fn launch(&self, exec: CUgraphExec, stream: StreamId) {
        let launch = self.optional.cuGraphLaunch.as_ref().unwrap();
        // SAFETY: a graph and a stream of this device.
        assert_eq!(unsafe { launch(exec, raw(stream)) }, code::CUDA_SUCCESS);
    }

    /// The status and the id of the capture that the stream belongs to.
    fn info(&self, stream: StreamId) -> (code, u32, u64) {
        let info = self.optional.cuStreamGetCaptureInfo_v3.as_ref().unwrap();
        let mut status = gapless::driver::cuda::sys::CUstreamCaptureStatus_enum(9);
        let mut id = 0;
        // SAFETY: the out-parameters are valid or null.
        let result =
            unsafe { info(raw(stream), &raw mut status, &raw mut id, null_mut(), null_mut(), null_mut(), null_mut()) };
        (result, status.0, id)
    }

    fn blocking_stream(&self) -> StreamId {
        let mut stream = null_mut();
        // SAFETY: the out-parameter is valid.
        assert_eq!(unsafe { self.required.cuStreamCreate(&raw mut stream, 0) }, code::CUDA_SUCCESS);
        simulated::stream(stream as u64)
    }

    fn mapped(&self) -> DeviceAddr {
        let bytes = self.driver.granularity();
        let addr = self.driver.reserve(bytes, bytes).unwrap();
        let chunk = self.driver.create(bytes).unwrap();
        self.driver.map(addr, bytes, chunk).unwrap();
        self.driver.set_access(addr, bytes).unwrap();
        self.driver.release(chunk).unwrap();
        addr
    }
}

#[test]
fn a_graph_runs_on_any_stream() {
    let api = api();
    let [captured, one, other] = [(); 3].map(|()| api.driver.create_stream().unwrap());
    let addr = api.mapped();
    api.begin(captured, GLOBAL);
    api.driver.fill(captured, addr, 4096, 5).unwrap();
    let graph = api.end(captured).unwrap();
    for stream in [one, other] {
        api.driver.fill(stream, addr, 4096, 6).unwrap();
        api.launch(graph, stream);
        api.driver.verify(stream, addr, 4096, 5).unwrap();
        api.driver.synchronize(stream).unwrap();
    }
    assert_eq!(api.driver.take_mismatches(), []);
}

#[test]
fn a_replay_needs_its_addresses() {
    with_settings("a_replay_needs_its_addresses", &[], || {
        let api = api();
        let [captured, other] = [(); 2].map(|()| api.driver.create_stream().unwrap());
        let addr = api.mapped();
        api.begin(captured, GLOBAL);
        api.driver.fill(captured, addr, 4096, 5).unwrap();
        let graph = api.end(captured).unwrap();
        api.driver.delay(other, Duration::from_millis(100)).unwrap();
        api.launch(graph, other);
        api.driver.synchronize(captured).unwrap();
        api.driver.unmap(addr, api.driver.granularity()).unwrap();
        let lost = api.driver.synchronize(other).unwrap_err();
        assert_eq!(result_of(&lost), code::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn forbidden_calls_end_a_capture_without_a_graph() {
    let api = api();
    let stream = api.driver.create_stream().unwrap();
    let event = api.driver.event_create().unwrap();
    let synchronize = || {
        // SAFETY: a stream of this device.
        unsafe { api.required.cuStreamSynchronize(raw(stream)) }
    };
    let query = || {
        // SAFETY: a stream of this device.
        unsafe { api.required.cuStreamQuery(raw(stream)) }
    };
    let forbidden: [(&str, &dyn Fn() -> code, code); 4] = [
        ("synchronize", &synchronize, code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        ("query", &query, code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        (
            "query of an event",
            &|| {
                assert!(api.driver.event_record(event, stream).is_ok());
                api.driver.event_query(event).map_or_else(|error| result_of(&error), |_| code::CUDA_SUCCESS)
            },
            code::CUDA_ERROR_CAPTURED_EVENT,
        ),
        (
            "wait for an event",
            &|| {
                assert!(api.driver.event_record(event, stream).is_ok());
                api.driver.event_synchronize(event).map_or_else(|error| result_of(&error), |()| code::CUDA_SUCCESS)
            },
            code::CUDA_ERROR_CAPTURED_EVENT,
        ),
    ];
    for (what, call, expected) in forbidden {
        api.begin(stream, RELAXED);
        assert_eq!(call(), expected, "{what}");
        assert_eq!(api.info(stream).1, 2, "{what}: the capture is invalid");
        assert!(api.driver.is_capturing(stream), "{what}: until it is ended");
        assert_eq!(api.end(stream).unwrap_err(), code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{what}");
        assert!(!api.driver.is_capturing(stream));
    }
    // As on a device, the event stays one of a capture until it is recorded again.
    assert!(api.driver.event_query(event).is_err());
    api.driver.event_record(event, stream).unwrap();
    api.driver.event_synchronize(event).unwrap();
    api.driver.event_destroy(event).unwrap();
}

#[test]
fn the_legacy_stream_is_unusable_while_a_blocking_stream_is_captured() {
    let api = api();
    let event = api.driver.event_create().unwrap();
    let blocking = api.blocking_stream();
    api.begin(blocking, RELAXED);
    assert_eq!(api.info(StreamId::DEFAULT).0, code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert!(api.driver.is_capturing(StreamId::DEFAULT), "as far as anybody may do with it");
    api.end(blocking).expect("asking ends no capture");

    api.begin(blocking, RELAXED);
    let error = api.driver.event_record(event, StreamId::DEFAULT).unwrap_err();
    assert_eq!(result_of(&error), code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_eq!(api.end(blocking).unwrap_err(), code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    // A stream that does not wait for the legacy one leaves it alone.
    let other = api.driver.create_stream().unwrap();
    api.begin(other, RELAXED);
    api.driver.event_record(event, StreamId::DEFAULT).unwrap();
    api.end(other).unwrap();
}

/// Source: NVIDIA/cccl, `cudax/.../__places/stream_pool.cuh`: `cuStreamGetId` "is not capture-safe: during
/// cudaStreamCaptureModeThreadLocal / Global it rejects the query and invalidates the capture itself", and `cuStreamGetCtx` is "not
/// permitted while the stream is participating in capture".
#[test]
fn neither_the_id_nor_the_context_of_a_captured_stream_is_told() {
    let api = api();
    let stream = api.driver.create_stream().unwrap();
    let get_id = || {
        let mut id = 0;
        // SAFETY: a stream of this device, and a valid out-parameter.
        unsafe { api.required.cuStreamGetId(raw(stream), &raw mut id) }
    };
    let get_context = || {
        let mut context = null_mut();
        // SAFETY: as above.
        unsafe { api.required.cuStreamGetCtx(raw(stream), &raw mut context) }
    };
    let questions: [&dyn Fn() -> code; 2] = [&get_id, &get_context];
    for ask in questions {
        for (mode, thread, lost) in
            [(GLOBAL, GLOBAL, true), (THREAD_LOCAL, GLOBAL, true), (GLOBAL, RELAXED, false), (RELAXED, GLOBAL, false)]
        {
            api.begin(stream, mode);
            let before = api.exchange_mode(thread);
            assert_eq!(ask(), code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            api.exchange_mode(before);
            assert_eq!(api.end(stream).is_err(), lost, "a capture of mode {mode}, a thread in mode {thread}");
        }
        assert_eq!(ask(), code::CUDA_SUCCESS);
    }
}

/// Whether an allocator knows a captured stream or not, a request on it leaves the capture alone: in every mode, from the
/// thread that captures and from another.
#[test]
fn requests_on_a_captured_stream_leave_the_capture_alone() {
    let api = api();
    let driver = Arc::new(simulated::open(simulated::builder()).unwrap());
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        for known in [false, true] {
            for elsewhere in [false, true] {
                let allocator = Allocator::builder(Arc::clone(&driver)).keep_mappings().build().unwrap();
                let stream = api.driver.create_stream().unwrap();
                if known {
                    let before = allocator.alloc_raw(100, stream).unwrap();
                    allocator.free(before).unwrap();
                }
                let requests = || {
                    let block = allocator.alloc_raw(3 << 20, stream).unwrap();
                    allocator.record_stream(block, stream).unwrap();
                    allocator.free(block).unwrap();
                    allocator.keep_stream(stream).unwrap();
                    allocator.alloc_raw(5 << 20, stream).unwrap();
                    allocator.forget_stream(stream).unwrap();
                    let device = driver.device_of_stream(stream).map_err(|error| error.kind);
                    assert_eq!(device, if known { Ok(0) } else { Err(DriverErrorKind::Capturing) });
                };
                api.begin(stream, mode);
                if elsewhere {
                    std::thread::scope(|scope| scope.spawn(requests).join().unwrap());
                } else {
                    requests();
                }
                let ended = api.end(stream);
                assert!(ended.is_ok(), "mode {mode}, known {known}, elsewhere {elsewhere}: {ended:?}");
            }
        }
    }
}

/// An allocator that meets a stream in a capture knows it afterwards, if another allocator of the process has met it before.
/// Else it may be another stream by then: what was freed on the first one goes to it only after a wait.
#[test]
fn a_stream_that_was_first_seen_in_a_capture_is_known_afterwards() {
    let api = api();
    let driver = Arc::new(simulated::open(simulated::builder()).unwrap());
    let main = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    for known in [true, false] {
        let pool = Allocator::builder(Arc::clone(&driver)).keep_mappings().build().unwrap();
        let stream = api.driver.create_stream().unwrap();
        if known {
            main.alloc_raw(100, stream).unwrap();
        }
        api.begin(stream, GLOBAL);
        let block = pool.alloc_raw(3 << 20, stream).unwrap();
        pool.free(block).unwrap();
        assert_eq!(pool.alloc_raw(3 << 20, stream).unwrap(), block, "in the capture");
        api.end(stream).unwrap();
        pool.free(block).unwrap();
        let after = pool.alloc_raw(3 << 20, stream).unwrap();
        assert_eq!((after == block, pool.stats().streams), if known { (true, 1) } else { (false, 2) });
    }
}

#[test]
fn captures_have_numbers_of_their_own() {
    let api = api();
    let [one, two, joining] = [(); 3].map(|()| api.driver.create_stream().unwrap());
    assert_eq!(api.info(one), (code::CUDA_SUCCESS, 0, 0));
    api.begin(one, GLOBAL);
    api.begin(two, GLOBAL);
    let (first, second) = (api.info(one).2, api.info(two).2);
    assert_ne!(first, second);
    // A stream that waits for an event of a capture belongs to it.
    let event = api.driver.event_create().unwrap();
    api.driver.event_record(event, one).unwrap();
    api.driver.stream_wait(joining, event).unwrap();
    assert_eq!(api.info(joining), (code::CUDA_SUCCESS, 1, first));
    api.end(one).unwrap();
    assert_eq!(api.info(joining).1, 0);
    api.end(two).unwrap();
    api.begin(one, GLOBAL);
    assert!(![first, second].contains(&api.info(one).2));
    api.end(one).unwrap();
    assert_eq!(api.driver.stream_wait(two, event).unwrap_err().kind, DriverErrorKind::Capturing);
}

#[test]
fn a_process_has_47_bits_of_addresses() {
    with_settings("a_process_has_47_bits_of_addresses", &[], || {
        // Reservations are the process's own addresses, as with a real driver, so the limit is the processor's.
        let api = api();
        let bytes = 1 << 44;
        let reserved: Vec<DeviceAddr> =
            std::iter::from_fn(|| api.driver.raw().reserve(bytes, api.driver.granularity()).ok()).collect();
        assert!((4..8).contains(&reserved.len()), "{} of 8, with what else is in the address space", reserved.len());
        for addr in reserved {
            api.driver.raw().address_free(addr, bytes).unwrap();
        }
    });
}

/// A host wait may come while the slow path of an allocator is locked: it must not take the time of a processor as well.
#[test]
fn a_host_wait_for_an_event_sleeps() {
    let api = api();
    let name = std::ffi::CString::new(library().to_str().unwrap()).unwrap();
    // SAFETY: a NUL-terminated path of a library that is loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: a library that is loaded, and a name that ends with NUL.
    let function = unsafe { libc::dlsym(handle, c"gapless_sim_spins".as_ptr()) };
    assert!(!function.is_null());
    // SAFETY: the type of that function.
    let spins = unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn() -> u64>(function) };
    let stream = api.driver.create_stream().unwrap();
    let event = api.driver.event_create().unwrap();
    api.driver.delay(stream, Duration::from_millis(20)).unwrap();
    api.driver.event_record(event, stream).unwrap();
    let before = spins();
    api.driver.event_synchronize(event).unwrap();
    assert_eq!(spins(), before);
    api.driver.event_destroy(event).unwrap();
}

/// The whole device is waited for where nothing else tells when a stream has finished. That would end the capture of any stream of
/// the device: of blocking ones the legacy stream tells, whoever has them.
#[test]
fn a_request_that_runs_short_leaves_a_capture_alone() {
    let api = api();
    let driver = Arc::new(simulated::open(simulated::builder()).unwrap());
    let allocator = Allocator::builder(Arc::clone(&driver)).budget(64 * MIB).build().unwrap();
    let (kept, gone) = (api.driver.create_stream().unwrap(), api.driver.create_stream().unwrap());
    allocator.keep_stream(kept).unwrap();
    let block = allocator.alloc_raw(64 * MIB, gone).unwrap();
    allocator.free(block).unwrap();
    let captured = api.blocking_stream();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        api.begin(captured, mode);
        let error = std::thread::scope(|scope| scope.spawn(|| allocator.alloc_raw(64 * MIB, kept)).join().unwrap())
            .unwrap_err();
        api.end(captured).expect("the capture is not touched");
        let report = error.report().expect("what is free");
        assert!(report.stopped_by_capture && report.satisfiable, "{report}");
        let text = report.to_string();
        assert!(text.contains("64 MiB are free") && text.contains("captured") && text.contains("again"), "{text}");
    }
    let all = allocator.alloc_raw(64 * MIB, kept).unwrap();
    allocator.free(all).unwrap();
    let error = allocator.alloc_raw(65 * MIB, kept).unwrap_err();
    assert!(!error.report().unwrap().stopped_by_capture);
    allocator.close().unwrap();
}

/// Of a stream that does not block, nothing tells that it is captured. What was freed before its stream's last request needs no
/// wait for the device.
#[test]
fn what_was_freed_before_the_last_request_is_waited_for_by_its_event() {
    let api = api();
    let driver = Arc::new(simulated::open(simulated::builder()).unwrap());
    let allocator = Allocator::builder(Arc::clone(&driver)).budget(64 * MIB).build().unwrap();
    let (kept, other, captured) =
        (api.driver.create_stream().unwrap(), api.driver.create_stream().unwrap(), api.driver.create_stream().unwrap());
    allocator.keep_stream(kept).unwrap();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let block = allocator.alloc_raw(48 * MIB, other).unwrap();
        allocator.free(block).unwrap();
        let small = allocator.alloc_raw(MIB, other).unwrap();
        api.begin(captured, mode);
        let taken = std::thread::scope(|scope| scope.spawn(|| allocator.alloc_raw(60 * MIB, kept)).join().unwrap());
        api.end(captured).expect("the capture is not touched");
        allocator.free(taken.unwrap()).unwrap();
        allocator.free(small).unwrap();
    }
    allocator.close().unwrap();
}

#[test]
fn a_device_can_be_opened_during_a_capture() {
    let api = api();
    let stream = api.driver.create_stream().unwrap();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        api.begin(stream, mode);
        let opened = simulated::open(simulated::builder());
        api.end(stream).expect("the capture is not touched");
        opened.unwrap();
    }
}
