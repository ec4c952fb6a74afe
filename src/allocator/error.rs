//! The errors of the public operations: one enum each, with fields.

use super::reports::{LiveAllocation, OutOfMemory};
use super::stores::BackupFileError;
use crate::driver::cuda::OpenError;
use crate::driver::{DriverError, DriverErrorKind};
use crate::heap::BlockState;
use crate::segment::listeners::InListener;
use crate::units::{ByteSize, DeviceAddr, StreamId};
use std::fmt;

/// Why an allocator could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting is out of range.
    #[error("the setting '{name}' cannot be used: {reason}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// Why it cannot be used.
        reason: String,
    },
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Why a stream cannot be used with an allocator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The handle is not a stream of this device, or the driver failed otherwise when it was asked: see the kind of `cause`.
    #[error("{stream:?} {}: {cause}", what_is_wrong(cause))]
    Foreign {
        /// The stream.
        stream: StreamId,
        /// The driver's answer.
        cause: DriverError,
    },
    /// The allocator has seen as many streams as it keeps.
    #[error("this allocator has seen {limit} streams; reuse streams rather than making new ones")]
    TooMany {
        /// The largest number of streams.
        limit: usize,
    },
}

/// Why an allocation failed, or another call that needs memory or the driver. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// There is not enough memory; the report explains why.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The request, rounded and aligned, exceeds the addresses of a region.
    #[error(
        "{requested} bytes at a multiple of {alignment} do not fit into a region of {} of addresses; raise region_bytes \
         if this is meant",
        ByteSize(*region_bytes)
    )]
    TooLarge {
        /// Bytes requested.
        requested: u64,
        /// Alignment requested, in bytes.
        alignment: u64,
        /// Bytes of addresses of a region.
        region_bytes: u64,
    },
    /// The driver's addresses come in so many separate pieces that the allocator cannot keep track of another.
    #[error("the driver's addresses come in more than {limit} pieces; this allocator keeps no more")]
    AddressesFragmented {
        /// The largest number of pieces.
        limit: usize,
    },
    /// The driver makes no further mapping, although there is memory for it, and no mapping that is not needed any more can be
    /// removed now. Try again when more work has completed, or after a capture.
    #[error(
        "the driver makes no more mappings: this allocator has {mappings}, and none that can be removed now; larger chunks \
         need fewer ({cause})"
    )]
    OutOfMappings {
        /// Number of mappings that the allocator has.
        mappings: usize,
        /// The driver's answer.
        cause: DriverError,
    },
    /// The alignment is not a power of two.
    #[error("an alignment of {alignment} is not a power of two")]
    Alignment {
        /// Alignment requested, in bytes.
        alignment: u64,
    },
    /// The stream cannot be used with this allocator.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The host cannot wait for a stream that may still use the memory: the stream is being captured into a graph, or
    /// was destroyed. Try again after the capture.
    #[error("{stream:?} may still use the memory and cannot be waited for now: it is being captured, or was destroyed")]
    CannotWait {
        /// The stream.
        stream: StreamId,
    },
    /// This process was forked from the one that built the allocator, and cannot use that process's device memory.
    #[error("this allocator was built in process {built_in}; a forked process has to build its own")]
    Forked {
        /// The process that built the allocator.
        built_in: u32,
    },
    /// The call was made in a callback of a [`MapListener`](super::MapListener), and may need the driver.
    #[error(transparent)]
    InListener(#[from] InListener),
    /// A driver call failed for another reason than memory; everything done before it has been undone.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl AllocError {
    /// The out-of-memory report, if the request ran out of memory.
    #[must_use]
    pub fn report(&self) -> Option<&OutOfMemory> {
        match self {
            Self::OutOfMemory(report) => Some(report),
            _ => None,
        }
    }
}

