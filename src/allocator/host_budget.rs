//! The most memory of the host that the bytes of what sleeps may take.

use crate::sync::{AtomicU64, Ordering};

/// How much memory of the host several allocators may take together, for [backups](super::Allocator::sleep), pinned or pageable.
/// Those in files count not, but for two slots of at most 64 MiB of pinned memory, which bytes go through on their way to files and
/// to pageable memory; those of a wake are had even where nothing is left. Default: no bound.
///
/// Threads: any.
#[derive(Debug)]
pub struct HostBudget {
    bytes: u64,
    taken: AtomicU64,
}

impl HostBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { bytes, taken: AtomicU64::new(0) }
    }

    /// The bytes that may be taken.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes that backups have at the moment, and what the driver has refused to take back.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes so many bytes, if as many are left.
    ///
    /// # Errors
    /// The bytes that are left. Nothing is taken.
    pub(super) fn take(&self, bytes: u64) -> Result<(), u64> {
        let mut taken = self.taken();
        loop {
            let left = self.bytes.saturating_sub(taken);
            if bytes > left {
                return Err(left);
            }
            match self.taken.compare_exchange(taken, taken + bytes, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => taken = now,
            }
        }
    }

    /// Takes so many bytes, whether or not as many are left.
    pub(super) fn take_in_any_case(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back what was [taken](Self::take).
    pub(super) fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Default for HostBudget {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}
