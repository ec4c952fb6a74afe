//! The allocation policies that a trace can be replayed through: gapless and the baseline.

use crate::Content;
use crate::caching::{CachingAllocator, CachingError};
use crate::held::HeldBlock;
use crate::history::Refusal;
use gapless::allocator::{
    AllocError, Allocator, Backup, BlockSnapshot, BlockState, BuildError, Builder, ChunkPolicy, SleepError, StreamError,
};
use gapless::driver::{Driver, DriverError};
use gapless::units::{DeviceAddr, GIB, KIB, MIB, StreamId};
use std::fmt;
use std::ops::Add;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// An allocator for replays.
pub trait Policy {
    /// Notes that the streams live until the replay ends.
    ///
    /// # Errors
    /// Returns [`PolicyError::Limit`] if there are more than the allocator supports.
    fn keep_streams(&mut self, streams: &[StreamId]) -> Result<(), PolicyError> {
        let _ = streams;
        Ok(())
    }

    /// Allocates `bytes` bytes for use on `stream`.
    ///
    /// # Errors
    /// Returns [`PolicyError::OutOfMemory`] if the memory is not available. The other variants are failures that end
    /// the replay without a result.
    fn alloc(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, PolicyError>;

    /// Asks for memory that the recorded allocator refused, and frees it if there is some: the recorded program did not use it.
    ///
    /// # Errors
    /// Returns the errors of [`alloc`](Self::alloc) and [`free`](Self::free), but for a lack of memory that the recorded run
    /// survived.
    fn ask(&mut self, bytes: u64, stream: StreamId, refusal: Refusal) -> Result<(), PolicyError> {
        match self.alloc(bytes, stream) {
            Ok(addr) => self.free(addr),
            Err(PolicyError::OutOfMemory { .. }) if refusal == Refusal::Survived => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Frees a block, in the order of the stream that it was allocated on.
    ///
    /// # Errors
    /// Returns [`PolicyError::Failed`] if the allocator refuses the address.
    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError>;

    /// Notes that a step of the program has ended.
    ///
    /// # Errors
    /// Returns [`PolicyError::Driver`] if the driver fails.
    fn end_step(&mut self) -> Result<(), PolicyError> {
        Ok(())
    }

    /// Takes the memory of everything that is live and awake. Addresses stay.
    ///
    /// # Errors
    /// Returns [`PolicyError::Limit`] if the allocator cannot do that, and [`PolicyError::Driver`] if the driver fails.
    fn sleep(&mut self, content: Content) -> Result<PhaseBytes, PolicyError>;

    /// Gives memory to everything that is asleep.
    ///
    /// # Errors
    /// Returns [`PolicyError::OutOfMemory`] if the memory is not available, and [`PolicyError::Driver`] if the driver fails
    /// otherwise.
    fn wake(&mut self) -> Result<PhaseBytes, PolicyError>;

    /// Gives what is not used back to the device, for other allocators on it.
    ///
    /// # Errors
    /// Returns [`PolicyError::Driver`] if the driver fails.
    fn give_back(&mut self) -> Result<(), PolicyError>;

    /// Returns the device memory held, in bytes.
    fn reserved_bytes(&self) -> u64;

    /// Returns statistics that only the allocator knows.
    fn stats(&self) -> PolicyStats;

    /// Returns all blocks with memory behind them, in any order.
    fn held_blocks(&self) -> Vec<HeldBlock>;

    /// Drops the allocator and gives nothing back to its driver, which is dropped as well.
    fn abandon(self)
    where
        Self: Sized;
}

/// Statistics of a [`Policy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStats {
    /// Peak of the device memory held, in bytes.
    pub peak_reserved_bytes: u64,
    /// Number of times the host waited for the device.
    pub host_waits: u64,
}

/// What a sleep or a wake concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhaseBytes {
    /// Bytes that lost their memory, or got memory.
    pub mapped_bytes: u64,
    /// Bytes that were copied between the device and the host.
    pub copied_bytes: u64,
}

impl Add for PhaseBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            mapped_bytes: self.mapped_bytes + other.mapped_bytes,
            copied_bytes: self.copied_bytes + other.copied_bytes,
        }
    }
}

