//! A capture that another thread begins at any call of the driver, and ends after the work or a few calls later, in the simulated
//! `libcuda.so.1`: the allocator neither breaks the capture nor is broken by it.

mod simulated;

use gapless::allocator::{AllocError, ChunkPolicy};
use gapless::driver::WorkDriver;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::sys::{
    CUgraph, CUstream, CUstreamCaptureMode_enum, Optional, Required, cudaError_enum as code,
};
use gapless::units::MIB;
use gapless::{Allocator, DeviceAddr, StreamId};
use simulated::{library, with_settings};
use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

const PAGE: u64 = 2 * MIB;

/// A thread that captures a stream, as PyTorch does: in the mode in which forbidden calls of any thread break the capture.
struct Capturer {
    begin: Sender<StreamId>,
    begun: Receiver<()>,
    end: Sender<()>,
    ended: Receiver<code>,
    is_capturing: Cell<bool>,
}

impl Capturer {
    fn start() -> Self {
        // The context is there before the thread asks for it, and stays.
        let driver = simulated::open(simulated::builder()).unwrap();
        let ((begin, to_begin), (has_begun, begun)) = (channel::<StreamId>(), channel());
        let ((end, to_end), (has_ended, ended)) = (channel(), channel());
        let (is_ready, ready) = channel();
        std::thread::spawn(move || {
            let _driver = driver;
            // SAFETY: the simulated library's functions have the types of cuda.h.
            let required = unsafe { Required::new(library()) }.unwrap();
            // SAFETY: as above.
            let optional = unsafe { Optional::new(library()) }.unwrap();
            let mut context = null_mut();
            // SAFETY: the out-parameter is valid.
            unsafe { required.cuDevicePrimaryCtxRetain(&raw mut context, 0) };
            // SAFETY: retained just above.
            unsafe { required.cuCtxSetCurrent(context) };
            is_ready.send(()).unwrap();
            for stream in to_begin {
                let stream: CUstream = std::ptr::with_exposed_provenance_mut(stream.as_raw() as usize);
                // SAFETY: a stream of the device.
                let result =
                    unsafe { optional.cuStreamBeginCapture_v2.as_ref().unwrap()(stream, CUstreamCaptureMode_enum(0)) };
                assert_eq!(result, code::CUDA_SUCCESS);
                has_begun.send(()).unwrap();
                let () = to_end.recv().unwrap();
                let mut graph: CUgraph = null_mut();
                // SAFETY: a stream of the device, and a valid out-parameter.
                has_ended
                    .send(unsafe { optional.cuStreamEndCapture.as_ref().unwrap()(stream, &raw mut graph) })
                    .unwrap();
            }
        });
        // Its own first calls of the driver are not those before which a capture is to begin.
        ready.recv().unwrap();
        Self { begin, begun, end, ended, is_capturing: Cell::new(false) }
    }

    fn begin(&self, stream: StreamId) {
        self.begin.send(stream).unwrap();
        self.begun.recv().unwrap();
        self.is_capturing.set(true);
    }

    fn end(&self) -> code {
        self.end.send(()).unwrap();
        self.is_capturing.set(false);
        self.ended.recv().unwrap()
    }
}

/// The capture that is to begin in the midst of a call.
struct Planned<'a> {
    capturer: &'a Capturer,
    stream: StreamId,
    /// It ends before the call of this number after the one before which it begins; else after the work.
    ends_at: Option<u64>,
    outcome: Cell<Option<code>>,
}

