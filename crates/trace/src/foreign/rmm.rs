//! RMM's log (`rmm.enable_logging`, `RMM_LOG_FILE`): a CSV file with the columns thread, time, action, pointer, size
//! and stream.

use super::super::error::excerpt;
use super::super::text::{Filler, reading_failed, unpack, without_mark};
use super::super::{Header, Limits, ReadError, ReadErrorKind, Trace};
use super::{Event, Events};
use std::io::{BufRead, Read};

/// The first line of every log.
pub const COLUMNS: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// Reads a log as a trace.
pub fn read(name: &str, file: impl Read, limits: Limits) -> Result<Trace, ReadError> {
    let whole = |kind| ReadError { line: 0, kind };
    let (mut source, gzip) = unpack(file).map_err(|error| whole(ReadErrorKind::Io(error)))?;
    let mut events = Events::default();
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
        // Concatenated logs of several processes repeat the first line.
        if row.is_empty() || row == COLUMNS {
            filler.count(line.len(), &limits).map_err(at)?;
            continue;
        }
        let event = parse(row).map_err(|reason| at(ReadErrorKind::BadRow { reason }))?;
        events.push(event, &limits).map_err(at)?;
    }
    let mut header = Header::default();
    header.note("made", "RMM log".into());
    events.into_trace(name, header, limits).map_err(whole)
}

fn parse(row: &str) -> Result<Event, String> {
    let fields: Vec<&str> = row.split(',').map(str::trim).collect();
    let [_thread, _time, action, pointer, size, stream] = fields[..] else {
        return Err(format!("{} fields instead of 6", fields.len()));
    };
    let bytes = size.parse().map_err(|_| format!("the size '{}' is not a whole number below 2^64", excerpt(size)))?;
    let addr = number(pointer).ok_or_else(|| format!("the pointer '{}' is not a number", excerpt(pointer)))?;
    let stream = number(stream).ok_or_else(|| format!("the stream '{}' is not a number", excerpt(stream)))?;
    // 1 is `cudaStreamLegacy`, another handle of the default stream.
    let stream = if stream == 1 { 0 } else { stream };
    match action {
        "allocate" => Ok(Event::Alloc { addr, bytes, stream, origin: 0 }),
        "free" | "deallocate" => Ok(Event::Free { addr, bytes, stream }),
        "allocate failure" => Ok(Event::Failed { bytes, stream, origin: 0 }),
        _ => Err(format!("the action '{}' is not one of allocate, free and allocate failure", excerpt(action))),
    }
}

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
