//! The out-of-memory report: the answer to "why is it not using the memory that is free?".

use super::mapper::Mapper;
use super::plan::{Request, free_chunks};
use super::{AllocError, Inner, LiveAllocation};
use crate::driver::{Driver, DriverError, MemoryDriver, MemoryInfo};
use crate::heap::BlockState;
use crate::sync::Ordering;
use crate::units::{ByteSize, StreamId};
use std::fmt;

/// How many of the largest live allocations a report lists.
const LISTED: usize = 8;

/// Memory of one stream.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct StreamUse {
    /// The stream.
    pub stream: StreamId,
    /// Asked for by its live allocations.
    pub live_bytes: u64,
    /// Free and mapped.
    pub cached_bytes: u64,
    /// Freed, and waiting for other streams.
    pub pending_bytes: u64,
}

/// Free bytes that remapping cannot move, by what holds them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pinned {
    /// In chunks that live allocations use a part of.
    pub by_live_bytes: u64,
    /// In chunks that a pending block uses a part of, and in pending blocks.
    pub by_pending_bytes: u64,
}

/// Why a request failed. `Display` is the text for a person, `Serialize` the same as data.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// The stream that asked.
    pub stream: StreamId,
    /// Whether the free bytes cover the request, so that an allocator that could use each of them would have served it.
    pub satisfiable: bool,
    /// Whether whole free pages cover it. With `satisfiable` and not this, only sharing pages between live allocations
    /// and the request would have helped.
    pub satisfiable_by_whole_pages: bool,
    /// Bytes of a page, the unit of remapping.
    pub page_bytes: u64,
    /// Bytes of the device, and what nobody holds; none when it could not be asked.
    pub device: Option<MemoryInfo>,
    /// Held on the device by others.
    pub others_bytes: u64,
    /// The most that may be held.
    pub budget_bytes: u64,
    /// Held.
    pub reserved_bytes: u64,
    /// Asked for by live allocations.
    pub live_bytes: u64,
    /// Taken by live allocations, rounding included.
    pub live_block_bytes: u64,
    /// Free and mapped.
    pub cached_bytes: u64,
    /// Freed, and waiting for other streams.
    pub pending_bytes: u64,
    /// Held by raw ranges, and by dropped ones that could not be unmapped yet.
    pub range_bytes: u64,
    /// All bytes that are free, in whatever form: cached, pending, in idle chunks, and what may still be created.
    pub free_bytes: u64,
    /// Free bytes that can be put behind one address range: whole free chunks, and what may still be created.
    pub obtainable_bytes: u64,
    /// The rest of the free bytes.
    pub pinned: Pinned,
    /// By stream.
    pub streams: Vec<StreamUse>,
    /// The largest live allocations.
    pub largest: Vec<LiveAllocation>,
    /// What the driver said when it was asked for more than it had, though the budget allowed it.
    pub driver_error: Option<String>,
}

impl<D: Driver> Inner<D> {
    /// The error for a request that could not be served.
    #[cold]
    pub(super) fn out_of_memory(
        &self,
        mapper: &Mapper,
        requested: u64,
        request: Request,
        refused: Option<&DriverError>,
    ) -> AllocError {
        self.counters.failed_allocs.fetch_add(1, Ordering::Relaxed);
        let page_bytes = self.geometry.page_bytes;
        let states = self.lock_all();
        let free_pages: u64 = free_chunks(mapper, &states).iter().map(|source| u64::from(source.pages)).sum();
        let mut report = OutOfMemory {
            requested_bytes: requested,
            stream: self.stream_id(request.stream),
            satisfiable: false,
            satisfiable_by_whole_pages: false,
            page_bytes,
            device: self.driver.memory_info().ok(),
            others_bytes: 0,
            budget_bytes: self.budget_bytes.load(Ordering::Relaxed),
            reserved_bytes: mapper.pool.held_bytes(),
            live_bytes: 0,
            live_block_bytes: 0,
            cached_bytes: 0,
            pending_bytes: 0,
            range_bytes: mapper.pool.lent_out_bytes(),
            free_bytes: 0,
            obtainable_bytes: 0,
            pinned: Pinned::default(),
            streams: Vec::new(),
            largest: Vec::new(),
            driver_error: refused.map(ToString::to_string),
        };
        for (stream, state) in self.streams.iter().zip(&states) {
            let mut part =
                StreamUse { stream: stream.id, live_bytes: state.live_bytes, cached_bytes: 0, pending_bytes: 0 };
            for (id, region) in state.regions.iter() {
                part.cached_bytes += region.heap.free_bytes();
                part.pending_bytes += region.heap.pending_bytes();
                report.live_block_bytes += region.heap.live_block_bytes();
                for block in region.heap.blocks_unordered().filter(|block| block.state == BlockState::Live) {
                    let home = state.sharers.get(&(id, block.offset)).map_or(stream.index, |sharers| sharers.home);
                    report.note_large(LiveAllocation {
                        addr: region.base.offset(block.offset),
                        bytes: block.size - u64::from(block.waste),
                        stream: self.stream_id(home),
                    });
                }
            }
            report.live_bytes += part.live_bytes;
            report.cached_bytes += part.cached_bytes;
            report.pending_bytes += part.pending_bytes;
            report.streams.push(part);
        }
        drop(states);
        // The budget is no use where the device itself has less to give.
        let device_room = report.device.map_or(u64::MAX, |info| info.free);
        let creatable = (mapper.pool.headroom_pages() * page_bytes).min(device_room / page_bytes * page_bytes);
        let room_bytes = report.budget_bytes.saturating_sub(report.reserved_bytes).min(device_room);
        report.others_bytes =
            report.device.map_or(0, |info| (info.total - info.free).saturating_sub(report.reserved_bytes));
        let idle = mapper.pool.idle_bytes();
        report.free_bytes = room_bytes + report.cached_bytes + report.pending_bytes + idle;
        report.obtainable_bytes = free_pages * page_bytes + idle + creatable;
        report.satisfiable = report.free_bytes >= requested;
        report.satisfiable_by_whole_pages = report.obtainable_bytes >= request.size;
        report.pinned.by_pending_bytes = report.pending_bytes;
        report.pinned.by_live_bytes =
            report.free_bytes.saturating_sub(report.obtainable_bytes + report.pinned.by_pending_bytes);
        AllocError::OutOfMemory(Box::new(report))
    }
}

