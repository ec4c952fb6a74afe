//! A whole trace in memory, checked.
//!
//! - I1  every free names a live block; a slot is taken by one block at a time.
//! - I2  `peak_live_bytes` is the most requested bytes live at once, counted from the ops.
//!
//! Ids become slots: small numbers, reused after a free, so that a replay keeps its blocks in a plain array.
//!
//! Threads: any (immutable). Cost: 16 bytes per op.

use crate::error::{ReadError, ReadErrorKind};
use crate::{Header, Limits, TextReader, TraceOp, foreign};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// One op of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocate into an empty slot.
    Alloc {
        /// Below [`Trace::slots`].
        slot: u32,
        /// Index into [`Trace::streams`].
        stream: u16,
        /// Bytes as asked for.
        bytes: u64,
    },
    /// Free the block of a slot.
    Free {
        /// Below [`Trace::slots`].
        slot: u32,
    },
    /// A step ends.
    Mark {
        /// Index into [`Trace::labels`].
        label: u32,
    },
}

const _: () = assert!(size_of::<Op>() == 16, "a trace is many ops");

/// A recorded run: what [`replay`](crate::replay) takes.
#[derive(Clone, Debug)]
pub struct Trace {
    name: String,
    header: Header,
    ops: Vec<Op>,
    slots: u32,
    streams: Vec<u64>,
    labels: Vec<Box<str>>,
    allocations: u64,
    peak_live_bytes: u64,
    origins: Origins,
}

/// Where allocations were asked for, as far as a file says so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// By op: index into `texts` plus one, or 0. Empty when nothing is known of any op.
    pub of_op: Vec<u32>,
    /// Each once.
    pub texts: Vec<Box<str>>,
}

impl Trace {
    /// Reads the file at `path`; its name, without folder and endings, names the trace.
    ///
    /// # Errors
    /// [`ReadError`], with the line.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let name = ENDINGS.iter().fold(&*name, |name, ending| name.strip_suffix(ending).unwrap_or(name));
        let file = File::open(path).map_err(|error| ReadError { line: 0, kind: ReadErrorKind::Io(error) })?;
        Self::read(name, file)
    }

    /// Reads a trace within the default [`Limits`]: this crate's text format, a PyTorch memory snapshot, or an RMM log,
    /// told apart by content; each plain or gzip.
    ///
    /// # Errors
    /// [`ReadError`], with the line.
    pub fn read(name: &str, file: impl Read) -> Result<Self, ReadError> {
        let (format, file) =
            foreign::detect(file).map_err(|error| ReadError { line: 0, kind: ReadErrorKind::Io(error) })?;
        match format {
            foreign::Format::Text => Self::from_reader(name, TextReader::new(file)?),
            foreign::Format::Snapshot => foreign::snapshot::read(name, file, Limits::default()),
            foreign::Format::RmmLog => foreign::rmm::read(name, file, Limits::default()),
        }
    }

    /// A trace of ops that do not come from a text; `origins` by op.
    pub(crate) fn from_ops(
        name: &str,
        header: Header,
        limits: Limits,
        ops: impl Iterator<Item = TraceOp>,
        origins: Origins,
    ) -> Result<Self, ReadErrorKind> {
        let mut loader = Loader::new(limits);
        for op in ops {
            loader.push(op)?;
        }
        Ok(loader.finish(name, header, origins))
    }

    /// Reads what `reader` has left.
    ///
    /// # Errors
    /// [`ReadError`], with the line.
    pub fn from_reader(name: &str, mut reader: TextReader<'_>) -> Result<Self, ReadError> {
        let mut loader = Loader::new(*reader.limits());
        while let Some(op) = reader.next() {
            loader.push(op?).map_err(|kind| ReadError { line: reader.line_number(), kind })?;
        }
        Ok(loader.finish(name, reader.into_header(), Origins::default()))
    }

    /// What results call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its header says.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Its ops in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Most blocks live at once: slots are below this.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// The recorder's stream numbers, by first appearance.
    pub fn streams(&self) -> &[u64] {
        &self.streams
    }

    /// The labels of the marks, in order.
    pub fn labels(&self) -> impl ExactSizeIterator<Item = &str> {
        self.labels.iter().map(|label| &**label)
    }

    /// Number of allocations.
    pub const fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Most requested bytes live at once.
    pub const fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }

    /// Where the op at an index asked for memory, such as `forward (model.py:12)`; `None` when the file does not say.
    pub fn origin(&self, op_index: u64) -> Option<&str> {
        let number = *self.origins.of_op.get(usize::try_from(op_index).ok()?)?;
        self.origins.texts.get((number as usize).checked_sub(1)?).map(|text| &**text)
    }

    /// A sentence when header and ops disagree, as they do in a file that was cut short.
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
    /// The slot of every id ever seen, [`FREED`] after its free.
    slot_of: HashMap<u64, u32>,
    /// Bytes of each slot's block.
    bytes_of: Vec<u64>,
    empty_slots: Vec<u32>,
    stream_of: HashMap<u64, u16>,
    live_bytes: u64,
    ops: Vec<Op>,
    slots: u32,
    streams: Vec<u64>,
    labels: Vec<Box<str>>,
    allocations: u64,
    peak_live_bytes: u64,
}

