//! The out-of-memory report: the answer to "why is it not using the memory that is free?".

use super::super::request::Request;
use super::super::shared::Shared;
use super::super::streams::Streams;
use super::super::streams::state::{AllStates, Stream, StreamState};
use super::{Holdings, LiveAllocation};
use crate::driver::{Driver, DriverError, MemoryDriver, MemoryInfo};
use crate::heap::BlockState;
use crate::stream::StreamIndex;
use crate::units::{ByteSize, StreamId, round_down};
use std::fmt;

/// Number of the largest live allocations that a report lists.
const LISTED: usize = 8;

/// The memory of one stream.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct StreamUse {
    /// The stream.
    pub stream: StreamId,
    /// Bytes requested by its live allocations.
    pub live_bytes: u64,
    /// Bytes that are free and mapped.
    pub cached_bytes: u64,
    /// Bytes that were freed and wait for other streams.
    pub pending_bytes: u64,
}

/// Free bytes that remapping cannot move, by what holds them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
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
    /// Bytes requested.
    pub requested_bytes: u64,
    /// The stream that the request was for.
    pub stream: StreamId,
    /// Whether the free bytes cover the request, so that an allocator that could use each of them would have served it.
    pub satisfiable: bool,
    /// Whether whole free pages cover it. With `satisfiable` and not this, only sharing pages between live allocations
    /// and the request would have helped.
    pub satisfiable_by_whole_pages: bool,
    /// Bytes of a page, the unit of remapping.
    pub page_bytes: u64,
    /// Total and free bytes of the device; none when the driver could not tell.
    pub device: Option<MemoryInfo>,
    /// Bytes of the device that others hold.
    pub others_bytes: u64,
    /// The most bytes that the allocator may hold.
    pub budget_bytes: u64,
    /// Bytes that the allocator holds.
    pub reserved_bytes: u64,
    /// Bytes requested by live allocations.
    pub live_bytes: u64,
    /// Bytes of live allocations, rounding included.
    pub live_block_bytes: u64,
    /// Bytes that are free and mapped.
    pub cached_bytes: u64,
    /// Bytes that were freed and wait for other streams.
    pub pending_bytes: u64,
    /// Bytes of raw ranges, and of dropped ones that could not be unmapped yet.
    pub range_bytes: u64,
    /// All bytes that are free, in whatever form: cached, pending, in idle chunks, and what may still be created.
    pub free_bytes: u64,
    /// Free bytes that can be put behind one address range: whole free chunks, and what may still be created.
    pub obtainable_bytes: u64,
    /// The rest of the free bytes.
    pub pinned: Pinned,
    /// The memory of each stream.
    pub streams: Vec<StreamUse>,
    /// The largest live allocations.
    pub largest: Vec<LiveAllocation>,
    /// The driver's answer when it had no memory to create a chunk from, although the budget allowed it.
    pub driver_error: Option<String>,
}

impl OutOfMemory {
    /// The report on a request of `stream` that could not be served, at the moment at which `states` and `holdings` were
    /// taken. `refusal` is the driver's answer when it had no memory although the budget allowed it.
    pub fn new<D: Driver>(
        shared: &Shared<D>,
        states: &AllStates<'_>,
        holdings: &Holdings,
        request: &Request,
        stream: StreamIndex,
        refusal: Option<&DriverError>,
    ) -> Self {
        let streams = &shared.streams;
        let mut report = Self {
            requested_bytes: request.requested,
            stream: streams.get(stream).id,
            satisfiable: false,
            satisfiable_by_whole_pages: false,
            page_bytes: holdings.page_bytes,
            device: streams.driver.memory_info().ok(),
            others_bytes: 0,
            budget_bytes: shared.budget_bytes(),
            reserved_bytes: holdings.held_bytes,
            live_bytes: 0,
            live_block_bytes: 0,
            cached_bytes: 0,
            pending_bytes: 0,
            range_bytes: holdings.range_bytes,
            free_bytes: 0,
            obtainable_bytes: 0,
            pinned: Pinned::default(),
            streams: Vec::new(),
            largest: Vec::new(),
            driver_error: refusal.map(ToString::to_string),
        };
        for (stream, state) in streams.iter().zip(states) {
            report.add_stream(streams, stream, state);
        }
        report.judge(holdings, request);
        report
    }

    fn add_stream<D: Driver>(&mut self, streams: &Streams<D>, stream: &Stream, state: &StreamState) {
        let mut part = StreamUse { stream: stream.id, live_bytes: state.live_bytes, cached_bytes: 0, pending_bytes: 0 };
        for (id, region) in state.regions.iter() {
            part.cached_bytes += region.heap.free_bytes();
            part.pending_bytes += region.heap.pending_bytes();
            self.live_block_bytes += region.heap.live_block_bytes();
            for block in region.heap.blocks_unordered().filter(|block| block.state == BlockState::Live) {
                self.note_large(LiveAllocation::new(streams, (stream, state), (id, region), block));
            }
        }
        self.live_bytes += part.live_bytes;
        self.cached_bytes += part.cached_bytes;
        self.pending_bytes += part.pending_bytes;
        self.streams.push(part);
    }

    /// Works out what is free, what of it can be had, and whether that covers the request.
    fn judge(&mut self, holdings: &Holdings, request: &Request) {
        // The budget is no use where the device itself has less left.
        let device_free = self.device.map_or(u64::MAX, |info| info.free);
        let creatable = holdings.headroom_bytes.min(round_down(device_free, self.page_bytes));
        let uncreated = self.budget_bytes.saturating_sub(self.reserved_bytes).min(device_free);
        self.others_bytes = self.device.map_or(0, |info| (info.total - info.free).saturating_sub(self.reserved_bytes));
        self.free_bytes = uncreated + self.cached_bytes + self.pending_bytes + holdings.idle_bytes;
        self.obtainable_bytes = holdings.free_chunk_bytes + holdings.idle_bytes + creatable;
        self.satisfiable = self.free_bytes >= self.requested_bytes;
        self.satisfiable_by_whole_pages = self.obtainable_bytes >= request.size;
        self.pinned.by_pending_bytes = self.pending_bytes;
        self.pinned.by_live_bytes =
            self.free_bytes.saturating_sub(self.obtainable_bytes + self.pinned.by_pending_bytes);
    }

    fn note_large(&mut self, allocation: LiveAllocation) {
        let at = self.largest.partition_point(|other| {
            (other.bytes, std::cmp::Reverse(other.addr)) >= (allocation.bytes, std::cmp::Reverse(allocation.addr))
        });
        if at < LISTED {
            self.largest.insert(at, allocation);
            self.largest.truncate(LISTED);
        }
    }

    /// Whether any allocator could have served the request, in a sentence.
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