extern "C" fn begin_capture(planned: *mut c_void) {
    // SAFETY: the test keeps it until the interruption has run or was withdrawn.
    let planned = unsafe { &*planned.cast::<Planned<'_>>() };
    planned.capturer.begin(planned.stream);
    if let Some(call) = planned.ends_at {
        interrupt(call, end_capture, planned);
    }
}

extern "C" fn end_capture(planned: *mut c_void) {
    // SAFETY: as above.
    let planned = unsafe { &*planned.cast::<Planned<'_>>() };
    planned.outcome.set(Some(planned.capturer.end()));
}

type BeforeCall =
    unsafe extern "C" fn(*const c_char, u64, Option<extern "C" fn(*mut c_void)>, *mut c_void, *mut bool) -> u32;

fn before_call() -> BeforeCall {
    let name = CString::new(library().to_str().unwrap()).unwrap();
    // SAFETY: a NUL-terminated path of a library that is loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: a library that is loaded, and a name that ends with NUL.
    let function = unsafe { libc::dlsym(handle, c"gapless_sim_before_call".as_ptr()) };
    assert!(!function.is_null());
    // SAFETY: the type of that function.
    unsafe { std::mem::transmute::<*mut c_void, BeforeCall>(function) }
}

/// Has `what` called before the driver call of that number, counted from now.
fn interrupt(call: u64, what: extern "C" fn(*mut c_void), planned: &Planned<'_>) {
    let data = std::ptr::from_ref(planned).cast_mut().cast();
    // SAFETY: the caller keeps what is planned until it has happened or was withdrawn.
    unsafe { before_call()(std::ptr::null(), call, Some(what), data, null_mut()) };
}

/// Runs `work`, and begins the capture at the driver call of that number. Returns how it ended, if it began.
fn with_capture_at(call: u64, planned: &Planned<'_>, work: impl FnOnce()) -> Option<code> {
    interrupt(call, begin_capture, planned);
    work();
    let mut left = false;
    // SAFETY: a valid out-parameter; nothing is called any more.
    unsafe { before_call()(std::ptr::null(), 0, None, null_mut(), &raw mut left) };
    match planned.outcome.get() {
        None if planned.capturer.is_capturing.get() => Some(planned.capturer.end()),
        outcome => outcome,
    }
}

struct World {
    allocator: Allocator<CudaDriver>,
    streams: [StreamId; 3],
}

/// The stream that another thread begins to capture. No call is handed it meanwhile: it would be unknown which of the two a call
/// of the driver belongs to.
const CAPTURED: usize = 2;

impl World {
    fn new() -> Self {
        let driver = Arc::new(simulated::open(simulated::builder()).unwrap());
        let streams = [(); 3].map(|()| driver.create_stream().unwrap());
        let builder = Allocator::builder(driver).budget(16 * PAGE).chunk_policy(ChunkPolicy::Fixed(PAGE));
        let allocator = builder.build().unwrap();
        streams.iter().for_each(|stream| allocator.keep_stream(*stream).unwrap());
        Self { allocator, streams }
    }

    fn alloc(&self, pages: u64, stream: usize) -> Option<DeviceAddr> {
        match self.allocator.alloc_raw(pages * PAGE, self.streams[stream]) {
            Ok(addr) => Some(addr),
            // What waits for the captured stream cannot be had before its capture ends.
            Err(AllocError::OutOfMemory(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn free(&self, blocks: impl IntoIterator<Item = Option<DeviceAddr>>) {
        blocks.into_iter().flatten().for_each(|block| self.allocator.free(block).unwrap());
    }

    /// Memory that the stream uses which is to be captured, its own and another's.
    fn prepare(&self) -> [Option<DeviceAddr>; 4] {
        let blocks = [self.alloc(3, CAPTURED), self.alloc(2, CAPTURED), self.alloc(3, 0), self.alloc(2, 1)];
        for block in &blocks[2..] {
            self.allocator.record_stream(block.expect("an empty device"), self.streams[CAPTURED]).unwrap();
        }
        blocks
    }

    /// Goes through what the slow path does: growth, pending blocks, cross-stream reuse, remaps, recreation, a trim.
    fn work(&self, prepared: [Option<DeviceAddr>; 4]) {
        let blocks = [self.alloc(1, 0), self.alloc(4, 1)];
        self.free(prepared);
        self.free(blocks);
        let blocks = [self.alloc(3, 0), self.alloc(9, 0), self.alloc(4, 1)];
        self.free(blocks);
        self.free([self.alloc(15, 1)]);
        self.allocator.trim(4 * PAGE).unwrap();
        self.free([self.alloc(7, 0)]);
        self.allocator.check();
    }
}

fn at_every_call(ends_at: Option<u64>) {
    let capturer = Capturer::start();
    for call in 0.. {
        let world = World::new();
        let prepared = world.prepare();
        let planned =
            Planned { capturer: &capturer, stream: world.streams[CAPTURED], ends_at, outcome: Cell::new(None) };
        let outcome = with_capture_at(call, &planned, || world.work(prepared));
        assert!(
            outcome.is_none_or(|outcome| outcome == code::CUDA_SUCCESS),
            "the capture was broken that began at call {call}"
        );
        // Nothing is left behind: every stream can have all of the device.
        for stream in 0..world.streams.len() {
            let all = world.alloc(16, stream);
            assert!(all.is_some(), "memory was lost at call {call}");
            world.free([all]);
        }
        world.allocator.close().unwrap();
        if outcome.is_none() {
            assert!(call > 100, "only {call} calls");
            break;
        }
    }
}

#[test]
fn a_capture_that_begins_at_any_call_neither_breaks_nor_is_broken() {
    let name = "a_capture_that_begins_at_any_call_neither_breaks_nor_is_broken";
    with_settings(name, &[], || at_every_call(None));
}

/// An event that a capture has caught unseen is none of the stream's, whatever the driver answers about it afterwards.
#[test]
fn a_capture_that_has_ended_a_few_calls_later_leaves_nothing() {
    with_settings("a_capture_that_has_ended_a_few_calls_later_leaves_nothing", &[], || {
        (1..=4).for_each(|calls| at_every_call(Some(calls)));
    });
}
