//! A forked process gets a clear error, and the memory of its parent does not change. This test has its own file, so
//! that no other test runs in the process while it forks.

use gapless::allocator::{AllocError, CloseError};
use gapless_testkit::{Host, Op::*, Runner, World};
use std::sync::Arc;

/// Runs in the child process. Returns `true` if every call fails with the expected error.
fn sees_the_error_everywhere(mut runner: Runner<Host>) -> bool {
    // Dropping the simulated device would wait for its threads, which do not exist in the child.
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
    // SAFETY: the child calls this crate's slow path, which fails before it takes a lock, and ends with `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // SAFETY: ends the child if a call waits forever for a thread that does not exist in it.
        unsafe { libc::alarm(20) };
        // A panic would end the child's only thread, and the process would exit with success.
        let saw = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sees_the_error_everywhere(runner)));
        // SAFETY: ends the child immediately, without the exit handlers of the test harness.
        unsafe { libc::_exit(i32::from(!matches!(saw, Ok(true)))) }
    }
    let mut status = 0;
    // SAFETY: waits for the child created above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child did not get the expected error");
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
