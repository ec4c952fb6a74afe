//! Statistics as a struct; statistics, out-of-memory report and snapshot as JSON in a caller's buffer.

use crate::last_error::guard;
use crate::out::{check_out, described, write_json};
use crate::registry::{find, gapless_allocator};
use crate::status::{Failure, gapless_status};
use gapless::allocator::Stats;
use std::ffi::c_char;

/// Statistics of an allocator at one moment. Set size before the call: a program that was compiled with an older header
/// gets the fields that it knows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct gapless_stats {
    /// sizeof(gapless_stats).
    pub size: usize,
    /// Bytes requested by live allocations.
    pub live_bytes: u64,
    /// Highest live_bytes since the start, or since the peaks were reset.
    pub peak_live_bytes: u64,
    /// Number of live allocations.
    pub live_allocations: u64,
    /// Bytes that are free and mapped: the next allocation gets them without a driver call.
    pub cached_bytes: u64,
    /// Bytes that were freed and wait for other streams.
    pub pending_bytes: u64,
    /// Bytes of physical chunks that are mapped nowhere.
    pub idle_bytes: u64,
    /// Bytes of all physical chunks that are held.
    pub reserved_bytes: u64,
    /// Highest reserved_bytes since the start, or since the peaks were reset.
    pub peak_reserved_bytes: u64,
    /// The largest number of bytes to hold.
    pub budget_bytes: u64,
    /// Number of allocations since the start.
    pub allocs: u64,
    /// Number of frees since the start.
    pub frees: u64,
    /// Number of requests that ran out of memory.
    pub failed_allocs: u64,
    /// Number of frees that were refused.
    pub refused_frees: u64,
    /// Number of times a chunk was mapped at another address while it was free.
    pub harvested_chunks: u64,
    /// Number of times the host waited for a stream.
    pub host_waits: u64,
    /// Number of calls to the driver that change memory.
    pub driver_calls: u64,
    /// Bytes of the largest block that would be served by remapping every free chunk and using up the budget.
    pub largest_with_remapping_bytes: u64,
    /// Bytes of chunks in raw ranges, and in dropped ones that could not be unmapped yet.
    pub range_bytes: u64,
    /// Bytes of registered blocks, and of freed ones that could not be unmapped yet.
    pub registered_bytes: u64,
}

impl gapless_stats {
    fn of(stats: &Stats) -> Self {
        Self {
            size: size_of::<Self>(),
            live_bytes: stats.live_bytes,
            peak_live_bytes: stats.peak_live_bytes,
            live_allocations: stats.live_allocations,
            cached_bytes: stats.cached_bytes,
            pending_bytes: stats.pending_bytes,
            idle_bytes: stats.idle_bytes,
            reserved_bytes: stats.reserved_bytes,
            peak_reserved_bytes: stats.peak_reserved_bytes,
            budget_bytes: stats.budget_bytes,
            allocs: stats.allocs,
            frees: stats.frees,
            failed_allocs: stats.failed_allocs,
            refused_frees: stats.refused_frees,
            harvested_chunks: stats.harvested_chunks,
            host_waits: stats.host_waits,
            driver_calls: stats.driver_calls.total(),
            largest_with_remapping_bytes: stats.fragmentation.largest_with_remapping_bytes,
            range_bytes: stats.range_bytes,
            registered_bytes: stats.registered_bytes,
        }
    }
}

/// Writes statistics to *stats, as many bytes as stats->size says.
///
/// # Safety
/// stats points to as many bytes as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_get_stats(
    allocator: *mut gapless_allocator,
    stats: *mut gapless_stats,
) -> gapless_status {
    guard(|| {
        check_out(stats, "stats")?;
        // SAFETY: not null, so it points to at least the first field (the function's contract).
        let size = unsafe { stats.cast::<usize>().read_unaligned() };
        if !(2 * size_of::<u64>()..=size_of::<gapless_stats>()).contains(&size) {
            return Err(Failure::argument(format!(
                "the stats say they have {size} bytes, this library's have {}: set size to sizeof(gapless_stats) \
                 before the call, and compile with this library's header",
                size_of::<gapless_stats>()
            )));
        }
        let mut figures = gapless_stats::of(&find(allocator)?.stats());
        figures.size = size;
        // SAFETY: `size` bytes at `stats` may be written (the function's contract), and `figures` has at least as many.
        unsafe { std::ptr::copy_nonoverlapping((&raw const figures).cast::<u8>(), stats.cast::<u8>(), size) };
        Ok(())
    })
}

/// Writes all statistics as a JSON object into buffer, terminated by NUL.
///
/// This and the other functions with a buffer write the size that the text needs, NUL included, to *needed. If capacity is
/// less, they return GAPLESS_ERROR_BUFFER_TOO_SMALL and leave the buffer untouched. To ask for the size, pass a null
/// buffer and a capacity of 0. The text may grow between two calls, so call again until it fits.
///
/// # Safety
/// buffer points to capacity bytes, or is null and capacity 0; needed points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_stats_json(
    allocator: *mut gapless_allocator,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gapless_status {
    // SAFETY: the same contract.
    guard(|| unsafe { write_json(&find(allocator)?.stats(), buffer, capacity, needed) })
}

/// Writes the report of the allocator's last request that ran out of memory, on whatever thread, as a JSON object into
/// buffer, as gapless_stats_json does; its key "text" has the report as a text for a person. GAPLESS_ERROR_NOT_FOUND when
/// no request has. gapless_last_error_report_json has the report of the calling thread's own failure.
///
/// # Safety
/// buffer, capacity and needed are as in gapless_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_oom_report_json(
    allocator: *mut gapless_allocator,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gapless_status {
    guard(|| {
        let report = described(&*find(allocator)?.last_report()?)?;
        // SAFETY: the same contract.
        unsafe { write_json(&report, buffer, capacity, needed) }
    })
}

/// Writes every region, block and chunk as a JSON object into buffer, as gapless_stats_json does.
///
/// # Safety
/// buffer, capacity and needed are as in gapless_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_snapshot_json(
    allocator: *mut gapless_allocator,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gapless_status {
    // SAFETY: the same contract.
    guard(|| unsafe { write_json(&find(allocator)?.snapshot(), buffer, capacity, needed) })
}
