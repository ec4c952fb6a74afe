//! Helpers for unit tests.

use crate::driver::{DriverCall, DriverResult, Hook, Intercepted, ModelDriver, StreamIdentity};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// A text that the check's message must contain, and a function that breaks the invariant on purpose.
pub type Break<T> = (&'static str, fn(&mut T));

/// Asserts that `check` accepts a value from `make`, and that it panics with the expected message after each of
/// `breaks`.
pub fn assert_noticed<T>(make: impl Fn() -> T, check: fn(&T), breaks: &[Break<T>]) {
    check(&make());
    for (expected, break_it) in breaks {
        let mut subject = make();
        break_it(&mut subject);
        let panic = catch_unwind(AssertUnwindSafe(|| check(&subject))).expect_err(expected);
        let text = panic.downcast_ref::<String>().cloned();
        let text =
            text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).expect("the panic has a message");
        assert!(text.contains(expected), "expected '{expected}', found '{text}'");
    }
}

/// A device on which something else happens before calls. One type for all such tests: the allocator is compiled for each.
pub type BusyDevice = Intercepted<ModelDriver, Meanwhile>;

type Act = Box<dyn FnMut(Option<DriverCall>) -> DriverResult<()> + Send>;

/// An action to run before a call reaches the driver.
#[derive(Default)]
pub struct Meanwhile(Mutex<Option<Act>>);

impl BusyDevice {
    /// Has `act` run before each call, which fails where that does, and before the question which stream a handle stands for:
    /// `None`. It may make calls itself, without `act`.
    pub fn meanwhile(&self, act: impl FnMut(Option<DriverCall>) -> DriverResult<()> + Send + 'static) {
        *self.hook().0.lock().unwrap() = Some(Box::new(act));
    }
}

/// Returns `model` with nothing that happens so far.
pub fn busy(model: &Arc<ModelDriver>) -> Arc<BusyDevice> {
    Arc::new(Intercepted::with_hook(Arc::clone(model), Meanwhile::default()))
}

impl Meanwhile {
    fn act(&self, call: Option<DriverCall>) -> DriverResult<()> {
        let Some(mut act) = self.0.lock().unwrap().take() else { return Ok(()) };
        let outcome = act(call);
        self.0.lock().unwrap().get_or_insert(act);
        outcome
    }
}

impl Hook for Meanwhile {
    fn around<T>(&self, call: DriverCall, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        self.act(Some(call))?;
        run()
    }

    fn identify(&self, run: impl FnOnce() -> DriverResult<StreamIdentity>) -> DriverResult<StreamIdentity> {
        self.act(None)?;
        run()
    }
}

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
    static LONGEST_HOLD: Cell<u64> = const { Cell::new(0) };
    /// Number of watched locks that are held.
    static HELD: Cell<u64> = const { Cell::new(0) };
    static LARGEST_REQUEST: Cell<usize> = const { Cell::new(0) };
}

/// Counts one step of a search on this thread.
pub fn step() {
    STEPS.set(STEPS.get() + 1);
}

/// Returns how many steps `work` takes on this thread.
pub fn steps_of(work: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    work();
    STEPS.get() - before
}

/// A guard of a lock that counts the steps taken while it is held, and watches for requests for memory of the host.
#[derive(Debug)]
pub struct Watched<G> {
    guard: G,
    steps_before: u64,
}

impl<G> From<G> for Watched<G> {
    fn from(guard: G) -> Self {
        HELD.set(HELD.get() + 1);
        Self { guard, steps_before: STEPS.get() }
    }
}

impl<G: Deref> Deref for Watched<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Watched<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<G> Drop for Watched<G> {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        LONGEST_HOLD.set(LONGEST_HOLD.get().max(STEPS.get() - self.steps_before));
    }
}

/// Returns the most steps that `work` takes on this thread while it holds a watched lock.
pub fn longest_hold_of(work: impl FnOnce()) -> u64 {
    LONGEST_HOLD.set(0);
    work();
    LONGEST_HOLD.get()
}

/// Returns the bytes of the largest request for memory of the host that `work` makes on this thread while it holds a watched lock.
pub fn largest_request_of(work: impl FnOnce()) -> usize {
    LARGEST_REQUEST.set(0);
    work();
    LARGEST_REQUEST.get()
}

/// The system's memory, for unit tests that watch requests for it.
struct WatchedMemory;

impl WatchedMemory {
    fn watch(bytes: usize) {
        if HELD.get() > 0 {
            LARGEST_REQUEST.set(LARGEST_REQUEST.get().max(bytes));
        }
    }
}

// SAFETY: all calls are passed on as they are.
unsafe impl GlobalAlloc for WatchedMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::watch(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::watch(bytes);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static MEMORY: WatchedMemory = WatchedMemory;

type Work = Box<dyn FnOnce()>;

thread_local! {
    /// Work to do between two copies for a plan, after how many of them.
    static INTERRUPTION: RefCell<Option<(u64, Work)>> = const { RefCell::new(None) };
}

/// Has this thread do `work`, as if another thread did, when it has made `copies` more of streams for a plan.
pub fn interrupt_after(copies: u64, work: impl FnOnce() + 'static) {
    INTERRUPTION.set(Some((copies, Box::new(work))));
}

/// Forgets the interruption. Returns whether it was still to come.
pub fn cancel_interruption() -> bool {
    INTERRUPTION.take().is_some()
}

/// A copy is made, and no stream is locked.
pub fn between_copies() {
    match INTERRUPTION.take() {
        Some((0, work)) => work(),
        Some((copies, work)) => INTERRUPTION.set(Some((copies - 1, work))),
        None => {}
    }
}
