//! Open pools, and the one that a request belongs to.
//!
//! PyTorch opens a pool before it begins to capture a stream, and does not say for what: for a graph, or for all that a thread
//! allocates. The first request decides. If its stream is being captured, the pool is open for that capture: it serves the
//! requests of that capture, whichever thread makes them (PyTorch's backward threads do), and nothing else, so that a capture
//! that fails without a word leaves nothing behind. Else the pool is open for its thread.
//!
//! A pool that was declared to be ordinary is open for its thread from the start.
//!
//! PyTorch passes a C++ filter that decides the same; it is not called.

use super::kind::PoolKind;
use super::pool::{Pool, PoolId};
use crate::driver::DeviceDriver;
use crate::recorded::Request;
use gapless::driver::cuda::Capture;
use gapless::{DeviceAddr, StreamId};
use parking_lot::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The open pools of one device.
pub(super) struct OpenPools<D: DeviceDriver> {
    count: AtomicUsize,
    /// The last opened last. A pool may be open several times.
    list: RwLock<Vec<Open<D>>>,
}

/// A pool that was opened and not closed since.
struct Open<D: DeviceDriver> {
    pool: Arc<Pool<D>>,
    thread: Thread,
    /// Empty before the first request.
    purpose: OnceLock<Purpose>,
}

/// The requests that a pool is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// All requests of the thread that opened it.
    Thread,
    /// The requests of a capture, the first of which was made on this stream.
    Capture(Capture, StreamId),
}

/// The outcome of a request that belongs to an open pool.
pub(super) enum Served<D: DeviceDriver> {
    /// It was served.
    Cached(DeviceAddr),
    /// The pool has no cached memory for it.
    Not(Arc<Pool<D>>),
}

thread_local! {
    static HERE: Arc<()> = Arc::new(());
}

/// A thread, which may have ended.
struct Thread(Weak<()>);

impl Thread {
    fn current() -> Self {
        // A thread that is ending counts as one that has ended.
        Self(HERE.try_with(Arc::downgrade).unwrap_or_default())
    }

    fn is_current(&self) -> bool {
        HERE.try_with(|here| std::ptr::eq(Weak::as_ptr(&self.0), Arc::as_ptr(here))).unwrap_or(false)
    }

    fn has_ended(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl<D: DeviceDriver> OpenPools<D> {
    pub fn new() -> Self {
        Self { count: AtomicUsize::new(0), list: RwLock::default() }
    }

    /// Opens a pool for the calling thread.
    pub fn push(&self, pool: Arc<Pool<D>>) {
        let purpose = match pool.kind {
            PoolKind::Graph => OnceLock::new(),
            PoolKind::Ordinary => Purpose::Thread.into(),
        };
        let mut list = self.list.write();
        list.push(Open { pool, thread: Thread::current(), purpose });
        self.count.store(list.len(), Ordering::Release);
    }

    /// Closes the pool of that name that was opened last.
    pub fn remove(&self, id: PoolId) -> Option<Arc<Pool<D>>> {
        let mut list = self.list.write();
        let at = list.iter().rposition(|open| open.pool.id == id)?;
        let open = list.remove(at);
        self.count.store(list.len(), Ordering::Release);
        Some(open.pool)
    }

    /// Whether no pool is open.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Acquire: pairs with the stores behind changes of the list.
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether a pool is open.
    pub fn contains(&self, pool: &Arc<Pool<D>>) -> bool {
        self.list.read().iter().any(|open| Arc::ptr_eq(&open.pool, pool))
    }

    /// Serves a request that belongs to an open pool, if that has cached memory for it; else says which pool it is.
    pub fn serve_cached(&self, request: &Request, driver: &D) -> Option<Served<D>> {
        if self.is_empty() {
            return None;
        }
        let list = self.list.read();
        let pool = pool_of(&list, request.stream, driver)?;
        Some(match request.serve_cached(&pool.allocator) {
            Some(addr) => Served::Cached(addr),
            None => Served::Not(Arc::clone(pool)),
        })
    }

    /// Notes what a pool is open for: the request that it serves decides, if it is the first one.
    pub fn note_request(&self, id: PoolId, stream: StreamId, driver: &D) {
        if self.is_empty() {
            return;
        }
        if let Some(open) = self.list.read().iter().rev().find(|open| open.pool.id == id) {
            open.purpose.get_or_init(|| match driver.capture_of(stream) {
                Some(capture) => Purpose::Capture(capture, stream),
                None => Purpose::Thread,
            });
        }
    }

    /// Closes the pools whose captures have ended. Returns whether one may be open for a capture that has not, and what was
    /// closed.
    pub fn remove_ended(&self, driver: &D) -> (bool, Vec<Arc<Pool<D>>>) {
        if self.is_empty() {
            return (false, Vec::new());
        }
        let mut list = self.list.write();
        let (mut capturing, mut ended) = (false, Vec::new());
        list.retain(|open| {
            match open.purpose.get() {
                Some(Purpose::Capture(capture, stream)) if driver.capture_of(*stream) != Some(*capture) => {
                    ended.push(Arc::clone(&open.pool));
                    return false;
                }
                Some(Purpose::Thread) => {}
                Some(Purpose::Capture(..)) => capturing = true,
                // A thread that has ended without a request has begun no capture that is still to make one.
                None => capturing |= !open.thread.has_ended(),
            }
            true
        });
        self.count.store(list.len(), Ordering::Release);
        (capturing, ended)
    }
}

/// The pool that a request on `stream` belongs to.
fn pool_of<'a, D: DeviceDriver>(list: &'a [Open<D>], stream: StreamId, driver: &D) -> Option<&'a Arc<Pool<D>>> {
    let own = || list.iter().rev().filter(|open| open.thread.is_current());
    let all = || own().chain(list.iter().rev().filter(|open| !open.thread.is_current()));
    // The driver need not be asked where only the thread matters.
    if let Some(newest) = own().next()
        && own().all(|open| open.purpose.get() == Some(&Purpose::Thread))
    {
        return Some(&newest.pool);
    }
    let found = match driver.capture_of(stream) {
        Some(capture) => all()
            .find(|open| matches!(open.purpose.get(), Some(Purpose::Capture(its, _)) if *its == capture))
            .or_else(|| all().find(|open| open.purpose.set(Purpose::Capture(capture, stream)).is_ok()))
            .or_else(|| own().find(|open| open.purpose.get() == Some(&Purpose::Thread))),
        None => own().find(|open| *open.purpose.get_or_init(|| Purpose::Thread) == Purpose::Thread),
    };
    found.map(|open| &open.pool)
}
