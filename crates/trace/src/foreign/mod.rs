//! Recordings of other allocators: PyTorch's memory snapshots and RMM's logs.
//!
//! Both record events at addresses, and both may begin in the middle of a run, with live blocks whose allocation was
//! not recorded. [`Events`] converts them to a trace: a block that is freed without an allocation was live from the
//! start.
//!
//! A request that failed becomes a refused request: whether a replay has to serve it depends on what follows it in the run.

mod pickle;
pub mod rmm;
pub mod snapshot;

use super::history::{Extent, History};
use super::load::{Origins, Recording};
use super::{Header, Limits, ReadErrorKind, Trace, TraceOp};
use flate2::read::MultiGzDecoder;
use std::collections::HashMap;
use std::io::{self, Cursor, Read};

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// This crate's text format. Also stands for unknown formats, for which its reader returns an error.
    Text,
    /// A Python pickle, possibly a PyTorch memory snapshot.
    Snapshot,
    /// A CSV file with the columns of an RMM log.
    RmmLog,
}

/// Detects the format from the first bytes of a file, decompressed if it is gzip. Returns a reader of the whole file.
pub fn detect<'a>(mut file: impl Read + 'a) -> io::Result<(Format, Box<dyn Read + 'a>)> {
    let mut start = Vec::new();
    file.by_ref().take(LOOK_BYTES).read_to_end(&mut start)?;
    let mut unpacked = Vec::new();
    if start.starts_with(&[0x1f, 0x8b]) {
        // The compressed data is cut off, so this may fail; what was decompressed until then is enough.
        let _ = MultiGzDecoder::new(&start[..]).take(LOOK_BYTES).read_to_end(&mut unpacked);
    } else {
        unpacked.clone_from(&start);
    }
    let format = if matches!(unpacked[..], [pickle::PROTO, 0..=5, ..]) {
        Format::Snapshot
    } else if first_text(&unpacked).starts_with(rmm::COLUMNS.as_bytes()) {
        Format::RmmLog
    } else {
        Format::Text
    };
    Ok((format, Box::new(Cursor::new(start).chain(file))))
}

/// What a file begins with, without a byte-order mark and white space.
fn first_text(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes).trim_ascii_start()
}

/// Number of bytes examined: enough for the first line of a log.
const LOOK_BYTES: u64 = 4096;

/// A recorded event.
#[derive(Clone, Copy, Debug)]
enum Event {
    Alloc { addr: u64, bytes: u64, stream: u64, origin: u32 },
    Free { addr: u64, bytes: u64, stream: u64 },
    Failed { bytes: u64, stream: u64, origin: u32 },
    Mark { label: u32 },
}

/// The events of a recording in order.
#[derive(Debug, Default)]
struct Events {
    events: Vec<Event>,
    labels: Vec<String>,
    /// The blocks known to be live at the end: address, size in bytes, stream.
    live_at_end: Vec<(u64, u64, u64)>,
    /// Whether these are all blocks that are live at the end.
    lists_live: bool,
    /// Memory that the recorded allocator held before the first event, in bytes.
    held_at_start_bytes: Option<u64>,
    origins: Interned,
}

/// Texts, each stored once and identified by a number. Number 0 stands for no text.
#[derive(Debug, Default)]
struct Interned {
    numbers: HashMap<Box<str>, u32>,
    texts: Vec<Box<str>>,
}

impl Interned {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let Ok(number) = u32::try_from(self.texts.len() + 1) else { return 0 };
        self.texts.push(text.into());
        self.numbers.insert(text.into(), number);
        number
    }
}

impl Events {
    fn push(&mut self, event: Event, limits: &Limits) -> Result<(), ReadErrorKind> {
        if self.events.len() >= limits.ops {
            return Err(ReadErrorKind::TooManyOps { limit: limits.ops });
        }
        self.events.push(event);
        Ok(())
    }

    fn mark(&mut self, label: String, limits: &Limits) -> Result<(), ReadErrorKind> {
        let number = u32::try_from(self.labels.len()).map_err(|_| ReadErrorKind::TooManyOps { limit: limits.ops })?;
        self.labels.push(label);
        self.push(Event::Mark { label: number }, limits)
    }

    /// Returns the blocks that were live before the first event, in address order.
    fn live_at_start(&self) -> Vec<(u64, u64, u64)> {
        let mut known: HashMap<u64, ()> = HashMap::new();
        let mut before = Vec::new();
        for event in &self.events {
            match *event {
                Event::Alloc { addr, .. } => {
                    known.insert(addr, ());
                }
                Event::Free { addr, bytes, stream } => {
                    if known.insert(addr, ()).is_none() {
                        before.push((addr, bytes, stream));
                    }
                }
                Event::Failed { .. } | Event::Mark { .. } => {}
            }
        }
        before.extend(self.live_at_end.iter().filter(|(addr, ..)| !known.contains_key(addr)));
        before.sort_unstable();
        before.dedup_by_key(|(addr, ..)| *addr);
        before
    }

    /// Converts the events to a trace. Streams are identified by the program's handles; the default stream is 0.
    fn into_trace(self, name: &str, header: Header, limits: Limits) -> Result<Trace, ReadErrorKind> {
        let before = self.live_at_start();
        let history = self.history(&before);
        let Self { events, labels, origins, .. } = self;
        let mut ops = Vec::with_capacity(before.len() + events.len());
        let mut of_op = Vec::new();
        let mut live: HashMap<u64, u64> = HashMap::new();
        let mut next_id = 0;
        let mut fresh = || {
            next_id += 1;
            next_id
        };
        let mut note = |ops: &mut Vec<TraceOp>, op, origin| {
            ops.push(op);
            of_op.push(origin);
        };
        for (addr, bytes, stream) in before {
            let id = fresh();
            live.insert(addr, id);
            note(&mut ops, TraceOp::Alloc { id, bytes, stream }, 0);
        }
        for event in events {
            match event {
                Event::Alloc { addr, bytes, stream, origin } => {
                    let id = fresh();
                    // Its free was not recorded: it happened before the address was allocated again.
                    if let Some(lost) = live.insert(addr, id) {
                        note(&mut ops, TraceOp::Free { id: lost }, 0);
                    }
                    note(&mut ops, TraceOp::Alloc { id, bytes, stream }, origin);
                }
                Event::Free { addr, .. } => {
                    if let Some(id) = live.remove(&addr) {
                        note(&mut ops, TraceOp::Free { id }, 0);
                    }
                }
                Event::Failed { bytes, stream, origin } => {
                    note(&mut ops, TraceOp::Refused { bytes, stream }, origin);
                }
                Event::Mark { label } => note(&mut ops, TraceOp::Mark(labels[label as usize].clone()), 0),
            }
        }
        if origins.texts.is_empty() {
            of_op = Vec::new();
        }
        let recording = Recording { origins: Origins { of_op, texts: origins.texts }, history };
        Trace::from_ops(name, header, limits, ops.into_iter(), recording)
    }

    /// Says how much of the run the events are, given the blocks that were live before them.
    fn history(&self, before: &[(u64, u64, u64)]) -> History {
        let extent = if before.is_empty() && self.held_at_start_bytes.unwrap_or(0) == 0 {
            Extent::Whole
        } else if self.lists_live {
            Extent::LaterPart
        } else {
            Extent::Unknown
        };
        History {
            extent,
            live_at_start_bytes: before.iter().map(|&(_, bytes, _)| bytes).fold(0, u64::saturating_add),
            held_at_start_bytes: self.held_at_start_bytes,
        }
    }
}
