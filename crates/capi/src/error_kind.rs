//! The details of a failure beyond its status: its kind, CUDA's result code, the out-of-memory report.

use gapless::allocator::{AllocError, BuildError, CloseError, FreeError, InListener, OutOfMemory, StreamError};
use gapless::driver::cuda::{LoadError, OpenError};
use gapless::driver::{DriverError, DriverErrorKind};

/// The kind of a failure, as far as a program can act on it: one of the GAPLESS_KIND_... numbers. 4 and 7 have been kinds.
pub type gapless_error_kind = i32;

/// The status says all there is to say.
pub const GAPLESS_KIND_NONE: gapless_error_kind = 0;
/// There is not enough memory: free some, or ask for less.
pub const GAPLESS_KIND_OUT_OF_MEMORY: gapless_error_kind = 1;
/// The device or the driver cannot do this at all.
pub const GAPLESS_KIND_NOT_SUPPORTED: gapless_error_kind = 2;
/// The driver refused an argument.
pub const GAPLESS_KIND_INVALID_VALUE: gapless_error_kind = 3;
/// The device is lost to this process: every later call to the driver fails, too.
pub const GAPLESS_KIND_DEVICE_LOST: gapless_error_kind = 5;
/// A driver call failed for another reason; gapless_last_error_code says which.
pub const GAPLESS_KIND_DRIVER_OTHER: gapless_error_kind = 6;
/// The driver's free addresses are in more pieces than an allocator can keep track of.
pub const GAPLESS_KIND_ADDRESSES_FRAGMENTED: gapless_error_kind = 8;
/// The handle is not a stream of the allocator's device.
pub const GAPLESS_KIND_FOREIGN_STREAM: gapless_error_kind = 9;
/// The allocator has been used with as many streams as it can keep track of.
pub const GAPLESS_KIND_TOO_MANY_STREAMS: gapless_error_kind = 10;
/// A stream is being captured into a graph, and until that has ended, streams that may still use the memory cannot be waited for.
/// The same call may succeed after the capture.
pub const GAPLESS_KIND_CANNOT_WAIT: gapless_error_kind = 11;
/// The process was forked from the one that made the allocator.
pub const GAPLESS_KIND_FORKED: gapless_error_kind = 12;
/// A callback of a map listener asked for something that may wait for the call which it is a part of.
pub const GAPLESS_KIND_IN_CALLBACK: gapless_error_kind = 13;
/// A map listener refused to see memory mapped or unmapped.
pub const GAPLESS_KIND_REFUSED: gapless_error_kind = 14;

/// The details of a failure beyond its status and its text.
#[derive(Debug, Default)]
pub(crate) struct Cause {
    pub kind: gapless_error_kind,
    /// A `CUresult`; 0 when no driver call failed.
    pub code: i32,
    pub report: Option<Box<OutOfMemory>>,
}

impl Cause {
    pub fn of(kind: gapless_error_kind) -> Self {
        Self { kind, ..Self::default() }
    }
}

impl From<&DriverError> for Cause {
    fn from(error: &DriverError) -> Self {
        let kind = match error.kind {
            DriverErrorKind::OutOfMemory => GAPLESS_KIND_OUT_OF_MEMORY,
            DriverErrorKind::NotSupported => GAPLESS_KIND_NOT_SUPPORTED,
            DriverErrorKind::InvalidValue => GAPLESS_KIND_INVALID_VALUE,
            DriverErrorKind::Refused => GAPLESS_KIND_REFUSED,
            DriverErrorKind::DeviceLost => GAPLESS_KIND_DEVICE_LOST,
            _ => GAPLESS_KIND_DRIVER_OTHER,
        };
        Self { kind, code: error.code, report: None }
    }
}

impl From<&InListener> for Cause {
    fn from(_: &InListener) -> Self {
        Self::of(GAPLESS_KIND_IN_CALLBACK)
    }
}

impl From<&StreamError> for Cause {
    fn from(error: &StreamError) -> Self {
        match error {
            // A driver that is lost knows no stream, so that says nothing about the stream.
            StreamError::Foreign { cause, .. } if cause.kind.is_sticky() => cause.into(),
            StreamError::Foreign { cause, .. } => Self { code: cause.code, ..Self::of(GAPLESS_KIND_FOREIGN_STREAM) },
            StreamError::TooMany { .. } => Self::of(GAPLESS_KIND_TOO_MANY_STREAMS),
            _ => Self::default(),
        }
    }
}

