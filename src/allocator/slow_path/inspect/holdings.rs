//! Holdings: figures of an allocator's chunks and mappings at one moment.

/// What an allocator holds of the device at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Holdings {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of all chunks.
    pub held_bytes: u64,
    /// Highest `held_bytes`.
    pub peak_held_bytes: u64,
    /// Bytes of all chunks created so far.
    pub created_bytes: u64,
    /// Bytes of chunks that nothing maps.
    pub idle_bytes: u64,
    /// Bytes of chunks of raw ranges.
    pub range_bytes: u64,
    /// Bytes that the budget still allows, in whole pages.
    pub headroom_bytes: u64,
    /// Bytes of completely free chunks in the streams' regions.
    pub free_chunk_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Highest `chunks`.
    pub peak_chunks: u64,
    /// Number of mappings, stale ones included.
    pub mappings: u64,
    /// Number of chunks moved from one place to another.
    pub harvested_chunks: u64,
    /// Number of those that were still mapped where they moved to.
    pub reused_views: u64,
    /// Number of driver sequences that could not be undone.
    pub poisoned: u64,
    /// Bytes of host memory behind chunks and page tables.
    pub metadata_bytes: u64,
}
