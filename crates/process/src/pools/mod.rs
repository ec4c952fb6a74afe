//! Pools: memory of captured graphs and of PyTorch's `MemPool`, kept apart from all other memory.
//!
//! A captured graph uses its addresses at every replay, on streams that nobody names here. What was allocated during the
//! capture, freed or not, must therefore neither be handed to others nor move nor go back to the driver until the pool is
//! released, and no replay may be in flight then. So a pool is an allocator of its own on the same device, one that keeps
//! its mappings. A pool that was declared to be *ordinary* is one that does not: for what a program wants apart without a capture.
//!
//! A *tag* is a name for some of the pools, which sleep and wake together.
//!
//! ```text
//!   begin ──▶ open ──▶ end ──▶ idle ──▶ release, and nothing live ──▶ condemned ──▶ the device was waited for ──▶ closed
//!              ▲                │
//!              └──── begin ─────┘
//! ```
//!
//! Releasing waits for nothing. Condemned pools are closed when their memory is wanted (a request that finds none, a trim, a
//! new budget) and when a pool begins, but never while a pool is open for a capture: waiting would invalidate it.
//!
//! - I1  a pool is condemned once its last user is gone, it is not open, and nothing in it is live; it stays so.
//! - I2  a pool is closed only after the host has waited for the device since it was condemned, and once no block in it is pinned.
//! - I3  where a budget was set, those of the main allocator and of all pools together are at most that, with what an allocator
//!   beside gapless holds, but for what is held already.
//!
//! Threads: any. Requests and frees of pools share two locks, `open` and `list`, that others hold for moments only: a free may
//! wait for a stream's clock, so those behind it pass a thread that waits to change the list. `books` is held by those who change
//! pools and budgets. Lock order: `books`, `list`, `open`. Cost: an atomic load while there are no pools, and
//! for the main allocator's memory a look at its directory while there are some.

mod books;
mod budgets;
mod kind;
mod open;
mod past;
mod pool;
mod sleep;

