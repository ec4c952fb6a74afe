//! Stores: where the bytes of what sleeps are meanwhile.
//!
//! The device copies to and from pinned memory alone. What goes to pageable memory, or to a file, passes through a [`Ring`] of two
//! slots of pinned memory: the calling thread writes one of them out while the device fills the other.

mod file;
mod pageable;
mod ring;

pub use file::{BackupFile, BackupFileError};
pub use pageable::Pageable;
pub use ring::Ring;

use crate::driver::HostMemory;
use crate::sync::Arc;
use crate::sync::unseen::{AtomicU64, Ordering};

/// What becomes of the bytes of what sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Backup {
    #[default]
    /// They are lost: what wakes has undefined content, as newly allocated memory.
    Discard,
    /// They are copied to pinned memory of the host, and back when they wake.
    Pinned,
    /// They are copied to ordinary memory of the host, which the system may swap out. Slower than pinned memory to copy to, and
    /// quicker to get.
    Pageable,
    /// They are written to a file without a name in the [directory](super::Builder::backup_directory) for that, of which nothing is
    /// left when the process ends, in whatever way. No memory of the host is taken but for the copies; what the system keeps of the
    /// file in its cache, it gives up for others. Such backups are neither [shown](super::Allocator::backup_at) nor
    /// [retained](super::Wake::retain).
    File,
}

/// Names a store: no two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreId(u64);

/// A store. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Store {
    /// Its name.
    pub id: StoreId,
    /// Its bytes.
    pub bytes: u64,
    /// Where they are.
    pub medium: Medium,
}

/// Where a store is.
#[derive(Clone, Debug)]
pub enum Medium {
    /// In pinned memory, which the device copies to.
    Pinned(HostMemory),
    /// Where the calling thread writes to.
    Unpinned(Arc<Unpinned>),
}

/// A store that the device does not copy to.
#[derive(Debug)]
pub enum Unpinned {
    /// Ordinary memory.
    Pageable(Pageable),
    /// A file.
    File(BackupFile),
}

static MADE: AtomicU64 = AtomicU64::new(0);

impl Store {
    /// A new store.
    pub fn new(medium: Medium, bytes: u64) -> Self {
        Self { id: StoreId(MADE.fetch_add(1, Ordering::Relaxed)), bytes, medium }
    }

    /// The kind of backups that are in it.
    pub fn kind(&self) -> Backup {
        match &self.medium {
            Medium::Pinned(_) => Backup::Pinned,
            Medium::Unpinned(unpinned) => match **unpinned {
                Unpinned::Pageable(_) => Backup::Pageable,
                Unpinned::File(_) => Backup::File,
            },
        }
    }

    /// The bytes of the host's memory that it takes.
    pub fn memory_bytes(&self) -> u64 {
        if self.kind() == Backup::File { 0 } else { self.bytes }
    }
}

impl Unpinned {
    /// Writes bytes to a place.
    ///
    /// # Errors
    /// Those of a file.
    pub fn write(&self, place: u64, bytes: &[u8]) -> Result<(), BackupFileError> {
        match self {
            Self::Pageable(memory) => memory.write(place, bytes),
            Self::File(file) => return file.write(place, bytes),
        }
        Ok(())
    }

    /// Reads the bytes at a place.
    ///
    /// # Errors
    /// Those of a file.
    pub fn read(&self, place: u64, bytes: &mut [u8]) -> Result<(), BackupFileError> {
        match self {
            Self::Pageable(memory) => memory.show(place, bytes.len() as u64, |shown| bytes.copy_from_slice(shown)),
            Self::File(file) => return file.read(place, bytes),
        }
        Ok(())
    }
}
