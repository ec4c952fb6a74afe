//! An interruption: what another thread does at the moment when a call of the driver begins, so that tests can choose the
//! moment.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// The callback that is run: a function of the test, with a pointer of its own.
pub type Callback = extern "C" fn(*mut c_void);

/// A call before which a function of the test is run, once.
pub struct Interruption {
    /// The name of the driver's function, or none for whichever is called.
    pub function: Option<String>,
    /// The number of such calls that go before it.
    pub calls_before: u64,
    /// The function.
    pub callback: Callback,
    /// The pointer that it is handed.
    pub data: *mut c_void,
}

// SAFETY: the pointer is the test's, which says that the callback may run on any thread.
unsafe impl Send for Interruption {}

static PLANNED: Mutex<Option<Interruption>> = Mutex::new(None);
static IS_PLANNED: AtomicBool = AtomicBool::new(false);

/// Plans an interruption in place of the one before. Returns whether that one is still to come.
pub fn plan(interruption: Option<Interruption>) -> bool {
    let mut planned = PLANNED.lock();
    IS_PLANNED.store(interruption.is_some(), Ordering::Release);
    std::mem::replace(&mut *planned, interruption).is_some()
}

/// Runs the interruption that is planned for this call of `function`, if there is one. No lock is held meanwhile.
pub fn before_call(function: &str) {
    if !IS_PLANNED.load(Ordering::Acquire) {
        return;
    }
    let mut planned = PLANNED.lock();
    let Some(next) = planned.as_mut().filter(|next| next.function.as_ref().is_none_or(|name| name == function)) else {
        return;
    };
    if next.calls_before > 0 {
        next.calls_before -= 1;
        return;
    }
    IS_PLANNED.store(false, Ordering::Release);
    let Some(Interruption { callback, data, .. }) = planned.take() else { return };
    drop(planned);
    callback(data);
}
