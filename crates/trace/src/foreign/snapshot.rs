//! PyTorch's memory snapshot (`torch.cuda.memory._dump_snapshot`): converts the history of one device to a trace.
//!
//! If a snapshot has several devices, the one that ran out of memory is used unless another is asked for, or else the one
//! with the longest history. Blocks are freed when the program
//! requested it (`free_requested`), not when PyTorch completed the free. The innermost frame of each allocation is kept
//! as its origin, and annotations of the profiler become marks.

use super::super::text::unpack;
use super::super::{Header, Limits, ReadError, ReadErrorKind, Trace};
use super::pickle::{self, Kept, Key, Keys, Ref, Value, Values};
use super::{Event, Events};
use std::collections::HashMap;
use std::io::Read;

/// Reads a snapshot as a trace.
pub fn read(name: &str, file: impl Read, device: Option<usize>, limits: Limits) -> Result<Trace, ReadError> {
    convert(name, file, device, limits).map_err(|kind| ReadError { line: 0, kind })
}

fn convert(name: &str, file: impl Read, device: Option<usize>, limits: Limits) -> Result<Trace, ReadErrorKind> {
    let (source, gzip) = unpack(file).map_err(ReadErrorKind::Io)?;
    let (values, top) = pickle::read(source, gzip, KEPT)?;
    let wrong = |reason: &str| ReadErrorKind::NotASnapshot { reason: reason.to_owned() };
    if !matches!(values.get(top), Value::Dict(_)) {
        return Err(wrong(&format!("it is {}", values.describe(top))));
    }
    let traces = values.list(top, key::DEVICE_TRACES).ok_or_else(|| wrong("it has no key 'device_traces'"))?;
    let history = |at: Ref| match values.get(at) {
        Value::List(entries) => values.items(entries),
        _ => &[],
    };
    let failed = |entries: &[Ref]| entries.iter().any(|entry| values.text(*entry, key::ACTION) == Some("oom"));
    let with_history: Vec<(usize, &[Ref])> =
        traces.iter().map(|trace| history(*trace)).enumerate().filter(|(_, entries)| !entries.is_empty()).collect();
    if let Some(wanted) = device
        && !with_history.is_empty()
        && !with_history.iter().any(|(device, _)| *device == wanted)
    {
        let devices: Vec<String> =
            with_history.iter().take(MOST_DEVICES_NAMED).map(|(device, _)| device.to_string()).collect();
        return Err(wrong(&format!("it has no history of device {wanted}, only of {}", devices.join(", "))));
    }
    let (device, entries) = with_history
        .into_iter()
        .filter(|(number, _)| device.is_none_or(|wanted| wanted == *number))
        .max_by_key(|(device, entries)| (failed(entries), entries.len(), std::cmp::Reverse(*device)))
        .ok_or_else(|| {
            wrong(
                "it has no history: call torch.cuda.memory._record_memory_history() at the start of the program, before \
                 _dump_snapshot()",
            )
        })?;
    let mut reader = Reader { values: &values, events: Events::default(), frames: HashMap::new(), limits };
    reader.history(device, top, entries)?;
    reader.live_at_end(device, top);
    reader.events.held_at_start_bytes = Some(reader.held_at_start(device, top, entries));
    let mut header = Header::default();
    header.capacity_bytes = reader.capacity(device, top, entries);
    if let Some(capacity) = header.capacity_bytes {
        header.note("capacity_bytes", capacity.to_string());
    }
    header.note("made", "PyTorch memory snapshot".into());
    header.note("device", device.to_string());
    reader.events.into_trace(name, header, limits)
}

struct Reader<'a> {
    values: &'a Values,
    events: Events,
    /// The number of the origin for each frame, which many entries share.
    frames: HashMap<Ref, u32>,
    limits: Limits,
}

