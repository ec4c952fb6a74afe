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

mod ids;
mod load;
mod paths;

use crate::awake::Awake;
use crate::error::ReadErrorKind;
use crate::foreign::layout::Layout;
use crate::history::{FailedRequest, History, RecordedAllocator, RecordedSettings, Refusal};
use crate::{Content, Header, Op, Tags};
pub(crate) use load::Loader;

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
#[non_exhaustive]
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
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the trace's header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the ops in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Returns the number of slots, which is the peak number of live blocks.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the recorder's stream numbers in the order in which they first appear.
    #[must_use]
    pub fn streams(&self) -> &[u64] {
        &self.streams
    }

    /// Returns the labels of the marks in order.
    #[must_use]
    pub fn labels(&self) -> impl ExactSizeIterator<Item = &str> {
        self.labels.iter().map(|label| &**label)
    }

    /// Returns the tags in the order in which they first appear.
    #[must_use]
    pub fn tags(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tags.iter().map(|tag| &**tag)
    }

    /// Returns whether memory sleeps in it.
    #[must_use]
    pub fn sleeps(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Sleep { .. }))
    }

    /// Returns the number of allocations.
    #[must_use]
    pub const fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Returns the allocator that the run was recorded with.
    #[must_use]
    pub const fn allocator(&self) -> RecordedAllocator {
        self.recording.allocator
    }

    /// Returns what is known of the recorded run besides the ops.
    #[must_use]
    pub const fn history(&self) -> History {
        self.recording.history
    }

    /// Returns the private pools. Memory of one serves only requests on its streams.
    #[must_use]
    pub fn pools(&self) -> &[PrivatePool] {
        &self.recording.pools
    }

    /// Returns the settings of PyTorch's allocator that were on, unless they were the defaults or the file does not say.
    #[must_use]
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
    #[must_use]
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
    #[must_use]
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
    #[must_use]
    pub const fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }

    /// Returns the peak of requested bytes that are live and not asleep.
    #[must_use]
    pub const fn peak_awake_bytes(&self) -> u64 {
        self.peak_awake_bytes
    }

    /// Returns the most bytes that a device needs for what was requested, however they are laid out: the peak of live bytes that
    /// are awake, or what was awake at the request that the run failed at, together with it. Saturates.
    #[must_use]
    pub const fn demand_bytes(&self) -> u64 {
        self.demand_bytes
    }

    /// Returns the place in the program that requested the memory of the op at an index, such as `forward
    /// (model.py:12), in aten::mm`, or `None` if the file does not contain it.
    #[must_use]
    pub fn origin(&self, op_index: u64) -> Option<&str> {
        let stack = self.stack_of(op_index)?;
        Some(&self.recording.origins.texts[self.recording.origins.stacks[stack].origin as usize])
    }

    /// Returns the number of the stack that requested the memory of the op at an index, for [`frames`](Self::frames), or `None` if
    /// the file does not contain it. Ops with the same number have the same stack.
    #[must_use]
    pub fn stack_of(&self, op_index: u64) -> Option<usize> {
        let number = *self.recording.origins.of_op.get(usize::try_from(op_index).ok()?)?;
        (number as usize).checked_sub(1)
    }

    /// Returns the frames of a stack, the innermost first. There are none if they are too many to be kept, or if there is no stack
    /// with this number.
    #[must_use]
    pub fn frames(&self, stack: usize) -> impl ExactSizeIterator<Item = &str> {
        let frames = self.recording.origins.stacks.get(stack).map_or(&[][..], |stack| &stack.frames);
        frames.iter().map(|frame| &*self.recording.origins.texts[*frame as usize])
    }

    /// Returns a warning if the header and the ops disagree, for example because the file was cut short.
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

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
