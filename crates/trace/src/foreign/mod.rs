//! Recordings of other allocators: PyTorch's memory snapshots and RMM's logs.
//!
//! Both record events at addresses, and both may begin in the middle of a run, with live blocks whose allocation was
//! not recorded. [`Events`] converts them to a trace: a block that is freed without an allocation was live from the
//! start.
//!
//! A request that failed becomes a refused request: whether a replay has to serve it depends on what follows it in the run.

mod entries;
mod frames;
pub(crate) mod layout;
mod pickle;
mod places;
pub mod rmm;
pub mod snapshot;

use super::history::{Extent, History, RecordedAllocator, RecordedSettings};
use super::trace::{Loader, PrivatePool, Recording};
use super::{Header, Limits, ReadErrorKind, Trace, TraceOp};
use flate2::read::MultiGzDecoder;
use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};
use layout::Layout;
use places::Places;
use std::io::{self, Cursor, Read};

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// This crate's text format. Also stands for unknown formats, for which its reader returns an error.
    Text,
    /// A Python pickle, possibly a PyTorch memory snapshot.
    Snapshot,
    /// A CSV file with the columns of an RMM log.
    RmmLog,
    /// A file of another kind, which is named, with what to do.
    Other(&'static str),
}

/// Detects the format from the first bytes of a file, decompressed if it is gzip. Returns a reader of the whole file.
pub fn detect<'a>(mut file: impl Read + Send + 'a) -> io::Result<(Format, Box<dyn Read + Send + 'a>)> {
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
    } else if rmm::is_log(first_text(&unpacked)) {
        Format::RmmLog
    } else if let Some((_, what)) = OTHERS.iter().find(|(magic, _)| unpacked.starts_with(magic)) {
        Format::Other(what)
    } else {
        Format::Text
    };
    Ok((format, Box::new(Cursor::new(start).chain(file))))
}

/// Returns a file's bytes without a byte-order mark and white space at the beginning.
fn first_text(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes).trim_ascii_start()
}

