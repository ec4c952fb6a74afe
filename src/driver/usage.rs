//! What is alive in a simulated driver.

/// What is alive in a simulated driver. Equal to the default when everything was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DriverUsage {
    /// Chunks whose memory is held: by their handle, by a mapping, or both. `handles <= chunks`.
    pub chunks: usize,
    /// Chunk handles not yet released.
    pub handles: usize,
    /// Physical bytes of those chunks.
    pub bytes: u64,
    /// Mappings, aliases counted each.
    pub mappings: usize,
    /// Reservations.
    pub reservations: usize,
    /// Bytes of addresses reserved.
    pub reserved_bytes: u64,
    /// Events.
    pub events: usize,
    /// Streams beside the default stream.
    pub streams: usize,
}

impl DriverUsage {
    /// True when nothing is alive: no memory, no addresses, no events, no streams.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
