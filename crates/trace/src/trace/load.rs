//! Reading a trace: ids become slots, and what is wrong is refused.

use super::ids::{Ids, Use};
use super::{Recording, Trace};
use crate::awake::Awake;
use crate::error::{ReadError, ReadErrorKind};
use crate::history::RecordedAllocator;
use crate::{Header, Limits, Op, Tags, TextReader, TraceOp};
use foldhash::{HashMap, HashMapExt};
use std::collections::hash_map::Entry;

impl Trace {
    /// Reads the remaining ops of `reader`.
    ///
    /// # Errors
    /// Returns [`ReadError`] if the trace cannot be read or is not valid.
    pub fn from_reader(name: &str, mut reader: TextReader<'_>) -> Result<Self, ReadError> {
        let mut loader = Loader::new(*reader.limits());
        while let Some(op) = reader.next() {
            loader.push(op?).map_err(|kind| ReadError { line: reader.line_number(), kind })?;
        }
        let header = reader.into_header();
        let allocator = match header.value("made") {
            Some(made) if made.starts_with("gapless ") => RecordedAllocator::Gapless,
            _ => RecordedAllocator::PyTorch,
        };
        Ok(loader.finish(name, header, Recording { allocator, ..Recording::default() }))
    }
}

/// A trace while it is read: its ops so far.
pub struct Loader {
    limits: Limits,
    ids: Ids,
    /// Size of the block in each slot, in bytes.
    bytes_of: Vec<u64>,
    empty_slots: Vec<u32>,
    stream_of: HashMap<u64, u16>,
    tag_of: HashMap<Box<str>, u8>,
    live_bytes: u64,
    awake: Awake,
    ops: Vec<Op>,
    slots: u32,
    streams: Vec<u64>,
    labels: Vec<Box<str>>,
    allocations: u64,
    peak_live_bytes: u64,
    peak_awake_bytes: u64,
    /// The last refused request, if no allocation has followed it: its index, and what was awake together with it.
    failed: Option<(u64, u64)>,
}

impl Loader {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ids: Ids::new(),
            bytes_of: Vec::new(),
            empty_slots: Vec::new(),
            stream_of: HashMap::new(),
            tag_of: HashMap::new(),
            live_bytes: 0,
            awake: Awake::default(),
            ops: Vec::new(),
            slots: 0,
            streams: Vec::new(),
            labels: Vec::new(),
            allocations: 0,
            peak_live_bytes: 0,
            peak_awake_bytes: 0,
            failed: None,
        }
    }

    /// Completes the trace, given what the recording has besides its ops.
    pub fn finish(self, name: &str, header: Header, recording: Recording) -> Trace {
        let Self { mut ops, slots, streams, labels, tag_of, allocations, failed, .. } = self;
        let (peak_live_bytes, peak_awake_bytes) = (self.peak_live_bytes, self.peak_awake_bytes);
        ops.shrink_to_fit();
        let mut tags: Vec<(u8, Box<str>)> = tag_of.into_iter().map(|(name, tag)| (tag, name)).collect();
        tags.sort_unstable();
        Trace {
            name: name.to_owned(),
            header,
            ops,
            slots,
            streams,
            labels,
            tags: tags.into_iter().map(|(_, name)| name).collect(),
            allocations,
            peak_live_bytes,
            peak_awake_bytes,
            failed_op: failed.map(|(index, _)| index),
            demand_bytes: failed.map_or(0, |(_, bytes)| bytes).max(peak_awake_bytes),
            recording,
        }
    }

    /// Number of ops so far.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Appends an op.
    pub fn push(&mut self, op: TraceOp) -> Result<(), ReadErrorKind> {
        // Slots and labels are u32: there are fewer of them than ops, of which there are fewer than 2^32 with any
        // limits.
        if self.ops.len() >= self.limits.ops.min(MOST_OPS) {
            return Err(ReadErrorKind::TooManyOps { limit: self.limits.ops.min(MOST_OPS) });
        }
        let op = match op {
            TraceOp::Alloc { id, bytes, stream, tag } => self.alloc(id, bytes, stream, tag)?,
            TraceOp::Free { id } => {
                let slot = match self.ids.free(id).ok_or(ReadErrorKind::UnknownId { id })? {
                    Use::Live(slot) => slot,
                    Use::Freed => return Err(ReadErrorKind::AlreadyFreed { id }),
                };
                self.live_bytes -= self.bytes_of[slot as usize];
                self.empty_slots.push(slot);
                Op::Free { slot }
            }
            TraceOp::Refused { bytes, stream } => {
                let stream = self.stream(stream)?;
                self.failed = Some((self.ops.len() as u64, self.awake.bytes().saturating_add(bytes)));
                Op::Refused { stream, bytes }
            }
            TraceOp::Sleep { tag, content } => Op::Sleep { tags: self.tags(tag)?, content },
            TraceOp::Wake { tag } => Op::Wake { tags: self.tags(tag)? },
            TraceOp::Mark(label) => {
                self.labels.push(label.into_boxed_str());
                Op::Mark { label: u32::try_from(self.labels.len() - 1).expect("fewer labels than ops") }
            }
        };
        self.awake.run(&op);
        self.peak_awake_bytes = self.peak_awake_bytes.max(self.awake.bytes());
        self.ops.push(op);
        Ok(())
    }

    /// Returns the number of a tag.
    fn tag(&mut self, name: Box<str>) -> Result<u8, ReadErrorKind> {
        let next = u8::try_from(self.tag_of.len() + 1);
        match self.tag_of.entry(name) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => match next {
                Ok(next) => Ok(*new.insert(next)),
                Err(_) => Err(ReadErrorKind::TooManyTags { limit: usize::from(u8::MAX) }),
            },
        }
    }

    fn tags(&mut self, name: Option<Box<str>>) -> Result<Tags, ReadErrorKind> {
        name.map_or(Ok(Tags::All), |name| self.tag(name).map(Tags::One))
    }

    /// Returns the index of a stream.
    fn stream(&mut self, stream: u64) -> Result<u16, ReadErrorKind> {
        match self.stream_of.entry(stream) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => {
                let limit = self.limits.streams.min(usize::from(u16::MAX));
                if self.streams.len() >= limit {
                    return Err(ReadErrorKind::TooManyStreams { limit });
                }
                self.streams.push(stream);
                Ok(*new.insert(u16::try_from(self.streams.len() - 1).expect("the limit was checked above")))
            }
        }
    }

    fn alloc(&mut self, id: u64, bytes: u64, stream: u64, tag: Option<Box<str>>) -> Result<Op, ReadErrorKind> {
        let stream = self.stream(stream)?;
        let tag = tag.map_or(Ok(0), |name| self.tag(name))?;
        let slot = self.empty_slots.last().copied().unwrap_or(self.slots);
        if !self.ids.insert(id, slot) {
            return Err(ReadErrorKind::DuplicateId { id });
        }
        self.live_bytes = self.live_bytes.checked_add(bytes).ok_or(ReadErrorKind::TooManyBytes)?;
        if self.empty_slots.pop().is_none() {
            self.bytes_of.push(0);
            self.slots += 1;
        }
        self.bytes_of[slot as usize] = bytes;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        self.allocations += 1;
        self.failed = None;
        Ok(Op::Alloc { slot, stream, tag, bytes })
    }
}