impl Reader<'_> {
    fn history(&mut self, device: usize, top: Ref, entries: &[Ref]) -> Result<(), ReadErrorKind> {
        let mut annotations = self.annotations(device, top);
        annotations.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        for (number, &entry) in entries.iter().enumerate() {
            let time = self.values.number(entry, key::TIME_US).unwrap_or(0);
            while annotations.last().is_some_and(|(at, _)| *at <= time) {
                if let Some((_, label)) = annotations.pop() {
                    self.events.mark(label, &self.limits)?;
                }
            }
            self.entry(number, entry)?;
        }
        while let Some((_, label)) = annotations.pop() {
            self.events.mark(label, &self.limits)?;
        }
        Ok(())
    }

    fn entry(&mut self, number: usize, entry: Ref) -> Result<(), ReadErrorKind> {
        let wrong = |reason: String| ReadErrorKind::NotASnapshot { reason: format!("entry {number}: {reason}") };
        let action = self.values.text(entry, key::ACTION).ok_or_else(|| wrong("it has no 'action'".into()))?;
        if !matches!(action, "alloc" | "free_requested" | "oom") {
            return Ok(());
        }
        let field = |(name, key): (&str, Key)| {
            self.values.number(entry, key).ok_or_else(|| wrong(format!("'{action}' without a number '{name}'")))
        };
        let (bytes, stream) = (field(("size", key::SIZE))?, field(("stream", key::STREAM))?);
        let addr = || field(("addr", key::ADDR));
        let event = match action {
            "alloc" => Event::Alloc { addr: addr()?, bytes, stream, origin: self.origin(entry) },
            "oom" => Event::Failed { bytes, stream, origin: self.origin(entry) },
            _ => Event::Free { addr: addr()?, bytes, stream },
        };
        self.events.push(event, &self.limits)
    }

    /// Returns the number of the entry's origin: the innermost frame in Python, or else the innermost frame.
    fn origin(&mut self, entry: Ref) -> u32 {
        let Some(frame) = self.values.shortened(entry, key::FRAMES) else { return 0 };
        if let Some(known) = self.frames.get(&frame) {
            return *known;
        }
        let number = self.events.origins.number(&self.describe_frame(frame));
        self.frames.insert(frame, number);
        number
    }

    fn describe_frame(&self, frame: Ref) -> String {
        // The parts are cut first, since many frames may share one long text.
        let text = |key| self.values.text(frame, key).unwrap_or("?").chars().take(ORIGIN_CHARS).collect::<String>();
        let line = self.values.number(frame, key::LINE).unwrap_or(0);
        format!("{} ({}:{line})", text(key::NAME), text(key::FILENAME)).chars().take(ORIGIN_CHARS).collect()
    }

    /// Returns the ends of the profiler's annotations, each with its time and name.
    fn annotations(&self, device: usize, top: Ref) -> Vec<(u64, String)> {
        let Some(list) = self.values.list(top, key::EXTERNAL_ANNOTATIONS) else { return Vec::new() };
        list.iter()
            .filter(|entry| self.values.text(**entry, key::STAGE) == Some("END"))
            .filter(|entry| self.values.number(**entry, key::DEVICE).is_none_or(|number| number == device as u64))
            .filter_map(|entry| {
                // The name is cut, since many annotations may share one long text.
                let name = self.values.text(*entry, key::NAME)?.chars().take(LABEL_CHARS);
                let name = name.map(|char| if matches!(char, '\n' | '\r') { ' ' } else { char }).collect();
                Some((self.values.number(*entry, key::TIME_US)?, name))
            })
            .take(self.limits.ops.min(MOST_MARKS))
            .collect()
    }

    /// Returns the memory available to PyTorch in bytes when it last ran out: what it held, and what the device had
    /// free.
    fn capacity(&self, device: usize, top: Ref, entries: &[Ref]) -> Option<u64> {
        let values = self.values;
        let mut held = i128::from(self.held_at_end(device, top));
        for &entry in entries.iter().rev() {
            let bytes = i128::from(values.number(entry, key::SIZE).unwrap_or(0));
            match values.text(entry, key::ACTION) {
                Some("segment_alloc" | "segment_map") => held -= bytes,
                Some("segment_free" | "segment_unmap") => held += bytes,
                Some("oom") => {
                    let free = i128::from(values.number(entry, key::DEVICE_FREE)?);
                    return u64::try_from(held + free).ok().filter(|capacity| *capacity > 0);
                }
                _ => {}
            }
        }
        None
    }

    /// Returns the size of the segments at the end in bytes.
    fn held_at_end(&self, device: usize, top: Ref) -> u64 {
        let values = self.values;
        values
            .list(top, key::SEGMENTS)
            .unwrap_or(&[])
            .iter()
            .filter(|segment| values.number(**segment, key::DEVICE).is_none_or(|number| number == device as u64))
            .filter_map(|segment| values.number(*segment, key::TOTAL_SIZE))
            .fold(0, u64::saturating_add)
    }

    /// Returns what PyTorch held before the first entry, in bytes: what it held at the end, without what the entries changed.
    fn held_at_start(&self, device: usize, top: Ref, entries: &[Ref]) -> u64 {
        let mut held = i128::from(self.held_at_end(device, top));
        for &entry in entries {
            let bytes = i128::from(self.values.number(entry, key::SIZE).unwrap_or(0));
            match self.values.text(entry, key::ACTION) {
                Some("segment_alloc" | "segment_map") => held -= bytes,
                Some("segment_free" | "segment_unmap") => held += bytes,
                _ => {}
            }
        }
        u64::try_from(held.max(0)).unwrap_or(u64::MAX)
    }

    /// Collects the live blocks of the segments at the end, as far as the segments have all fields.
    fn live_at_end(&mut self, device: usize, top: Ref) {
        let values = self.values;
        // In a malicious file, segments may share their blocks.
        let mut left = self.limits.ops;
        for &segment in values.list(top, key::SEGMENTS).unwrap_or(&[]) {
            if values.number(segment, key::DEVICE).is_some_and(|number| number != device as u64) {
                continue;
            }
            let stream = values.number(segment, key::STREAM).unwrap_or(0);
            self.events.lists_live = true;
            let mut addr = values.number(segment, key::ADDRESS).unwrap_or(0);
            for &block in values.list(segment, key::BLOCKS).unwrap_or(&[]) {
                let bytes = values.number(block, key::SIZE).unwrap_or(0);
                addr = values.number(block, key::ADDRESS).unwrap_or(addr);
                let Some(less) = left.checked_sub(1) else { return };
                left = less;
                if values.text(block, key::STATE) == Some("active_allocated") {
                    let requested = values.number(block, key::REQUESTED_SIZE).filter(|requested| *requested > 0);
                    self.events.live_at_end.push((addr, requested.unwrap_or(bytes), stream));
                }
                addr = addr.saturating_add(bytes);
            }
        }
    }
}

