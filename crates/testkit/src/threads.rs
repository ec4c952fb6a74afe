//! Operations in several threads: one at a time by a schedule that is part of the input.
//!
//! The threads live as long as the process: starting them takes longer than most sequences.
//!
//! Threads: runs of several callers queue behind each other at the workers, and do not mix.

use crate::device::{Device, World};
use crate::op::Op;
use crate::runner::{Runner, Summary};
use crate::show::PrintOnPanic;
use parking_lot::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Runs a sequence on a fresh device, each operation on the thread that the last [`Op::Thread`] named, one at a time.
///
/// # Panics
/// As [`run`](crate::run).
pub fn run_scheduled<D: Device + 'static>(world: &World, ops: &[Op], threads: usize) -> Summary {
    let _print = PrintOnPanic(world, ops);
    let mut runner = Runner::<D>::new(world);
    let mut current = 0;
    // Where the thread changes.
    for stretch in ops.chunk_by(|_, next| !matches!(next, Op::Thread { .. })) {
        if let Some(Op::Thread { thread }) = stretch.first() {
            current = usize::from(*thread) % threads;
        }
        let stretch = stretch.to_vec();
        runner = on_worker(current, move || {
            for op in stretch {
                runner.step(op);
            }
            runner
        });
    }
    runner.finish()
}

/// Runs `body` on a worker and waits for it; its panic goes on here.
fn on_worker<T: Send + 'static>(number: usize, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = channel::<Result<T, Box<dyn Any + Send>>>();
    let job: Job = Box::new(move || {
        let _ = done.send(catch_unwind(AssertUnwindSafe(body)));
    });
    let worker = {
        let mut workers = WORKERS.lock();
        while workers.len() <= number {
            workers.push(Worker::start());
        }
        Arc::clone(&workers[number])
    };
    worker.jobs.lock().send(job).expect("a worker never ends");
    match wait.recv().expect("a worker answers") {
        Ok(value) => value,
        Err(panic) => resume_unwind(panic),
    }
}

type Job = Box<dyn FnOnce() + Send>;

struct Worker {
    jobs: Mutex<Sender<Job>>,
}

impl Worker {
    fn start() -> Arc<Self> {
        let (jobs, queue) = channel::<Job>();
        let work = move || {
            for job in queue {
                job();
            }
        };
        thread::Builder::new().name("worker".into()).spawn(work).expect("a thread");
        Arc::new(Self { jobs: Mutex::new(jobs) })
    }
}

static WORKERS: Mutex<Vec<Arc<Worker>>> = Mutex::new(Vec::new());