impl From<&AllocError> for Cause {
    fn from(error: &AllocError) -> Self {
        match error {
            AllocError::OutOfMemory(report) => {
                let kind =
                    if report.stopped_by_capture { GAPLESS_KIND_CANNOT_WAIT } else { GAPLESS_KIND_OUT_OF_MEMORY };
                Self { report: Some(report.clone()), ..Self::of(kind) }
            }
            AllocError::AddressesFragmented { .. } => Self::of(GAPLESS_KIND_ADDRESSES_FRAGMENTED),
            AllocError::Stream(error) => error.into(),
            AllocError::CannotWait { .. } => Self::of(GAPLESS_KIND_CANNOT_WAIT),
            AllocError::Forked { .. } => Self::of(GAPLESS_KIND_FORKED),
            AllocError::InListener(error) => error.into(),
            AllocError::Driver(error) | AllocError::OutOfMappings { cause: error, .. } => error.into(),
            _ => Self::default(),
        }
    }
}

impl From<&FreeError> for Cause {
    fn from(error: &FreeError) -> Self {
        match error {
            FreeError::Stream(error) => error.into(),
            _ => Self::default(),
        }
    }
}

impl From<&BuildError> for Cause {
    fn from(error: &BuildError) -> Self {
        match error {
            BuildError::Driver(error) => error.into(),
            _ => Self::default(),
        }
    }
}

impl From<&CloseError> for Cause {
    fn from(error: &CloseError) -> Self {
        match error {
            CloseError::Driver(error) => error.into(),
            CloseError::Forked { .. } => Self::of(GAPLESS_KIND_FORKED),
            _ => Self::default(),
        }
    }
}

impl From<&OpenError> for Cause {
    fn from(error: &OpenError) -> Self {
        match error {
            OpenError::Load(LoadError::Init(error))
            | OpenError::DeviceFull { cause: error, .. }
            | OpenError::Trial { cause: error, .. }
            | OpenError::NoAddresses { cause: error, .. }
            | OpenError::Driver(error) => error.into(),
            OpenError::NoVmm { .. } => Self::of(GAPLESS_KIND_NOT_SUPPORTED),
            _ => Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::StreamId;
    use gapless::driver::DriverCall;

    fn driver(kind: DriverErrorKind) -> DriverError {
        DriverError::new(DriverCall::Create, kind, "")
    }

    #[test]
    fn a_driver_s_failures_keep_their_kind_and_code() {
        for (kind, expected, code) in [
            (DriverErrorKind::OutOfMemory, GAPLESS_KIND_OUT_OF_MEMORY, 2),
            (DriverErrorKind::NotSupported, GAPLESS_KIND_NOT_SUPPORTED, 801),
            (DriverErrorKind::InvalidValue, GAPLESS_KIND_INVALID_VALUE, 1),
            (DriverErrorKind::InvalidHandle, GAPLESS_KIND_DRIVER_OTHER, 400),
            (DriverErrorKind::Refused, GAPLESS_KIND_REFUSED, 0),
            (DriverErrorKind::DeviceLost, GAPLESS_KIND_DEVICE_LOST, 700),
            (DriverErrorKind::Other, GAPLESS_KIND_DRIVER_OTHER, 999),
        ] {
            for cause in [
                Cause::from(&AllocError::Driver(driver(kind))),
                Cause::from(&AllocError::OutOfMappings { mappings: 1, cause: driver(kind) }),
                Cause::from(&BuildError::Driver(driver(kind))),
                Cause::from(&CloseError::Driver(driver(kind))),
                Cause::from(&OpenError::Driver(driver(kind))),
                Cause::from(&OpenError::Load(LoadError::Init(driver(kind)))),
            ] {
                assert_eq!((cause.kind, cause.code), (expected, code), "{kind:?}");
            }
        }
    }

    #[test]
    fn a_stream_of_a_lost_device_is_not_foreign() {
        let foreign = |kind| StreamError::Foreign { stream: StreamId::DEFAULT, cause: driver(kind) };
        let cause = Cause::from(&FreeError::Stream(foreign(DriverErrorKind::InvalidHandle)));
        assert_eq!((cause.kind, cause.code), (GAPLESS_KIND_FOREIGN_STREAM, 400));
        let cause = Cause::from(&AllocError::Stream(foreign(DriverErrorKind::DeviceLost)));
        assert_eq!((cause.kind, cause.code), (GAPLESS_KIND_DEVICE_LOST, 700));
    }

    #[test]
    fn where_no_driver_call_failed_there_is_no_code() {
        for (error, kind) in [
            (AllocError::CannotWait { stream: StreamId::DEFAULT }, GAPLESS_KIND_CANNOT_WAIT),
            (AllocError::AddressesFragmented { limit: 1 }, GAPLESS_KIND_ADDRESSES_FRAGMENTED),
            (AllocError::Forked { built_in: 1 }, GAPLESS_KIND_FORKED),
            (AllocError::Stream(StreamError::TooMany { limit: 1 }), GAPLESS_KIND_TOO_MANY_STREAMS),
            (AllocError::Alignment { alignment: 3 }, GAPLESS_KIND_NONE),
        ] {
            let cause = Cause::from(&error);
            assert_eq!((cause.kind, cause.code), (kind, 0), "{error}");
            assert!(cause.report.is_none());
        }
    }
}
