//! Sleep and wake: an allocator gives its memory back and gets it again, at the same addresses.
//!
//! ```text
//! falling.rs   a sleep in steps       waking.rs   a wake in steps       copies.rs   the bytes, to the host and back
//! ```

mod copies;
mod falling;
mod waking;

pub use falling::FallingAsleep;
pub use waking::Waking;

#[cfg(doc)]
use super::error::AllocError;
use super::error::{BackupError, SleepError};
use super::reports::Asleep;
use super::slow_path::{LeftAwake, Span};
use super::stores::{Backup, Medium, Unpinned};
use super::{Allocator, Inner};
use crate::driver::{Driver, MemoryDriver, no_bytes};
use crate::segment::listeners::MapListeners;
use crate::units::DeviceAddr;
use std::time::Duration;

/// The result of [`Allocator::sleep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Slept {
    /// Bytes of the pages that this call put to sleep: what a wake needs for them.
    pub asleep_bytes: u64,
    /// Bytes of the live allocations in them, rounding included.
    pub live_bytes: u64,
    /// Bytes copied to the host.
    pub copied_bytes: u64,
    /// Bytes released to the driver, free memory included.
    pub released_bytes: u64,
    /// What stayed awake.
    pub left_awake: LeftAwake,
}

/// How to [wake](Allocator::wake). Made of a [`Duration`], a wake that waits as long for memory and retains nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use = "it says how to wake, and wakes nothing"]
pub struct Wake {
    /// How long to try again where there is too little memory.
    pub wait: Duration,
    /// Whether backups are kept after the wake, so that [`Allocator::backup_at`] has the bytes as of the sleep.
    ///
    /// That of an allocation is kept until it is freed or sleeps again. With a backup of the same kind, its bytes are copied to
    /// the same memory of the host then, whose address stays the same from sleep to sleep, as long as it is retained and half
    /// of what that memory was allocated for lives. A sleep that fails ends it as well. Memory of which nothing lives any more
    /// goes back to the host at the next sleep, wake or [trim](Allocator::trim). Nothing is retained of [files](Backup::File),
    /// nor where [mappings are kept](super::Builder::keep_mappings).
    pub retain: bool,
}

impl From<Duration> for Wake {
    fn from(wait: Duration) -> Self {
        Self { wait, retain: false }
    }
}

/// The result of [`Allocator::wake`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Woken {
    /// Bytes of the pages that have memory again.
    pub mapped_bytes: u64,
    /// Bytes copied from the host.
    pub copied_bytes: u64,
}

/// The pause before a wake that found too little memory is tried again; it doubles each time,
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

impl<D: Driver> Allocator<D> {
    /// Gives all memory back to the driver. Live allocations keep their addresses; their memory comes back with
    /// [`wake`](Self::wake). What is asleep already stays so.
    ///
    /// No work that uses the memory may be queued from the call on until the wake: on a device, such work is an error that ends the
    /// context. What was queued before is waited for, by the device; the host waits once, until the bytes are copied; to pageable
    /// memory and files, for each 64 MiB of them, which it writes out while the next ones are copied. Frees,
    /// [`record_stream`](Self::record_stream) and new allocations go on meanwhile: new ones get memory of their own. An allocation
    /// that is freed while it is asleep is not mapped again, unless mappings are kept.
    ///
    /// An allocator that [keeps its mappings](super::Builder::keep_mappings) sleeps by chunks: a backup has all their bytes, freed
    /// ones included, and a wake maps each at all its addresses again, since graphs use both. It waits for the device, and so for
    /// replays, and needs as many bytes to wake as it held.
    ///
    /// Stays awake: what is pinned, growable ranges and registered blocks. [`Slept::left_awake`] counts all that is held still.
    ///
    /// # Errors
    /// [`AllocError::CannotWait`] during a capture, [`SleepError::HostMemory`] where the [budget](super::Builder::host_budget),
    /// or the host, has too little memory for a backup, [`SleepError::BackupFile`] where a file cannot have it,
    /// [`AllocError::Forked`], [`AllocError::InListener`], and those of the driver. Everything is awake then; only if the
    /// driver in addition refuses to map again what it has unmapped, that is asleep ([`Stats::asleep_bytes`](super::Stats))
    /// until the next wake.
    pub fn sleep(&self, backup: Backup) -> Result<Slept, SleepError> {
        self.begin_sleep(backup)?.finish()
    }

