//! The error of a failed driver call.

use super::DriverCall;
use std::borrow::Cow;
use std::fmt;

/// The kinds of failure that a caller can act on differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DriverErrorKind {
    /// No memory, or (from `reserve` and `set_access`) no addresses or no more mappings. A smaller request, or the same
    /// one later, may succeed.
    OutOfMemory,
    /// The device or driver cannot do this at all.
    NotSupported,
    /// The arguments were refused.
    InvalidValue,
    /// The handle (stream, event, chunk) is not one of this driver's.
    InvalidHandle,
    /// The call is not allowed now, because a stream is being captured into a graph. It may be repeated later.
    Capturing,
    /// The context is lost: every later call will fail too.
    DeviceLost,
    /// A [listener](crate::allocator::MapListener) of the allocator refused, or panicked: the driver was not asked, or what it
    /// had done was undone.
    Refused,
    /// Any other failure; see [`DriverError::code`].
    Other,
}

impl DriverErrorKind {
    /// Returns true when every later call will fail as well, so that retrying is pointless.
    #[must_use]
    pub const fn is_sticky(self) -> bool {
        matches!(self, Self::DeviceLost)
    }
}

/// A failed driver call: which call, what kind of failure, and the driver's own code, name and text for it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct DriverError {
    /// The call that failed.
    pub call: DriverCall,
    /// The name of the driver's function, where `call` stands for several.
    pub function: Option<Cow<'static, str>>,
    /// The kind of failure.
    pub kind: DriverErrorKind,
    /// The driver's result code (a `CUresult`; simulated drivers use the same numbers).
    pub code: i32,
    /// The code's name, such as `CUDA_ERROR_OUT_OF_MEMORY`; for an unknown code, its number.
    pub name: Cow<'static, str>,
    /// One sentence that says what happened.
    pub text: Cow<'static, str>,
}

impl DriverError {
    /// Creates an error with CUDA's code and name for its kind.
    pub fn new(call: DriverCall, kind: DriverErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        let (code, name) = match kind {
            DriverErrorKind::OutOfMemory => (2, "CUDA_ERROR_OUT_OF_MEMORY"),
            DriverErrorKind::NotSupported => (801, "CUDA_ERROR_NOT_SUPPORTED"),
            DriverErrorKind::InvalidValue => (1, "CUDA_ERROR_INVALID_VALUE"),
            DriverErrorKind::InvalidHandle => (400, "CUDA_ERROR_INVALID_HANDLE"),
            DriverErrorKind::Capturing => (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
            DriverErrorKind::DeviceLost => (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
            DriverErrorKind::Refused => (0, "LISTENER_REFUSED"),
            DriverErrorKind::Other => (999, "CUDA_ERROR_UNKNOWN"),
        };
        Self { call, function: None, kind, code, name: Cow::Borrowed(name), text: text.into() }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.function.as_deref().unwrap_or(self.call.name());
        write!(f, "{function} failed with {} ({}): {}", self.name, self.code, self.text)
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
