//! What a replay replays through: gapless, or the baseline.

use crate::caching::{CachingAllocator, CachingError};
use gapless::allocator::{AllocError, Allocator, BuildError, ChunkPolicy, StreamError};
use gapless::driver::{Driver, DriverError};
use gapless::units::{DeviceAddr, StreamId};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// An allocator, as far as a replay needs one.
pub trait Policy {
    /// Allocates `bytes` for use on `stream`.
    ///
    /// # Errors
    /// [`PolicyError::OutOfMemory`], or [`PolicyError::Failed`] for a failure that no trace should cause.
    fn alloc(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, PolicyError>;

    /// Frees a block, in the order of the stream it was allocated on.
    ///
    /// # Errors
    /// [`PolicyError::Failed`].
    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError>;

    /// Figures that only the allocator knows.
    fn stats(&self) -> PolicyStats;
}

/// Figures of a [`Policy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Most bytes of the device held at once.
    pub peak_reserved_bytes: u64,
    /// Times the host waited for the device.
    pub host_waits: u64,
}

/// Why a [`Policy`] refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Out of memory, with the allocator's own report.
    #[error("{report}")]
    OutOfMemory {
        /// Whether any allocator could have served the request.
        satisfiable: bool,
        /// For a person.
        report: String,
    },
    /// The driver refused a call otherwise than for want of memory, or its other limits were met.
    #[error(transparent)]
    Driver(DriverError),
    /// The allocator cannot replay a trace with so many streams.
    #[error("{0}")]
    TooManyStreams(String),
    /// Anything else: a mistake in the allocator.
    #[error("{0}")]
    Failed(String),
}

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// This crate's allocator.
    Gapless,
    /// PyTorch's native caching allocator ([`crate::caching`]).
    Caching,
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gapless => "gapless",
            Self::Caching => "caching",
        })
    }
}

/// Why a text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a policy: use gapless or caching, or both with a comma between them")]
pub struct ParsePolicyError(String);

impl FromStr for PolicyKind {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "gapless" => Ok(Self::Gapless),
            "caching" => Ok(Self::Caching),
            _ => Err(ParsePolicyError(text.to_owned())),
        }
    }
}

/// Settings of [`PolicyKind::Gapless`]; `None` leaves the allocator's default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GaplessSettings {
    /// See [`Builder::slack`](gapless::allocator::Builder::slack).
    pub slack: Option<f64>,
    /// See [`Builder::chunk_policy`](gapless::allocator::Builder::chunk_policy).
    pub chunk: Option<ChunkPolicy>,
}

impl GaplessSettings {
    /// An allocator with these settings that may hold `budget_bytes` of `driver`'s device.
    pub(crate) fn build<D: Driver>(&self, driver: Arc<D>, budget_bytes: u64) -> Result<Allocator<D>, BuildError> {
        let mut builder = Allocator::builder(driver).budget(budget_bytes);
        if let Some(slack) = self.slack {
            builder = builder.slack(slack);
        }
        if let Some(chunk) = self.chunk {
            builder = builder.chunk_policy(chunk);
        }
        builder.build()
    }
}

impl<D: Driver> Policy for Allocator<D> {
    fn alloc(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, PolicyError> {
        Self::alloc(self, bytes, stream).map_err(|error| match error {
            AllocError::OutOfMemory(report) => {
                PolicyError::OutOfMemory { satisfiable: report.satisfiable, report: report.to_string() }
            }
            // More addresses than a multiple of the budget.
            AllocError::TooLarge { .. } => PolicyError::OutOfMemory { satisfiable: false, report: error.to_string() },
            AllocError::Stream(StreamError::TooMany { .. }) => PolicyError::TooManyStreams(error.to_string()),
            AllocError::Driver(error) => PolicyError::Driver(error),
            other => PolicyError::Failed(other.to_string()),
        })
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError> {
        Self::free(self, addr).map_err(|error| PolicyError::Failed(error.to_string()))
    }

    fn stats(&self) -> PolicyStats {
        let stats = Self::stats(self);
        PolicyStats { peak_reserved_bytes: stats.peak_reserved_bytes, host_waits: stats.host_waits }
    }
}

impl<D: Driver> Policy for CachingAllocator<D> {
    fn alloc(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, PolicyError> {
        Self::alloc(self, bytes, stream).map_err(|error| match error {
            CachingError::OutOfMemory(report) => PolicyError::OutOfMemory {
                satisfiable: report.free_bytes + (report.reserved_bytes - report.live_bytes) >= report.requested_bytes,
                report: report.to_string(),
            },
            CachingError::Driver(error) => PolicyError::Driver(error),
            other => PolicyError::Failed(other.to_string()),
        })
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError> {
        Self::free(self, addr).map_err(|error| PolicyError::Failed(error.to_string()))
    }

    fn stats(&self) -> PolicyStats {
        let figures = self.figures();
        PolicyStats { peak_reserved_bytes: figures.peak_reserved_bytes, host_waits: figures.host_waits }
    }
}
