//! The tests of the simulated devices, on the CUDA driver: with the simulated library, or with device 0 of this machine
//! if `GAPLESS_TEST_DEVICE` is set.

#[path = "../../../tests/seeds/mod.rs"]
mod seeds;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless::driver::cuda::CudaDriver;
use gapless_testkit::{
    Cuda, Device, End, Extra, Failure, Faults, Op, Progress, Stress, Summary, World, as_test, capture_op, op, ops,
    prove, run_input_on_cuda, run_on_cuda, run_scheduled, run_stress, sweep, world,
};
use proptest::prelude::*;
use seeds::each_seed;
use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Opens the device for one test at a time, so that errors are reported by the test that caused them.
fn device() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let builder = CudaDriver::builder();
    let on_device = std::env::var_os("GAPLESS_TEST_DEVICE").is_some();
    if !on_device {
        // The second one is the peer.
        // SAFETY: whatever else this process does at the same time reads the environment through std, if at all, which locks it.
        unsafe { std::env::set_var("GAPLESS_SIM_DEVICES", "2") };
    }
    // SAFETY: it is a driver library.
    let builder = if on_device { builder } else { unsafe { builder.library(simulated::library()) } };
    Cuda::open_device(builder).unwrap();
    turn
}

#[test]
fn any_sequence() {
    let _turn = device();
    let show = |(world, ops): &(_, Vec<_>)| as_test(world, ops);
    let sum = RefCell::new(Summary::default());
    prove(24, &ops::<Cuda>(60), show, |(world, ops)| {
        sum.borrow_mut().add(&run_on_cuda(world, ops));
    });
    let sum = sum.into_inner();
    assert!(sum.peers > 0 || std::env::var_os("GAPLESS_TEST_DEVICE").is_some(), "{sum:?}");
    assert!(sum.contexts > 0, "{sum:?}");
    assert!(sum.verified_bytes > 0 && sum.faults > 0 && sum.stats.harvested_chunks > 0, "{sum:?}");
}

#[test]
fn any_schedule_of_threads() {
    let _turn = device();
    let show = |(world, ops): &(_, Vec<_>)| as_test(world, ops);
    prove(8, &ops::<Cuda>(60), show, |(world, ops)| {
        run_scheduled::<Cuda>(world, ops, 4);
    });
}

/// Captures in every mode, several at once, begun by this thread and by another, beside requests that run short: none is broken,
/// and a request that only a capture keeps from free memory says so.
#[test]
fn captures_come_and_go() {
    let _turn = device();
    let show = |(world, ops): &(_, Vec<_>)| as_test(world, ops);
    let any = prop_oneof![3 => op(Cuda::PAGE_BYTES), 1 => capture_op()];
    let world = world(Cuda::PAGE_BYTES).prop_map(|world| World { streams: world.streams + 2, ..world });
    let input = (world, prop::collection::vec(any, 1..60));
    let sum = RefCell::new(Summary::default());
    prove(96, &input, show, |(world, ops)| {
        sum.borrow_mut().add(&run_on_cuda(world, ops));
    });
    let sum = sum.into_inner();
    println!("{} of {} captures kept memory", sum.stopped_by_captures, sum.captures);
    assert!(sum.captures > 0 && sum.captures_at_once > 0 && sum.stopped_by_captures > 0, "{sum:?}");
}

#[test]
fn every_call_of_every_operation_fails_once() {
    let _turn = device();
    sweep::<Cuda>(&[Failure::Invalid]);
}

/// A stream that is captured, by a handle that another stream had before.
#[test]
fn a_handle_that_comes_back_in_a_capture() {
    let _turn = device();
    for kept in [false, true] {
        let world = World { kept, blocking_streams: true, page_bytes: Cuda::PAGE_BYTES, ..World::default() };
        let alloc = Op::Alloc { bytes: 2 * Cuda::PAGE_BYTES, align: 9, stream: 1 };
        let ops = [
            alloc,
            Op::Hold { stream: 1 },
            Op::Free { block: 0 },
            Op::Renew { stream: 1 },
            Op::BeginCapture { stream: 1 },
            alloc,
            Op::EndCapture { stream: 1 },
        ];
        run_on_cuda(&world, &ops);
    }
}

/// The seeds of the fuzz targets, which run on the simulated library as well.
#[test]
fn seeds_of_the_fuzz_targets() {
    let _turn = device();
    each_seed("ops", |bytes| run_input_on_cuda(bytes, Extra::Ignored));
    each_seed("faults", |bytes| run_input_on_cuda(bytes, Extra::Failures));
}

#[test]
fn threads_at_once() {
    let _turn = device();
    for (round, faults) in [(0, Faults::None), (1, Faults::Some)] {
        let own_streams = faults == Faults::Some;
        let green_streams = faults == Faults::None;
        let world = World {
            pages: 8,
            page_bytes: Cuda::PAGE_BYTES,
            chunk_pages: 1 + round,
            own_streams,
            green_streams,
            ..World::default()
        };
        let end = if round == 0 { End::Reset } else { End::Close };
        let stress = Stress { threads: 3, ops: 250, seed: round, faults, graphs: round == 0, sleeps: round == 1, end };
        let stats = run_stress::<Cuda>(&world, stress, &Progress::default());
        assert!(stats.allocs > 0 && stats.harvested_chunks > 0, "{stats:?}");
    }
}
