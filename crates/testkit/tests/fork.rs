//! A forked process gets a clear error, and the memory of its parent does not change. This test has its own file, so
//! that no other test runs in the process while it forks.

use gapless::allocator::{AllocError, CloseError, MapListener, MappedRange, Refusal};
use gapless::driver::{Counted, ModelConfig, ModelDriver};
use gapless::{Allocator, StreamId};
use gapless_testkit::{Host, Op::*, Runner, World};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// Runs in the child process. Returns `true` if every call fails with the expected error.
fn sees_the_error_everywhere(mut runner: Runner<Host>) -> bool {
    // Dropping the simulated device would wait for its threads, which do not exist in the child.
    std::mem::forget(Arc::clone(runner.driver()));
    let refused = |result| matches!(result, Err(AllocError::Forked { .. }));
    let grows = refused(runner.allocator().alloc_raw(500_000, runner.stream(0)));
    let trims = refused(runner.allocator().trim(0).map(|_| gapless::DeviceAddr(0)));
    let reserves = matches!(runner.allocator().reserve_range(1), Err(AllocError::Forked { .. }));
    let ranges = runner.ranges_refuse(|error| matches!(error, AllocError::Forked { .. }));
    let closes = matches!(runner.into_allocator().close(), Err(CloseError::Forked { .. }));
    grows && trims && reserves && ranges && closes
}

/// Forks, and returns the status of the child, which runs `body` and answers whether that returned true.
fn in_a_child(body: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child calls this crate's slow path, which fails before it takes a lock, and ends with `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // SAFETY: ends the child if a call waits forever for a thread that does not exist in it.
        unsafe { libc::alarm(20) };
        // A panic would end the child's only thread, and the process would exit with success.
        let saw = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the child immediately, without the exit handlers of the test harness.
        unsafe { libc::_exit(i32::from(!matches!(saw, Ok(true)))) }
    }
    let mut status = 0;
    // SAFETY: waits for the child created above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status
}

/// A listener that stays in its callback, with the slow path's lock, until it may go on.
#[derive(Debug)]
struct Stays {
    inside: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl MapListener for Stays {
    fn on_map(&self, _: MappedRange) -> Result<(), Refusal> {
        self.inside.send(()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        Ok(())
    }

    fn before_unmap(&self, _: MappedRange) -> Result<(), Refusal> {
        Ok(())
    }
}

/// The thread that has the slow path's lock does not exist in the child, which must not wait for it.
fn a_child_does_not_wait_for_a_thread_of_its_parent() {
    let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
    let allocator = Allocator::builder(driver).build().unwrap();
    let range = allocator.reserve_range(1 << 20).unwrap();
    let registered = allocator.alloc_registered(1 << 20, StreamId::DEFAULT).unwrap();
    let ((inside, is_inside), (go_on, may_go_on)) = (channel(), channel());
    allocator.listeners().add(Arc::new(Stays { inside, go_on: Mutex::new(may_go_on) })).unwrap();
    let other = allocator.clone();
    let thread = std::thread::spawn(move || other.alloc_raw(1 << 20, StreamId::DEFAULT).unwrap());
    is_inside.recv().unwrap();
    // Dropped in the child alone, whose memory is its own.
    let mut held = Some((range, registered));
    let status = in_a_child(|| {
        drop(held.take());
        let set = allocator.set_budget(3 << 20).is_ok() && allocator.budget() == 3 << 20;
        set && matches!(allocator.alloc_raw(1 << 20, StreamId::DEFAULT), Err(AllocError::Forked { .. }))
    });
    go_on.send(()).unwrap();
    let block = thread.join().unwrap();
    assert_eq!(status, 0, "the child did not get through");
    allocator.free(block).unwrap();
    drop(held);
}

/// Objects that are dropped in the child are its parent's: the driver is not called for them.
fn a_child_gives_nothing_back() {
    let driver = Arc::new(Counted::new(Arc::new(ModelDriver::new(ModelConfig::default()))));
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    let mut range = allocator.reserve_range(4 << 20).unwrap();
    range.grow(4 << 20, StreamId::DEFAULT).unwrap();
    let registered = allocator.alloc_registered(2 << 20, StreamId::DEFAULT).unwrap();
    let before = driver.calls();
    // Taken in the child alone, whose memory is its own.
    let mut held = Some((range, registered, allocator));
    let status = in_a_child(|| {
        drop(held.take());
        driver.calls() == before
    });
    assert_eq!(status, 0, "the child called the driver");
    drop(held);
    assert_ne!(driver.calls(), before, "this process gives it back");
}

#[test]
fn a_forked_process_gets_an_error_and_harms_nobody() {
    a_child_does_not_wait_for_a_thread_of_its_parent();
    a_child_gives_nothing_back();
    let mut runner = Runner::<Host>::new(&World::default());
    for op in [Alloc { bytes: 300_000, align: 9, stream: 0 }, Alloc { bytes: 100_000, align: 9, stream: 1 }] {
        runner.step(op);
    }
    for op in [Free { block: 1 }, ReserveRange { pages: 7 }, GrowRange { range: 0, pages: 2, stream: 0 }] {
        runner.step(op);
    }
    // Taken in the child alone, whose memory is its own.
    let mut shared = Some(runner);
    let status = in_a_child(|| shared.take().is_some_and(sees_the_error_everywhere));
    assert_eq!(status, 0, "the child did not get the expected error");
    let mut runner = shared.expect("nothing was taken in this process");
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
