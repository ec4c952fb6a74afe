//! For every public operation, every n and every kind of failure: the operation's n-th driver call fails, in situations
//! that together make every kind of driver call. Afterwards, state and statistics must be as before, nothing may be
//! leaked, and the same call must succeed (the runner repeats it). Also: failures while another failure is being
//! undone, a lost device, and a world that changes under load.

use gapless::allocator::{AllocError, CloseError};
use gapless::driver::{DriverCall, DriverErrorKind, Fault, WorkDriver};
use gapless::units::StreamId;
use gapless_testkit::{Failure, Host, Model, Op, Op::*, Runner, World, cases, sweep};

const PAGE: u64 = 64 << 10;

fn alloc(pages: u64, stream: u16) -> Op {
    Alloc { bytes: pages * PAGE, align: 9, stream }
}

fn free(block: u16) -> Op {
    Free { block }
}

#[test]
fn every_call_of_every_operation_fails_once_on_model() {
    use DriverCall as C;
    let calls = sweep::<Model>(&Failure::ALL);
    for call in [
        C::Reserve,
        C::Create,
        C::Release,
        C::Map,
        C::SetAccess,
        C::Unmap,
        C::EventCreate,
        C::EventRecord,
        C::EventQuery,
        C::EventSynchronize,
        C::StreamWait,
        C::Synchronize,
        C::Stream,
    ] {
        assert!(calls.contains(&call), "no case makes the driver call {call:?}");
    }
}

#[test]
fn every_call_of_every_operation_fails_once_on_host() {
    sweep::<Host>(&Failure::ALL);
}

/// Undoing fails too, for a while: stuck memory is not used any more, everything else continues to work, and in the end
/// all memory is released to the driver.
#[test]
fn a_failure_that_cannot_be_undone_poisons_and_the_rest_goes_on() {
    let mut poisoned = 0;
    for case in cases(PAGE) {
        let Alloc { bytes, stream, .. } = case.op else { continue };
        for first in [DriverCall::Map, DriverCall::SetAccess] {
            for nth in 0..12 {
                let mut runner = Runner::<Model>::new(&case.world);
                for op in &case.before {
                    runner.step(*op);
                }
                // All of these calls fail from the n-th one on.
                let fault = Fault::nth(nth, DriverErrorKind::InvalidValue);
                runner.driver().arm(fault.only([first, DriverCall::Unmap]).from_then_on());
                let outcome = runner.allocator().alloc_raw(bytes, runner.stream(stream));
                runner.driver().disarm();
                let error = match outcome {
                    Ok(addr) => {
                        runner.allocator().free(addr).unwrap();
                        continue;
                    }
                    Err(error) => error,
                };
                runner.note_refusal(&error);
                poisoned += runner.allocator().stats().poisoned;
                for op in [
                    alloc(1, 0),
                    alloc(1, 1),
                    Trim { keep: 0 },
                    alloc(3, 0),
                    free(0),
                    free(0),
                    alloc(6, 2),
                    Trim { keep: 0 },
                    Budget { pages: 6 },
                    alloc(4, 1),
                    free(0),
                    alloc(5, 0),
                ] {
                    runner.step_loosely(op);
                }
                runner.finish();
            }
        }
    }
    assert!(poisoned > 0, "nothing was ever stuck");
}

#[test]
fn a_lost_device_is_an_error_and_not_a_loop() {
    let mut runner = Runner::<Model>::new(&World::default());
    runner.step(alloc(2, 0));
    runner.driver().arm(Fault::nth(0, DriverErrorKind::DeviceLost).from_then_on());
    let lost = |error| matches!(error, AllocError::Driver(error) if error.kind == DriverErrorKind::DeviceLost);
    let allocator = runner.allocator();
    assert!(lost(allocator.alloc_raw(1 << 18, StreamId::DEFAULT).unwrap_err()));
    let fired = runner.driver().fired();
    for _ in 0..10 {
        assert!(lost(allocator.alloc_raw(1 << 18, StreamId::DEFAULT).unwrap_err()));
    }
    assert_eq!(runner.driver().fired(), fired, "a poisoned allocator makes no driver calls");
    allocator.check();
    let error = runner.into_allocator().close().unwrap_err();
    assert!(matches!(error, CloseError::Driver(error) if error.kind == DriverErrorKind::DeviceLost));
}