/// Why a [`VirtualRange`](super::VirtualRange) could not grow. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The range has fewer addresses left at its end than the request needs.
    #[error(
        "{} more do not fit into this range: {} of its addresses are left",
        ByteSize(*requested),
        ByteSize(*available)
    )]
    Full {
        /// Bytes requested.
        requested: u64,
        /// Bytes of addresses left at the end of the range. 0 after a mapping there could not be undone.
        available: u64,
    },
    /// As for an allocation.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Why memory could not be [allocated again](super::Allocator::alloc_again). Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocAgainError {
    /// The memory at the address cannot be allocated again: a part of it is not free, or not there.
    #[error("{} at {addr} cannot be allocated again: {facts}", ByteSize(*bytes))]
    NotFree {
        /// The address.
        addr: DeviceAddr,
        /// Bytes requested.
        bytes: u64,
        /// The known facts about the first part that is not free.
        facts: AddressFacts,
    },
    /// The memory at the address cannot be allocated again: a part of it is asleep.
    #[error("{} at {addr} cannot be allocated again: that memory is asleep; wake it first", ByteSize(*bytes))]
    Asleep {
        /// The address.
        addr: DeviceAddr,
        /// Bytes requested.
        bytes: u64,
    },
    /// As for an allocation.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Why an allocator could not [sleep](super::Allocator::sleep) or [wake](super::Allocator::wake).
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SleepError {
    /// A backup cannot be in a file, or not be read back from one.
    #[error(transparent)]
    BackupFile(#[from] BackupFileError),
    /// A backup would take more memory of the host than is left of the budget for that, or than the host has.
    #[error(
        "a backup of {} does not fit in the {} that are left of the host's memory for backups",
        ByteSize(*bytes),
        ByteSize(*left)
    )]
    HostMemory {
        /// Bytes of the backup, or of the memory that it passes through.
        bytes: u64,
        /// Bytes that are left: 0 where the host has not so many.
        left: u64,
    },
    /// As for an allocation: a wake needs memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Why the [backup](super::Allocator::backup_at) of what sleeps cannot be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The bytes of a backup that were asked for do not follow each other in one: a part of them is awake, for example.
    #[error("no backup has all of the {} at {addr}: a part is awake, or is in another one", ByteSize(*bytes))]
    InParts {
        /// The address.
        addr: DeviceAddr,
        /// Bytes asked for.
        bytes: u64,
    },
    /// The backup of the bytes that were asked for is in a file.
    #[error("the backup of the {} at {addr} is in a file, and is not shown", ByteSize(*bytes))]
    InFile {
        /// The address.
        addr: DeviceAddr,
        /// Bytes asked for.
        bytes: u64,
    },
    /// As for other calls.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// The errors of one call, which has those of an allocation and others of its own.
pub(crate) trait WithAlloc: From<AllocError> {
    /// The error of an allocation, if it is one.
    fn alloc(&self) -> Option<&AllocError>;

    /// As [`alloc`](Self::alloc), to be added to.
    fn alloc_mut(&mut self) -> Option<&mut AllocError>;
}

impl WithAlloc for AllocError {
    fn alloc(&self) -> Option<&AllocError> {
        Some(self)
    }

    fn alloc_mut(&mut self) -> Option<&mut AllocError> {
        Some(self)
    }
}

macro_rules! with_alloc {
    ($($family:ty),*) => {$(
        impl WithAlloc for $family {
            fn alloc(&self) -> Option<&AllocError> {
                match self {
                    Self::Alloc(error) => Some(error),
                    _ => None,
                }
            }

            fn alloc_mut(&mut self) -> Option<&mut AllocError> {
                match self {
                    Self::Alloc(error) => Some(error),
                    _ => None,
                }
            }
        }

        impl $family {
            /// The out-of-memory report, if the call ran out of memory.
            pub fn report(&self) -> Option<&OutOfMemory> {
                self.alloc()?.report()
            }
        }

        impl From<StreamError> for $family {
            fn from(error: StreamError) -> Self {
                AllocError::from(error).into()
            }
        }

        impl From<InListener> for $family {
            fn from(error: InListener) -> Self {
                AllocError::from(error).into()
            }
        }

        impl From<DriverError> for $family {
            fn from(error: DriverError) -> Self {
                AllocError::from(error).into()
            }
        }
    )*};
}

with_alloc!(RangeError, AllocAgainError, SleepError, BackupError);

