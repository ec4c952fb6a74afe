//! The objects that are alive in a simulated driver.

/// The objects that are alive in a simulated driver. Equal to the default once everything has been released. With the feature
/// `testing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct DriverUsage {
    /// Chunks whose memory is held by their handle, by a mapping, or by both. `handles <= chunks`.
    pub chunks: usize,
    /// Chunk handles not yet released.
    pub handles: usize,
    /// Physical bytes of those chunks.
    pub bytes: u64,
    /// Mappings; every alias counts.
    pub mappings: usize,
    /// Address ranges reserved.
    pub reservations: usize,
    /// Total length of those ranges in bytes.
    pub address_bytes: u64,
    /// Events created and not yet destroyed.
    pub events: usize,
    /// Streams in addition to the default stream.
    pub streams: usize,
    /// Pieces of the host's memory allocated and not yet freed.
    pub host_memory: usize,
}

impl DriverUsage {
    /// Returns true when nothing is alive: no memory, no addresses, no events, no streams.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