impl Loader {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            slot_of: HashMap::new(),
            bytes_of: Vec::new(),
            empty_slots: Vec::new(),
            stream_of: HashMap::new(),
            live_bytes: 0,
            ops: Vec::new(),
            slots: 0,
            streams: Vec::new(),
            labels: Vec::new(),
            allocations: 0,
            peak_live_bytes: 0,
        }
    }

    fn finish(self, name: &str, header: Header, origins: Origins) -> Trace {
        let Self { mut ops, slots, streams, labels, allocations, peak_live_bytes, .. } = self;
        ops.shrink_to_fit();
        Trace { name: name.to_owned(), header, ops, slots, streams, labels, allocations, peak_live_bytes, origins }
    }

    fn push(&mut self, op: TraceOp) -> Result<(), ReadErrorKind> {
        // Slots and labels are u32: fewer than ops, which stay below 2^32 even with limits of the caller's own.
        if self.ops.len() >= self.limits.ops.min(MOST_OPS) {
            return Err(ReadErrorKind::TooManyOps { limit: self.limits.ops.min(MOST_OPS) });
        }
        let op = match op {
            TraceOp::Alloc { id, bytes, stream } => self.alloc(id, bytes, stream)?,
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
            TraceOp::Mark(label) => {
                self.labels.push(label.into_boxed_str());
                Op::Mark { label: u32::try_from(self.labels.len() - 1).expect("fewer labels than ops") }
            }
        };
        self.ops.push(op);
        Ok(())
    }

    fn alloc(&mut self, id: u64, bytes: u64, stream: u64) -> Result<Op, ReadErrorKind> {
        let stream = match self.stream_of.entry(stream) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let limit = self.limits.streams.min(usize::from(u16::MAX));
                if self.streams.len() >= limit {
                    return Err(ReadErrorKind::TooManyStreams { limit });
                }
                self.streams.push(stream);
                *new.insert(u16::try_from(self.streams.len() - 1).expect("checked just above"))
            }
        };
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
        Ok(Op::Alloc { slot, stream, bytes })
    }
}

/// Marks an id in `Loader::slot_of` as freed: no slot, since slots are fewer than [`MOST_OPS`].
const FREED: u32 = u32::MAX;
const MOST_OPS: usize = 1 << 31;
/// File name endings that do not belong to a trace's name.
const ENDINGS: [&str; 7] = [".gz", ".txt", ".text", ".csv", ".pickle", ".pkl", ".trace"];

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
                Op::Alloc { slot: 0, stream: 0, bytes: 10 },
                Op::Alloc { slot: 1, stream: 1, bytes: 20 },
                Op::Free { slot: 0 },
                Op::Mark { label: 0 },
                Op::Alloc { slot: 0, stream: 0, bytes: 30 },
            ]
        );
        assert_eq!((trace.slots(), trace.streams(), trace.peak_live_bytes()), (2, &[5, 0][..], 50));
        assert_eq!(trace.labels().collect::<Vec<_>>(), ["one"]);
    }

    #[test]
    fn a_header_that_disagrees_is_told() {
        let trace = Trace::read("t", "# peak_live_bytes 11\na 1 10 0\n".as_bytes()).unwrap();
        assert!(trace.warning().unwrap().contains("peak_live_bytes 11"));
        let trace = Trace::read("t", "# events 2\na 1 10 0\nf 1\n".as_bytes()).unwrap();
        assert_eq!(trace.warning(), None);
    }
}