const MOST_OPS: usize = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_become_slots_that_are_reused() {
        let text = "a 900 10 5\na 18446744073709551615 20 0\nf 900\nm one\na 3 30 5\n";
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        assert_eq!(
            trace.ops(),
            [
                Op::Alloc { slot: 0, stream: 0, tag: 0, bytes: 10 },
                Op::Alloc { slot: 1, stream: 1, tag: 0, bytes: 20 },
                Op::Free { slot: 0 },
                Op::Mark { label: 0 },
                Op::Alloc { slot: 0, stream: 0, tag: 0, bytes: 30 },
            ]
        );
        assert_eq!((trace.slots(), trace.streams(), trace.peak_live_bytes()), (2, &[5, 0][..], 50));
        assert_eq!(trace.labels().collect::<Vec<_>>(), ["one"]);
    }

    #[test]
    fn a_refused_request_ends_the_run_if_no_allocation_follows_it() {
        let refused = |text: &str| {
            let trace = Trace::read("t", text.as_bytes()).unwrap();
            let survived: Vec<u64> = trace.survived_refusals().map(|request| request.op_index).collect();
            (trace.failed_request().map(|request| request.op_index), survived, trace.demand_bytes())
        };
        assert_eq!(refused("a 1 10 0\nr 99 0\nf 1\nm end\n"), (Some(1), vec![], 109));
        assert_eq!(refused("a 1 10 0\nr 99 0\na 2 20 0\n"), (None, vec![1], 30));
        assert_eq!(refused("r 5 0\na 1 10 0\nr 99 0\nf 1\nr 70 3\n"), (Some(4), vec![0, 2], 70));
        // No sum of a request that was refused overflows.
        assert_eq!(refused("a 1 10 0\nr 18446744073709551615 0\n"), (Some(1), vec![], u64::MAX));
        let trace = Trace::read("t", "a 1 10 0\nr 99 7\n".as_bytes()).unwrap();
        assert_eq!((trace.peak_live_bytes(), trace.streams()), (10, &[0, 7][..]));
        assert_eq!(trace.scaled(2.0).unwrap().demand_bytes(), 218);
    }
}