/// What is kept of a snapshot. Of the frames of an entry that is one, so that the stacks of millions of entries take no memory.
const KEPT: Kept = Kept { keys: KEYS, shortened: Some((key::FRAMES, innermost)) };

/// Returns the innermost frame in Python, or else the innermost frame.
fn innermost(values: &Values, frames: &[Ref]) -> Option<Ref> {
    let of_python = |frame: &&Ref| values.text(**frame, key::FILENAME).is_some_and(|file| file.ends_with(".py"));
    frames.iter().find(of_python).or_else(|| frames.first()).copied()
}

/// The keys of a snapshot's dictionaries that are read.
const KEYS: Keys = &[
    "action",
    "addr",
    "address",
    "blocks",
    "device",
    "device_free",
    "device_traces",
    "external_annotations",
    "filename",
    "frames",
    "line",
    "name",
    "requested_size",
    "segments",
    "size",
    "stage",
    "state",
    "stream",
    "time_us",
    "total_size",
];

/// The numbers of the keys.
mod key {
    use super::{KEYS, Key};

    pub const ACTION: Key = Key::of(KEYS, "action");
    pub const ADDR: Key = Key::of(KEYS, "addr");
    pub const ADDRESS: Key = Key::of(KEYS, "address");
    pub const BLOCKS: Key = Key::of(KEYS, "blocks");
    pub const DEVICE: Key = Key::of(KEYS, "device");
    pub const DEVICE_FREE: Key = Key::of(KEYS, "device_free");
    pub const DEVICE_TRACES: Key = Key::of(KEYS, "device_traces");
    pub const EXTERNAL_ANNOTATIONS: Key = Key::of(KEYS, "external_annotations");
    pub const FILENAME: Key = Key::of(KEYS, "filename");
    pub const FRAMES: Key = Key::of(KEYS, "frames");
    pub const LINE: Key = Key::of(KEYS, "line");
    pub const NAME: Key = Key::of(KEYS, "name");
    pub const REQUESTED_SIZE: Key = Key::of(KEYS, "requested_size");
    pub const SEGMENTS: Key = Key::of(KEYS, "segments");
    pub const SIZE: Key = Key::of(KEYS, "size");
    pub const STAGE: Key = Key::of(KEYS, "stage");
    pub const STATE: Key = Key::of(KEYS, "state");
    pub const STREAM: Key = Key::of(KEYS, "stream");
    pub const TIME_US: Key = Key::of(KEYS, "time_us");
    pub const TOTAL_SIZE: Key = Key::of(KEYS, "total_size");
}

/// Maximum length of an origin in characters; longer ones are cut.
const ORIGIN_CHARS: usize = 200;
/// Maximum length of a label in characters; longer ones are cut.
const LABEL_CHARS: usize = 200;
/// Most devices that an error names.
const MOST_DEVICES_NAMED: usize = 16;
/// Maximum number of annotations that become marks.
const MOST_MARKS: usize = 1 << 16;
