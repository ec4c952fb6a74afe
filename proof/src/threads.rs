//! Operations in several threads: one at a time by a schedule that is part of the input.

use crate::device::{Device, World};
use crate::op::Op;
use crate::runner::{Runner, Summary};
use crate::show::PrintOnPanic;
use parking_lot::Mutex;
use std::sync::mpsc;
use std::thread;

/// Runs a sequence on a fresh device, each operation on the thread that the last [`Op::Thread`] named, one at a time.
///
/// # Panics
/// As [`run`](crate::run).
pub fn run_scheduled<D: Device>(world: &World, ops: &[Op], threads: usize) -> Summary {
    let _print = PrintOnPanic(world, ops);
    let runner = Mutex::new(Runner::<D>::new(world));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (give, take) = mpsc::channel::<Op>();
                let (done, wait) = mpsc::channel::<()>();
                let runner = &runner;
                scope.spawn(move || {
                    for op in take {
                        runner.lock().step(op);
                        let _ = done.send(());
                    }
                });
                (give, wait)
            })
            .collect();
        let mut current = 0;
        for op in ops {
            if let Op::Thread { thread } = op {
                current = usize::from(*thread) % threads;
            }
            let (give, wait) = &workers[current];
            give.send(*op).expect("the worker runs");
            wait.recv().expect("the operation panicked; see above");
        }
    });
    runner.into_inner().finish()
}