impl OutOfMemory {
    fn note_large(&mut self, allocation: LiveAllocation) {
        let at = self.largest.partition_point(|other| {
            (other.bytes, std::cmp::Reverse(other.addr)) >= (allocation.bytes, std::cmp::Reverse(allocation.addr))
        });
        if at < LISTED {
            self.largest.insert(at, allocation);
            self.largest.truncate(LISTED);
        }
    }

    /// One sentence: could this have been served?
    pub fn verdict(&self) -> String {
        let (requested, free) = (ByteSize(self.requested_bytes), ByteSize(self.free_bytes));
        if !self.satisfiable {
            return format!(
                "No allocator could have served this: {requested} were asked for and only {free} are free in all, {} too \
                 little.",
                ByteSize(self.requested_bytes - self.free_bytes)
            );
        }
        if !self.satisfiable_by_whole_pages {
            let mut text = format!(
                "There are enough free bytes ({free}) but not enough whole pages: remapping moves pages of {}, and whole \
                 free pages and unused budget come to {}.",
                ByteSize(self.page_bytes),
                ByteSize(self.obtainable_bytes)
            );
            if self.pinned.by_pending_bytes > 0 {
                let waiting = ByteSize(self.pinned.by_pending_bytes);
                text.push_str(&format!(" {waiting} wait for streams that use them still."));
            }
            if self.pinned.by_live_bytes > 0 {
                text.push_str(" The rest lies beside live allocations in pages that they use.");
            }
            return text;
        }
        format!(
            "{} in whole free pages would cover the request, but no stretch of addresses could be arranged for it now.",
            ByteSize(self.obtainable_bytes)
        )
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "GPU out of memory. Tried to allocate {} on {:?}.", ByteSize(self.requested_bytes), self.stream)?;
        self.explanation().fmt(f)
    }
}

/// An out-of-memory report without its headline; see [`OutOfMemory::explanation`].
struct Explanation<'a>(&'a OutOfMemory);

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write_explanation(f)
    }
}

impl OutOfMemory {
    /// The report without its first line: the verdict and the figures, for callers that print a headline of their own.
    pub fn explanation(&self) -> impl fmt::Display {
        Explanation(self)
    }

    fn write_explanation(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes| ByteSize(bytes);
        writeln!(f, "{}", self.verdict())?;
        if let Some(device) = self.device {
            writeln!(
                f,
                "  device     {} in all, {} free, {} held by others",
                size(device.total),
                size(device.free),
                size(self.others_bytes)
            )?;
        }
        writeln!(f, "  budget     {}, of which {} are held", size(self.budget_bytes), size(self.reserved_bytes))?;
        writeln!(f, "  live       {} asked for, {} with rounding", size(self.live_bytes), size(self.live_block_bytes))?;
        if self.range_bytes > 0 {
            writeln!(f, "  ranges     {} held by raw ranges", size(self.range_bytes))?;
        }
        writeln!(
            f,
            "  free       {}: {} obtainable in whole pages, {} pinned by live allocations, {} waiting for streams",
            size(self.free_bytes),
            size(self.obtainable_bytes),
            size(self.pinned.by_live_bytes),
            size(self.pinned.by_pending_bytes)
        )?;
        for stream in &self.streams {
            writeln!(
                f,
                "  stream {:#x}: {} live, {} cached, {} pending",
                stream.stream.0,
                size(stream.live_bytes),
                size(stream.cached_bytes),
                size(stream.pending_bytes)
            )?;
        }
        if let Some(error) = &self.driver_error {
            writeln!(f, "  driver     {error}")?;
        }
        if !self.largest.is_empty() {
            write!(f, "  largest live allocations:")?;
            for allocation in &self.largest {
                write!(f, "\n    {:>10} at {} on {:?}", size(allocation.bytes), allocation.addr, allocation.stream)?;
            }
        }
        Ok(())
    }
}
