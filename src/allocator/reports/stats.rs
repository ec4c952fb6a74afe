//! Statistics: where the bytes are, operation counts, and how fragmented the free memory is.

use super::figures::figures;
use crate::driver::DriverCalls;

figures! {
/// Figures of an allocator. Bytes, unless a name says otherwise.
///
/// Those of blocks are of one moment. Those of chunks and mappings are of one moment as well: of the same, while no other thread
/// is in the slow path; see [`Allocator::stats`](crate::Allocator::stats).
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Driver calls by kind.
    pub driver_calls: DriverCalls,
    /// Number of allocations by size.
    pub sizes: Vec<SizeRange>,
    /// How fragmented the free memory is.
    pub fragmentation: Fragmentation,
}

/// Fragmentation as numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Fragmentation;

/// Bytes requested by live allocations.
live_bytes: Bytes, Amount, ["allocated_bytes.all.current", "requested_bytes.all.current"];
/// Highest `live_bytes`; exact while streams do not race.
peak_live_bytes: Bytes, Peak, ["allocated_bytes.all.peak", "requested_bytes.all.peak"];
/// Number of live allocations.
live_allocations: Number, Amount, ["allocation.all.current", "active.all.current"];
/// Bytes that are free and mapped: available without a driver call.
cached_bytes: Bytes, Amount, [];
/// Bytes that were freed and wait for other streams, for a pin, or, exposed, for going back to the driver.
pending_bytes: Bytes, Amount, [];
/// Bytes of chunks that nothing maps.
idle_bytes: Bytes, Amount, [];
/// Bytes of all chunks held. `live_bytes` is at most that.
reserved_bytes: Bytes, Amount, ["reserved_bytes.all.current"];
/// Highest `reserved_bytes`.
peak_reserved_bytes: Bytes, Peak, ["reserved_bytes.all.peak"];
/// The most bytes that may be held, of a device by its pools as well.
budget_bytes: Bytes, OwnAmount, [];
/// Number of allocations so far.
allocs: Number, Count, ["allocation.all.allocated", "active.all.allocated"];
/// Number of frees so far.
frees: Number, Count, ["allocation.all.freed", "active.all.freed"];
/// Number of requests that ran out of memory: blocks, growths of ranges, registered blocks. A device counts requests for blocks,
/// each once however many of its pools refused it, and those that exceed the addresses of a region.
failed_allocs: Number, Count, ["num_ooms"];
/// Number of frees that were refused.
refused_frees: Number, Count, [];
/// Number of completely free chunks that were remapped: mapped at other addresses, where a request needed them.
harvested_chunks: Number, Count, [];
/// Number of times the host waited for a stream.
host_waits: Number, Count, ["num_sync_all_streams"];
/// Number of driver calls that put memory behind addresses or take it away; JSON has all calls by kind.
driver_calls: Number, Count, [] = |stats| stats.driver_calls.total();
/// Bytes of the largest block available when every completely free chunk is remapped and the budget is used up. Memory that waits
/// for streams counts as free: a request that needs it waits as well.
largest_with_remapping_bytes: Bytes, Largest, [] in fragmentation;
/// Bytes of chunks of growable ranges, and of dropped ones that could not be unmapped yet.
range_bytes: Bytes, Amount, [];
/// Bytes of registered blocks, and of dropped ones that could not be unmapped yet.
registered_bytes: Bytes, Amount, [];
/// Bytes of live allocations, rounding included.
live_block_bytes: Bytes, Amount, [];
/// Those of `cached_bytes` in completely free chunks, which a trim returns to the driver. What pools have free stays with them.
free_chunk_bytes: Bytes, OwnAmount, [];
/// Highest `live_allocations` that statistics have shown.
peak_live_allocations: Number, ShownPeak, ["allocation.all.peak", "active.all.peak"];
/// Bytes of live allocations, and of those that were freed and wait for other streams, rounding included.
active_bytes: Bytes, Amount, ["active_bytes.all.current"] = |stats| stats.live_block_bytes + stats.pending_bytes;
/// Highest `active_bytes` that statistics have shown; `peak_live_bytes` at least.
peak_active_bytes: Bytes, ShownPeak, ["active_bytes.all.peak"];
/// Those of `cached_bytes` that a trim would not return to the driver: beside live blocks, or in pools.
kept_free_bytes: Bytes, Amount, ["inactive_split_bytes.all.current"]
    = |stats| stats.cached_bytes.saturating_sub(stats.free_chunk_bytes);
/// Highest `kept_free_bytes` that statistics have shown.
peak_kept_free_bytes: Bytes, ShownPeak, ["inactive_split_bytes.all.peak"];
/// Bytes requested by all allocations so far.
allocated_bytes: Bytes, Count, [
    "allocated_bytes.all.allocated", "requested_bytes.all.allocated", "active_bytes.all.allocated"
] = |stats| stats.live_bytes + stats.freed_bytes;
/// Bytes requested by the allocations that were freed so far.
freed_bytes: Bytes, Count, ["allocated_bytes.all.freed", "requested_bytes.all.freed", "active_bytes.all.freed"];
/// Number of chunks held.
chunks: Number, Amount, ["segment.all.current"];
/// Highest `chunks`.
peak_chunks: Number, Peak, ["segment.all.peak"];
/// Number of chunks created so far. Calls to the driver that failed created none.
created_chunks: Number, Count, ["segment.all.allocated", "num_device_alloc"];
/// Number of chunks released so far. Those of a pool that has ended count as released.
released_chunks: Number, Count, ["segment.all.freed", "num_device_free"]
    = |stats| stats.created_chunks.saturating_sub(stats.chunks);
