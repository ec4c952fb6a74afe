//! The boundary itself: runs the body of a C function, turns its failure into a status, and keeps the calling thread's
//! last failure.
//!
//! - I1  nothing unwinds out of `guard` or `report_failure`.
//! - I2  reading the last error does not change it, so that its report can be asked for its size and then read.
//!
//! Threads: any; each has a last error of its own.

use crate::error_kind::{Cause, GAPLESS_KIND_NONE, gapless_error_kind};
use crate::out::{check_out, described, write_json};
use crate::status::{Answer, Failure, GAPLESS_ERROR_INTERNAL, GAPLESS_ERROR_NOT_FOUND, GAPLESS_OK, gapless_status};
use gapless_process::notice;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Default)]
struct LastError {
    status: gapless_status,
    text: CString,
    cause: Cause,
}

thread_local! {
    static LAST: RefCell<LastError> = RefCell::default();
}

/// Runs the body of a C function. Its failure becomes a status and this thread's last error, and a panic ends here.
pub(crate) fn guard(body: impl FnOnce() -> Answer<()>) -> gapless_status {
    match caught(body) {
        Ok(()) => GAPLESS_OK,
        Err(failure) => {
            let status = failure.status;
            remember(failure);
            status
        }
    }
}

/// Runs the body of a C function that has no way to fail: the first few failures counted by `reported` go to stderr.
pub(crate) fn report_failure(reported: &AtomicU32, body: impl FnOnce() -> Answer<()>) {
    if let Err(failure) = caught(body) {
        if reported.fetch_add(1, Ordering::Relaxed) < MOST_REPORTED {
            notice(format_args!("gapless: {}", failure.text));
        }
        remember(failure);
    }
}

fn caught(body: impl FnOnce() -> Answer<()>) -> Answer<()> {
    // A panic leaves no broken state behind: the allocator's locks are released by it, and its books are changed last.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        let failure = Failure::new(GAPLESS_ERROR_INTERNAL, format!("a bug in gapless: {text}"));
        // Dropping a panic's payload may panic in turn.
        std::mem::forget(panic);
        Err(failure)
    })
}

fn remember(failure: Failure) {
    let mut bytes = failure.text.into_bytes();
    bytes.retain(|byte| *byte != 0);
    let text = CString::new(bytes).unwrap_or_default();
    let error = LastError { status: failure.status, text, cause: failure.cause };
    // The one before is dropped outside of the borrow. A thread that is ending has no last error any more.
    let _before = LAST.try_with(|last| last.replace(error));
}

/// Returns the text of this thread's last failure, "" when no call has failed on it. The text stays valid until the next
/// call of this library fails on this thread.
///
/// This and the other gapless_last_error functions are about the same failure. They leave it as it is, whatever they
/// return themselves, and so does a call that succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the status of this thread's last failure, GAPLESS_OK when no call has failed on it. For functions that return no status.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_last_error_status() -> gapless_status {
    LAST.try_with(|last| last.borrow().status).unwrap_or(GAPLESS_OK)
}

/// Returns what kind of failure this thread's last one was. It refines the status: GAPLESS_KIND_DEVICE_LOST, for example,
/// distinguishes a lost device from one that has no memory left.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_last_error_kind() -> gapless_error_kind {
    LAST.try_with(|last| last.borrow().cause.kind).unwrap_or(GAPLESS_KIND_NONE)
}

/// Returns the CUresult of the driver call behind this thread's last failure, 0 when no driver call failed.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_last_error_code() -> i32 {
    LAST.try_with(|last| last.borrow().cause.code).unwrap_or(0)
}

/// Writes the out-of-memory report of this thread's last failure as a JSON object into buffer, as gapless_stats_json
/// does; its key "text" has the report as a text for a person. GAPLESS_ERROR_NOT_FOUND when that failure was another one.
///
/// # Safety
/// buffer, capacity and needed are as in gapless_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_last_error_report_json(
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> gapless_status {
    let outcome = caught(|| {
        check_out(needed, "needed")?;
        let report = LAST.try_with(|last| last.borrow().cause.report.as_deref().map(described)).ok().flatten();
        let report = report.ok_or_else(|| Failure::new(GAPLESS_ERROR_NOT_FOUND, "the last failure has no report"))?;
        // SAFETY: the same contract.
        unsafe { write_json(&report?, buffer, capacity, needed) }
    });
    // Not this thread's last error: that is what was asked about.
    outcome.map_or_else(|failure| failure.status, |()| GAPLESS_OK)
}

/// How many failures of each kind go to stderr.
const MOST_REPORTED: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn error_text() -> String {
        // SAFETY: the last error is a NUL-terminated string until the next failure on this thread.
        unsafe { CStr::from_ptr(gapless_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_a_failure_and_the_next_call_works() {
        let lock = parking_lot::Mutex::new(1);
        for (number, text) in ["a text", "a text with 2"].into_iter().enumerate() {
            let status = guard(|| {
                let _held = lock.lock();
                if number == 0 { panic!("a text") } else { panic!("a text with {}", number + 1) }
            });
            assert_eq!((status, error_text()), (GAPLESS_ERROR_INTERNAL, format!("a bug in gapless: {text}")));
            assert_eq!(gapless_last_error_status(), GAPLESS_ERROR_INTERNAL);
            assert!(lock.try_lock().is_some(), "the lock was given back");
            assert_eq!(guard(|| Ok(())), GAPLESS_OK);
        }
        // What cannot be shown is a failure all the same, also where it panics when it is dropped.
        struct Worse;
        impl Drop for Worse {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        assert_eq!(guard(|| std::panic::panic_any(Worse)), GAPLESS_ERROR_INTERNAL);
        assert_eq!(error_text(), "a bug in gapless: no message");
        let reported_so_far = AtomicU32::new(MOST_REPORTED);
        report_failure(&reported_so_far, || panic!("quiet"));
        assert_eq!(
            (error_text(), reported_so_far.into_inner()),
            ("a bug in gapless: quiet".to_owned(), MOST_REPORTED + 1)
        );
    }
}
