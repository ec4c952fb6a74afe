//! State that the hot path and the slow path share: streams, the directory of addresses, settings, counters, and whether the
//! driver may still be called.

use super::error::{AllocError, WithAlloc};
use super::geometry::Geometry;
use super::host_budget::HostBudget;
use super::reports::ShownPeaks;
use super::stores::Ring;
use super::streams::Streams;
use super::streams::directory::Directory;
use crate::driver::{Driver, DriverError};
use crate::process::ProcessIdentity;
use crate::segment::listeners::MapListeners;
use crate::sync::{Arc, AtomicBool, AtomicU64, OnceLock, Ordering};
use std::path::PathBuf;

/// Everything of an allocator but chunks and mappings, which only the slow path touches.
#[derive(Debug)]
pub struct Shared<D> {
    /// The streams, and the driver.
    pub streams: Streams<D>,
    /// From an address to the region that it lies in.
    pub directory: Directory,
    /// The settings that hold for life.
    pub geometry: Geometry,
    /// The map listeners.
    pub listeners: Arc<MapListeners>,
    /// For backups of what sleeps.
    pub host_budget: Arc<HostBudget>,
    /// For those in files.
    pub backup_directory: Option<PathBuf>,
    /// What backups pass through that are not in pinned memory.
    pub ring: Ring,
    /// Operation counts beside those of the streams.
    pub counters: Counters,
    /// The highest amounts that statistics have shown.
    pub shown: ShownPeaks,
    budget_bytes: AtomicU64,
    /// Changed under the mapper's lock.
    follows_device: AtomicBool,
    lost: OnceLock<DriverError>,
    /// The process that built the allocator. A forked one shares the device's memory without knowing what its parent does
    /// with it, so nothing that talks to the driver runs there. Not checked where cached memory is handed out.
    process: ProcessIdentity,
}

/// The most bytes that may be held, by whom it was decided.
#[derive(Clone, Copy, Debug)]
pub enum Budget {
    /// A caller.
    Set(u64),
    /// The device: the bytes that are held, and those that were free beside them when the device was queried last.
    Device {
        /// The bytes of both.
        last_seen: u64,
    },
}

impl Budget {
    /// The bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Set(bytes) | Self::Device { last_seen: bytes } => bytes,
        }
    }
}

/// Counters that are not part of a stream's state.
#[derive(Debug, Default)]
pub struct Counters {
    /// Allocations that no cached block of the stream served: counted for tests of what the work costs.
    #[cfg(test)]
    pub slow_allocs: AtomicU64,
    /// Rounds that those took.
    #[cfg(test)]
    pub rounds: AtomicU64,
    /// Allocations served by cross-stream reuse.
    pub cross_stream_reuses: AtomicU64,
    /// Allocations that ran out of memory.
    pub failed_allocs: AtomicU64,
    /// Frees, and streams to record, that were refused.
    pub refused_frees: AtomicU64,
}

impl<D: Driver> Shared<D> {
    /// An allocator that has seen no stream yet.
    pub fn new(
        driver: Arc<D>,
        geometry: Geometry,
        budget: Budget,
        listeners: Arc<MapListeners>,
        host_budget: Arc<HostBudget>,
        backup_directory: Option<PathBuf>,
    ) -> Self {
        Self {
            streams: Streams::new(driver, &geometry),
            directory: Directory::default(),
            geometry,
            listeners,
            host_budget,
            backup_directory,
            ring: Ring::default(),
            counters: Counters::default(),
            shown: ShownPeaks::default(),
            budget_bytes: AtomicU64::new(budget.bytes()),
            follows_device: AtomicBool::new(matches!(budget, Budget::Device { .. })),
            lost: OnceLock::new(),
            process: ProcessIdentity::current(),
        }
    }

    /// The budget in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// The bytes that may be held: the budget, as far as the device has so much memory.
    pub fn creatable_bytes(&self) -> u64 {
        self.budget_bytes().min(self.geometry.device_bytes)
    }

    /// Whether the budget is the device, not one that a caller has set.
    pub fn follows_device(&self) -> bool {
        self.follows_device.load(Ordering::Relaxed)
    }

    /// Changes the budget. Called with the mapper locked.
    pub fn set_budget(&self, budget: Budget) {
        self.budget_bytes.store(budget.bytes(), Ordering::Relaxed);
        self.follows_device.store(matches!(budget, Budget::Device { .. }), Ordering::Relaxed);
    }

    /// The process that built the allocator.
    pub fn built_in(&self) -> u32 {
        self.process.number()
    }

    /// Whether this process was forked from the one that built the allocator.
    pub fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Refuses where the driver must not or cannot be called any more.
    ///
    /// # Errors
    /// [`AllocError::Forked`], and the error with which the device was lost.
    pub fn expect_usable(&self) -> Result<(), AllocError> {
        if self.is_forked() {
            return Err(AllocError::Forked { built_in: self.process.number() });
        }
        self.lost.get().map_or(Ok(()), |error| Err(error.clone().into()))
    }

    /// Remembers an error after which the device is lost.
    pub fn note_loss<T, E: WithAlloc>(&self, result: &Result<T, E>) {
        if let Some(AllocError::Driver(error)) = result.as_ref().err().and_then(WithAlloc::alloc)
            && error.kind.is_sticky()
        {
            let _ = self.lost.set(error.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::Allocator;
    use crate::driver::ModelDriver;

    /// A forked process gets an error that says whose the allocator is.
    #[test]
    fn an_allocator_knows_the_process_that_built_it() {
        let allocator = Allocator::builder(std::sync::Arc::new(ModelDriver::default())).build().unwrap();
        let shared = &allocator.inner.shared;
        assert_eq!((shared.built_in(), shared.is_forked()), (std::process::id(), false));
    }
}
