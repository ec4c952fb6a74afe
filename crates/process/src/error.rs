//! Why something that this crate was asked for did not happen.

use crate::conf::ConfError;
use gapless::allocator::{
    AllocAgainError, AllocError, BackupError, BuildError, CloseError, FreeError, RangeError, SleepError, StreamError,
};
use gapless::driver::DriverError;
use gapless::driver::cuda::OpenError;
use gapless::{DeviceAddr, StreamId};
use gapless_share::ShareError;
use std::io;
use std::path::PathBuf;

/// A failure. What was asked for has not happened, unless the function says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The allocator refused a request.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A growable range could not grow.
    #[error(transparent)]
    Range(RangeError),
    /// Memory could not be allocated again.
    #[error(transparent)]
    AllocAgain(AllocAgainError),
    /// Memory could not sleep or wake.
    #[error(transparent)]
    Sleep(SleepError),
    /// A backup cannot be shown.
    #[error(transparent)]
    Backup(BackupError),
    /// The allocator refused a free, or to record a stream.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// An allocator could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// An allocator could not be closed.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// A device could not be opened, or there is none of that number.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A call to the driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Memory could not be shared with another process.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// No device can have that number.
    #[error("{0} is not the number of a device")]
    NotADevice(u32),
    /// The device has an allocator already.
    #[error("device {0} is in use already")]
    DeviceInUse(u32),
    /// A configuration that does not parse.
    #[error("GAPLESS_CONF: {0}")]
    Conf(ConfError),
    /// A configuration that comes after the first device was used.
    #[error("an allocator is in use already: configure before the first use")]
    Configured,
    /// A budget that is no fraction of a device.
    #[error("a budget of {0} of the device: give a fraction above 0 and at most 1")]
    Fraction(f64),
    /// A stream of another device, or none at all, that memory cannot be recorded on.
    #[error("memory of device {ordinal} cannot be recorded on {stream:?}: {cause}")]
    Foreign {
        /// The device of the memory.
        ordinal: u32,
        /// The stream.
        stream: StreamId,
        /// The reason that its allocator gives.
        cause: StreamError,
    },
    /// A recording has been started and not stopped since.
    #[error("this allocator is being recorded already; stop that recording first")]
    Recording,
    /// There is no recording to stop.
    #[error("nothing is being recorded")]
    NotRecording,
    /// A file of a recording could not be made.
    #[error("cannot record into {path}: {cause}", path = path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A recording could not be completed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// There is no report of a request that ran out of memory.
    #[error("no request has run out of memory so far")]
    NoReport,
    /// No pinned block is at an address.
    #[error("no pinned block starts at {0}")]
    NotPinned(DeviceAddr),
    /// No registered block is at an address.
    #[error("no registered block starts at {0}")]
    NotRegistered(DeviceAddr),
    /// No growable range is at an address.
    #[error("no growable range starts at {0}")]
    NotARange(DeviceAddr),
    /// A growable range that was to take memory from itself.
    #[error("the range at {0} cannot take memory from itself")]
    SameRange(DeviceAddr),
    /// No imported block is at an address.
    #[error("no imported block starts at {0}")]
    NotImported(DeviceAddr),
    /// No live allocation is at an address.
    #[error("no live allocation is at {0}")]
    NotLive(DeviceAddr),
    /// A pool is open or had memory already, so that its kind cannot change any more.
    #[error("pool ({}, {}) is in use already: declare its kind before it is opened", .0.0, .0.1)]
    PoolInUse((u64, u64)),
    /// A tag without a name.
    #[error("a tag needs a name: this one is empty")]
    EmptyTag,
    /// The calling thread has pushed no tag that it has not popped.
    #[error("this thread has no tag to pop")]
    NoTag,
    /// A graph is being captured, or may be about to, and memory can neither fall asleep nor wake meanwhile.
    #[error("a graph may be being captured on device {0}: nothing sleeps or wakes before that has ended")]
    Capturing(u32),
}

macro_rules! from_families {
    ($($family:ident: $error:ident),*) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                match error {
                    $error::Alloc(error) => Self::Alloc(error),
                    other => Self::$family(other),
                }
            }
        }
    )*};
}

from_families!(Range: RangeError, AllocAgain: AllocAgainError, Sleep: SleepError, Backup: BackupError);
