//! Settings, and how they become an allocator: checked once.

use super::Allocator;
use super::error::BuildError;
use super::geometry::Geometry;
use super::host_budget::HostBudget;
use super::kind::RegionKind;
use super::rules::Rules;
use super::shared::{Budget, Shared};
use crate::driver::Driver;
use crate::heap::MOST_EXTENT;
use crate::physical::ChunkPolicy;
use crate::segment::listeners::MapListeners;
use crate::sync::Arc;
use crate::units::{ByteSize, MIB, round_up};
use std::fmt;
use std::path::PathBuf;

/// Default of [`Builder::slack`].
pub const DEFAULT_SLACK: f64 = 1.10;
/// Default of [`Builder::mapping_limit`]: below the driver's limit of about 520,000.
const DEFAULT_MAPPING_LIMIT: usize = 400_000;
/// A slot is at least this many times the budget, so that stale views have addresses beside the active ones.
const SLOT_OVER_BUDGET: u64 = 4;
/// Number of slots of the first reservation: enough for two streams; for one, where the caller says how large they are.
const FIRST_SLOTS: usize = 4;
/// Smallest and largest slot.
const SLOT_BYTES: (u64, u64) = (64 * MIB, MOST_EXTENT);

/// Most bytes of a slot that backups pass through on their way to pageable memory and to files.
const MOST_COPY_SLOT_BYTES: u64 = 64 * MIB;

/// Settings of an [`Allocator`]; made by [`Allocator::builder`].
#[must_use = "nothing is built before `build`"]
pub struct Builder<D: Driver> {
    driver: Arc<D>,
    budget: Option<u64>,
    slack: f64,
    chunk_policy: ChunkPolicy,
    region_bytes: Option<u64>,
    first_region_bytes: Option<u64>,
    mapping_limit: usize,
    rules: Rules,
    epoch_limit: u32,
    listeners: Arc<MapListeners>,
    host_budget: Arc<HostBudget>,
    backup_directory: Option<PathBuf>,
    copy_slot_bytes: u64,
}

