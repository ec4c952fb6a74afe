//! The allocator: public API.

use crate::driver::Driver;
use crate::units::{DeviceAddr, StreamId};
use std::sync::Arc;

/// How large new chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPolicy {
    /// Large while memory is plentiful, single pages as the budget gets close.
    Auto,
    /// Always this many bytes, rounded up to whole pages.
    Fixed(u64),
}

/// Settings of an [`Allocator`].
pub struct Builder<D: Driver> {
    #[allow(dead_code)]
    driver: Arc<D>,
}

impl<D: Driver> Builder<D> {
    /// The most physical bytes to hold. Default: what the device has free when the allocator is built.
    pub fn budget(self, _bytes: u64) -> Self {
        self
    }
    /// Reserved bytes above which free chunks are remapped before new ones are created, as a multiple of peak live.
    pub fn slack(self, _slack: f64) -> Self {
        self
    }
    /// How large new chunks are.
    pub fn chunk_policy(self, _policy: ChunkPolicy) -> Self {
        self
    }
    /// Builds the allocator.
    pub fn build(self) -> Result<Allocator<D>, BuildError> {
        todo!()
    }
}

/// Why an allocator could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {}

/// Why an allocation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Out of memory, with the report.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
}

/// Why a free failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {}

/// The out-of-memory report: `Display` is the text for a person, `Serialize` the same as JSON.
#[derive(Debug, Clone, serde::Serialize)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Whether any allocator could have served the request.
    pub satisfiable: bool,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        todo!()
    }
}

/// Driver calls by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct DriverCalls {
    /// Address reservations.
    pub reserve: u64,
    /// Chunks created.
    pub create: u64,
    /// Mappings made.
    pub map: u64,
    /// Access calls.
    pub set_access: u64,
    /// Unmap calls.
    pub unmap: u64,
    /// Chunks released.
    pub release: u64,
}

impl DriverCalls {
    /// All of them.
    pub const fn total(&self) -> u64 {
        self.reserve + self.create + self.map + self.set_access + self.unmap + self.release
    }
}

/// Figures of an allocator; more fields will follow.
#[derive(Debug, Clone, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Requested bytes of live allocations, and their peak.
    pub live_bytes: u64,
    /// Highest `live_bytes` so far.
    pub peak_live_bytes: u64,
    /// Bytes of chunks held.
    pub reserved_bytes: u64,
    /// Highest `reserved_bytes` so far.
    pub peak_reserved_bytes: u64,
    /// Driver calls by kind.
    pub driver_calls: DriverCalls,
    /// Times the host waited for a stream or event.
    pub host_waits: u64,
}

/// The allocator. Cheap to clone; every clone is the same allocator.
pub struct Allocator<D: Driver> {
    inner: Arc<Builder<D>>,
}

impl<D: Driver> Clone for Allocator<D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<D: Driver> Allocator<D> {
    /// Starts building an allocator on `driver`.
    pub fn builder(driver: Arc<D>) -> Builder<D> {
        Builder { driver }
    }
    /// Allocates.
    pub fn alloc(&self, _bytes: u64, _stream: StreamId) -> Result<DeviceAddr, AllocError> {
        todo!()
    }
    /// Frees, in the order of the stream that it was allocated on.
    pub fn free(&self, _addr: DeviceAddr) -> Result<(), FreeError> {
        todo!()
    }
    /// Figures.
    pub fn stats(&self) -> Stats {
        todo!()
    }
}
