//! The work that streams run: filling, verifying and copying ranges.

use super::bytes::Bytes;
use crate::driver::ledger::Refusal;
use crate::driver::{HostMemory, Mismatch};
use crate::units::{DeviceAddr, StreamId};

#[derive(Debug, Clone, Copy)]
pub(super) enum Task {
    Fill {
        target: Span,
        seed: u64,
    },
    Verify {
        source: Span,
        seed: u64,
    },
    Copy {
        target: Span,
        source: Span,
    },
    /// To memory of the host.
    CopyOut {
        target: HostSpan,
        source: Span,
    },
    /// From memory of the host.
    CopyIn {
        target: Span,
        source: HostSpan,
    },
    /// To zero.
    Clear {
        target: Span,
    },
}

/// A range of one piece of the host's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostSpan {
    pub(super) memory: HostMemory,
    /// Its first byte, in this process.
    pub(super) addr: u64,
    pub(super) bytes: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) addr: DeviceAddr,
    pub(super) bytes: u64,
}

impl Task {
    pub(super) fn run(self, stream: StreamId) -> Option<Mismatch> {
        match self {
            Self::Fill { target, seed } => target.bytes().fill(seed),
            Self::Copy { target, source } => target.bytes().copy_from(source.bytes()),
            Self::CopyOut { target, source } => target.bytes().copy_from(source.bytes()),
            Self::CopyIn { target, source } => target.bytes().copy_from(source.bytes()),
            Self::Clear { target } => target.bytes().clear(),
            Self::Verify { source: Span { addr, bytes }, seed } => {
                let difference = Span { addr, bytes }.bytes().compare(seed)?;
                let (first, count) = (difference.first, difference.count);
                return Some(Mismatch { stream, addr, bytes, seed, first, count });
            }
        }
        None
    }

    pub(super) fn spans(self) -> impl Iterator<Item = Span> {
        let (first, second) = match self {
            Self::Fill { target: span, .. }
            | Self::Verify { source: span, .. }
            | Self::CopyOut { source: span, .. }
            | Self::CopyIn { target: span, .. }
            | Self::Clear { target: span } => (span, None),
            Self::Copy { target, source } => (target, Some(source)),
        };
        std::iter::once(first).chain(second)
    }

    pub(super) fn check_overlap(self) -> Result<(), Refusal> {
        match self {
            Self::Copy { target, source } if target.overlaps(source) => {
                Err(Refusal::Misuse("source and target of a copy overlap".to_owned()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fill { .. } => "fill",
            Self::Verify { .. } => "verify",
            Self::Copy { .. } => "copy",
            Self::CopyOut { .. } => "copy to the host",
            Self::CopyIn { .. } => "copy from the host",
            Self::Clear { .. } => "clear",
        }
    }

    /// The piece of the host's memory that the task reads or writes.
    pub(super) fn host_memory(self) -> Option<HostMemory> {
        match self {
            Self::CopyOut { target: span, .. } | Self::CopyIn { source: span, .. } => Some(span.memory),
            Self::Fill { .. } | Self::Verify { .. } | Self::Copy { .. } | Self::Clear { .. } => None,
        }
    }

    /// Whether the task reads or writes a piece of the host's memory.
    pub(super) fn uses(self, memory: HostMemory) -> bool {
        self.host_memory() == Some(memory)
    }

    /// Whether the task writes to a piece of the host's memory.
    pub(super) fn writes(self, memory: HostMemory) -> bool {
        matches!(self, Self::CopyOut { target, .. } if target.memory == memory)
    }
}

impl Span {
    pub(super) fn overlaps(self, other: Self) -> bool {
        let empty = self.bytes == 0 || other.bytes == 0;
        !empty && self.addr.0 < other.addr.0 + other.bytes && other.addr.0 < self.addr.0 + self.bytes
    }

    /// Returns the memory of a span of admitted work.
    fn bytes(self) -> Bytes {
        // SAFETY: `admit` found the range mapped with access, and `unmap`, the only call that takes it away, refuses a
        // range in flight. Reservations of this driver hold nothing but device memory.
        unsafe { Bytes::new(self.addr.0, self.bytes) }
    }
}

impl HostSpan {
    /// Returns the memory of a span of admitted work.
    fn bytes(self) -> Bytes {
        // SAFETY: `copy_beside` found the range within memory of the host, and `host_free`, the only call that frees it, refuses
        // what is in flight. Nothing else is given its address.
        unsafe { Bytes::new(self.addr, self.bytes) }
    }
}