/// The known facts about an address at which no live allocation starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AddressFacts {
    /// It is not an address of this allocator.
    Foreign,
    /// It lies in reserved addresses that were never allocated.
    NeverAllocated,
    /// It lies inside a live allocation, not at its start.
    Inside {
        /// Address of the allocation.
        start: DeviceAddr,
        /// Bytes of the allocation, rounding included.
        bytes: u64,
    },
    /// The memory there is free: it was freed before, or never allocated.
    Freed {
        /// Whether the memory waits for another stream before it can be reused.
        pending: bool,
    },
}

impl fmt::Display for AddressFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => write!(f, "it was not allocated by this allocator"),
            Self::NeverAllocated => write!(f, "it was never handed out"),
            Self::Inside { start, bytes } => {
                write!(f, "it lies inside the live allocation of {} that starts at {start}", ByteSize(*bytes))
            }
            Self::Freed { pending: false } => write!(f, "that memory is free; it may have been freed before"),
            Self::Freed { pending: true } => {
                write!(f, "it was freed before, and waits for another stream that it was recorded on")
            }
        }
    }
}

/// Why an allocation could not be freed, or a stream could not be recorded for it. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// No live allocation starts there.
    #[error("{addr} is not the start of a live allocation: {facts}")]
    NotAllocated {
        /// The address.
        addr: DeviceAddr,
        /// The known facts about the address.
        facts: AddressFacts,
    },
    /// The live allocation that starts there is asleep, and has no memory.
    #[error("the allocation at {addr} is asleep: wake it first")]
    Asleep {
        /// The address.
        addr: DeviceAddr,
    },
    /// The stream cannot be used with this allocator.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// The error of [`close`](super::Allocator::close).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Everything went back to the driver, but these allocations were never freed.
    #[error("{}", describe_leaks(.0))]
    Leaked(Vec<LiveAllocation>),
    /// This process was forked from the one that built the allocator; nothing was done.
    #[error("this allocator was built in process {built_in}, which still uses it")]
    Forked {
        /// The process that built it.
        built_in: u32,
    },
    /// Other clones of the allocator are alive; nothing was done.
    #[error("{0} other clones of this allocator are still in use")]
    InUse(usize),
    /// Nothing but so many pins keeps the allocator: another process has its memory open, or whoever has pinned it. Nothing was
    /// done.
    #[error("memory of this allocator is open in another process, or pinned: {0} pins keep it")]
    Pinned(usize),
    /// The driver refused to take something back; the rest went back.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

fn what_is_wrong(cause: &DriverError) -> &'static str {
    match cause.kind {
        DriverErrorKind::InvalidHandle => "is not a stream of this device",
        _ => "could not be looked up",
    }
}

fn describe_leaks(leaks: &[LiveAllocation]) -> String {
    let total: u64 = leaks.iter().map(|leak| leak.bytes).sum();
    let (count, were) = match leaks.len() {
        1 => ("1 allocation".to_owned(), "was"),
        count => (format!("{count} allocations"), "were"),
    };
    let mut text = format!("{count} of {} {were} never freed", ByteSize(total));
    for leak in leaks.iter().take(5) {
        text.push_str(&format!("; {} at {} on {:?}", ByteSize(leak.bytes), leak.addr, leak.stream));
    }
    text
}

pub(super) fn facts_of(state: BlockState, start: DeviceAddr, bytes: u64, exact: bool) -> AddressFacts {
    match state {
        BlockState::Live if !exact => AddressFacts::Inside { start, bytes },
        BlockState::Pending => AddressFacts::Freed { pending: true },
        BlockState::Hole => AddressFacts::NeverAllocated,
        BlockState::Live | BlockState::Free | BlockState::Claimed => AddressFacts::Freed { pending: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::DriverCall;

    /// Only for a handle that the driver does not know, the error says that it is no stream.
    #[test]
    fn a_stream_that_is_refused_says_why() {
        let stream = StreamId(0x70);
        for (kind, expected) in [
            (DriverErrorKind::InvalidHandle, "is not a stream of this device"),
            (DriverErrorKind::Capturing, "could not be looked up"),
        ] {
            let cause = DriverError::new(DriverCall::Stream, kind, "the answer");
            let text = StreamError::Foreign { stream, cause: cause.clone() }.to_string();
            assert_eq!(text, format!("{stream:?} {expected}: {cause}"));
        }
    }
}
