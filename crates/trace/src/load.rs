//! A complete and checked trace in memory.
//!
//! - I1  every free refers to a live block; a slot holds one block at a time.
//! - I2  `peak_live_bytes` is the peak of requested bytes that are live, counted from the ops, `peak_awake_bytes` that of those
//!   that are not asleep. A refused request never was live.
//!
//! Ids are replaced by slots: small numbers that are reused after a free, so that a replay keeps its blocks in an
//! array.
//!
//! Threads: any, since a trace is immutable. Memory: 16 bytes per op.

use crate::awake::Awake;
use crate::error::{ReadError, ReadErrorKind};
use crate::foreign::layout::Layout;
use crate::history::{FailedRequest, History, RecordedAllocator, RecordedSettings, Refusal};
use crate::{Content, Header, Limits, Op, Tags, TextReader, TraceOp};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A recorded run of a program, to be passed to [`replay`](crate::replay).
#[derive(Clone, Debug)]
pub struct Trace {
    name: String,
    header: Header,
    ops: Vec<Op>,
    slots: u32,
    streams: Vec<u64>,
    labels: Vec<Box<str>>,
    tags: Vec<Box<str>>,
    allocations: u64,
    peak_live_bytes: u64,
    peak_awake_bytes: u64,
    /// Index of the refused request that no allocation follows, if there is one.
    failed_op: Option<u64>,
    demand_bytes: u64,
    recording: Recording,
}

/// The parts of another allocator's recording besides the ops.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub allocator: RecordedAllocator,
    pub origins: Origins,
    pub history: History,
    /// Indices of the allocations whose blocks the program had freed, and that waited for streams, when a request was last
    /// refused.
    pub waiting: Vec<u64>,
    pub pools: Vec<PrivatePool>,
    /// The layout of the allocator's memory when it last refused a request.
    pub layout: Option<Layout>,
    pub settings: Option<RecordedSettings>,
    /// How much less of the device there was when a request was last refused than at one before, in bytes.
    pub taken_by_others: u64,
}

/// A private pool: memory that only it uses, as that of a captured graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivatePool {
    /// Its name in PyTorch.
    pub id: (u64, u64),
    /// Its streams: the number in the trace, and the recorder's number of the stream that it is.
    pub streams: Vec<(u64, u64)>,
}

impl Default for Recording {
    fn default() -> Self {
        Self {
            allocator: RecordedAllocator::PyTorch,
            origins: Origins::default(),
            history: History::WHOLE,
            waiting: Vec::new(),
            pools: Vec::new(),
            layout: None,
            settings: None,
            taken_by_others: 0,
        }
    }
}

/// The places in the recorded program that requested memory, as far as the file contains them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// For each op, the index in `stacks` plus one, or 0 if unknown. Empty if no origin is known.
    pub of_op: Vec<u32>,
    /// The different places.
    pub stacks: Vec<Stack>,
    /// The different origins and frames.
    pub texts: Vec<Box<str>>,
}

/// A place in the recorded program: indices of texts.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    /// What the place is called.
    pub origin: u32,
    /// The frames, the innermost first. Empty if they are not kept.
    pub frames: Box<[u32]>,
}

impl Trace {
    /// Creates a trace from ops that are not in the text format, with what the recording has besides them.
    pub(crate) fn from_ops(
        name: &str,
        header: Header,
        limits: Limits,
        ops: impl Iterator<Item = TraceOp>,
        recording: Recording,
    ) -> Result<Self, ReadErrorKind> {
        let mut loader = Loader::new(limits);
        for op in ops {
            loader.push(op)?;
        }
        Ok(loader.finish(name, header, recording))
    }

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