/// An error of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The policy is out of memory.
    #[error("{report}")]
    OutOfMemory {
        /// Whether an allocator could have served the request.
        satisfiable: bool,
        /// The allocator's own report, for people.
        report: String,
    },
    /// A driver call failed for another reason than a lack of memory, or one of the driver's other limits was reached.
    #[error(transparent)]
    Driver(DriverError),
    /// The trace needs more than the allocator supports: of streams, or of separate pieces of addresses.
    #[error("{0}")]
    Limit(String),
    /// Any other error, which is a bug in the allocator.
    #[error("{0}")]
    Failed(String),
}

/// The names of the policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// The allocator of the `gapless` crate.
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

/// The error returned when a text is not the name of a policy.
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

/// Settings of [`PolicyKind::Gapless`]. `None` selects the allocator's default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GaplessSettings {
    /// See [`Builder::slack`](gapless::allocator::Builder::slack).
    pub slack: Option<f64>,
    /// See [`Builder::chunk_policy`](gapless::allocator::Builder::chunk_policy).
    pub chunk: Option<ChunkPolicy>,
    /// The most bytes to hold, where that is less than the device has.
    pub budget_bytes: Option<u64>,
}

/// The keys and values of `GAPLESS_CONF`.
impl fmt::Display for GaplessSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chunk = |chunk: ChunkPolicy| match chunk {
            ChunkPolicy::Fixed(bytes) => format!("chunk:{}", exact(bytes)),
            _ => "chunk:auto".to_owned(),
        };
        let pairs = [
            Some("gapless".to_owned()),
            self.budget_bytes.map(|bytes| format!("budget:{}", exact(bytes))),
            self.slack.map(|slack| format!("slack:{slack}")),
            self.chunk.map(chunk),
        ];
        f.pad(&pairs.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

/// A size in the largest unit that needs no point.
fn exact(bytes: u64) -> String {
    match [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")].into_iter().find(|(unit, _)| bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

impl GaplessSettings {
    /// Creates an allocator with these settings and a budget of `budget_bytes` on `driver`.
    pub(crate) fn build<D: Driver>(&self, driver: Arc<D>, budget_bytes: u64) -> Result<Allocator<D>, BuildError> {
        self.builder(driver, budget_bytes).build()
    }

    pub(crate) fn builder<D: Driver>(&self, driver: Arc<D>, budget_bytes: u64) -> Builder<D> {
        let budget_bytes = budget_bytes.min(self.budget_bytes.unwrap_or(u64::MAX));
        let mut builder = Allocator::builder(driver).budget(budget_bytes);
        if let Some(slack) = self.slack {
            builder = builder.slack(slack);
        }
        if let Some(chunk) = self.chunk {
            builder = builder.chunk_policy(chunk);
        }
        builder
    }
}

impl<D: Driver> Policy for Allocator<D> {
    fn keep_streams(&mut self, streams: &[StreamId]) -> Result<(), PolicyError> {
        let keep = |stream: &StreamId| self.keep_stream(*stream);
        streams.iter().try_for_each(keep).map_err(|error| match error {
            StreamError::Foreign { cause, .. } => PolicyError::Driver(cause),
            other => PolicyError::Limit(other.to_string()),
        })
    }

    fn alloc(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, PolicyError> {
        Self::alloc_raw(self, bytes, stream).map_err(of_gapless)
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError> {
        Self::free(self, addr).map_err(|error| PolicyError::Failed(error.to_string()))
    }

    fn sleep(&mut self, content: Content) -> Result<PhaseBytes, PolicyError> {
        let backup = match content {
            Content::Keep => Backup::Pinned,
            Content::Discard => Backup::Discard,
        };
        let slept = Self::sleep(self, backup).map_err(of_sleep)?;
        Ok(PhaseBytes { mapped_bytes: slept.asleep_bytes, copied_bytes: slept.copied_bytes })
    }

    fn wake(&mut self) -> Result<PhaseBytes, PolicyError> {
        let woken = Self::wake(self, Duration::ZERO).map_err(of_sleep)?;
        Ok(PhaseBytes { mapped_bytes: woken.mapped_bytes, copied_bytes: woken.copied_bytes })
    }

    fn give_back(&mut self) -> Result<(), PolicyError> {
        self.trim(0).map_err(of_gapless)?;
        Ok(())
    }

    fn reserved_bytes(&self) -> u64 {
        Self::reserved_bytes(self)
    }

    fn stats(&self) -> PolicyStats {
        let stats = Self::stats(self);
        PolicyStats { peak_reserved_bytes: stats.peak_reserved_bytes, host_waits: stats.host_waits }
    }

    fn held_blocks(&self) -> Vec<HeldBlock> {
        let snapshot = self.snapshot();
        let blocks = snapshot.regions.iter().flat_map(|region| &region.blocks);
        let held = |block: &BlockSnapshot| HeldBlock {
            addr: block.addr,
            bytes: block.bytes,
            live: block.state == BlockState::Live,
        };
        blocks.map(held).collect()
    }

    fn abandon(self) {
        Self::abandon(self);
    }
}

fn of_sleep(error: SleepError) -> PolicyError {
    match error {
        SleepError::Alloc(error) => of_gapless(error),
        other => PolicyError::Failed(other.to_string()),
    }
}

fn of_gapless(error: AllocError) -> PolicyError {
    match error {
        AllocError::OutOfMemory(report) => {
            PolicyError::OutOfMemory { satisfiable: report.satisfiable, report: report.to_string() }
        }
        // The request is larger than a region, and so larger than the budget.
        AllocError::TooLarge { .. } => PolicyError::OutOfMemory { satisfiable: false, report: error.to_string() },
        AllocError::Stream(StreamError::TooMany { .. })
        | AllocError::AddressesFragmented { .. }
        | AllocError::OutOfMappings { .. } => PolicyError::Limit(error.to_string()),
        AllocError::Driver(error) => PolicyError::Driver(error),
        other => PolicyError::Failed(other.to_string()),
    }
}

impl<D: Driver> Policy for CachingAllocator<D> {
    fn alloc(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, PolicyError> {
        Self::alloc(self, bytes, stream).map_err(of_caching)
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError> {
        Self::free(self, addr).map_err(|error| PolicyError::Failed(error.to_string()))
    }

    fn end_step(&mut self) -> Result<(), PolicyError> {
        if !self.settings().empties_cache {
            return Ok(());
        }
        self.give_back()
    }

    fn sleep(&mut self, content: Content) -> Result<PhaseBytes, PolicyError> {
        let slept = Self::sleep(self, content == Content::Keep).map_err(of_caching)?;
        Ok(PhaseBytes { mapped_bytes: slept.mapped_bytes, copied_bytes: slept.copied_bytes })
    }

    fn wake(&mut self) -> Result<PhaseBytes, PolicyError> {
        let woken = Self::wake(self).map_err(of_caching)?;
        Ok(PhaseBytes { mapped_bytes: woken.mapped_bytes, copied_bytes: woken.copied_bytes })
    }

    fn give_back(&mut self) -> Result<(), PolicyError> {
        self.empty_cache().map_err(of_caching)
    }

    fn reserved_bytes(&self) -> u64 {
        self.figures().reserved_bytes
    }

    fn stats(&self) -> PolicyStats {
        let figures = self.figures();
        PolicyStats { peak_reserved_bytes: figures.peak_reserved_bytes, host_waits: figures.host_waits }
    }

    fn held_blocks(&self) -> Vec<HeldBlock> {
        Self::held_blocks(self).collect()
    }

    fn abandon(self) {
        Self::abandon(self);
    }
}

fn of_caching(error: CachingError) -> PolicyError {
    match error {
        CachingError::OutOfMemory(report) => PolicyError::OutOfMemory {
            satisfiable: report.free_bytes + (report.reserved_bytes - report.live_bytes) >= report.requested_bytes,
            report: report.to_string(),
        },
        CachingError::Expandable => PolicyError::Limit(error.to_string()),
        CachingError::Driver(error) => PolicyError::Driver(error),
        other => PolicyError::Failed(other.to_string()),
    }
}