impl<D: Driver> fmt::Debug for Builder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("budget", &self.budget)
            .field("slack", &self.slack)
            .field("chunk_policy", &self.chunk_policy)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Builder<D> {
    pub(super) fn new(driver: Arc<D>) -> Self {
        Self {
            driver,
            budget: None,
            slack: DEFAULT_SLACK,
            chunk_policy: ChunkPolicy::Auto,
            region_bytes: None,
            first_region_bytes: None,
            mapping_limit: DEFAULT_MAPPING_LIMIT,
            rules: Rules::default(),
            epoch_limit: u32::MAX,
            listeners: Arc::default(),
            host_budget: Arc::default(),
            backup_directory: None,
            copy_slot_bytes: MOST_COPY_SLOT_BYTES,
        }
    }

    /// Sets the most physical bytes to hold, rounded down to whole pages. Default: the device, whose free memory is queried when
    /// the allocator is built, and again before a request fails.
    pub fn budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Sets how many bytes are held, as a multiple of the peak of live bytes, before free chunks are remapped rather than new
    /// ones created. At least 1; infinity: chunks are created up to the budget. Default: [`DEFAULT_SLACK`]. With several streams
    /// at least a few pages for each: they need not take them from each other where their live bytes are few.
    pub fn slack(mut self, slack: f64) -> Self {
        self.slack = slack;
        self
    }

    /// Sets how large new chunks are. Default: [`ChunkPolicy::Auto`].
    pub fn chunk_policy(mut self, policy: ChunkPolicy) -> Self {
        self.chunk_policy = policy;
        self
    }

    /// Sets the most bytes of addresses to reserve for a region, rounded up to a power of two: also the largest possible
    /// request. A stream has two regions, and more where those are too small or live blocks cut their addresses up.
    /// Default: four times the memory of the device, or the budget, or more.
    pub fn region_bytes(mut self, bytes: u64) -> Self {
        self.region_bytes = Some(bytes);
        self
    }

    /// Sets the bytes of addresses to reserve for the regions of the first stream, rounded up to a power of two. The first
    /// regions of later streams are smaller, so that there are addresses for thousands of them. A further region of a stream
    /// has at least twice the bytes of the one before, up to [`region_bytes`](Self::region_bytes), and a request that is larger
    /// gets a region that it fits in. For allocators of which a process has many. At most `region_bytes`, where that is set.
    /// Default: `region_bytes`, or four times the budget or more.
    pub fn first_region_bytes(mut self, bytes: u64) -> Self {
        self.first_region_bytes = Some(bytes);
        self
    }

    /// Sets the most mappings to keep, stale ones included, at least one. Default: 400,000; the driver's limit is about 520,000.
    pub fn mapping_limit(mut self, mappings: usize) -> Self {
        self.mapping_limit = mappings;
        self
    }

    /// Keeps every mapping until the allocator is closed: for memory that is used by work which the allocator does not see,
    /// such as replays of a captured graph.
    ///
    /// An address that was handed out stays mapped to the same memory, so nothing is released before the end, not even by a
    /// trim or a lower budget, but by [`Allocator::sleep`], whose wake maps it everywhere again. Free memory is reused on its
    /// own stream only, at the same address or at a further one. Closing waits for the whole device. Growable ranges are not
    /// affected.
    pub fn keep_mappings(mut self) -> Self {
        self.rules = self.rules.keeping_mappings();
        self
    }

    /// Places each block of 64 KiB and more within one chunk as long as the budget and the device allow another chunk: for
    /// libraries that register memory by the chunk that is behind its first byte.
    ///
    /// A request that no single free block serves gets a chunk of its own size then, however much is free in others; slack
    /// does not hold that back. Once memory is short, blocks lie in several chunks, as without this setting, and so may those
    /// that are later placed in the same memory. [`Pin::chunks`](super::Pin::chunks) shows it. A live byte pins its whole chunk, as
    /// with [`ChunkPolicy::Fixed`].
    pub fn whole_blocks(mut self) -> Self {
        self.rules = self.rules.with_whole_blocks();
        self
    }

    /// Uses a list of listeners, which allocators may share, in place of one of its own.
    pub fn listeners(mut self, listeners: Arc<MapListeners>) -> Self {
        self.listeners = listeners;
        self
    }

    /// Sets the memory of the host that backups of what sleeps may take, which several allocators may share. Default: one of its
    /// own, without a bound.
    pub fn host_budget(mut self, budget: Arc<HostBudget>) -> Self {
        self.host_budget = budget;
        self
    }

    /// Sets the directory for [backups in files](super::Backup::File). It is made at the first one, for this user alone, where
    /// there is none; one of another user, or to which others may write, is refused then. Default: none, and such backups are
    /// refused.
    pub fn backup_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.backup_directory = Some(directory.into());
        self
    }

    /// Most bytes of each of the two slots of pinned memory that backups pass through. For tests, whose backups are small.
    #[doc(hidden)]
    pub fn copy_slot_bytes(mut self, bytes: u64) -> Self {
        self.copy_slot_bytes = bytes.clamp(1, MOST_COPY_SLOT_BYTES);
        self
    }

    /// Number of seals of a stream after which its blocks' 32-bit epochs are renumbered. For tests, which cannot make
    /// 2^32 of them.
    #[doc(hidden)]
    pub fn epoch_limit(mut self, epochs: u32) -> Self {
        self.epoch_limit = epochs.max(2);
        self
    }

    /// Builds the allocator. Reserves and creates nothing yet.
    ///
    /// # Errors
    /// [`BuildError::Driver`] when the device cannot be asked how much memory it has, [`BuildError::Setting`] for a
    /// setting that is out of range.
    pub fn build(self) -> Result<Allocator<D>, BuildError> {
        let page_bytes = self.driver.granularity();
        self.check_settings(page_bytes)?;
        let device = self.driver.memory_info();
        let device_bytes = device.as_ref().ok().map(|info| info.total);
        // A device that others have filled may be free later.
        let (budget, most) = match self.budget {
            Some(bytes) => (Budget::Set(bytes), bytes),
            None => {
                let device = device?;
                (Budget::Device { last_seen: device.free }, device.total)
            }
        };
        if most < page_bytes {
            let reason = format!("{} is less than one page of {}", ByteSize(most), ByteSize(page_bytes));
            return Err(BuildError::Setting { name: "budget", reason });
        }
        let slot = |wanted: u64| {
            let bytes = wanted.clamp(SLOT_BYTES.0.min(page_bytes * 32), SLOT_BYTES.1).next_power_of_two();
            round_up(bytes, page_bytes).unwrap_or(bytes)
        };
        let for_memory = |bytes: u64| slot(bytes.saturating_mul(SLOT_OVER_BUDGET));
        // The budget may be raised later, as far as the device has memory.
        let slot_bytes = self.region_bytes.map_or_else(|| for_memory(most.max(device_bytes.unwrap_or(0))), slot);
        let first_slot_bytes = match (self.first_region_bytes, self.region_bytes) {
            (Some(first), _) => slot(first),
            (None, Some(_)) => slot_bytes,
            (None, None) => for_memory(most.min(device_bytes.unwrap_or(u64::MAX))),
        };
        let slots = if self.first_region_bytes.is_some() { RegionKind::ALL.len() } else { FIRST_SLOTS };
        let geometry = Geometry {
            page_bytes,
            slot_bytes,
            first_slots: (slots, first_slot_bytes.min(slot_bytes)),
            device_bytes: device_bytes.unwrap_or(u64::MAX),
            slack: self.slack,
            chunk_policy: self.chunk_policy,
            mapping_limit: self.mapping_limit,
            rules: self.rules,
            epoch_limit: self.epoch_limit,
            copy_slot_bytes: self.copy_slot_bytes,
        };
        let shared =
            Shared::new(self.driver, geometry, budget, self.listeners, self.host_budget, self.backup_directory);
        Ok(Allocator::assemble(shared))
    }

    /// Refuses the settings that no device can have.
    fn check_settings(&self, page_bytes: u64) -> Result<(), BuildError> {
        let setting = |name, reason: &str| Err(BuildError::Setting { name, reason: reason.to_owned() });
        if !page_bytes.is_power_of_two() || page_bytes < crate::heap::GRANULE {
            return setting("granularity", "the driver's page size is not a power of two of at least 512 bytes");
        }
        if self.slack.is_nan() || self.slack < 1.0 {
            return setting("slack", "it must be at least 1: reserved bytes cannot be below live bytes");
        }
        if self.chunk_policy == ChunkPolicy::Fixed(0) {
            return setting("chunk_policy", "a chunk has at least one byte, rounded up to whole pages");
        }
        if self.mapping_limit == 0 {
            return setting("mapping_limit", "all memory is mapped: at least one mapping is needed");
        }
        if let (Some(first), Some(region)) = (self.first_region_bytes, self.region_bytes)
            && first > region
        {
            let (first, region) = (ByteSize(first), ByteSize(region));
            return setting("first_region_bytes", &format!("{first} is more than the {region} of a region"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::ModelDriver;

    #[test]
    fn regions_have_room_and_an_end() {
        let bytes_of = |wanted| {
            let builder = Allocator::builder(Arc::new(ModelDriver::default())).region_bytes(wanted);
            builder.build().unwrap().inner.shared.geometry.slot_bytes
        };
        let (least, most) = (64 * MIB, MOST_EXTENT);
        let regions = [1, least, least + 1, most - 1, most, u64::MAX].map(bytes_of);
        assert_eq!(regions, [least, least, 2 * least, most, most, most]);
    }
}
