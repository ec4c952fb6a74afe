//! Streams: each has a queue and a thread, so that work runs asynchronously, as on a device.
//!
//! The legacy default stream and the blocking streams of its context wait for each other.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::ThreadId;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::broken;
use crate::context::Context;
use crate::kept::Kept;
use crate::pauses;

/// A flag that is set once, when the operations before it have completed.
#[derive(Clone, Default)]
pub struct Marker(Arc<(Mutex<bool>, Condvar)>);

impl Marker {
    /// Returns `true` if the operations before the marker have completed.
    pub fn is_complete(&self) -> bool {
        *self.0.0.lock()
    }

    /// Blocks until the operations before the marker have completed.
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

/// Work of a stream. It may run more than once if it is part of a graph.
pub type Work = Arc<dyn Fn() + Send + Sync>;

/// An operation in the queue of a stream.
#[derive(Clone)]
pub enum Op {
    /// Runs work.
    Run(Work),
    /// Waits for a marker.
    Wait(Marker),
}

/// A capture in progress. The streams that belong to it share one.
#[derive(Clone)]
pub struct Capture {
    /// The number of the capture, which no other capture of the process has.
    pub id: u64,
    /// The `CUstreamCaptureMode` of the capture.
    pub mode: u32,
    /// The thread that began the capture.
    pub thread: ThreadId,
    /// Whether the capture began on this stream, which did not just join it.
    pub origin: bool,
    valid: Arc<AtomicBool>,
    ops: Arc<Mutex<Vec<Op>>>,
}

impl Capture {
    /// Begins a capture on its first stream.
    pub fn begin(id: u64, mode: u32) -> Self {
        let thread = std::thread::current().id();
        Self { id, mode, thread, origin: true, valid: Arc::new(AtomicBool::new(true)), ops: Arc::default() }
    }

    /// Returns the same capture for a stream that joins it.
    pub fn joined(&self) -> Self {
        Self { origin: false, ..self.clone() }
    }

    /// Returns `true` if no forbidden function was called since the capture began.
    pub fn is_valid(&self) -> bool {
        self.valid.load(Ordering::Acquire)
    }

    /// Notes that a forbidden function was called: the capture ends without a graph.
    pub fn invalidate(&self) {
        self.valid.store(false, Ordering::Release);
    }

    /// Returns the captured operations.
    pub fn ops(&self) -> Vec<Op> {
        self.ops.lock().clone()
    }
}

/// A simulated stream.
pub struct Stream {
    /// Number of the stream's device.
    pub device: usize,
    /// The context that the stream belongs to.
    pub context: Context,
    /// A number that no other stream has or had.
    pub id: u64,
    blocking: bool,
    /// Whether the green context that the stream belongs to has been destroyed.
    detached: AtomicBool,
    queue: Mutex<Queue>,
    capture: Mutex<Option<Capture>>,
}

struct Queue {
    sender: Sender<(Op, Marker)>,
    tail: Option<Marker>,
}

impl Stream {
    fn new(context: Context, blocking: bool) -> Arc<Self> {
        let (sender, receiver) = channel::<(Op, Marker)>();
        std::thread::Builder::new()
            .name("sim-stream".into())
            .spawn(move || {
                for (op, done) in receiver {
                    pauses::before_work();
                    match op {
                        Op::Run(work) => work(),
                        Op::Wait(marker) => marker.wait(),
                    }
                    done.complete();
                }
            })
            .expect("the thread of a stream can be started");
        static IDS: AtomicU64 = AtomicU64::new(1);
        let queue = Mutex::new(Queue { sender, tail: None });
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let (detached, capture) = (AtomicBool::new(false), Mutex::new(None));
        Arc::new(Self { device: context.device, context, id, blocking, detached, queue, capture })
    }

    /// Notes that the green context of the stream has been destroyed.
    pub fn detach(&self) {
        self.detached.store(true, Ordering::Release);
    }

    /// Returns whether the green context of the stream has been destroyed.
    pub fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// Returns the capture in progress, if any.
    pub fn capture(&self) -> Option<Capture> {
        self.capture.lock().clone()
    }

    /// Begins or joins a capture. Returns `false` if the stream belongs to one already.
    pub fn begin_capture(&self, capture: Capture) -> bool {
        let mut own = self.capture.lock();
        if own.is_some() {
            return false;
        }
        *own = Some(capture);
        note_change();
        true
    }