    /// Returns the same trace of a program that is `factor` times as large: all sizes, and those that the header has of the
    /// device, are multiplied and rounded up to whole bytes.
    ///
    /// # Errors
    /// Returns [`ReadErrorKind::TooManyBytes`] if more bytes than fit in 64 bits are live at a time.
    pub fn scaled(mut self, factor: f64) -> Result<Self, ReadErrorKind> {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates"
        )]
        let times = |bytes: u64| (bytes as f64 * factor).ceil() as u64;
        let mut bytes_of = vec![0; self.slots as usize];
        let mut live_bytes = 0u64;
        let mut awake = Awake::default();
        (self.peak_live_bytes, self.peak_awake_bytes, self.demand_bytes) = (0, 0, 0);
        for (index, op) in (0..).zip(&mut self.ops) {
            match op {
                Op::Alloc { slot, bytes, .. } => {
                    *bytes = times(*bytes);
                    bytes_of[*slot as usize] = *bytes;
                    live_bytes = live_bytes.checked_add(*bytes).ok_or(ReadErrorKind::TooManyBytes)?;
                    self.peak_live_bytes = self.peak_live_bytes.max(live_bytes);
                }
                Op::Free { slot } => live_bytes -= bytes_of[*slot as usize],
                Op::Refused { bytes, .. } => {
                    *bytes = times(*bytes);
                    if self.failed_op == Some(index) {
                        self.demand_bytes = awake.bytes().saturating_add(*bytes);
                    }
                }
                Op::Sleep { .. } | Op::Wake { .. } | Op::Mark { .. } => {}
            }
            awake.run(op);
            self.peak_awake_bytes = self.peak_awake_bytes.max(awake.bytes());
        }
        self.demand_bytes = self.demand_bytes.max(self.peak_awake_bytes);
        self.header.scale(times);
        Ok(self)
    }

    /// Returns the same trace of a program that puts all its memory to sleep at the end of each step, with a backup, and wakes it
    /// again.
    #[must_use]
    pub fn asleep_between_steps(mut self) -> Self {
        // The number of ops that are inserted before each op, and at the end.
        let mut inserted = Vec::with_capacity(self.ops.len() + 1);
        let mut ops = Vec::with_capacity(self.ops.len());
        for op in &self.ops {
            inserted.push((ops.len() - inserted.len()) as u64);
            ops.push(*op);
            if matches!(op, Op::Mark { .. }) {
                ops.extend([Op::Sleep { tags: Tags::All, content: Content::Keep }, Op::Wake { tags: Tags::All }]);
            }
        }
        inserted.push((ops.len() - self.ops.len()) as u64);
        let moved = |index: u64| index + inserted[usize::try_from(index).expect("an index")];
        let Recording { origins, waiting, .. } = &mut self.recording;
        if !origins.of_op.is_empty() {
            let mut of_op = vec![0; ops.len()];
            for (index, origin) in (0..).zip(&origins.of_op) {
                of_op[moved(index) as usize] = *origin;
            }
            origins.of_op = of_op;
        }
        waiting.iter_mut().for_each(|index| *index = moved(*index));
        self.failed_op = self.failed_op.map(moved);
        self.ops = ops;
        self
    }

    /// Returns the trace's name, which appears in results.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the trace's header.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the ops in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Returns the number of slots, which is the peak number of live blocks.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the recorder's stream numbers in the order in which they first appear.
    pub fn streams(&self) -> &[u64] {
        &self.streams
    }

    /// Returns the labels of the marks in order.
    pub fn labels(&self) -> impl ExactSizeIterator<Item = &str> {
        self.labels.iter().map(|label| &**label)
    }

    /// Returns the tags in the order in which they first appear.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tags.iter().map(|tag| &**tag)
    }

    /// Returns whether memory sleeps in it.
    pub fn sleeps(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Sleep { .. }))
    }

    /// Returns the number of allocations.
    pub const fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Returns the allocator that the run was recorded with.
    pub const fn allocator(&self) -> RecordedAllocator {
        self.recording.allocator
    }

    /// Returns what is known of the recorded run besides the ops.
    pub const fn history(&self) -> History {
        self.recording.history
    }

    /// Returns the private pools. Memory of one serves only requests on its streams.
    pub fn pools(&self) -> &[PrivatePool] {
        &self.recording.pools
    }

    /// Returns the settings of PyTorch's allocator that were on, unless they were the defaults or the file does not say.
    pub const fn settings(&self) -> Option<&RecordedSettings> {
        self.recording.settings.as_ref()
    }

    /// Returns what the recorded allocator held when the run failed, if the file says.
    pub(crate) fn layout(&self) -> Option<&Layout> {
        self.recording.layout.as_ref().filter(|_| self.failed_op.is_some())
    }

    /// Returns how much of the device others took between a request that was survived and the one that the run failed at, in bytes.
    pub(crate) const fn taken_by_others(&self) -> u64 {
        self.recording.taken_by_others
    }

    /// Returns whether the program had freed the block that the op at an index allocated, and it waited for streams, when the run
    /// failed.
    pub(crate) fn waited(&self, op_index: u64) -> bool {
        self.failed_op.is_some() && self.recording.waiting.binary_search(&op_index).is_ok()
    }

    /// Returns the request that the recorded run failed at: the last one that was refused, if no allocation follows it.
    /// Where a header describes an out-of-memory scenario (`satisfiable`), it is the last request.
    pub fn failed_request(&self) -> Option<FailedRequest> {
        let op_index = match self.failed_op {
            Some(index) => index,
            None if self.header.satisfiable.is_some() => {
                self.ops.iter().rposition(|op| matches!(op, Op::Alloc { .. }))? as u64
            }
            None => return None,
        };
        match self.ops.get(usize::try_from(op_index).ok()?) {
            Some(&(Op::Alloc { bytes, .. } | Op::Refused { bytes, .. })) => Some(FailedRequest { op_index, bytes }),
            _ => None,
        }
    }

    /// Returns how the run went on after the request that was refused at an index.
    pub fn refusal(&self, op_index: u64) -> Refusal {
        if self.failed_op == Some(op_index) { Refusal::Fatal } else { Refusal::Survived }
    }

    /// Returns the requests that were refused and that the run survived, in order: all but the one that it failed at.
    pub fn survived_refusals(&self) -> impl Iterator<Item = FailedRequest> {
        (0..).zip(&self.ops).filter_map(|(op_index, op)| match *op {
            Op::Refused { bytes, .. } if self.refusal(op_index) == Refusal::Survived => {
                Some(FailedRequest { op_index, bytes })
            }
            _ => None,
        })
    }

    /// Returns the peak of requested bytes that are live.
    pub const fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }

    /// Returns the peak of requested bytes that are live and not asleep.
    pub const fn peak_awake_bytes(&self) -> u64 {
        self.peak_awake_bytes
    }

    /// Returns the most bytes that a device needs for what was requested, however they are laid out: the peak of live bytes that
    /// are awake, or what was awake at the request that the run failed at, together with it. Saturates.
    pub const fn demand_bytes(&self) -> u64 {
        self.demand_bytes
    }

    /// Returns the place in the program that requested the memory of the op at an index, such as `forward
    /// (model.py:12), in aten::mm`, or `None` if the file does not contain it.
    pub fn origin(&self, op_index: u64) -> Option<&str> {
        let stack = self.stack_of(op_index)?;
        Some(&self.recording.origins.texts[self.recording.origins.stacks[stack].origin as usize])
    }

    /// Returns the number of the stack that requested the memory of the op at an index, for [`frames`](Self::frames), or `None` if
    /// the file does not contain it. Ops with the same number have the same stack.
    pub fn stack_of(&self, op_index: u64) -> Option<usize> {
        let number = *self.recording.origins.of_op.get(usize::try_from(op_index).ok()?)?;
        (number as usize).checked_sub(1)
    }

    /// Returns the frames of a stack, the innermost first. There are none if they are too many to be kept, or if there is no stack
    /// with this number.
    pub fn frames(&self, stack: usize) -> impl ExactSizeIterator<Item = &str> {
        let frames = self.recording.origins.stacks.get(stack).map_or(&[][..], |stack| &stack.frames);
        frames.iter().map(|frame| &*self.recording.origins.texts[*frame as usize])
    }

    /// Returns a warning if the header and the ops disagree, for example because the file was cut short.
    pub fn warning(&self) -> Option<String> {
        let disagree = |key: &str, header: Option<u64>, ops: u64| {
            header.filter(|&said| said != ops).map(|said| {
                format!("the header says {key} {said}, the ops say {ops}: the file may have been cut short or edited")
            })
        };
        disagree("events", self.header.events, self.ops.len() as u64)
            .or_else(|| disagree("peak_live_bytes", self.header.peak_live_bytes, self.peak_live_bytes))
    }
}

