//! What a driver call can answer when it fails.

use std::borrow::Cow;
use std::fmt;

/// The driver calls that this crate makes, by the field's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DriverCall {
    /// Opening the driver, a device or its context.
    Open,
    /// `cuMemGetInfo`.
    MemoryInfo,
    /// `cuMemAddressReserve`.
    Reserve,
    /// `cuMemAddressFree`.
    AddressFree,
    /// `cuMemCreate`.
    Create,
    /// `cuMemRelease`.
    Release,
    /// `cuMemMap`.
    Map,
    /// `cuMemSetAccess`.
    SetAccess,
    /// `cuMemUnmap`.
    Unmap,
    /// `cuEventCreate`.
    EventCreate,
    /// `cuEventDestroy`.
    EventDestroy,
    /// `cuEventRecord`.
    EventRecord,
    /// `cuEventQuery`.
    EventQuery,
    /// `cuEventSynchronize`.
    EventSynchronize,
    /// `cuStreamWaitEvent`.
    StreamWait,
    /// Anything that concerns a stream itself: looking it up, creating, synchronising.
    Stream,
    /// Work queued for tests and replays: fill, verify, copy, delay.
    Work,
}

impl DriverCall {
    /// Every call, in order of declaration: `ALL[call as usize] == call`.
    pub const ALL: [Self; 17] = [
        Self::Open,
        Self::MemoryInfo,
        Self::Reserve,
        Self::AddressFree,
        Self::Create,
        Self::Release,
        Self::Map,
        Self::SetAccess,
        Self::Unmap,
        Self::EventCreate,
        Self::EventDestroy,
        Self::EventRecord,
        Self::EventQuery,
        Self::EventSynchronize,
        Self::StreamWait,
        Self::Stream,
        Self::Work,
    ];

    /// The name in the CUDA driver API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "cuInit",
            Self::MemoryInfo => "cuMemGetInfo",
            Self::Reserve => "cuMemAddressReserve",
            Self::AddressFree => "cuMemAddressFree",
            Self::Create => "cuMemCreate",
            Self::Release => "cuMemRelease",
            Self::Map => "cuMemMap",
            Self::SetAccess => "cuMemSetAccess",
            Self::Unmap => "cuMemUnmap",
            Self::EventCreate => "cuEventCreate",
            Self::EventDestroy => "cuEventDestroy",
            Self::EventRecord => "cuEventRecord",
            Self::EventQuery => "cuEventQuery",
            Self::EventSynchronize => "cuEventSynchronize",
            Self::StreamWait => "cuStreamWaitEvent",
            Self::Stream => "cuStream*",
            Self::Work => "cuLaunchKernel",
        }
    }
}

/// What kind of failure it was, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DriverErrorKind {
    /// No memory, or (from `reserve` and `set_access`) no addresses or no more mappings: less or later may succeed.
    OutOfMemory,
    /// The device or driver cannot do this at all.
    NotSupported,
    /// The arguments were refused.
    InvalidValue,
    /// The handle (stream, event, chunk) is not one of this driver's.
    InvalidHandle,
    /// The context is lost: every later call will fail too.
    DeviceLost,
    /// Anything else, told apart by its code.
    Other,
}

impl DriverErrorKind {
    /// True when every later call will fail as well, so that retrying is pointless.
    pub const fn is_sticky(self) -> bool {
        matches!(self, Self::DeviceLost)
    }
}

/// A failed driver call: which, why, and the driver's own code, name and text.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub struct DriverError {
    /// The call that failed.
    pub call: DriverCall,
    /// What a caller can make of it.
    pub kind: DriverErrorKind,
    /// The driver's result code (a `CUresult`; simulated drivers use the same numbers).
    pub code: i32,
    /// The code's name, such as `CUDA_ERROR_OUT_OF_MEMORY`; for an unknown code, its number.
    pub name: Cow<'static, str>,
    /// One sentence that says what happened.
    pub text: Cow<'static, str>,
}

impl DriverError {
    /// An error of a well-known kind with CUDA's code and name for it.
    pub fn new(call: DriverCall, kind: DriverErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        let (code, name) = match kind {
            DriverErrorKind::OutOfMemory => (2, "CUDA_ERROR_OUT_OF_MEMORY"),
            DriverErrorKind::NotSupported => (801, "CUDA_ERROR_NOT_SUPPORTED"),
            DriverErrorKind::InvalidValue => (1, "CUDA_ERROR_INVALID_VALUE"),
            DriverErrorKind::InvalidHandle => (400, "CUDA_ERROR_INVALID_HANDLE"),
            DriverErrorKind::DeviceLost => (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
            DriverErrorKind::Other => (999, "CUDA_ERROR_UNKNOWN"),
        };
        Self { call, kind, code, name: Cow::Borrowed(name), text: text.into() }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with {} ({}): {}", self.call.name(), self.name, self.code, self.text)
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
