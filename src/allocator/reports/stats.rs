//! Statistics: where the bytes are, how often what was done, and how fragmented the free memory is.

use crate::driver::DriverCalls;

/// Figures of an allocator. Bytes, unless a name says otherwise.
///
/// Those of blocks are of one moment. Those of chunks and mappings are of one moment as well: of the same, while no other thread
/// is in the slow path; see [`Allocator::stats`](crate::Allocator::stats).
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes requested by live allocations.
    pub live_bytes: u64,
    /// Highest `live_bytes`; exact while streams do not race.
    pub peak_live_bytes: u64,
    /// Bytes of live allocations, rounding included.
    pub live_block_bytes: u64,
    /// Number of live allocations.
    pub live_allocations: u64,
    /// Bytes that are free and mapped: available without a driver call.
    pub cached_bytes: u64,
    /// Bytes that were freed and wait for other streams.
    pub pending_bytes: u64,
    /// Those of `cached_bytes` in completely free chunks, which a trim returns to the driver.
    pub free_chunk_bytes: u64,
    /// Bytes of chunks that nothing maps.
    pub idle_bytes: u64,
    /// Bytes of chunks of growable ranges, and of dropped ones that could not be unmapped yet.
    pub range_bytes: u64,
    /// Bytes of registered blocks, and of dropped ones that could not be unmapped yet.
    pub registered_bytes: u64,
    /// Bytes of all chunks held. `live_bytes <= reserved_bytes`.
    pub reserved_bytes: u64,
    /// Highest `reserved_bytes`.
    pub peak_reserved_bytes: u64,
    /// Bytes of all chunks created so far. Those that are not held any more were released.
    pub created_bytes: u64,
    /// Number of chunks created so far. Calls to the driver that failed created none.
    pub created_chunks: u64,
    /// The most bytes that may be held.
    pub budget_bytes: u64,
    /// Number of chunks held.
    pub chunks: u64,
    /// Highest `chunks`.
    pub peak_chunks: u64,
    /// Number of mappings, stale ones included.
    pub mappings: u64,
    /// Number of allocations so far.
    pub allocs: u64,
    /// Number of frees so far.
    pub frees: u64,
    /// Number of requests that ran out of memory: blocks, growths of ranges, registered blocks.
    pub failed_allocs: u64,
    /// Number of frees that were refused.
    pub refused_frees: u64,
    /// Number of allocations served by cross-stream reuse: in a free block of another stream.
    pub borrowed: u64,
    /// Number of completely free chunks that were remapped: mapped at other addresses, where a request needed them.
    pub harvested_chunks: u64,
    /// Number of those that were still mapped where they were needed, so that no driver call was made.
    pub reused_views: u64,
    /// Number of times the host waited for a stream.
    pub host_waits: u64,
    /// Driver calls by kind.
    pub driver_calls: DriverCalls,
    /// Number of driver calls that failed.
    pub failed_driver_calls: u64,
    /// Number of driver sequences that could not be undone, so that addresses were taken out of use.
    pub poisoned: u64,
    /// Number of streams seen.
    pub streams: u64,
    /// Bytes of host memory behind all of this.
    pub metadata_bytes: u64,
    /// Number of allocations by size.
    pub sizes: Vec<SizeRange>,
    /// How fragmented the free memory is.
    pub fragmentation: Fragmentation,
}

/// Allocations whose size, rounded up to whole granules, lies in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SizeRange {
    /// Smallest size of the range, in bytes.
    pub from_bytes: u64,
    /// Number of allocations so far.
    pub allocs: u64,
}

/// Fragmentation as numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Fragmentation {
    /// Bytes of the largest block available without a driver call, on the stream where it is cached.
    pub largest_cached_bytes: u64,
    /// Bytes of the largest block available when every completely free chunk is remapped and the budget is used up. Memory that
    /// waits for streams counts as free: a request that needs it waits as well.
    pub largest_with_remapping_bytes: u64,
    /// All bytes that are free: cached, pending, idle, and not held yet.
    pub free_bytes: u64,
}
