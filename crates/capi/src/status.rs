//! Statuses, and which one a failure has.

use crate::error_kind::{Cause, GAPLESS_KIND_CANNOT_WAIT, GAPLESS_KIND_FORKED};
use gapless::allocator::{
    AllocAgainError, AllocError, BuildError, CloseError, FreeError, InListener, SleepError, StreamError,
};
use gapless::driver::DriverError;
use gapless::driver::cuda::OpenError;
use gapless_process::Error;
use gapless_share::ShareError;
use std::ffi::{CStr, c_char};
use std::fmt;

/// The result of a function: GAPLESS_OK or one of the GAPLESS_ERROR_... numbers.
pub type gapless_status = i32;

/// The call succeeded.
pub const GAPLESS_OK: gapless_status = 0;
/// A null pointer, a struct of the wrong size, a setting out of its range, a text that does not parse.
pub const GAPLESS_ERROR_INVALID_ARGUMENT: gapless_status = 1;
/// The handle is null, was destroyed, or is none of this library's.
pub const GAPLESS_ERROR_INVALID_HANDLE: gapless_status = 2;
/// There is not enough memory; gapless_last_error_report_json explains why.
pub const GAPLESS_ERROR_OUT_OF_MEMORY: gapless_status = 3;
/// More bytes than the addresses that are reserved for a stream, see region_bytes, or than a growable range has left. Freeing
/// memory does not help.
pub const GAPLESS_ERROR_TOO_LARGE: gapless_status = 4;
/// No live allocation starts at the pointer: freed before, inside an allocation, or not from here.
pub const GAPLESS_ERROR_NOT_ALLOCATED: gapless_status = 5;
/// The stream is not one of the device, there are too many, or one that is being captured cannot be waited for;
/// gapless_last_error_kind distinguishes these.
pub const GAPLESS_ERROR_STREAM: gapless_status = 6;
/// A call to the CUDA driver failed, or cannot be made: in a forked process, or with free addresses in too many pieces.
/// gapless_last_error_kind distinguishes these, and a device that is lost from the rest.
pub const GAPLESS_ERROR_DRIVER: gapless_status = 7;
/// The driver or the device cannot be used; the text says what to do.
pub const GAPLESS_ERROR_NO_DEVICE: gapless_status = 8;
/// The buffer is too small; the size that it needs was written.
pub const GAPLESS_ERROR_BUFFER_TOO_SMALL: gapless_status = 9;
/// The allocator was destroyed, but some allocations had never been freed.
pub const GAPLESS_ERROR_LEAKED: gapless_status = 10;
/// Another thread is inside a call on this allocator, or this one is, in a callback; or it can no longer be changed.
pub const GAPLESS_ERROR_IN_USE: gapless_status = 11;
/// A file could not be read or written.
pub const GAPLESS_ERROR_IO: gapless_status = 12;
/// There is nothing to report.
pub const GAPLESS_ERROR_NOT_FOUND: gapless_status = 13;
/// A bug in gapless, caught before it could reach the caller.
pub const GAPLESS_ERROR_INTERNAL: gapless_status = 14;

/// Memory could not be shared: the socket, its folder, another user or device, a message that makes no sense, or a process that
/// lives and does not answer.
pub const GAPLESS_ERROR_SHARE: gapless_status = 15;
/// The allocation of a handle was freed, or its process has ended.
pub const GAPLESS_ERROR_GONE: gapless_status = 16;

/// Every status with its name, which is that of its constant without GAPLESS_ERROR_.
const NAMES: [(gapless_status, &CStr); 17] = [
    (GAPLESS_OK, c"OK"),
    (GAPLESS_ERROR_INVALID_ARGUMENT, c"INVALID_ARGUMENT"),
    (GAPLESS_ERROR_INVALID_HANDLE, c"INVALID_HANDLE"),
    (GAPLESS_ERROR_OUT_OF_MEMORY, c"OUT_OF_MEMORY"),
    (GAPLESS_ERROR_TOO_LARGE, c"TOO_LARGE"),
    (GAPLESS_ERROR_NOT_ALLOCATED, c"NOT_ALLOCATED"),
    (GAPLESS_ERROR_STREAM, c"STREAM"),
    (GAPLESS_ERROR_DRIVER, c"DRIVER"),
    (GAPLESS_ERROR_NO_DEVICE, c"NO_DEVICE"),
    (GAPLESS_ERROR_BUFFER_TOO_SMALL, c"BUFFER_TOO_SMALL"),
    (GAPLESS_ERROR_LEAKED, c"LEAKED"),
    (GAPLESS_ERROR_IN_USE, c"IN_USE"),
    (GAPLESS_ERROR_IO, c"IO"),
    (GAPLESS_ERROR_NOT_FOUND, c"NOT_FOUND"),
    (GAPLESS_ERROR_INTERNAL, c"INTERNAL"),
    (GAPLESS_ERROR_SHARE, c"SHARE"),
    (GAPLESS_ERROR_GONE, c"GONE"),
];

/// Returns the name of a status, for messages: OUT_OF_MEMORY for GAPLESS_ERROR_OUT_OF_MEMORY, OK for GAPLESS_OK, and "unknown
/// status" for a number that is none. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_status_name(status: gapless_status) -> *const c_char {
    NAMES.iter().find(|(number, _)| *number == status).map_or(c"unknown status", |(_, name)| *name).as_ptr()
}