    /// What is asleep. Waits for no call that is under way on another thread, and reports the pages as they were before it.
    #[must_use]
    pub fn asleep(&self) -> Asleep {
        self.inner.door.asleep(&self.inner.shared)
    }

    /// Gives memory to everything that is asleep, and its bytes, unless they were discarded. All of it, or none.
    ///
    /// Succeeds whenever the budget that is left and completely free chunks, together, cover the pages asleep, and the device has
    /// them. Where they do not, tries again until the [wait](Wake::wait) is over: another process may be about to give memory back.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] with the report on a request of so many bytes, [`AllocError::CannotWait`] during a capture,
    /// [`SleepError::BackupFile`] where a file cannot be read, [`AllocError::Forked`], [`AllocError::InListener`], and those of
    /// the driver. Everything is asleep as before; only if the driver in addition does not say whether the copies are over, is the
    /// memory that they may write to held until the next sleep or wake.
    pub fn wake(&self, how: impl Into<Wake>) -> Result<Woken, SleepError> {
        let how = how.into();
        self.begin_wake(how.wait)?.finish(how.retain)
    }

    /// Calls `read` with `bytes` at `addr` as they are in the host's memory: of an allocation that is asleep with a backup, or
    /// whose backup was [retained](Wake::retain). Returns what it returns; `None` where no byte of them is in a backup.
    ///
    /// The address of the slice is that of the backup itself, in memory of the host: it stays until the allocation wakes,
    /// sleeps again or is freed, or the allocator ends; with a retained backup, as that says. Waits for a sleep, a wake or
    /// another `read` that is under way; `read` must not start one.
    ///
    /// # Errors
    /// [`BackupError::InParts`] where only some of the bytes are in a backup, or not one behind the other: a chunk under
    /// the allocation has stayed awake, for example. [`BackupError::InFile`] where they are in a file.
    /// [`AllocError::Forked`], [`AllocError::InListener`], and the driver's where its copies have no bytes.
    pub fn backup_at<T>(
        &self,
        addr: DeviceAddr,
        bytes: u64,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, BackupError> {
        self.inner.backup_at(addr, bytes, read)
    }
}

impl<D: Driver> Inner<D> {
    fn backup_at<T>(
        &self,
        addr: DeviceAddr,
        bytes: u64,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, BackupError> {
        MapListeners::expect_outside()?;
        // Backups are written to and freed under this lock alone.
        let _alone = self.sleeping.lock();
        let place = self.door.enter(&self.shared, |path| path.place_in_backup(addr, bytes))?;
        let Some((store, offset)) = place else { return Ok(None) };
        let driver = &self.shared.streams.driver;
        let (mut read, mut result) = (Some(read), None);
        let mut once = |shown: &[u8]| result = read.take().map(|read| read(shown));
        match &store.medium {
            Medium::Pinned(memory) => driver.host_read(*memory, offset, bytes, &mut once)?,
            Medium::Unpinned(unpinned) => match &**unpinned {
                Unpinned::Pageable(memory) if driver.host_memory_has_bytes() => memory.show(offset, bytes, once),
                Unpinned::Pageable(_) => return Err(no_bytes().into()),
                Unpinned::File(_) => return Err(BackupError::InFile { addr, bytes }),
            },
        }
        Ok(result)
    }
}

fn bytes_of(spans: &[Span]) -> u64 {
    spans.iter().map(|span| span.bytes).sum()
}