    /// Leaves the capture in progress.
    pub fn end_capture(&self) {
        *self.capture.lock() = None;
        note_change();
    }

    /// Returns the marker of the last operation in the queue.
    pub fn tail(&self) -> Option<Marker> {
        self.queue.lock().tail.clone()
    }

    /// Blocks until all operations queued so far have completed.
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

/// Streams by the handle that the program has.
type Created = Kept<HashMap<u64, Arc<Stream>, BuildHasherDefault<HandleHasher>>>;

/// The streams of the process by handle.
///
/// The value of a destroyed handle is the first to be used again. A program that hands in such a value before that is
/// stopped, since a real driver would follow a dangling pointer.
///
/// Lock order: `created`, `destroyed`, `forgotten`, then the others.
#[derive(Default)]
pub struct Streams {
    created: Mutex<Created>,
    legacy: Mutex<HashMap<Context, Arc<Stream>>>,
    per_thread: Mutex<HashMap<(Context, ThreadId), Arc<Stream>>>,
    /// Destroyed handles, the last one last, and their streams, whose queued work still runs.
    destroyed: Mutex<Vec<(u64, Arc<Stream>)>>,
    /// Streams whose handles have been used again.
    forgotten: Mutex<Vec<Arc<Stream>>>,
    next: AtomicU64,
}

impl Streams {
    /// Creates a stream and returns its handle.
    pub fn create(&self, context: Context, blocking: bool) -> u64 {
        let mut destroyed = self.destroyed.lock();
        let handle = match destroyed.pop() {
            Some((handle, stream)) => {
                let mut forgotten = self.forgotten.lock();
                forgotten.retain(|stream| stream.tail().is_some_and(|tail| !tail.is_complete()));
                forgotten.push(stream);
                handle
            }
            None => FIRST_HANDLE + 16 * self.next.fetch_add(1, Ordering::Relaxed),
        };
        drop(destroyed);
        self.created.lock().insert(handle, Stream::new(context, blocking));
        note_change();
        handle
    }

    /// Returns those that the program has created and not destroyed.
    pub fn created(&self) -> MutexGuard<'_, Created> {
        self.created.lock()
    }

    /// Destroys a stream. Its queued work still runs. Returns `false` if the handle is unknown.
    pub fn destroy(&self, handle: u64) -> bool {
        let mut created = self.created.lock();
        let Some(stream) = created.remove(&handle) else {
            self.expect_not_destroyed(handle);
            return false;
        };
        self.destroyed.lock().push((handle, stream));
        note_change();
        true
    }

    /// Destroys the streams of a context, when their work has completed.
    pub fn destroy_all_of(&self, context: Context) {
        for stream in self.all().into_iter().filter(|stream| stream.context == context) {
            stream.synchronize();
        }
        let mut created = self.created.lock();
        let gone: Vec<u64> =
            created.iter().filter(|(_, stream)| stream.context == context).map(|(handle, _)| *handle).collect();
        let mut destroyed = self.destroyed.lock();
        destroyed.extend(gone.into_iter().filter_map(|handle| Some((handle, created.remove(&handle)?))));
        self.legacy.lock().remove(&context);
        self.per_thread.lock().retain(|(owner, _), _| *owner != context);
        note_change();
    }

    /// Stops the process if a stream of this handle was destroyed.
    fn expect_not_destroyed(&self, handle: u64) {
        if self.destroyed.lock().iter().any(|(destroyed, _)| *destroyed == handle) {
            let text = format!("stream {handle:#x} was used after it had been destroyed");
            eprintln!("simulated libcuda: {text}");
            broken::rule("dead_stream", 0, || text);
            std::process::abort();
        }
    }

    /// Returns the stream of `handle` for the calling thread, where `context` is current.
    pub fn find(&self, handle: u64, context: Context) -> Option<Arc<Stream>> {
        match handle {
            0 | 1 => Some(self.legacy(context)),
            2 => {
                let key = (context, std::thread::current().id());
                Some(Arc::clone(self.per_thread.lock().entry(key).or_insert_with(|| Stream::new(context, true))))
            }
            _ => {
                let found = self.created.lock().get(&handle).cloned();
                if found.is_none() {
                    self.expect_not_destroyed(handle);
                }
                found
            }
        }
    }