/// Bytes of all chunks created so far.
created_bytes: Bytes, Count, ["reserved_bytes.all.allocated"];
/// Bytes of the chunks released so far. Those of a pool that has ended count as released.
released_bytes: Bytes, Count, ["reserved_bytes.all.freed"]
    = |stats| stats.created_bytes.saturating_sub(stats.reserved_bytes);
/// Number of mappings, stale ones included.
mappings: Number, Amount, [];
/// Number of allocations served by cross-stream reuse: in a free block of another stream.
borrowed: Number, Count, [];
/// Number of `harvested_chunks` that were still mapped where they were needed, so that no driver call was made.
reused_views: Number, Count, [];
/// Number of driver calls that failed.
failed_driver_calls: Number, Count, [];
/// Number of driver sequences that could not be undone, so that addresses were taken out of use.
poisoned: Number, Count, [];
/// Number of streams seen.
streams: Number, Largest, [];
/// Bytes of host memory behind all of this.
metadata_bytes: Bytes, Amount, [];
/// Bytes of the largest block available without a driver call, on the stream where it is cached.
largest_cached_bytes: Bytes, Largest, [] in fragmentation;
/// All bytes that are free: cached, pending, idle, and not held yet.
free_bytes: Bytes, Amount, [] in fragmentation;
/// Number of allocations that were freed and wait for other streams.
pending_allocations: Number, Amount, [];
/// Those of `pending_bytes` that others have open: another process, or whoever has pinned them.
open_elsewhere_bytes: Bytes, Amount, [];
/// Bytes of pages that are asleep: what a wake needs. The live allocations in them count in `live_bytes`, and nothing of them in
/// `reserved_bytes`.
asleep_bytes: Bytes, Amount, [];
}

/// A figure of an allocator: a row of the table [`Stats::FIGURES`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Figure {
    /// Its name: that of the field of [`Figures`], and in C, JSON and Python.
    pub name: &'static str,
    /// What it counts.
    pub unit: FigureUnit,
    /// What kind of number it is.
    pub kind: FigureKind,
    /// The keys of PyTorch's `memory_stats()` that have its value.
    pub torch_keys: &'static [&'static str],
    /// What it says, in a sentence or more.
    pub doc: &'static str,
    /// The field that has it, for those that do not follow from others.
    field: Option<fn(&mut Stats) -> &mut u64>,
}

impl Figure {
    /// Its field, which the figures of several allocators are added up in. `None` where it follows from others.
    pub fn field<'a>(&self, stats: &'a mut Stats) -> Option<&'a mut u64> {
        self.field.map(|field| field(stats))
    }
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FigureUnit {
    /// Bytes.
    Bytes,
    /// A number of what its name says.
    Number,
}

/// What kind of number a figure is. From it follows how those of an allocator and of its pools add up to those of a device, what is
/// left when a pool ends, and what resets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FigureKind {
    /// An amount of now. A device has the sum; that of a pool ends with the pool. Nothing resets it.
    Amount,
    /// An amount of now that only a device's own allocator has. Nothing resets it.
    OwnAmount,
    /// The largest of now. A device has the largest of all; that of a pool ends with the pool. Nothing resets it.
    Largest,
    /// A count since the start. A device has the sum, and keeps that of a pool that has ended. PyTorch's keys show what was added
    /// since the accumulated statistics were reset.
    Count,
    /// The highest amount since the peaks were reset. A device has the sum of the peaks, which does not fall when a pool ends.
    Peak,
    /// The highest amount that statistics have shown since the peaks were reset: what was higher in between is not known. Those of
    /// a device show the sum.
    ShownPeak,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_keys_are_unique_and_every_figure_says_what_it_is() {
        let names: HashSet<&str> = Stats::FIGURES.iter().map(|figure| figure.name).collect();
        assert_eq!(names.len(), Stats::FIGURES.len());
        let keys: Vec<&str> = Stats::FIGURES.iter().flat_map(|figure| figure.torch_keys.iter().copied()).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "{keys:?}");
        for figure in Stats::FIGURES {
            assert_eq!(figure.unit == FigureUnit::Bytes, figure.name.ends_with("_bytes"), "{figure:?}");
            let is_peak = matches!(figure.kind, FigureKind::Peak | FigureKind::ShownPeak);
            assert_eq!(is_peak, figure.name.starts_with("peak_"), "{figure:?}");
            assert!(figure.doc.ends_with('.') && !figure.doc.contains("  "), "{figure:?}");
        }
    }

    #[test]
    fn a_figure_is_its_field() {
        let mut stats = Stats::default();
        let counted = Stats::FIGURES.iter().filter(|figure| figure.field.is_some());
        for (number, figure) in counted.enumerate() {
            *figure.field(&mut stats).unwrap() = 1 << number;
        }
        let figures = stats.figures();
        let values = figures.values();
        assert_eq!(Figures::of_values(values), figures);
        for (figure, value) in Stats::FIGURES.iter().zip(values) {
            if let Some(field) = figure.field(&mut stats) {
                assert_eq!(*field, value, "{figure:?}");
            }
        }
    }
}
