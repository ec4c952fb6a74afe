//! Runs operations on several threads, one at a time, with a schedule that is part of the input.
//!
//! The threads are kept for the whole process, since starting them takes longer than most sequences.
//!
//! Threads: any. Jobs of different callers queue at the workers and do not interfere.

use crate::device::{Device, World};
use crate::op::Op;
use crate::runner::Runner;
use crate::show::PrintOnPanic;
use crate::summary::Summary;
use parking_lot::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Runs a sequence on a new device. Each operation runs on the thread of the last [`Op::Thread`], one at a time.
///
/// # Panics
/// Panics like [`run`](crate::run).
pub fn run_scheduled<D: Device + 'static>(world: &World, ops: &[Op], threads: usize) -> Summary {
    let _print = PrintOnPanic(world, ops);
    let mut runner = Runner::<D>::new(world);
    let mut current = 0;
    // Indices of the operations that change the thread.
    for stretch in ops.chunk_by(|_, next| !matches!(next, Op::Thread { .. })) {
        if let Some(Op::Thread { thread }) = stretch.first() {
            current = usize::from(*thread) % threads;
        }
        let stretch = stretch.to_vec();
        runner = on_worker(current, move || {
            runner.enter_thread();
            for op in stretch {
                runner.step(op);
            }
            runner.leave_thread();
            runner
        });
    }
    runner.finish()
}

/// Runs `body` on a worker and waits for it. A panic continues on the calling thread.
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
    worker.jobs.lock().send(job).expect("workers never end");
    match wait.recv().expect("workers reply to every job") {
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
        thread::Builder::new().name("worker".into()).spawn(work).expect("a thread can be started");
        Arc::new(Self { jobs: Mutex::new(jobs) })
    }
}

static WORKERS: Mutex<Vec<Arc<Worker>>> = Mutex::new(Vec::new());