    /// Returns what `report` says of the capture of the stream of a handle that was created in `context`; none for other handles.
    ///
    /// A handle of a device is the address of its stream, and such a question takes no lock. So each thread remembers its last
    /// answer here, until a stream or a capture changes.
    pub fn capture_of_created<T>(
        &self,
        handle: u64,
        context: Context,
        report: impl Fn(Option<&Capture>) -> T,
    ) -> Option<T> {
        // Acquire: pairs with the change, so that one that comes before this call in the order of the program is seen.
        let (key, changes) = ((handle, context), CHANGES.load(Ordering::Acquire));
        let remembered = ANSWER.try_with(|answer| {
            let answer = answer.borrow();
            answer
                .as_ref()
                .filter(|last| last.key == key && last.changes == changes)
                .map(|last| report(last.capture.as_ref()))
        });
        if let Ok(Some(reported)) = remembered {
            return Some(reported);
        }
        let capture = self.created.lock().get(&handle).filter(|stream| stream.context == context)?.capture();
        let reported = report(capture.as_ref());
        // A thread that is ending remembers nothing.
        let _ = ANSWER.try_with(|answer| answer.replace(Some(Answer { key, changes, capture })));
        Some(reported)
    }

    /// Returns the streams of `device`.
    pub fn of_device(&self, device: usize) -> Vec<Arc<Stream>> {
        let mut all = self.all();
        all.retain(|stream| stream.device == device);
        all
    }

    /// Returns the streams of all devices, also those that have been destroyed while their work is running.
    pub fn all(&self) -> Vec<Arc<Stream>> {
        // Locked together, so that a stream that is being destroyed meanwhile is in one of them.
        let (created, destroyed, forgotten) = (self.created.lock(), self.destroyed.lock(), self.forgotten.lock());
        let mut all: Vec<_> = created.values().cloned().collect();
        all.extend(destroyed.iter().map(|(_, stream)| Arc::clone(stream)));
        all.extend(forgotten.iter().cloned());
        all.extend(self.legacy.lock().values().cloned());
        all.extend(self.per_thread.lock().values().cloned());
        all
    }

    /// Queues `op` on `stream`, or adds it to the stream's capture.
    pub fn queue(&self, stream: &Arc<Stream>, op: Op) {
        if let Some(capture) = stream.capture.lock().as_ref() {
            capture.ops.lock().push(op);
            return;
        }
        let legacy = self.legacy(stream.context);
        if Arc::ptr_eq(stream, &legacy) {
            for other in self.of_device(stream.device) {
                if other.blocking
                    && other.context == stream.context
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

    /// Returns a capture on a stream that waits for work on `stream`, if `handle` is that of the legacy default stream.
    pub fn implicit_capture(&self, handle: u64, stream: &Arc<Stream>) -> Option<Capture> {
        if !matches!(handle, 0 | 1) {
            return None;
        }
        let blocking = self.of_device(stream.device).into_iter().filter(|other| other.blocking);
        blocking.into_iter().find_map(|other| other.capture())
    }

    /// Returns the streams that belong to a capture.
    pub fn of_capture(&self, id: u64) -> Vec<Arc<Stream>> {
        let belongs = |stream: &Arc<Stream>| stream.capture().is_some_and(|capture| capture.id == id);
        self.all().into_iter().filter(belongs).collect()
    }

    fn legacy(&self, context: Context) -> Arc<Stream> {
        Arc::clone(self.legacy.lock().entry(context).or_insert_with(|| Stream::new(context, true)))
    }
}

/// Number of streams created and destroyed, and of captures begun, joined and left.
static CHANGES: AtomicU64 = AtomicU64::new(0);

fn note_change() {
    // Release: pairs with the load of those who remember an answer.
    CHANGES.fetch_add(1, Ordering::Release);
}

thread_local! {
    static ANSWER: RefCell<Option<Answer>> = const { RefCell::new(None) };
}

/// The capture that a stream belonged to when it was last asked for.
struct Answer {
    key: (u64, Context),
    changes: u64,
    capture: Option<Capture>,
}

/// Hashes handles, which are tokens of a counter.
#[derive(Default)]
pub struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, handle: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ handle).wrapping_mul(ODD).rotate_left(32);
    }
}

/// The first handle of a created stream. The handles 0, 1 and 2 stand for default streams.
const FIRST_HANDLE: u64 = 0x5100_0000;
