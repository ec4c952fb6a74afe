//! Statistics as a struct; statistics, out-of-memory report and snapshot as JSON in a caller's buffer.

use crate::last_error::guard;
use crate::out::{described, write_json};
use crate::registry::{find, gapless_allocator};
use crate::stats::{gapless_stats, write_stats};
use crate::status::{Answer, gapless_status};
use gapless::allocator::Stats;
use std::ffi::c_char;

/// All figures, those that follow from others beside the others. JSON has driver calls by kind in place of their number.
fn with_figures(stats: &Stats) -> Answer<serde_json::Value> {
    let mut value = serde_json::to_value(stats)?;
    let entries = value.as_object_mut().expect("statistics are an object");
    for (figure, number) in Stats::FIGURES.iter().zip(stats.figures().values()) {
        entries.entry(figure.name).or_insert(number.into());
    }
    Ok(value)
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
    // SAFETY: the same contract.
    guard(|| unsafe { write_stats(stats, || Ok(find(allocator)?.stats().figures())) })
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
    capacity: u64,
    needed: *mut u64,
) -> gapless_status {
    guard(|| {
        let stats = with_figures(&find(allocator)?.stats())?;
        // SAFETY: the same contract.
        unsafe { write_json(&stats, buffer, capacity, needed) }
    })
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
    capacity: u64,
    needed: *mut u64,
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
    capacity: u64,
    needed: *mut u64,
) -> gapless_status {
    // SAFETY: the same contract.
    guard(|| unsafe { write_json(&find(allocator)?.snapshot(), buffer, capacity, needed) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_every_figure() {
        let json = with_figures(&Stats::default()).unwrap_or_else(|_| panic!("statistics are JSON"));
        for figure in Stats::FIGURES {
            assert!(!json[figure.name].is_null(), "{figure:?}");
        }
    }
}