use crate::budget::Budget;
use crate::driver::{DeviceDriver, driver_of};
use crate::error::Error;
use crate::recorded::Request;
use crate::settings::Settings;
use crate::tags::{current_tag, expect_name};
use books::Books;
use gapless::allocator::{AllocError, FreeError, MapListeners, OutOfMemory};
use gapless::{Allocator, DeviceAddr, StreamId};
use kind::Declared;
pub use kind::PoolKind;
use open::{OpenPools, Served};
use parking_lot::{Mutex, MutexGuard, RwLock};
pub(crate) use past::Past;
use pool::owner;
pub use pool::{Pool, PoolId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often a pool is looked at that somebody else seems to look at.
const LOOKS: u32 = 1000;

/// The pools of one device.
pub struct Pools<D: DeviceDriver> {
    settings: Settings,
    /// The device's own allocator.
    main: Allocator<D>,
    /// Number of pools in `list`; 0 most of the time.
    count: AtomicUsize,
    /// The pools that are not closed.
    list: RwLock<Vec<Arc<Pool<D>>>>,
    open: OpenPools<D>,
    books: Mutex<Books>,
}

impl<D: DeviceDriver> Pools<D> {
    pub(crate) fn new(settings: Settings, main: Allocator<D>) -> Self {
        let (list, books) = (RwLock::default(), Mutex::default());
        Self { settings, main, count: AtomicUsize::new(0), list, open: OpenPools::new(), books }
    }

    /// The books, once nobody else has them.
    ///
    /// # Panics
    /// In a callback of a map listener: whoever called it may have them.
    fn books(&self) -> MutexGuard<'_, Books> {
        if let Err(error) = MapListeners::expect_outside() {
            panic!("{error}");
        }
        self.books.lock()
    }

    /// Opens a pool for the calling thread; makes it if it is new. It serves the requests of a capture, if the first one is
    /// made on a stream that is being captured, else those of the thread, until [`end`](Self::end).
    ///
    /// # Errors
    /// [`Error::Build`] or [`Error::Driver`] where a new pool's allocator cannot be built.
    ///
    /// # Panics
    /// This and what else changes pools or asks for their budget, in a callback of a map listener.
    pub fn begin(&self, id: PoolId) -> Result<(), Error> {
        self.close_condemned(None);
        let mut books = self.books();
        let pool = self.used(&mut books, id)?;
        self.lend_half(&mut books, &pool);
        self.open.push(pool);
        Ok(())
    }

    /// Adds a user to a pool without opening it; makes it if it is new. [`release`](Self::release) removes one.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn add_user(&self, id: PoolId) -> Result<(), Error> {
        self.close_condemned(None);
        let mut books = self.books();
        self.used(&mut books, id)?;
        self.share_budget(&mut books);
        Ok(())
    }

    /// The pool of that name, with one user more; made if it is new. Called with `books` locked.
    fn used(&self, books: &mut Books, id: PoolId) -> Result<Arc<Pool<D>>, Error> {
        let pool = match self.named(id) {
            Some(pool) => pool,
            None => self.make(books, id)?,
        };
        pool.users.fetch_add(1, Ordering::Release);
        Ok(pool)
    }

    /// The pool of that name, if it is not condemned.
    pub fn named(&self, id: PoolId) -> Option<Arc<Pool<D>>> {
        if self.none() {
            return None;
        }
        self.list.read_recursive().iter().find(|pool| pool.id == id && !pool.is_condemned()).cloned()
    }

    /// The number of users of a pool; 0 when there is none of that name.
    pub fn users(&self, id: PoolId) -> u32 {
        self.named(id).map_or(0, |pool| pool.users.load(Ordering::Acquire))
    }

    fn make(&self, books: &mut Books, id: PoolId) -> Result<Arc<Pool<D>>, Error> {
        let undeclared = || Declared { kind: PoolKind::Graph, tag: current_tag() };
        let declared = books.declared.get(&id).cloned().unwrap_or_else(undeclared);
        let allocator = self.build(books, declared.kind)?;
        books.declared.remove(&id);
        let pool = Arc::new(Pool::new(id, allocator, declared));
        let mut list = self.list.write();
        list.push(Arc::clone(&pool));
        self.count.store(list.len(), Ordering::Release);
        Ok(pool)
    }

    fn build(&self, books: &Books, kind: PoolKind) -> Result<Allocator<D>, Error> {
        let driver = driver_of(&self.main);
        let mut settings = self.settings;
        // At least a page, or no allocator can be built. What it may hold is decided next.
        let whole = books.whole_budget(&self.main).max(driver.granularity());
        settings.budget = (!books.follow_device(&self.main)).then_some(Budget::Bytes(whole));
        match kind {
            PoolKind::Graph => settings.build_for_graphs(&self.main),
            PoolKind::Ordinary => settings.build_beside(&self.main),
        }
    }

    /// Says what a pool is for, and which tag it has, before it has memory. The tag may be changed later. What nobody has declared
    /// is for captured graphs, with the tag of the thread that makes it ([`push_tag`](crate::push_tag)).
    ///
    /// # Errors
    /// [`Error::PoolInUse`] for a pool of another kind that is open or has memory, [`Error::EmptyTag`], and as
    /// [`begin`](Self::begin). Nothing has changed.
    pub fn declare(&self, id: PoolId, kind: PoolKind, tag: Option<&str>) -> Result<(), Error> {
        tag.map_or(Ok(()), expect_name)?;
        let mut books = self.books();
        let declared = Declared { kind, tag: tag.map(ToOwned::to_owned) };
        let Some(pool) = self.named(id) else {
            books.declared.insert(id, declared);
            return Ok(());
        };
        if pool.kind == kind {
            pool.set_tag(declared.tag);
            return Ok(());
        }
        drop(pool);
        self.replace(&mut books, id, &declared)
    }

    /// Puts a pool of another kind in the place of one that was never used.
    fn replace(&self, books: &mut Books, id: PoolId, declared: &Declared) -> Result<(), Error> {
        let allocator = self.build(books, declared.kind)?;
        let new = Arc::new(Pool::new(id, allocator, declared.clone()));
        // A request that is being served has a reference; but so has, for moments, whoever looks at all pools.
        for _ in 0..LOOKS {
            let mut list = self.list.write();
            let Some(place) = list.iter_mut().find(|pool| pool.id == id && !pool.is_condemned()) else { break };
            if Arc::strong_count(place) == 1 && place.is_unused() {
                new.users.store(place.users.load(Ordering::Acquire), Ordering::Release);
                new.set_lends(place.lends.load(Ordering::Relaxed));
                let old = std::mem::replace(place, new);
                drop(list);
                books.past.add(&old);
                self.share_budget(books);
                return Ok(());
            }
            drop(list);
            std::thread::yield_now();
        }
        Err(Error::PoolInUse(id))
    }

    /// Closes a pool to new requests; nothing where it is not open.
    pub fn end(&self, id: PoolId) {
        let mut books = self.books();
        if let Some(pool) = self.open.remove(id) {
            self.condemn_if_done(&mut books, &pool);
        }
        self.share_budget(&mut books);
    }

    /// Removes one user of a pool. After the last one, the pool ends with its last allocation. Waits for nothing.
    pub fn release(&self, id: PoolId) {
        let mut books = self.books();
        let Some(pool) = self.named(id) else {
            books.declared.remove(&id);
            return;
        };
        let users = pool.users.load(Ordering::Acquire);
        pool.users.store(users.saturating_sub(1), Ordering::Release);
        self.condemn_if_done(&mut books, &pool);
    }

    /// Condemns a pool that nobody uses.
    fn condemn_if_done(&self, books: &mut Books, pool: &Arc<Pool<D>>) {
        if pool.is_done() && !self.open.contains(pool) {
            books.past.keep_peaks(&self.all());
            pool.condemned.store(true, Ordering::Release);
        }
    }

    /// Allocates from the open pool that the request belongs to; `None` if it belongs to none.
    pub(crate) fn alloc(&self, request: &Request) -> Option<Result<DeviceAddr, AllocError>> {
        let pool = match self.open.serve_cached(request, driver_of(&self.main))? {
            Served::Cached(addr) => return Some(Ok(addr)),
            Served::Not(pool) => pool,
        };
        Some(self.alloc_uncached(&pool, request))
    }

    /// Allocates from the pool of that name, for a caller who knows that the request belongs there; `None` where there is none.
    pub(crate) fn alloc_in(&self, id: PoolId, request: &Request) -> Option<Result<DeviceAddr, AllocError>> {
        let pool = self.named(id)?;
        self.open.note_request(id, request.stream, driver_of(&self.main));
        match request.serve_cached(&pool.allocator) {
            Some(addr) => Some(Ok(addr)),
            None => Some(self.alloc_uncached(&pool, request)),
        }
    }

    fn alloc_uncached(&self, pool: &Arc<Pool<D>>, request: &Request) -> Result<DeviceAddr, AllocError> {
        let outcome = request.serve(&pool.allocator);
        match &outcome {
            Err(AllocError::OutOfMemory(_)) => self.alloc_with_more(pool, request),
            _ => outcome,
        }
    }

    /// Serves a request that found no other memory from what a pool that lends has cached.
    #[cold]
    pub(crate) fn alloc_lent(&self, request: &Request) -> Option<Result<DeviceAddr, AllocError>> {
        let pools = self.all();
        let lending = pools.iter().filter(|pool| pool.lends.load(Ordering::Relaxed));
        lending.map(|pool| request.serve_cached(&pool.allocator)).find_map(|found| found.map(Ok))
    }

    /// Serves a request for which a pool's own budget did not suffice.
    #[cold]
    fn alloc_with_more(&self, pool: &Arc<Pool<D>>, request: &Request) -> Result<DeviceAddr, AllocError> {
        self.lend_all(&mut self.books(), pool);
        let outcome = request.serve(&pool.allocator);
        if !matches!(&outcome, Err(AllocError::OutOfMemory(_))) {
            return outcome;
        }
        self.close_condemned(Some(request.stream));
        // The request is worth more than what the main allocator holds free. If the trim fails, so does the retry.
        let _ = self.main.trim(0);
        self.trim_ordinary(Some(pool));
        self.lend_all(&mut self.books(), pool);
        request.serve(&pool.allocator)
    }

    /// Makes room for a request that found no memory in the main allocator. Returns false when there is none to make.
    #[cold]
    pub(crate) fn make_room(&self, request: &Request) -> bool {
        if self.none() {
            return false;
        }
        // Closing a pool that holds nothing ends its loan, too.
        let before = self.main.budget();
        let closed = self.close_condemned(Some(request.stream));
        let trimmed = self.trim_ordinary(None);
        self.share_budget(&mut self.books());
        closed > 0 || trimmed > 0 || self.main.budget() > before
    }

    /// Returns the free memory of ordinary pools to the driver, of all but one; how many bytes.
    pub(crate) fn trim_ordinary(&self, but: Option<&Arc<Pool<D>>>) -> u64 {
        let pools = self.all();
        let others = pools.iter().filter(|pool| but.is_none_or(|but| !Arc::ptr_eq(but, pool)));
        let ordinary = others.filter(|pool| pool.kind == PoolKind::Ordinary);
        // What cannot be returned stays: whoever wanted it is told that there is no memory.
        ordinary.map(|pool| pool.allocator.trim(0).map_or(0, |trimmed| trimmed.released_bytes)).sum()
    }

    /// Frees an allocation of a pool; `None` if it belongs to none.
    pub(crate) fn free(&self, addr: DeviceAddr) -> Option<Result<(), FreeError>> {
        let list = self.list.read_recursive();
        let pool = owner(&list, addr)?;
        let outcome = pool.allocator.free(addr);
        // The free has locked a stream that `release` locks when it looks for what is live. So of two who take the last user
        // and the last allocation away, one sees both gone.
        if pool.users.load(Ordering::Acquire) == 0 {
            let pool = Arc::clone(pool);
            drop(list);
            let mut books = self.books();
            self.condemn_if_done(&mut books, &pool);
        }
        Some(outcome)
    }

    /// The pool whose addresses include `addr`.
    pub(crate) fn owner(&self, addr: DeviceAddr) -> Option<Arc<Pool<D>>> {
        owner(&self.list.read_recursive(), addr).cloned()
    }

    /// Whether no pool is open.
    #[inline]
    pub(crate) fn none_open(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether there are no pools at all.
    pub(crate) fn none(&self) -> bool {
        // Acquire: pairs with the store behind a change of the list. A thread that has memory of a pool has synchronised with
        // the one that made it.
        self.count.load(Ordering::Acquire) == 0
    }

    /// The pools, but for condemned ones.
    pub fn all(&self) -> Vec<Arc<Pool<D>>> {
        if self.none() {
            return Vec::new();
        }
        self.list.read_recursive().iter().filter(|pool| !pool.is_condemned()).cloned().collect()
    }

    /// Bytes that all pools hold, and an allocator beside gapless.
    pub(crate) fn held_bytes(&self) -> u64 {
        let books = self.books();
        self.list.read_recursive().iter().map(|pool| pool.held()).sum::<u64>() + books.elsewhere_bytes()
    }

    /// The budget of the device: of the main allocator and all pools together.
    pub(crate) fn whole_budget(&self) -> u64 {
        self.books().whole_budget(&self.main)
    }

    /// Bytes that condemned pools hold: they go back to the driver when they are wanted.
    pub(crate) fn condemned_bytes(&self) -> u64 {
        if self.none() {
            return 0;
        }
        let condemned: Vec<_> = self.list.read_recursive().iter().filter(|pool| pool.is_condemned()).cloned().collect();
        condemned.iter().map(|pool| pool.held()).sum()
    }

    /// Waits for the device and closes the condemned pools. Returns the bytes that went back to the driver, also those of the main
    /// allocator where its budget asks for it: 0 while a pool may be open for a capture, or while the stream at hand is captured.
    pub(crate) fn close_condemned(&self, at_hand: Option<StreamId>) -> u64 {
        let driver = driver_of(&self.main);
        if self.none()
            || !self.list.read_recursive().iter().any(|pool| pool.is_condemned())
            || self.may_be_capturing(driver)
            || at_hand.is_some_and(|stream| driver.is_capturing(stream))
        {
            return 0;
        }
        let closing = self.take_condemned(&mut self.books());
        if closing.is_empty() {
            return 0;
        }
        let held: u64 = closing.iter().map(Pool::held).sum();
        // Without a lock: a replay may take its time. A device that was lost does nothing any more.
        let waited = driver.synchronize_device().map_or_else(|error| error.kind.is_sticky(), |()| true);
        if waited {
            for pool in closing {
                // Nobody is there to whom a refusal of the driver could be reported.
                let _ = pool.allocator.close_after_wait();
            }
        } else {
            self.put_back(closing);
        }
        let mut books = self.books();
        books.closing_bytes -= held;
        let held_by_main = self.main.reserved_bytes();
        self.share_budget(&mut books);
        let of_main = held_by_main.saturating_sub(self.main.reserved_bytes());
        if waited { held + of_main } else { of_main }
    }

    fn put_back(&self, pools: Vec<Pool<D>>) {
        let mut books = self.books();
        pools.iter().for_each(|pool| books.past.remove(pool));
        let mut list = self.list.write();
        list.extend(pools.into_iter().map(Arc::new));
        self.count.store(list.len(), Ordering::Release);
    }

    /// Takes the condemned pools that nobody is in out of the list.
    fn take_condemned(&self, books: &mut Books) -> Vec<Pool<D>> {
        let mut list = self.list.write();
        let (taken, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut *list).into_iter().partition(|pool| {
            // A request that came late may have memory in it, or be about to: whoever is inside has a reference.
            // A pinned block outlives its free.
            pool.is_condemned() && pool.is_done() && Arc::strong_count(pool) == 1 && !pool.allocator.has_other_owners()
        });
        *list = kept;
        self.count.store(list.len(), Ordering::Release);
        let taken: Vec<Pool<D>> = taken.into_iter().filter_map(Arc::into_inner).collect();
        books.closing_bytes += taken.iter().map(Pool::held).sum::<u64>();
        taken.iter().for_each(|pool| books.past.add(pool));
        taken
    }

    /// The pools, but for condemned ones, and what is left of all others that ever were.
    pub(crate) fn all_and_past(&self) -> (Vec<Arc<Pool<D>>>, Past) {
        // Pools are condemned and closed with it locked, so each is in one of the two.
        let books = self.books();
        let mut past = books.past.clone();
        let (condemned, all): (Vec<_>, Vec<_>) =
            self.list.read_recursive().iter().cloned().partition(|pool| pool.is_condemned());
        condemned.iter().for_each(|pool| past.add(pool));
        (all, past)
    }

    /// Has the peaks of all pools start from current values.
    pub(crate) fn reset_peaks(&self) {
        let mut books = self.books();
        books.past.reset_peaks();
        self.all().iter().for_each(|pool| pool.allocator.reset_peaks());
    }

    /// Whether a stream of the device may be being captured: a pool is open for that, or the main allocator knows the stream.
    /// Those that only a pool has seen count while it is open.
    ///
    /// In a callback of a map listener, where nothing may be asked, that is taken for granted.
    pub(crate) fn may_be_captured(&self) -> bool {
        MapListeners::expect_outside().is_err()
            || self.may_be_capturing(driver_of(&self.main))
            || self.main.may_be_capturing()
    }

    /// Whether a pool is open for a capture that may be going on. What was opened for one that has ended without a word, as
    /// after an error, is closed now.
    fn may_be_capturing(&self, driver: &D) -> bool {
        let (capturing, ended) = self.open.remove_ended(driver);
        if !ended.is_empty() {
            let mut books = self.books();
            for pool in &ended {
                self.condemn_if_done(&mut books, pool);
            }
        }
        capturing
    }
}

/// Whether a request may be served once there is more memory.
pub(crate) fn wants_room<T, E>(outcome: &Result<T, E>, report: fn(&E) -> Option<&OutOfMemory>) -> bool {
    outcome.as_ref().err().and_then(report).is_some()
}
