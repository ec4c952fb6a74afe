//! How the statistics of several allocators add up to those of a device.
//!
//! A count is of what has happened since the start, an amount is of now, and a peak is the highest amount since the peaks were
//! reset. Counts of an allocator that is gone are kept; its amounts are not.
//!
//! Cost: that of a copy of the statistics.

use gapless::allocator::Stats;
use gapless::driver::DriverCall;

/// Adds the counts of an allocator to those of others, or takes them away again: `by` is a sum or a difference.
pub(crate) fn change_counts(sums: &mut Stats, its: &Stats, by: impl Fn(u64, u64) -> u64) {
    let counts = [
        (&mut sums.allocs, its.allocs),
        (&mut sums.frees, its.frees),
        (&mut sums.failed_allocs, its.failed_allocs),
        (&mut sums.refused_frees, its.refused_frees),
        (&mut sums.borrowed, its.borrowed),
        (&mut sums.harvested_chunks, its.harvested_chunks),
        (&mut sums.reused_views, its.reused_views),
        (&mut sums.host_waits, its.host_waits),
        (&mut sums.created_bytes, its.created_bytes),
        (&mut sums.created_chunks, its.created_chunks),
        (&mut sums.failed_driver_calls, its.failed_driver_calls),
        (&mut sums.poisoned, its.poisoned),
    ];
    for (sum, its) in counts {
        *sum = by(*sum, its);
    }
    for call in DriverCall::ALL {
        sums.driver_calls[call] = by(sums.driver_calls[call], its.driver_calls[call]);
    }
    for size in &its.sizes {
        match sums.sizes.binary_search_by_key(&size.from_bytes, |known| known.from_bytes) {
            Ok(at) => sums.sizes[at].allocs = by(sums.sizes[at].allocs, size.allocs),
            Err(at) => {
                let mut new = *size;
                new.allocs = by(0, size.allocs);
                sums.sizes.insert(at, new);
            }
        }
    }
}

/// Adds what an allocator of a pool has now to what others have. A pool keeps its free memory while it is alive, so a trim returns
/// none of it; and what it may hold beyond what it does is left to the device's budget.
pub(crate) fn add_amounts(sums: &mut Stats, its: &Stats) {
    sums.live_bytes += its.live_bytes;
    sums.live_block_bytes += its.live_block_bytes;
    sums.live_allocations += its.live_allocations;
    sums.cached_bytes += its.cached_bytes;
    sums.pending_bytes += its.pending_bytes;
    sums.idle_bytes += its.idle_bytes;
    sums.range_bytes += its.range_bytes;
    sums.registered_bytes += its.registered_bytes;
    sums.reserved_bytes += its.reserved_bytes;
    sums.chunks += its.chunks;
    sums.mappings += its.mappings;
    sums.metadata_bytes += its.metadata_bytes;
    // The device's streams, of which a pool has seen some.
    sums.streams = sums.streams.max(its.streams);
    let (whole, part) = (&mut sums.fragmentation, &its.fragmentation);
    whole.largest_cached_bytes = whole.largest_cached_bytes.max(part.largest_cached_bytes);
    whole.largest_with_remapping_bytes = whole.largest_with_remapping_bytes.max(part.largest_with_remapping_bytes);
    whole.free_bytes += its.cached_bytes + its.pending_bytes + its.idle_bytes;
    sums.peak_live_bytes += its.peak_live_bytes;
    sums.peak_reserved_bytes += its.peak_reserved_bytes;
    sums.peak_chunks += its.peak_chunks;
}
