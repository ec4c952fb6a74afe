//! What is asleep.

/// What an allocator has asleep; made by [`Allocator::asleep`](crate::Allocator::asleep).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Asleep {
    /// Bytes of the pages that are asleep: what a wake needs.
    pub asleep_bytes: u64,
    /// Bytes of the live allocations in them, rounding included, and in those that are about to be or wake at the moment.
    pub live_bytes: u64,
    /// Bytes of the host's memory with backups of both, and with those that were [retained](crate::allocator::Wake::retain).
    pub backup_bytes: u64,
    /// Bytes of files with backups of both.
    pub file_bytes: u64,
}
