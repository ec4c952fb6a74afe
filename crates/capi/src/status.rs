//! Statuses, and what the last failure of a thread was.

use gapless::allocator::{AllocError, BuildError, CloseError, FreeError};
use gapless::driver::DriverError;
use gapless::driver::cuda::OpenError;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a function answers: GAPLESS_OK or one of the GAPLESS_ERROR_... numbers.
pub type gapless_status = i32;

/// Success.
pub const GAPLESS_OK: gapless_status = 0;
/// A null pointer, a struct of the wrong size, a setting out of its range, a text that does not parse.
pub const GAPLESS_ERROR_INVALID_ARGUMENT: gapless_status = 1;
/// The handle is null, was destroyed, or is none of this library's.
pub const GAPLESS_ERROR_INVALID_HANDLE: gapless_status = 2;
/// The bytes are not there; gapless_oom_report_json says why.
pub const GAPLESS_ERROR_OUT_OF_MEMORY: gapless_status = 3;
/// More bytes than a region of addresses can hold.
pub const GAPLESS_ERROR_TOO_LARGE: gapless_status = 4;
/// No live allocation starts at the pointer: freed before, inside an allocation, or not from here.
pub const GAPLESS_ERROR_NOT_ALLOCATED: gapless_status = 5;
/// The stream is not one of the device, or there are too many.
pub const GAPLESS_ERROR_STREAM: gapless_status = 6;
/// A call to the CUDA driver failed.
pub const GAPLESS_ERROR_DRIVER: gapless_status = 7;
/// The driver or the device cannot be used; the text says what to do.
pub const GAPLESS_ERROR_NO_DEVICE: gapless_status = 8;
/// The buffer is too small; the size that it takes was written.
pub const GAPLESS_ERROR_BUFFER_TOO_SMALL: gapless_status = 9;
/// The allocator was destroyed, but allocations had never been freed.
pub const GAPLESS_ERROR_LEAKED: gapless_status = 10;
/// Another thread is inside a call on this allocator, or it cannot be changed any more.
pub const GAPLESS_ERROR_IN_USE: gapless_status = 11;
/// A file could not be read or written.
pub const GAPLESS_ERROR_IO: gapless_status = 12;
/// There is nothing to report.
pub const GAPLESS_ERROR_NOT_FOUND: gapless_status = 13;
/// A mistake in gapless, caught at the boundary.
pub const GAPLESS_ERROR_INTERNAL: gapless_status = 14;

/// A failure on its way out.
#[derive(Debug)]
pub struct Failure {
    pub(crate) status: gapless_status,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: gapless_status, text: impl ToString) -> Self {
        Self { status, text: text.to_string() }
    }

    pub(crate) fn argument(text: impl ToString) -> Self {
        Self::new(GAPLESS_ERROR_INVALID_ARGUMENT, text)
    }
}

pub(crate) type Answer<T> = Result<T, Failure>;

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Self {
        let status = match &error {
            AllocError::OutOfMemory(_) => GAPLESS_ERROR_OUT_OF_MEMORY,
            AllocError::TooLarge { .. } | AllocError::RangeFull { .. } => GAPLESS_ERROR_TOO_LARGE,
            AllocError::Alignment { .. } => GAPLESS_ERROR_INVALID_ARGUMENT,
            AllocError::Stream(_) | AllocError::CannotWait { .. } => GAPLESS_ERROR_STREAM,
            _ => GAPLESS_ERROR_DRIVER,
        };
        Self::new(status, error)
    }
}

impl From<FreeError> for Failure {
    fn from(error: FreeError) -> Self {
        let status = match &error {
            FreeError::NotAllocated { .. } => GAPLESS_ERROR_NOT_ALLOCATED,
            _ => GAPLESS_ERROR_STREAM,
        };
        Self::new(status, error)
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        let status = match &error {
            BuildError::Driver(_) => GAPLESS_ERROR_DRIVER,
            _ => GAPLESS_ERROR_INVALID_ARGUMENT,
        };
        Self::new(status, error)
    }
}

impl From<CloseError> for Failure {
    fn from(error: CloseError) -> Self {
        let status = match &error {
            CloseError::Leaked(_) => GAPLESS_ERROR_LEAKED,
            CloseError::InUse(_) => GAPLESS_ERROR_IN_USE,
            _ => GAPLESS_ERROR_DRIVER,
        };
        Self::new(status, error)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::new(GAPLESS_ERROR_NO_DEVICE, error)
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Self::new(GAPLESS_ERROR_DRIVER, error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(GAPLESS_ERROR_IO, error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::new(GAPLESS_ERROR_INTERNAL, error)
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Runs the body of a function of the boundary: its failure becomes a status and this thread's last error, and a panic
/// ends here.
pub(crate) fn guard(body: impl FnOnce() -> Answer<()>) -> gapless_status {
    // A panic leaves no broken state behind: the allocator's locks are released by it, and its books are changed last.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => GAPLESS_OK,
        Ok(Err(failure)) => {
            remember(failure.text);
            failure.status
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            remember(format!("a bug in gapless: {text}"));
            // Dropping a panic's payload may panic in turn.
            std::mem::forget(panic);
            GAPLESS_ERROR_INTERNAL
        }
    }
}

/// Makes `text` this thread's last error.
pub(crate) fn remember(text: String) {
    let mut bytes = text.into_bytes();
    bytes.retain(|byte| *byte != 0);
    let text = CString::new(bytes).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
}

/// What the last failure on this thread was, for a person; "" when there was none. The text stays valid until the next
/// call of this library on this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