/// A failure on its way to the caller.
#[derive(Debug)]
pub struct Failure {
    pub(crate) status: gapless_status,
    pub(crate) text: String,
    pub(crate) cause: Cause,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

pub(crate) type Answer<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: gapless_status, text: impl ToString) -> Self {
        Self { status, text: text.to_string(), cause: Cause::default() }
    }

    pub(crate) fn argument(text: impl ToString) -> Self {
        Self::new(GAPLESS_ERROR_INVALID_ARGUMENT, text)
    }

    pub(crate) fn caused<'e, E>(status: gapless_status, text: impl ToString, error: &'e E) -> Self
    where
        Cause: From<&'e E>,
    {
        Self { status, text: text.to_string(), cause: Cause::from(error) }
    }
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Self {
        let status = match &error {
            AllocError::OutOfMemory(_) => GAPLESS_ERROR_OUT_OF_MEMORY,
            AllocError::TooLarge { .. } => GAPLESS_ERROR_TOO_LARGE,
            AllocError::Alignment { .. } => GAPLESS_ERROR_INVALID_ARGUMENT,
            AllocError::InListener(_) => GAPLESS_ERROR_IN_USE,
            AllocError::Stream(_) | AllocError::CannotWait { .. } => GAPLESS_ERROR_STREAM,
            // The driver failed, or cannot be called: `Driver`, `Forked`, `AddressesFragmented`, `OutOfMappings`.
            _ => GAPLESS_ERROR_DRIVER,
        };
        Self::caused(status, &error, &error)
    }
}

impl From<InListener> for Failure {
    fn from(error: InListener) -> Self {
        AllocError::from(error).into()
    }
}

impl From<FreeError> for Failure {
    fn from(error: FreeError) -> Self {
        let status = match &error {
            FreeError::NotAllocated { .. } => GAPLESS_ERROR_NOT_ALLOCATED,
            _ => GAPLESS_ERROR_STREAM,
        };
        Self::caused(status, &error, &error)
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        Self::from(FreeError::from(error))
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        let status = match error {
            BuildError::Open(error) => return error.into(),
            BuildError::Driver(_) => GAPLESS_ERROR_DRIVER,
            _ => GAPLESS_ERROR_INVALID_ARGUMENT,
        };
        Self::caused(status, &error, &error)
    }
}

impl From<CloseError> for Failure {
    fn from(error: CloseError) -> Self {
        let status = match &error {
            CloseError::Leaked(_) => GAPLESS_ERROR_LEAKED,
            CloseError::InUse(_) | CloseError::Pinned(_) => GAPLESS_ERROR_IN_USE,
            _ => GAPLESS_ERROR_DRIVER,
        };
        Self::caused(status, &error, &error)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        // The way out that the error names is one in Rust.
        let text = match &error {
            OpenError::NoVmm { ordinal, name, reason } => format!(
                "device {ordinal} ({name}) has no virtual memory management ({reason}), so gapless cannot remap memory on it. \
                 Run this program without gapless (in Python, leave gapless.torch.enable() and GAPLESS_TORCH out), or choose \
                 another device with CUDA_VISIBLE_DEVICES; 'gapless doctor' says what each device lacks"
            ),
            _ => error.to_string(),
        };
        Self::caused(GAPLESS_ERROR_NO_DEVICE, text, &error)
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Self::caused(GAPLESS_ERROR_DRIVER, &error, &error)
    }
}

impl From<ShareError> for Failure {
    fn from(error: ShareError) -> Self {
        match error {
            ShareError::NotAllocated(error) => error.into(),
            ShareError::Alloc(error) => error.into(),
            ShareError::Driver(error) => error.into(),
            ShareError::NoHandle => Self::argument(error),
            ShareError::Gone | ShareError::ExporterGone(_) => Self::new(GAPLESS_ERROR_GONE, error),
            ShareError::Forked => {
                Self { cause: Cause::of(GAPLESS_KIND_FORKED), ..Self::new(GAPLESS_ERROR_DRIVER, error) }
            }
            _ => Self::new(GAPLESS_ERROR_SHARE, error),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Alloc(error) => return error.into(),
            Error::Range(_) => GAPLESS_ERROR_TOO_LARGE,
            Error::AllocAgain(AllocAgainError::NotFree { .. }) => GAPLESS_ERROR_NOT_ALLOCATED,
            Error::Sleep(SleepError::BackupFile(_)) => GAPLESS_ERROR_IO,
            Error::Backup(_) => GAPLESS_ERROR_NOT_FOUND,
            Error::AllocAgain(_) | Error::Sleep(_) => GAPLESS_ERROR_DRIVER,
            Error::Free(error) => return error.into(),
            Error::Build(error) => return error.into(),
            Error::Close(error) => return error.into(),
            Error::Open(error) => return error.into(),
            Error::Driver(error) => return error.into(),
            Error::Share(error) => return error.into(),
            Error::Foreign { ref cause, .. } => return Self::caused(GAPLESS_ERROR_STREAM, &error, cause),
            Error::Capturing(_) => {
                return Self { cause: Cause::of(GAPLESS_KIND_CANNOT_WAIT), ..Self::new(GAPLESS_ERROR_STREAM, error) };
            }
            Error::Configured | Error::Recording | Error::DeviceInUse(_) | Error::PoolInUse(_) => GAPLESS_ERROR_IN_USE,
            Error::Record { .. } | Error::Io(_) => GAPLESS_ERROR_IO,
            Error::NotRecording | Error::NoReport | Error::NoTag => GAPLESS_ERROR_NOT_FOUND,
            Error::NotPinned(_)
            | Error::NotRegistered(_)
            | Error::NotARange(_)
            | Error::NotImported(_)
            | Error::NotLive(_) => GAPLESS_ERROR_NOT_ALLOCATED,
            // A number, a text, a name or a fraction that is none: `NotADevice`, `Conf`, `EmptyTag`, `Fraction`; or `SameRange`.
            _ => GAPLESS_ERROR_INVALID_ARGUMENT,
        };
        Self::new(status, error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::new(GAPLESS_ERROR_INTERNAL, error)
    }
}
