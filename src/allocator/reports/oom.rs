//! The out-of-memory report: the answer to "why is it not using the memory that is free?".

use super::{Holder, LiveAllocation};
use crate::driver::MemoryInfo;
use crate::units::{ByteSize, StreamId};
use std::fmt;

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
    /// Of both, those in whole free pages: of chunks of several pages of which a part is in use.
    pub whole_page_bytes: u64,
}

/// Why a request failed. `Display` is the text for a person, `Serialize` the same as data.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Bytes requested.
    pub requested_bytes: u64,
    /// The stream that the request was for.
    pub stream: StreamId,
    /// Whether the free bytes cover the request, so that an allocator that could use each of them would have served it.
    pub satisfiable: bool,
    /// Whether completely free chunks and unused budget cover it. With `satisfiable` and not this, only sharing chunks
    /// between live allocations and the request would have helped.
    pub satisfiable_by_whole_pages: bool,
    /// Bytes of a page. Remapping moves whole chunks, of a page or more.
    pub page_bytes: u64,
    /// Total and free bytes of the device; none when the driver did not report them.
    pub device: Option<MemoryInfo>,
    /// Bytes of the device that others hold.
    pub others_bytes: u64,
    /// Bytes of the device that other allocators of the program hold, pools for example, as far as whoever made them has
    /// [added](Self::add_elsewhere) them. Not in `others_bytes`.
    pub elsewhere_bytes: u64,
    /// The most bytes that the allocator may hold.
    pub budget_bytes: u64,
    /// Whether a budget that was set is what stops the request: the device has free memory enough for it.
    pub stopped_by_budget: bool,
    /// Whether the free bytes cover the request, together with those of ranges and registered blocks that were given back and are
    /// still mapped, and a capture of a stream into a graph is what keeps some of them: the host may not wait for the streams that
    /// used them last. After the capture, the same request may be served.
    pub stopped_by_capture: bool,
    /// Bytes that the allocator holds.
    pub reserved_bytes: u64,
    /// Bytes requested by live allocations.
    pub live_bytes: u64,
    /// Bytes of live allocations, rounding included.
    pub live_block_bytes: u64,
    /// Bytes that are free and mapped.
    pub cached_bytes: u64,
    /// Bytes that were freed and wait for other streams, or for others that have them open; and those that others may have open and
    /// the driver did not take back when it should, which are of no stream.
    pub pending_bytes: u64,
    /// Those of `pending_bytes` that others have open: another process, or whoever has pinned them.
    pub open_elsewhere_bytes: u64,
    /// The processes that have blocks open, as far as whoever sends them there has set it.
    pub holders: Vec<Holder>,
    /// Bytes of growable ranges, and of dropped ones that could not be unmapped yet.
    pub range_bytes: u64,
    /// Bytes of registered blocks, and of dropped ones that could not be unmapped yet.
    pub registered_bytes: u64,
    /// Bytes of pages that are asleep: what a wake needs. Nothing of them is in `reserved_bytes`.
    pub asleep_bytes: u64,
    /// Those of `live_block_bytes` that are asleep, or about to be.
    pub live_asleep_bytes: u64,
    /// All bytes that are free, in whatever form: cached, pending, in idle chunks, and what may still be created.
    pub free_bytes: u64,
    /// The same if there were no budget, so that all that is free on the device could be created.
    pub free_without_budget_bytes: u64,
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
    /// Says that so many bytes of those that others hold are held by another allocator of the program.
    pub fn add_elsewhere(&mut self, bytes: u64) {
        let moved = bytes.min(self.others_bytes);
        self.others_bytes -= moved;
        self.elsewhere_bytes += moved;
    }

    /// Whether any allocator could have served the request, in a sentence.
    #[must_use]
    pub fn verdict(&self) -> String {
        let requested = ByteSize(self.requested_bytes);
        if self.stopped_by_capture && !self.satisfiable {
            return format!(
                "{} are free, and ranges or registered blocks that were given back have the rest of {requested}, but a stream is \
                 being captured into a graph, and until that has ended, the streams that used them last cannot be waited for. Try \
                 again after the capture.",
                ByteSize(self.free_bytes)
            );
        }
        if self.stopped_by_capture {
            return format!(
                "{} are free, but a stream is being captured into a graph, and until that has ended, the streams that used some of \
                 them last cannot be waited for. Try again after the capture.",
                ByteSize(self.free_bytes)
            );
        }
        if self.stopped_by_budget {
            let on_device = self.device.map_or(0, |device| device.free);
            return format!(
                "The budget of {} that was set stops this: {requested} were asked for, {} are free within the budget, \
                 and {} on the device. A higher budget (set_budget) would serve it.",
                ByteSize(self.budget_bytes),
                ByteSize(self.free_bytes),
                ByteSize(on_device)
            );
        }
        let free_bytes = self.free_without_budget_bytes;
        let free = ByteSize(free_bytes);
        if free_bytes < self.requested_bytes {
            return format!(
                "No allocator could have served this: {requested} were asked for and only {free} are free in all, {} too \
                 little.",
                ByteSize(self.requested_bytes - free_bytes)
            );
        }
        if !self.satisfiable_by_whole_pages {
            let mut text = format!(
                "There are enough free bytes ({free}) but not enough whole chunks: remapping moves whole chunks, and \
                 completely free ones and unused budget come to {}.",
                ByteSize(self.obtainable_bytes)
            );
            if self.pinned.by_pending_bytes > 0 {
                let open = self.open_elsewhere_bytes;
                let waiting = self.pinned.by_pending_bytes.saturating_sub(open);
                if waiting > 0 {
                    text.push_str(&format!(" {} wait for streams that use them still.", ByteSize(waiting)));
                }
                if open > 0 {
                    let open = ByteSize(open);
                    text.push_str(&format!(" {open} were freed and are open in another process, or pinned."));
                }
            }
            if self.pinned.by_live_bytes > 0 {
                text.push_str(" The rest lies beside live allocations in chunks that they use.");
            }
            if self.pinned.whole_page_bytes > 0 {
                text.push_str(&format!(
                    " {} are whole pages in chunks of several pages of which a part is in use. Smaller chunks (a fixed chunk size \
                     of one page), or a trim between phases of the program, keep pages from being held so.",
                    ByteSize(self.pinned.whole_page_bytes)
                ));
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
    #[must_use]
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
        if self.elsewhere_bytes > 0 {
            writeln!(
                f,
                "  elsewhere  {} held by other allocators of this process, such as pools",
                size(self.elsewhere_bytes)
            )?;
        }
        writeln!(f, "  budget     {}, of which {} are held", size(self.budget_bytes), size(self.reserved_bytes))?;
        writeln!(f, "  live       {} asked for, {} with rounding", size(self.live_bytes), size(self.live_block_bytes))?;
        if self.asleep_bytes > 0 {
            let (live, needed) = (size(self.live_asleep_bytes), size(self.asleep_bytes));
            writeln!(f, "  asleep     {live} of these are asleep and need {needed} to wake")?;
        }
        if self.range_bytes > 0 {
            writeln!(f, "  ranges     {} held by growable ranges", size(self.range_bytes))?;
        }
        if self.registered_bytes > 0 {
            writeln!(f, "  registered {} held by registered blocks", size(self.registered_bytes))?;
        }
        writeln!(
            f,
            "  free       {}: {} obtainable in whole chunks, {} pinned by live allocations, {} waiting for streams{}",
            size(self.free_bytes),
            size(self.obtainable_bytes),
            size(self.pinned.by_live_bytes),
            size(self.pinned.by_pending_bytes.saturating_sub(self.open_elsewhere_bytes)),
            match self.open_elsewhere_bytes {
                0 => String::new(),
                open => format!(", {} open in another process or pinned", size(open)),
            }
        )?;
        let holding = Holder::of_freed(&self.holders);
        if !holding.is_empty() {
            writeln!(f, "  open       {holding}: freed, and not closed there yet")?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{DeviceAddr, MIB};

    /// A request for a page, where the free bytes would do but no chunk is free.
    fn report() -> OutOfMemory {
        OutOfMemory {
            requested_bytes: 2 * MIB,
            stream: StreamId::DEFAULT,
            satisfiable: true,
            satisfiable_by_whole_pages: false,
            page_bytes: 2 * MIB,
            device: None,
            others_bytes: 0,
            elsewhere_bytes: 0,
            budget_bytes: 8 * MIB,
            stopped_by_budget: false,
            stopped_by_capture: false,
            reserved_bytes: 8 * MIB,
            live_bytes: 5 * MIB,
            live_block_bytes: 5 * MIB,
            cached_bytes: 3 * MIB,
            pending_bytes: 0,
            open_elsewhere_bytes: 0,
            holders: Vec::new(),
            range_bytes: 0,
            registered_bytes: 0,
            asleep_bytes: 0,
            live_asleep_bytes: 0,
            free_bytes: 3 * MIB,
            free_without_budget_bytes: 3 * MIB,
            obtainable_bytes: 0,
            pinned: Pinned::default(),
            streams: Vec::new(),
            largest: Vec::new(),
            driver_error: None,
        }
    }

    /// A text of the report, and what has to be there for it.
    type Part = (&'static str, fn(&mut OutOfMemory));

    #[test]
    fn a_report_names_what_is_there_and_nothing_else() {
        let parts: [Part; 12] = [
            (" 1 MiB were freed and are open in another process, or pinned.", |report| {
                (report.pinned.by_pending_bytes, report.open_elsewhere_bytes) = (MIB, MIB);
            }),
            (" 1 MiB wait for streams that use them still.", |report| report.pinned.by_pending_bytes = MIB),
            (" The rest lies beside live allocations", |report| report.pinned.by_live_bytes = 1),
            (" 1 MiB are whole pages in chunks of several pages", |report| report.pinned.whole_page_bytes = MIB),
            ("\n  device     8 MiB in all, 3 MiB free", |report| {
                report.device = Some(MemoryInfo { free: 3 * MIB, total: 8 * MIB });
            }),
            ("\n  elsewhere  1 MiB held by other allocators", |report| report.elsewhere_bytes = MIB),
            ("\n  asleep     1 MiB of these are asleep and need 2 MiB to wake", |report| {
                (report.live_asleep_bytes, report.asleep_bytes) = (MIB, 2 * MIB);
            }),
            ("\n  ranges     1 MiB held by growable ranges", |report| report.range_bytes = MIB),
            ("\n  registered 1 MiB held by registered blocks", |report| report.registered_bytes = MIB),
            ("\n  open       1 MiB in process 7: freed, and not closed there yet", |report| {
                let mut holder = Holder::new(Some(7));
                holder.add(MIB, true);
                report.holders.push(holder);
            }),
            ("\n  driver     the answer", |report| report.driver_error = Some("the answer".to_owned())),
            ("\n  largest live allocations:\n         5 MiB at", |report| {
                let (addr, stream) = (DeviceAddr(2 * MIB), StreamId::DEFAULT);
                report.largest.push(LiveAllocation { addr, bytes: 5 * MIB, stream, asleep: false });
            }),
        ];
        let plain = report().to_string();
        for (text, add) in parts {
            let mut report = report();
            add(&mut report);
            assert!(report.to_string().contains(text), "{text:?} is missing: {report}");
        }
        for word in [
            "wait for streams",
            "another process",
            "beside live",
            "whole pages",
            "elsewhere",
            "asleep",
            "ranges",
            "registered",
            "process",
            "driver",
            "largest",
        ] {
            assert!(!plain.contains(word), "{word} is named: {plain}");
        }
    }
}