/// The first bytes of files of other kinds, and what these are.
const OTHERS: [(&[u8], &str); 9] = [
    (b"PK\x03\x04", "a zip archive: unpack it"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it, or use gzip"),
    (b"\xfd7zXZ", "compressed with xz: unpack it, or use gzip"),
    (b"BZh", "compressed with bzip2: unpack it, or use gzip"),
    (
        b"{",
        "JSON: give the pickle that torch.cuda.memory._dump_snapshot writes; gapless advise takes its own results with --merge",
    ),
    (b"[", "JSON: give the pickle that torch.cuda.memory._dump_snapshot writes"),
    (b"(dp", "a pickle of protocol 0: write it with pickle.dump(snapshot, file, protocol=4)"),
    (b"}q", "a pickle of protocol 1: write it with pickle.dump(snapshot, file, protocol=4)"),
    (b"<", "HTML: give the file that the page was made from"),
];

/// Number of bytes examined: enough for the first line of a log.
const LOOK_BYTES: u64 = 4096;

/// A recorded event. Streams are numbered by [`Events::stream_of`].
#[derive(Clone, Copy, Debug)]
enum Event {
    Alloc {
        addr: u64,
        bytes: u64,
        stream: u64,
        origin: u32,
    },
    Free {
        addr: u64,
        bytes: u64,
        stream: u64,
    },
    /// The program has freed the block, but work of other streams may use it until its `Free`.
    Waits {
        addr: u64,
        bytes: u64,
        stream: u64,
    },
    Failed {
        bytes: u64,
        stream: u64,
        origin: u32,
    },
    Mark {
        label: u32,
    },
    /// The process ends, and with it all that is live. Another one begins.
    End,
}

/// A block that is live at the end of a recording.
#[derive(Clone, Copy, Debug)]
struct LiveAtEnd {
    addr: u64,
    bytes: u64,
    stream: u64,
    origin: u32,
}

/// The events of a recording in order.
#[derive(Debug, Default)]
struct Events {
    events: Vec<Event>,
    labels: Vec<String>,
    /// The blocks known to be live at the end.
    live_at_end: Vec<LiveAtEnd>,
    /// Whether these are all blocks that are live at the end.
    lists_live: bool,
    /// Whether what the recording says does not fit together, so that parts are missing.
    contradictory: bool,
    /// Whether the recording has lost its first events.
    overflowed: bool,
    /// Memory that the recorded allocator held before the first event, in bytes.
    held_at_start_bytes: Option<u64>,
    /// The most that it held, in bytes.
    held_at_most_bytes: Option<u64>,
    /// How much less the allocator and the device had together when a request was last refused than at one before, in bytes.
    taken_by_others: u64,
    /// The numbers of streams in private pools.
    private: HashMap<(u64, (u64, u64)), u64>,
    layout: Option<Layout>,
    settings: Option<RecordedSettings>,
    places: Places,
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

    /// Returns the number of a stream in the trace: outside private pools its own, which is below [`PRIVATE`].
    fn stream_of(&mut self, stream: u64, pool: (u64, u64)) -> u64 {
        if pool == NO_POOL {
            return stream;
        }
        let next = PRIVATE | self.private.len() as u64;
        *self.private.entry((stream, pool)).or_insert(next)
    }

    /// Returns the blocks that were live before the first event, in address order.
    fn live_at_start(&self) -> Vec<LiveAtEnd> {
        let mut known: HashSet<u64> = HashSet::new();
        let mut before: Vec<LiveAtEnd> = Vec::new();
        for event in &self.events {
            match *event {
                Event::Alloc { addr, .. } => {
                    known.insert(addr);
                }
                Event::Free { addr, bytes, stream } | Event::Waits { addr, bytes, stream } => {
                    if known.insert(addr) {
                        before.push(LiveAtEnd { addr, bytes, stream, origin: 0 });
                    }
                }
                // What another process had live before it was recorded did not lie beside this one's.
                Event::End => break,
                Event::Failed { .. } | Event::Mark { .. } => {}
            }
        }
        before.extend(self.live_at_end.iter().filter(|block| !known.contains(&block.addr)));
        before.sort_by_key(|block| (block.addr, block.bytes, block.stream));
        before.dedup_by_key(|block| block.addr);
        before
    }

    /// Converts the events, which `allocator` has recorded, to a trace.
    fn into_trace(
        self,
        name: &str,
        header: Header,
        allocator: RecordedAllocator,
        limits: Limits,
    ) -> Result<Trace, ReadErrorKind> {
        let before = self.live_at_start();
        let history = self.history(&before);
        let Self { events, labels, places, private, layout, settings, taken_by_others, .. } = self;
        let mut trace = Loader::new(limits);
        let mut of_op = Vec::new();
        let mut live: HashMap<u64, Live> = HashMap::new();
        let mut waiting: HashMap<u64, u64> = HashMap::new();
        let mut waited = Vec::new();
        let mut next_id = 0;
        let mut fresh = || {
            next_id += 1;
            next_id
        };
        let mut note = |trace: &mut Loader, op, origin| {
            of_op.push(origin);
            trace.push(op)
        };
        for LiveAtEnd { addr, bytes, stream, origin } in before {
            let id = fresh();
            live.insert(addr, Live { id, op: trace.len() as u64 });
            note(&mut trace, TraceOp::Alloc { id, bytes, stream, tag: None }, origin)?;
        }
        let last_refusal = events.iter().rposition(|event| matches!(event, Event::Failed { .. }));
        for (index, event) in events.into_iter().enumerate() {
            match event {
                Event::Alloc { addr, bytes, stream, origin } => {
                    let id = fresh();
                    waiting.remove(&addr);
                    // Its free was not recorded: it happened before the address was allocated again.
                    if let Some(lost) = live.remove(&addr) {
                        note(&mut trace, TraceOp::Free { id: lost.id }, 0)?;
                    }
                    live.insert(addr, Live { id, op: trace.len() as u64 });
                    note(&mut trace, TraceOp::Alloc { id, bytes, stream, tag: None }, origin)?;
                }
                Event::Free { addr, .. } => {
                    waiting.remove(&addr);
                    if let Some(freed) = live.remove(&addr) {
                        note(&mut trace, TraceOp::Free { id: freed.id }, 0)?;
                    }
                }
                Event::Waits { addr, .. } => {
                    waiting.extend(live.get(&addr).map(|block| (addr, block.op)));
                }
                Event::Failed { bytes, stream, origin } => {
                    if Some(index) == last_refusal {
                        waited = waiting.values().copied().collect();
                    }
                    note(&mut trace, TraceOp::Refused { bytes, stream }, origin)?;
                }
                Event::Mark { label } => note(&mut trace, TraceOp::Mark(labels[label as usize].clone()), 0)?,
                Event::End => {
                    let mut left: Vec<Live> = live.drain().map(|(_, block)| block).collect();
                    left.sort_unstable_by_key(|block| block.op);
                    for block in left {
                        note(&mut trace, TraceOp::Free { id: block.id }, 0)?;
                    }
                }
            }
        }
        waited.sort_unstable();
        let recording = Recording {
            allocator,
            origins: places.into_origins(of_op),
            history,
            waiting: waited,
            pools: pools(private),
            layout,
            settings,
            taken_by_others,
        };
        Ok(trace.finish(name, header, recording))
    }

    /// Says how much of the run the events are, given the blocks that were live before them.
    fn history(&self, before: &[LiveAtEnd]) -> History {
        let extent = if self.contradictory {
            Extent::Unknown
        } else if before.is_empty() && self.held_at_start_bytes.unwrap_or(0) == 0 && !self.overflowed {
            Extent::Whole
        } else if self.lists_live {
            Extent::LaterPart
        } else {
            Extent::Unknown
        };
        History {
            extent,
            live_at_start_bytes: before.iter().map(|block| block.bytes).fold(0, u64::saturating_add),
            held_at_start_bytes: self.held_at_start_bytes,
            held_at_most_bytes: self.held_at_most_bytes,
        }
    }
}

/// A live block: its id, and the index of the op that allocated it.
#[derive(Clone, Copy)]
struct Live {
    id: u64,
    op: u64,
}

/// Returns the private pools in the order of their names, each with the numbers of its streams.
fn pools(private: HashMap<(u64, (u64, u64)), u64>) -> Vec<PrivatePool> {
    let mut streams: Vec<((u64, u64), u64, u64)> =
        private.into_iter().map(|((stream, pool), number)| (pool, number, stream)).collect();
    streams.sort_unstable();
    let mut pools: Vec<PrivatePool> = Vec::new();
    for (id, number, stream) in streams {
        match pools.last_mut() {
            Some(pool) if pool.id == id => pool.streams.push((number, stream)),
            _ => pools.push(PrivatePool { id, streams: vec![(number, stream)] }),
        }
    }
    pools
}

/// The name of no pool in PyTorch.
const NO_POOL: (u64, u64) = (0, 0);
/// Numbers of streams in private pools begin here: addresses, which handles are, are below.
const PRIVATE: u64 = 1 << 63;