/// A call fails while closing: everything else is released nevertheless.
#[test]
fn closing_goes_on_after_a_failure() {
    for nth in 0.. {
        let mut runner = Runner::<Model>::new(&World::default());
        for op in [alloc(3, 0), alloc(3, 1), Read { block: 0, stream: 1 }, free(0), free(0)] {
            runner.step(op);
        }
        let driver = runner.driver().clone();
        driver.arm(Fault::nth(nth, DriverErrorKind::Other));
        let outcome = runner.into_allocator().close();
        let usage = driver.inner().inner().usage();
        if driver.fired() == 0 {
            outcome.unwrap();
            assert_eq!((usage.chunks, usage.events, usage.reservations), (0, 0, 0));
            break;
        }
        assert!(matches!(outcome, Err(CloseError::Driver(_))), "{outcome:?}");
        assert!(usage.chunks + usage.events + usage.reservations <= 2, "one call failed: {usage:?}");
    }
}

/// Nothing can wait for the work of a stream that is being captured: the result is an error, not an endless loop.
#[test]
fn a_captured_stream_that_pins_everything_is_no_endless_loop() {
    for chunk_pages in [1, 4] {
        let world = World { pages: 8, chunk_pages, ..World::default() };
        let mut runner = Runner::<Model>::new(&world);
        for op in [Hold { stream: 1 }, alloc(8, 1), free(0)] {
            runner.step(op);
        }
        let device = runner.driver().inner().inner();
        device.begin_capture(runner.stream(1));
        let error = runner.allocator().alloc_raw(6 * PAGE, runner.stream(0)).unwrap_err();
        assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
        runner.note_refusal(&error);
        runner.allocator().check();
        runner.driver().inner().inner().end_capture(runner.stream(1));
        runner.step(alloc(6, 0));
        runner.finish();
    }
}

/// One of two users of a block is being captured: the wait for the other one must not be repeated endlessly.
#[test]
fn a_block_that_waits_for_a_captured_stream_is_no_endless_loop() {
    let mut runner = Runner::<Model>::new(&World { pages: 8, ..World::default() });
    for op in [alloc(8, 0), Read { block: 0, stream: 1 }, Hold { stream: 2 }, Read { block: 0, stream: 2 }] {
        runner.step(op);
    }
    let streams = [0, 2].map(|number| runner.stream(number));
    runner.driver().inner().inner().begin_capture(streams[1]);
    runner.step(free(0));
    let error = runner.allocator().alloc_raw(6 * PAGE, streams[0]).unwrap_err();
    assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
    runner.note_refusal(&error);
    runner.driver().inner().inner().end_capture(streams[1]);
    runner.step(alloc(6, 0));
    runner.finish();
}

/// Closing waits for all streams that use memory, including streams that were only recorded on live blocks.
#[test]
fn closing_waits_for_streams_that_live_blocks_were_recorded_on() {
    let mut runner = Runner::<Model>::new(&World::default());
    for op in [Hold { stream: 1 }, alloc(2, 0), Write { block: 0, stream: 1 }] {
        runner.step(op);
    }
    runner.finish();
}

/// A stream destroyed by its owner must not affect the other streams.
#[test]
fn a_destroyed_stream_does_not_stop_the_others() {
    let mut runner = Runner::<Model>::new(&World { pages: 12, kept: false, ..World::default() });
    for op in [alloc(4, 1), free(0), alloc(4, 0), alloc(3, 1), free(1)] {
        runner.step(op);
    }
    let gone = runner.stream(1);
    runner.driver().inner().destroy_stream(gone).unwrap();
    let addr = runner.allocator().alloc_raw(4 * PAGE, runner.stream(2)).unwrap();
    runner.allocator().free(addr).unwrap();
    runner.allocator().check();
}

#[test]
fn a_budget_lowered_and_memory_lost_to_others_under_load() {
    let mut runner = Runner::<Host>::new(&World { pages: 12, ..World::default() });
    for round in 0..24_u16 {
        for op in [
            Hold { stream: round },
            alloc(u64::from(round % 5) + 1, round),
            alloc(2, round + 1),
            Write { block: 0, stream: round + 1 },
            Budget { pages: u32::from(12 - round % 11) },
            alloc(3, round + 2),
            External { pages: u32::from(round % 12) },
            alloc(4, round),
            free(round),
            alloc(2, round + 1),
            External { pages: 0 },
            Complete { stream: round },
            free(0),
            free(1),
        ] {
            runner.step(op);
        }
    }
    runner.finish();
}
