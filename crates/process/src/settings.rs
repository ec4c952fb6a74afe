//! Settings of an allocator, checked, and what is built by them.

use crate::budget::Budget;
use crate::driver::{DeviceDriver, driver_of};
use crate::error::Error;
use gapless::allocator::{Builder, HostBudget};
use gapless::{Allocator, ChunkPolicy};
use std::path::Path;
use std::sync::Arc;

/// Settings of an allocator; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Settings {
    /// The largest number of bytes to hold.
    pub budget: Option<Budget>,
    /// Held over peak live bytes from which on free memory is remapped first; at least 1.
    pub slack: Option<f64>,
    /// The size of physical chunks.
    pub chunk: Option<ChunkPolicy>,
    /// Bytes of addresses for each stream and kind of block.
    pub region_bytes: Option<u64>,
}

impl Settings {
    /// Builds an allocator on an open device.
    ///
    /// # Errors
    /// [`Error::Driver`] where the device does not say how much memory it has, [`Error::Build`] for a setting out of its range.
    pub fn build_on<D: DeviceDriver>(&self, driver: Arc<D>) -> Result<Allocator<D>, Error> {
        Ok(self.builder_on(driver)?.build()?)
    }

    /// The same for a device of a process, whose devices share a budget for backups, and a directory for those in files.
    pub(crate) fn build_within<D: DeviceDriver>(
        &self,
        driver: Arc<D>,
        host_budget: Arc<HostBudget>,
        backups: Option<&Path>,
    ) -> Result<Allocator<D>, Error> {
        Ok(with_backups(self.builder_on(driver)?, host_budget, backups).build()?)
    }

    /// Builds an allocator for memory that captured graphs use, beside that of the device. They have the same listeners.
    pub(crate) fn build_for_graphs<D: DeviceDriver>(&self, main: &Allocator<D>) -> Result<Allocator<D>, Error> {
        let total = driver_of(main).memory_info()?.total;
        let budget = self.budget.map_or(total, |budget| budget.of(total));
        // A process may have a pool for each of its graphs, and most of these are small.
        let first_region = self.region_bytes.map_or(budget / 2, |bytes| bytes.min(budget / 2));
        let builder = self.builder_beside(main)?;
        Ok(builder.keep_mappings().whole_blocks().first_region_bytes(first_region).build()?)
    }

    /// Builds an allocator for memory that a program wants apart from that of the device. They have the same listeners.
    pub(crate) fn build_beside<D: DeviceDriver>(&self, main: &Allocator<D>) -> Result<Allocator<D>, Error> {
        Ok(self.builder_beside(main)?.build()?)
    }

    fn builder_beside<D: DeviceDriver>(&self, main: &Allocator<D>) -> Result<Builder<D>, Error> {
        let builder = self.builder_on(Arc::clone(driver_of(main)))?;
        let builder = builder.listeners(Arc::clone(main.listeners()));
        Ok(with_backups(builder, Arc::clone(main.host_budget()), main.backup_directory()))
    }

    fn builder_on<D: DeviceDriver>(&self, driver: Arc<D>) -> Result<Builder<D>, Error> {
        let total = driver.memory_info()?.total;
        let mut builder = Allocator::builder(driver);
        if let Some(budget) = self.budget {
            builder = builder.budget(budget.of(total));
        }
        if let Some(slack) = self.slack {
            builder = builder.slack(slack);
        }
        if let Some(chunk) = self.chunk {
            builder = builder.chunk_policy(chunk);
        }
        if let Some(bytes) = self.region_bytes {
            builder = builder.region_bytes(bytes);
        }
        Ok(builder)
    }
}

/// Bytes rounded up to whole pages, as far as that is a number.
pub(crate) fn whole_pages(bytes: u64, page: u64) -> u64 {
    bytes.checked_next_multiple_of(page).unwrap_or(bytes)
}

fn with_backups<D: DeviceDriver>(builder: Builder<D>, budget: Arc<HostBudget>, directory: Option<&Path>) -> Builder<D> {
    let builder = builder.host_budget(budget);
    match directory {
        Some(directory) => builder.backup_directory(directory),
        None => builder,
    }
}
