//! RMM's log (`rmm.enable_logging`, `RMM_LOG_FILE`): a CSV file with the columns thread, time, action, pointer, size
//! and stream, found by their names.
//!
//! Several logs, one after the other, are those of one process after the other: each begins with the columns.
//!
//! Streams are numbered by what they are, not by their handles: the default stream of a thread has the same handle on each. A log
//! does not say when a stream is destroyed, so one that gets the handle of another counts as the same stream. RMM's own pools look
//! at the handle alone, too: what the first one freed serves the second.

use super::super::error::excerpt;
use super::super::text::{Filler, is_line, reading_failed, unpack, without_mark};
use super::super::{Header, Limits, ReadError, ReadErrorKind, RecordedAllocator, Trace};
use super::{Event, Events};
use std::collections::HashMap;
use std::io::{BufRead, Read};

/// Whether a file begins as a log does. A line of the text format, which may have any label or tag, is no header.
pub fn is_log(start: &[u8]) -> bool {
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    std::str::from_utf8(line).is_ok_and(|line| !is_line(line.trim()) && Columns::of(&fields(line)).is_some())
}

/// Where the columns of a log are. Logs of 2020 have no thread, and tables that were saved by pandas have a column more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Columns {
    count: usize,
    thread: Option<usize>,
    action: usize,
    pointer: usize,
    size: usize,
    stream: usize,
}

impl Columns {
    /// Returns the columns that a row names, if it is the first one of a log.
    fn of(names: &[&str]) -> Option<Self> {
        let column = |name| names.iter().position(|known| *known == name);
        Some(Self {
            count: names.len(),
            thread: column("Thread"),
            action: column("Action")?,
            pointer: column("Pointer")?,
            size: column("Size")?,
            stream: column("Stream")?,
        })
    }
}

/// Reads a log as a trace.
pub fn read(name: &str, file: impl Read + Send, limits: Limits) -> Result<Trace, ReadError> {
    let whole = |kind| ReadError { line: 0, kind };
    let (mut source, gzip) = unpack(file).map_err(|error| whole(ReadErrorKind::Io(error)))?;
    let (mut events, mut streams) = (Events::default(), Streams::default());
    let mut columns = None;
    let (mut line, mut filler) = (Vec::new(), Filler::default());
    let most = u64::try_from(limits.line_bytes).unwrap_or(u64::MAX).saturating_add(1);
    for number in 1.. {
        let at = |kind| ReadError { line: number, kind };
        line.clear();
        let read = source.by_ref().take(most).read_until(b'\n', &mut line);
        if read.map_err(|error| at(reading_failed(error, gzip)))? == 0 {
            break;
        }
        if line.len() as u64 == most && line.last() != Some(&b'\n') {
            return Err(at(ReadErrorKind::LineTooLong { limit: limits.line_bytes }));
        }
        let row = std::str::from_utf8(&line).map_err(|_| at(ReadErrorKind::NotUtf8))?;
        let row = if number == 1 { without_mark(row) } else { row }.trim();
        if row.is_empty() {
            filler.count(line.len(), &limits).map_err(at)?;
            continue;
        }
        let fields = fields(row);
        if let Some(named) = Columns::of(&fields) {
            filler.count(line.len(), &limits).map_err(at)?;
            columns = Some(named);
            streams.forget();
            if !events.events.is_empty() {
                events.push(Event::End, &limits).map_err(at)?;
            }
            continue;
        }
        let columns =
            columns.ok_or_else(|| at(ReadErrorKind::BadRow { reason: "no columns are named before it".into() }))?;
        let event = parse(&fields, columns, &mut streams).map_err(|reason| at(ReadErrorKind::BadRow { reason }))?;
        events.push(event, &limits).map_err(at)?;
    }
    let mut header = Header::default();
    header.note("made", "RMM log".into());
    events.into_trace(name, header, RecordedAllocator::Rmm, limits).map_err(whole)
}

/// Returns the fields of a row.
fn fields(row: &str) -> Vec<&str> {
    row.split(',').map(str::trim).collect()
}

fn parse(fields: &[&str], columns: Columns, streams: &mut Streams) -> Result<Event, String> {
    if fields.len() != columns.count {
        return Err(format!("{} fields instead of {}", fields.len(), columns.count));
    }
    let thread = columns.thread.map_or("", |thread| fields[thread]);
    let [action, pointer, size, stream] =
        [columns.action, columns.pointer, columns.size, columns.stream].map(|column| fields[column]);
    let bytes = size.parse().map_err(|_| format!("the size '{}' is not a whole number below 2^64", excerpt(size)))?;
    let addr = number(pointer).ok_or_else(|| format!("the pointer '{}' is not a number", excerpt(pointer)))?;
    let stream = number(stream).ok_or_else(|| format!("the stream '{}' is not a number", excerpt(stream)))?;
    let stream = streams.number(stream, thread);
    match action {
        "allocate" => Ok(Event::Alloc { addr, bytes, stream, origin: 0 }),
        "free" | "deallocate" => Ok(Event::Free { addr, bytes, stream }),
        "allocate failure" => Ok(Event::Failed { bytes, stream, origin: 0 }),
        _ => Err(format!("the action '{}' is not one of allocate, free and allocate failure", excerpt(action))),
    }
}

/// The streams of a log, in the order in which they first appear. The default stream is 0.
#[derive(Debug, Default)]
struct Streams {
    /// By handle, and by thread for the default streams of threads.
    numbers: HashMap<(u64, Box<str>), u64>,
    /// The number of the last one.
    last: u64,
}

impl Streams {
    fn number(&mut self, handle: u64, thread: &str) -> u64 {
        let thread = match handle {
            0 | LEGACY => return 0,
            PER_THREAD => thread,
            _ => "",
        };
        *self.numbers.entry((handle, thread.into())).or_insert_with(|| {
            self.last += 1;
            self.last
        })
    }

    /// The process is another one.
    fn forget(&mut self) {
        self.numbers.clear();
    }
}

/// `cudaStreamLegacy`, another handle of the default stream.
const LEGACY: u64 = 1;
/// `cudaStreamPerThread`: the default stream of the thread that names it.
const PER_THREAD: u64 = 2;

/// Parses a pointer as C libraries print it.
fn number(text: &str) -> Option<u64> {
    match text {
        "(nil)" => Some(0),
        _ => match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
    }
}
