//! Measures a cached allocation and its free through PyTorch's entry points, with and without pools.
//!
//! `cargo bench -p gapless-capi --bench pools` prints the time of a pair for each case, and its ratio to the first, beside
//! which it is measured in every round. The device is simulated: a call of the driver takes longer than a real one.
//!
//! | case | meaning |
//! | --- | --- |
//! | `no pools` | the baseline: 1000 chunks of the main allocator are free |
//! | `outside` | a graph's pool exists |
//! | `inside` | a `MemPool` is in use, and serves the request |
//! | `captured` | the request is made on a stream that is being captured, which the driver is asked about |
//! | `beside` | another thread has a `MemPool` in use; the driver is asked whether the stream is being captured |
//! | `question` | not a pair: one question to the driver, which is a part of the two rows above |

#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless::driver::WorkDriver;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::sys::{CUgraph, CUstream, CUstreamCaptureMode_enum, Optional, Required};
use gapless_capi::*;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::time::Instant;

const ROUNDS: usize = 200;
const PAIRS: u32 = 2000;
const BYTES: libc::ssize_t = 4096;
const POOL: gapless_torch_pool = gapless_torch_pool { first: 0, second: 1 };
const CASES: [&str; 6] = ["no pools", "outside", "inside", "captured", "beside", "question"];

/// A stream that threads can share.
#[derive(Clone, Copy)]
struct Stream(usize);

impl Stream {
    fn raw(self) -> CUstream {
        std::ptr::without_provenance_mut(self.0)
    }
}

fn malloc(bytes: libc::ssize_t, stream: Stream) -> *mut c_void {
    gapless_torch_malloc(bytes, 0, std::ptr::without_provenance_mut(stream.0))
}

fn free(pointer: *mut c_void) {
    gapless_torch_free(pointer, 0, 0, null_mut());
}

/// Nanoseconds of a pair.
fn measure(stream: Stream) -> f64 {
    // What is measured finds memory.
    free(malloc(BYTES, stream));
    let start = Instant::now();
    for _ in 0..PAIRS {
        free(std::hint::black_box(malloc(BYTES, stream)));
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS)
}

/// Nanoseconds of the question which capture a stream belongs to.
fn ask(driver: &CudaDriver, stream: Stream) -> f64 {
    let start = Instant::now();
    for _ in 0..PAIRS {
        assert!(std::hint::black_box(driver.capture_of(simulated::stream(stream.0 as u64))).is_some());
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS)
}

fn begin() {
    gapless_torch_begin_allocate_to_pool(0, POOL, null_mut());
}

fn end() {
    gapless_torch_end_allocate_to_pool(0, POOL);
}

/// Ends the pool and closes it, without a trim of the main allocator.
fn discard() {
    gapless_torch_release_pool(0, POOL);
    gapless_torch_memory_fraction(1.0, 0);
}

fn main() {
    for (name, value) in [("GAPLESS_SIM_CAPACITY", "4GiB"), ("GAPLESS_CONF", "chunk:2MiB")] {
        // SAFETY: no other thread has been started.
        unsafe { std::env::set_var(name, value) };
    }
    let library = simulated::library();
    let name = CString::new(library.to_str().expect("UTF-8")).expect("a path");
    // SAFETY: a NUL-terminated path of a driver library. By its own name from then on.
    assert!(!unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null());
    let driver = simulated::open(simulated::builder()).expect("a device");
    // SAFETY: the simulated library's functions have the types of cuda.h.
    let required = unsafe { Required::new(&library) }.expect("all functions");
    // SAFETY: as above.
    let optional = unsafe { Optional::new(&library) }.expect("the library");
    let mut context = null_mut();
    // SAFETY: the out-parameter is valid.
    unsafe { required.cuDevicePrimaryCtxRetain(&raw mut context, 0) };
    // SAFETY: retained just above.
    unsafe { required.cuCtxSetCurrent(context) };
    let (begin_capture, end_capture) =
        (optional.cuStreamBeginCapture_v2.unwrap(), optional.cuStreamEndCapture.unwrap());
    let [stream, captured] = [(); 2].map(|()| Stream(driver.create_stream().expect("a stream").as_raw() as usize));
    let capture = |work: &dyn Fn()| {
        // SAFETY: a stream of the device.
        assert_eq!(unsafe { begin_capture(captured.raw(), CUstreamCaptureMode_enum(1)) }.0, 0);
        work();
        let mut graph: CUgraph = null_mut();
        // SAFETY: a stream of the device and a valid out-parameter.
        assert_eq!(unsafe { end_capture(captured.raw(), &raw mut graph) }.0, 0);
    };
    let held: Vec<_> = (0..1000).map(|_| malloc(2 << 20, stream)).collect();
    held.into_iter().for_each(free);

    let mut times: [Vec<f64>; CASES.len()] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(measure(stream));
        begin();
        capture(&|| free(malloc(BYTES, captured)));
        end();
        times[1].push(measure(stream));
        discard();
        begin();
        times[2].push(measure(stream));
        times[4].push(std::thread::scope(|scope| scope.spawn(|| measure(stream)).join().expect("measured")));
        end();
        discard();
        begin();
        let inside = std::cell::Cell::new(0.0);
        let question = std::cell::Cell::new(0.0);
        capture(&|| {
            inside.set(measure(captured));
            question.set(ask(&driver, captured));
        });
        times[3].push(inside.get());
        times[5].push(question.get());
        end();
        discard();
    }
    let baseline = times[0].clone();
    for (case, mut times) in CASES.into_iter().zip(times) {
        let mut ratios: Vec<f64> = times.iter().zip(&baseline).map(|(time, base)| time / base).collect();
        let median = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!("{case:10} {:7.1} ns a pair, {:.2} x no pools", median(&mut times), median(&mut ratios));
    }
}
