//! Streams: a queue and a thread each, so that work runs later than it was queued, as on a device.
//!
//! The legacy default stream waits for all blocking streams of its device and they for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::ThreadId;

use parking_lot::{Condvar, Mutex};

/// Something that completes once.
#[derive(Clone, Default)]
pub struct Marker(Arc<(Mutex<bool>, Condvar)>);

impl Marker {
    /// True once everything before it has run.
    pub fn is_complete(&self) -> bool {
        *self.0.0.lock()
    }

    /// Blocks until it is complete.
    pub fn wait(&self) {
        let mut complete = self.0.0.lock();
        while !*complete {
            self.0.1.wait(&mut complete);
        }
    }

    fn complete(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

/// Work: may run more than once when it is part of a graph.
pub type Work = Arc<dyn Fn() + Send + Sync>;

/// What waits on a stream.
#[derive(Clone)]
pub enum Op {
    /// Runs.
    Run(Work),
    /// Lets later work wait.
    Wait(Marker),
}

/// How a stream is being captured.
pub struct Capture {
    /// `CUstreamCaptureMode`.
    pub mode: u32,
    /// Who began it.
    pub thread: ThreadId,
    /// False once a forbidden call was made.
    pub valid: bool,
    /// What was queued.
    pub ops: Vec<Op>,
}

/// A stream.
pub struct Stream {
    /// Its device.
    pub device: usize,
    blocking: bool,
    queue: Mutex<Queue>,
    /// The capture under way, if any.
    pub capture: Mutex<Option<Capture>>,
}

struct Queue {
    sender: Sender<(Op, Marker)>,
    tail: Option<Marker>,
}

impl Stream {
    fn new(device: usize, blocking: bool) -> Arc<Self> {
        let (sender, receiver) = channel::<(Op, Marker)>();
        std::thread::Builder::new()
            .name("sim-stream".into())
            .spawn(move || {
                for (op, done) in receiver {
                    match op {
                        Op::Run(work) => work(),
                        Op::Wait(marker) => marker.wait(),
                    }
                    done.complete();
                }
            })
            .expect("a thread for a simulated stream");
        let queue = Mutex::new(Queue { sender, tail: None });
        Arc::new(Self { device, blocking, queue, capture: Mutex::new(None) })
    }

    /// The marker of what was queued last.
    pub fn tail(&self) -> Option<Marker> {
        self.queue.lock().tail.clone()
    }

    /// Waits for everything queued so far.
    pub fn synchronize(&self) {
        if let Some(tail) = self.tail() {
            tail.wait();
        }
    }

    fn push(&self, op: Op) {
        let mut queue = self.queue.lock();
        let done = Marker::default();
        queue.tail = Some(done.clone());
        // The thread ends only with the sender.
        let _ = queue.sender.send((op, done));
    }
}

/// All streams of the process, by handle.
#[derive(Default)]
pub struct Streams {
    created: Mutex<HashMap<u64, Arc<Stream>>>,
    legacy: Mutex<HashMap<usize, Arc<Stream>>>,
    per_thread: Mutex<HashMap<(usize, ThreadId), Arc<Stream>>>,
    next: AtomicU64,
}

impl Streams {
    /// A new stream's handle.
    pub fn create(&self, device: usize, blocking: bool) -> u64 {
        let handle = FIRST_HANDLE + 16 * self.next.fetch_add(1, Ordering::Relaxed);
        self.created.lock().insert(handle, Stream::new(device, blocking));
        handle
    }

    /// Forgets a stream; its queued work still runs.
    pub fn destroy(&self, handle: u64) -> bool {
        self.created.lock().remove(&handle).is_some()
    }

    /// The stream that `handle` stands for on the calling thread, with `device` current.
    pub fn find(&self, handle: u64, device: usize) -> Option<Arc<Stream>> {
        match handle {
            0 | 1 => Some(self.legacy(device)),
            2 => {
                let key = (device, std::thread::current().id());
                Some(Arc::clone(self.per_thread.lock().entry(key).or_insert_with(|| Stream::new(device, true))))
            }
            _ => self.created.lock().get(&handle).cloned(),
        }
    }

    /// Every stream of `device`.
    pub fn of_device(&self, device: usize) -> Vec<Arc<Stream>> {
        let mut all: Vec<_> = self.created.lock().values().cloned().collect();
        all.extend(self.legacy.lock().values().cloned());
        all.extend(self.per_thread.lock().values().cloned());
        all.retain(|stream| stream.device == device);
        all
    }

    /// Every stream.
    pub fn all(&self) -> Vec<Arc<Stream>> {
        let mut all: Vec<_> = self.created.lock().values().cloned().collect();
        all.extend(self.legacy.lock().values().cloned());
        all.extend(self.per_thread.lock().values().cloned());
        all
    }

    /// Queues `op` on `stream`, or adds it to the stream's capture.
    pub fn queue(&self, stream: &Arc<Stream>, op: Op) {
        if let Some(capture) = stream.capture.lock().as_mut() {
            capture.ops.push(op);
            return;
        }
        let legacy = self.legacy(stream.device);
        if Arc::ptr_eq(stream, &legacy) {
            for other in self.of_device(stream.device) {
                if other.blocking
                    && !Arc::ptr_eq(&other, stream)
                    && let Some(tail) = other.tail()
                {
                    stream.push(Op::Wait(tail));
                }
            }
        } else if stream.blocking
            && let Some(tail) = legacy.tail()
        {
            stream.push(Op::Wait(tail));
        }
        stream.push(op);
    }

    fn legacy(&self, device: usize) -> Arc<Stream> {
        Arc::clone(self.legacy.lock().entry(device).or_insert_with(|| Stream::new(device, true)))
    }
}

/// Above 0, 1 and 2, which stand for default streams.
const FIRST_HANDLE: u64 = 0x5100_0000;