/// The state while a trace is read.
struct Loader {
    limits: Limits,
    /// The slot of every id seen so far, or [`FREED`] after its free.
    slot_of: HashMap<u64, u32>,
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
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            slot_of: HashMap::new(),
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

    fn finish(self, name: &str, header: Header, recording: Recording) -> Trace {
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

    fn push(&mut self, op: TraceOp) -> Result<(), ReadErrorKind> {
        // Slots and labels are u32: there are fewer of them than ops, of which there are fewer than 2^32 with any
        // limits.
        if self.ops.len() >= self.limits.ops.min(MOST_OPS) {
            return Err(ReadErrorKind::TooManyOps { limit: self.limits.ops.min(MOST_OPS) });
        }
        let op = match op {
            TraceOp::Alloc { id, bytes, stream, tag } => self.alloc(id, bytes, stream, tag)?,
            TraceOp::Free { id } => {
                let slot = self.slot_of.get_mut(&id).ok_or(ReadErrorKind::UnknownId { id })?;
                let slot = std::mem::replace(slot, FREED);
                if slot == FREED {
                    return Err(ReadErrorKind::AlreadyFreed { id });
                }
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
        let Entry::Vacant(entry) = self.slot_of.entry(id) else {
            return Err(ReadErrorKind::DuplicateId { id });
        };
        self.live_bytes = self.live_bytes.checked_add(bytes).ok_or(ReadErrorKind::TooManyBytes)?;
        let slot = self.empty_slots.pop().unwrap_or_else(|| {
            self.bytes_of.push(0);
            self.slots += 1;
            self.slots - 1
        });
        entry.insert(slot);
        self.bytes_of[slot as usize] = bytes;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        self.allocations += 1;
        self.failed = None;
        Ok(Op::Alloc { slot, stream, tag, bytes })
    }
}

/// Marks an id in `Loader::slot_of` as freed. It is not a slot, since there are fewer than [`MOST_OPS`] slots.
const FREED: u32 = u32::MAX;
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

    #[test]
    fn a_scaled_trace_has_scaled_sizes() {
        let trace = Trace::read("t", "# external_bytes 3\na 1 10 0\na 2 20 0\nf 1\na 3 5 0\n".as_bytes()).unwrap();
        let scaled = trace.clone().scaled(1.25).unwrap();
        let sizes = |trace: &Trace| -> Vec<u64> {
            let bytes = |op: &Op| if let Op::Alloc { bytes, .. } = op { Some(*bytes) } else { None };
            trace.ops().iter().filter_map(bytes).collect()
        };
        assert_eq!((sizes(&scaled), scaled.peak_live_bytes()), (vec![13, 25, 7], 38));
        assert_eq!((scaled.header().external_bytes, scaled.ops().len()), (Some(4), trace.ops().len()));
        assert_eq!(sizes(&trace.clone().scaled(1.0).unwrap()), sizes(&trace));
        assert!(trace.scaled(1e18).is_err());
    }

    #[test]
    fn a_program_sleeps_between_its_steps() {
        let text = "a 1 10 0\nm one\na 2 20 0\nm two\nr 99 0\n";
        let trace = Trace::read("t", text.as_bytes()).unwrap().asleep_between_steps();
        let sleep = |content| Op::Sleep { tags: Tags::All, content };
        let wake = Op::Wake { tags: Tags::All };
        let between = [sleep(Content::Keep), wake];
        assert_eq!((&trace.ops()[2..4], &trace.ops()[6..8]), (&between[..], &between[..]));
        assert_eq!((trace.ops().len(), trace.failed_request().unwrap().op_index), (9, 8));
        assert_eq!((trace.peak_awake_bytes(), trace.demand_bytes()), (30, 129));
    }

    #[test]
    fn what_is_asleep_needs_no_device() {
        let text = "a 1 10 0 kv\na 2 5 0\ns kv keep\na 3 8 0\nf 3\nw kv\nr 4 0\n";
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        assert_eq!((trace.peak_live_bytes(), trace.peak_awake_bytes(), trace.demand_bytes()), (23, 15, 19));
        assert_eq!(trace.tags().collect::<Vec<_>>(), ["kv"]);
        assert_eq!(trace.scaled(2.0).unwrap().demand_bytes(), 38);
        let many: String = (0..256).map(|tag| format!("w t{tag}\n")).collect();
        let error = Trace::read("t", many.as_bytes()).unwrap_err();
        assert!(error.line == 256 && matches!(error.kind, ReadErrorKind::TooManyTags { limit: 255 }), "{error}");
    }

    #[test]
    fn a_header_that_disagrees_causes_a_warning() {
        let trace = Trace::read("t", "# peak_live_bytes 11\na 1 10 0\n".as_bytes()).unwrap();
        assert!(trace.warning().unwrap().contains("peak_live_bytes 11"));
        let trace = Trace::read("t", "# events 2\na 1 10 0\nf 1\n".as_bytes()).unwrap();
        assert_eq!(trace.warning(), None);
    }
}
