//! A forked process gets a clear error, and the bytes of the process that forked it stay as they are. In a file of its
//! own: no other test runs in this process while it forks.

use gapless::allocator::{AllocError, CloseError};
use gapless_testkit::{Host, Op::*, Runner, World};
use std::sync::Arc;

/// In the child.
fn sees_the_error_everywhere(mut runner: Runner<Host>) -> bool {
    // The simulated device would wait for its threads, which the child does not have.
    std::mem::forget(Arc::clone(runner.driver()));
    let refused = |result| matches!(result, Err(AllocError::Forked { .. }));
    let grows = refused(runner.allocator().alloc(500_000, runner.stream(0)));
    let trims = refused(runner.allocator().trim(0).map(|_| gapless::DeviceAddr(0)));
    let reserves = matches!(runner.allocator().reserve_range(1), Err(AllocError::Forked { .. }));
    let ranges = runner.ranges_refuse(|error| matches!(error, AllocError::Forked { .. }));
    let closes = matches!(runner.into_allocator().close(), Err(CloseError::Forked { .. }));
    grows && trims && reserves && ranges && closes
}

#[test]
fn a_forked_process_gets_an_error_and_harms_nobody() {
    let mut runner = Runner::<Host>::new(&World::default());
    for op in [Alloc { bytes: 300_000, align: 9, stream: 0 }, Alloc { bytes: 100_000, align: 9, stream: 1 }] {
        runner.step(op);
    }
    for op in [Free { block: 1 }, ReserveRange { pages: 7 }, GrowRange { range: 0, pages: 2, stream: 0 }] {
        runner.step(op);
    }
    // SAFETY: the child calls this crate's slow path, which takes no lock before it fails, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // SAFETY: a call that waits for a thread which the child does not have would wait for ever.
        unsafe { libc::alarm(20) };
        // A panic would end the child's only thread, and with it the process: as a success.
        let saw = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sees_the_error_everywhere(runner)));
        // SAFETY: ends the child at once, without the test harness's own way out.
        unsafe { libc::_exit(i32::from(!matches!(saw, Ok(true)))) }
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child saw something other than the error");
    for op in [
        Read { block: 0, stream: 1 },
        ReadRange { range: 0, stream: 1 },
        Alloc { bytes: 500_000, align: 9, stream: 0 },
        Free { block: 0 },
        GrowRange { range: 0, pages: 1, stream: 0 },
    ] {
        runner.step(op);
    }
    runner.finish();
}
