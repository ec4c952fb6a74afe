//! PyTorch's memory snapshot (`torch.cuda.memory._dump_snapshot`): converts the history of one device to a trace.
//!
//! If a snapshot has several devices, the one that ran out of memory is used unless another is asked for, or else the one
//! with most allocations and frees. Blocks are freed when the program requested it (`free_requested`), unless the free is completed
//! only after a request was refused: PyTorch waits for all streams before it refuses one, so such a block could not be had. The
//! origin of each allocation is the innermost frame of the program with PyTorch's operator, and annotations of the profiler become
//! marks.
//!
//! Sums that do not fit together, such as the segments of one pool beside the history of all, say that the list of segments is
//! incomplete: then nothing is concluded from it.

use super::super::text::unpack;
use super::super::{Header, Limits, ReadError, ReadErrorKind, Trace};
use super::entries::{Action, Entries};
use super::frames;
use super::layout::{Layout, Piece};
use super::pickle::{self, Kept, Key, Keys, Ref, Shortened, Value, Values};
use super::{Event, Events, LiveAtEnd, NO_POOL};
use crate::history::{RecordedAllocator, RecordedSettings};
use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};
use std::collections::BTreeMap;
use std::io::Read;

/// Reads a snapshot as a trace.
pub fn read(name: &str, file: impl Read + Send, device: Option<usize>, limits: Limits) -> Result<Trace, ReadError> {
    convert(name, file, device, limits).map_err(|kind| ReadError { line: 0, kind })
}

fn convert(name: &str, file: impl Read + Send, device: Option<usize>, limits: Limits) -> Result<Trace, ReadErrorKind> {
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
        .map(|(device, entries)| (device, Entries::new(&values, entries, key::ACTION)))
        .max_by_key(|(device, entries)| {
            (entries.has(Action::Oom), entries.requests(), entries.len(), std::cmp::Reverse(*device))
        })
        .ok_or_else(|| {
            wrong(
                "it has no history: call torch.cuda.memory._record_memory_history() at the start of the program, before \
                 _dump_snapshot()",
            )
        })?;
    let mut reader = Reader {
        values: &values,
        events: Events::default(),
        stacks: HashMap::new(),
        frames: HashMap::new(),
        private: BTreeMap::new(),
        late: LateFrees::of(&values, &entries),
        limits,
    };
    reader.private_segments(device, top);
    reader.history(device, top, &entries)?;
    reader.live_at_end(device, top);
    let mut header = Header::default();
    match reader.held(device, top, &entries) {
        Some(held) => {
            reader.events.held_at_start_bytes = Some(held.at_start);
            reader.events.held_at_most_bytes = Some(held.at_most);
            header.capacity_bytes = held.capacity;
            reader.events.taken_by_others = held.taken_by_others;
        }
        None => reader.events.contradictory = true,
    }
    if header.capacity_bytes.is_some() {
        reader.events.layout = reader.layout(device, top, &entries);
    }
    if let Some(capacity) = header.capacity_bytes {
        header.note("capacity_bytes", capacity.to_string());
    }
    if let Some(Value::Dict(_)) = values.field(top, key::ALLOCATOR_SETTINGS)
        && let Some(settings) = values.field_ref(top, key::ALLOCATOR_SETTINGS)
    {
        reader.events.settings = reader.settings(settings);
        reader.events.overflowed = matches!(values.field(settings, key::OVERFLOWED), Some(Value::Bool(true)));
    }
    header.note("made", "PyTorch memory snapshot".into());
    header.note("device", device.to_string());
    let allocator = reader.allocator(device, top, &entries);
    reader.events.into_trace(name, header, allocator, limits)
}

struct Reader<'a> {
    values: &'a Values,
    events: Events,
    /// The number of the place for each stack, which many entries share.
    stacks: HashMap<Shortened, u32>,
    /// The number of the text for each frame, which many stacks share.
    frames: HashMap<Ref, u32>,
    /// The segments of private pools at the end: by address, their end and the pool.
    private: BTreeMap<u64, (u64, (u64, u64))>,
    late: LateFrees,
    limits: Limits,
}

/// The memory that PyTorch held, in bytes.
struct Held {
    /// Before the first entry.
    at_start: u64,
    /// At most, as far as the entries say.
    at_most: u64,
    /// With what the device had free when it last ran out of memory, if it did.
    capacity: Option<u64>,
    /// How much more that was when it ran out of memory before.
    taken_by_others: u64,
}

/// The frees that were requested, but not completed when a request was next refused: the numbers of their entries.
#[derive(Default)]
struct LateFrees {
    requested: HashSet<usize>,
    completed: HashSet<usize>,
}

impl LateFrees {
    fn of(values: &Values, entries: &Entries<'_>) -> Self {
        let mut late = Self::default();
        if !entries.has(Action::Oom) {
            return late;
        }
        // By address: the entries of frees that no request was refused after, and the frees that are late.
        let mut requested: HashMap<u64, usize> = HashMap::new();
        let mut waiting: HashSet<u64> = HashSet::new();
        for (number, (action, entry)) in entries.iter().enumerate() {
            match (action, values.number(entry, key::ADDR)) {
                (Action::FreeRequested, Some(addr)) => {
                    requested.insert(addr, number);
                }
                (Action::FreeCompleted, Some(addr)) => {
                    requested.remove(&addr);
                    if waiting.remove(&addr) {
                        late.completed.insert(number);
                    }
                }
                (Action::Alloc, Some(addr)) => {
                    requested.remove(&addr);
                    waiting.remove(&addr);
                }
                (Action::Oom, _) => {
                    for (addr, number) in requested.drain() {
                        late.requested.insert(number);
                        waiting.insert(addr);
                    }
                }
                _ => {}
            }
        }
        late
    }
}

impl Reader<'_> {
    fn history(&mut self, device: usize, top: Ref, entries: &Entries<'_>) -> Result<(), ReadErrorKind> {
        let mut annotations = self.annotations(device, top);
        annotations.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        for (number, (action, entry)) in entries.iter().enumerate() {
            if !annotations.is_empty() {
                let time = self.values.number(entry, key::TIME_US).unwrap_or(0);
                while let Some((_, label)) = annotations.pop_if(|(at, _)| *at <= time) {
                    self.events.mark(label, &self.limits)?;
                }
            }
            self.entry(number, action, entry)?;
        }
        while let Some((_, label)) = annotations.pop() {
            self.events.mark(label, &self.limits)?;
        }
        Ok(())
    }

    fn entry(&mut self, number: usize, action: Action, entry: Ref) -> Result<(), ReadErrorKind> {
        let wrong = |reason: String| ReadErrorKind::NotASnapshot { reason: format!("entry {number}: {reason}") };
        match action {
            Action::Alloc | Action::FreeRequested | Action::Oom => {}
            // Most frees are completed at once, and have been seen before.
            Action::FreeCompleted if self.late.completed.contains(&number) => {}
            Action::UserDefined => return self.step(entry),
            Action::Missing => return Err(wrong("it has no 'action'".into())),
            _ => return Ok(()),
        }
        let field = |(name, key): (&str, Key)| {
            self.values.number(entry, key).ok_or_else(|| {
                let action = self.values.text(entry, key::ACTION).unwrap_or_default();
                wrong(format!("'{action}' without a number '{name}'"))
            })
        };
        let (bytes, stream) = (field(("size", key::SIZE))?, field(("stream", key::STREAM))?);
        let addr = || field(("addr", key::ADDR));
        let event = match action {
            Action::Alloc => {
                let addr = addr()?;
                Event::Alloc {
                    addr,
                    bytes,
                    stream: self.stream(entry, Some(addr), stream),
                    origin: self.origin(entry, key::FRAMES),
                }
            }
            Action::Oom => Event::Failed {
                bytes,
                stream: self.stream(entry, None, stream),
                origin: self.origin(entry, key::FRAMES),
            },
            _ => {
                let addr = addr()?;
                let stream = self.stream(entry, Some(addr), stream);
                if self.late.requested.contains(&number) {
                    Event::Waits { addr, bytes, stream }
                } else {
                    Event::Free { addr, bytes, stream }
                }
            }
        };
        self.events.push(event, &self.limits)
    }

    /// Returns the number of the stream, which is another one in each private pool.
    fn stream(&mut self, entry: Ref, addr: Option<u64>, stream: u64) -> u64 {
        let pool = self.pool(entry, key::POOL_ID).or_else(|| {
            let addr = addr?;
            let (_, (end, pool)) = self.private.range(..=addr).next_back()?;
            (addr < *end).then_some(*pool)
        });
        self.events.stream_of(stream, pool.unwrap_or(NO_POOL))
    }

    /// Returns the pool that a key names.
    fn pool(&self, dict: Ref, key: Key) -> Option<(u64, u64)> {
        let [first, second] = *self.values.list(dict, key)? else { return None };
        let number = |at| match self.values.get(at) {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::Large(number) => Some(number),
            _ => None,
        };
        Some((number(first)?, number(second)?))
    }

    /// Notes which addresses belong to private pools at the end: entries of older versions do not say.
    fn private_segments(&mut self, device: usize, top: Ref) {
        for &segment in self.segments(device, top).iter().take(self.limits.ops) {
            let Some(pool) = self.pool(segment, key::SEGMENT_POOL_ID).filter(|pool| *pool != NO_POOL) else { continue };
            let addr = self.values.number(segment, key::ADDRESS).unwrap_or(0);
            let bytes = self.values.number(segment, key::TOTAL_SIZE).unwrap_or(0);
            self.private.insert(addr, (addr.saturating_add(bytes), pool));
        }
    }

    /// Returns the segments of a device.
    fn segments(&self, device: usize, top: Ref) -> Vec<Ref> {
        let all = self.values.list(top, key::SEGMENTS).unwrap_or(&[]);
        let of_device =
            |segment: &&Ref| self.values.number(**segment, key::DEVICE).is_none_or(|number| number == device as u64);
        all.iter().filter(of_device).copied().collect()
    }

    /// Notes the end of an annotation that is among the entries, as PyTorch 2.4 writes them: a frame whose file is the
    /// annotation's name.
    fn step(&mut self, entry: Ref) -> Result<(), ReadErrorKind> {
        let Some(Shortened { item: frame, .. }) = self.values.shortened(entry, key::FRAMES) else { return Ok(()) };
        if self.values.text(frame, key::NAME) != Some("END") {
            return Ok(());
        }
        let label = label(self.values.text(frame, key::FILENAME).unwrap_or_default());
        self.events.mark(label, &self.limits)
    }

    /// Returns the number of the place that an entry or a block was allocated at.
    fn origin(&mut self, dict: Ref, key: Key) -> u32 {
        let Some(stack) = self.values.shortened(dict, key) else { return 0 };
        if let Some(known) = self.stacks.get(&stack) {
            return *known;
        }
        let whole = stack.whole.map_or(&[][..], |whole| self.values.whole(whole));
        let frames: Box<[u32]> = whole.iter().take(MOST_FRAMES).map(|frame| self.frame(*frame)).collect();
        let mut origin = self.describe_frame(stack.item);
        if let Some(inner) = whole.iter().position(|frame| *frame == stack.item)
            && let Some(operator) = frames::operator(whole[..inner].iter().map(|frame| self.name_and_file(*frame)))
        {
            origin = format!("{origin}, in {operator}");
        }
        let number = self.events.places.number(&origin, frames);
        self.stacks.insert(stack, number);
        number
    }

    /// Returns the number of the text that describes a frame.
    fn frame(&mut self, frame: Ref) -> u32 {
        if let Some(known) = self.frames.get(&frame) {
            return *known;
        }
        let number = self.events.places.text(&self.describe_frame(frame));
        self.frames.insert(frame, number);
        number
    }

    fn name_and_file(&self, frame: Ref) -> (&str, &str) {
        let text = |key| self.values.text(frame, key).unwrap_or("?");
        (text(key::NAME), text(key::FILENAME))
    }

    fn describe_frame(&self, frame: Ref) -> String {
        // The parts are cut first, since many frames may share one long text.
        let (name, file) = self.name_and_file(frame);
        let cut = |text: &str| text.chars().take(FRAME_CHARS).collect::<String>();
        let line = self.values.number(frame, key::LINE).unwrap_or(0);
        cut(&format!("{} ({}:{line})", cut(name), cut(file)))
    }

    /// Returns the ends of the profiler's annotations, each with its time and name.
    fn annotations(&self, device: usize, top: Ref) -> Vec<(u64, String)> {
        let Some(list) = self.values.list(top, key::EXTERNAL_ANNOTATIONS) else { return Vec::new() };
        list.iter()
            .filter(|entry| self.values.text(**entry, key::STAGE) == Some("END"))
            .filter(|entry| self.values.number(**entry, key::DEVICE).is_none_or(|number| number == device as u64))
            .filter_map(|entry| {
                let name = self.values.text(*entry, key::NAME)?;
                Some((self.values.number(*entry, key::TIME_US)?, label(name)))
            })
            .take(self.limits.ops.min(MOST_MARKS))
            .collect()
    }

    /// Returns what PyTorch held over time, or `None` if that comes out negative, so that segments are missing.
    fn held(&self, device: usize, top: Ref, entries: &Entries<'_>) -> Option<Held> {
        let values = self.values;
        let sizes =
            self.segments(device, top).into_iter().filter_map(|segment| values.number(segment, key::TOTAL_SIZE));
        let at_end = i128::from(sizes.fold(0, u64::saturating_add));
        let (mut held, mut most, mut least, mut capacity) = (at_end, at_end, at_end, None);
        let mut failure_seen = false;
        let mut most_capacity = 0;
        for (action, entry) in entries.iter().rev() {
            let bytes = || i128::from(values.number(entry, key::SIZE).unwrap_or(0));
            match action {
                Action::SegmentAlloc | Action::SegmentMap => held -= bytes(),
                Action::SegmentFree | Action::SegmentUnmap => held += bytes(),
                Action::Oom => {
                    let now = values.number(entry, key::DEVICE_FREE).map(|free| held + i128::from(free));
                    if !failure_seen {
                        (failure_seen, capacity) = (true, now);
                    }
                    most_capacity = most_capacity.max(now.unwrap_or(0));
                }
                _ => {}
            }
            (most, least) = (most.max(held), least.min(held));
        }
        if least < 0 {
            return None;
        }
        Some(Held {
            at_start: u64::try_from(held).unwrap_or(u64::MAX),
            at_most: u64::try_from(most).unwrap_or(u64::MAX),
            taken_by_others: capacity.map_or(0, |capacity| u64::try_from(most_capacity - capacity).unwrap_or(0)),
            capacity: capacity.and_then(|capacity| u64::try_from(capacity).ok()).filter(|capacity| *capacity > 0),
        })
    }

    /// Returns what PyTorch held, and where, when it last ran out of memory: what it held at the end, without what happened since.
    /// `None` if the entries do not fit together with what was held at the end.
    fn layout(&self, device: usize, top: Ref, entries: &Entries<'_>) -> Option<Layout> {
        let values = self.values;
        let mut layout = Layout::default();
        let mut left = self.limits.ops;
        for segment in self.segments(device, top) {
            let number = |key| values.number(segment, key);
            let start = number(key::ADDRESS)?;
            let piece = Piece {
                bytes: number(key::TOTAL_SIZE)?,
                stream: number(key::STREAM).unwrap_or(0),
                private: self.pool(segment, key::SEGMENT_POOL_ID).is_some_and(|pool| pool != NO_POOL),
                grows: matches!(values.field(segment, key::IS_EXPANDABLE), Some(Value::Bool(true))),
            };
            layout.hold(start, piece);
            let mut addr = start;
            for &block in values.list(segment, key::BLOCKS)? {
                left = left.checked_sub(1)?;
                let bytes = values.number(block, key::SIZE)?;
                addr = values.number(block, key::ADDRESS).unwrap_or(addr);
                match values.text(block, key::STATE)? {
                    "inactive" => {}
                    state => layout.block(addr, bytes, state != "active_allocated"),
                }
                addr = addr.saturating_add(bytes);
            }
        }
        for (action, entry) in entries.iter().rev() {
            let number = |key| values.number(entry, key);
            if action == Action::Oom {
                layout.device_free_bytes = number(key::DEVICE_FREE)?;
                return Some(layout);
            }
            let (Some(addr), Some(bytes)) = (number(key::ADDR), number(key::SIZE)) else { continue };
            let rounded = bytes.div_ceil(ROUNDING_BYTES).saturating_mul(ROUNDING_BYTES);
            match action {
                Action::Alloc => layout.drop_block(addr),
                Action::FreeCompleted => layout.block(addr, rounded, true),
                Action::FreeRequested => layout.block(addr, rounded, false),
                Action::SegmentAlloc | Action::SegmentMap => layout.drop_range(addr, bytes),
                Action::SegmentFree | Action::SegmentUnmap => {
                    let pool = self.pool(entry, key::POOL_ID);
                    let piece = Piece {
                        bytes,
                        stream: number(key::STREAM).unwrap_or(0),
                        private: pool.is_some_and(|pool| pool != NO_POOL),
                        grows: action == Action::SegmentUnmap,
                    };
                    layout.hold(addr, piece);
                }
                _ => {}
            }
        }
        None
    }

    /// Returns whose snapshot it is. gapless's plug-in names itself among the settings. Its allocator object has PyTorch's settings
    /// there, and memory that grows although these say that no segment does.
    fn allocator(&self, device: usize, top: Ref, entries: &Entries<'_>) -> RecordedAllocator {
        let values = self.values;
        let Some(settings) = values.field_ref(top, key::ALLOCATOR_SETTINGS) else { return RecordedAllocator::PyTorch };
        if values.text(settings, key::BACKEND) == Some("gapless") {
            return RecordedAllocator::Gapless;
        }
        let grows = |segment: &Ref| matches!(values.field(*segment, key::IS_EXPANDABLE), Some(Value::Bool(true)));
        let segments = self.segments(device, top);
        let is_off = matches!(values.field(settings, key::EXPANDABLE), Some(Value::Bool(false)));
        if is_off && !entries.has(Action::SegmentAlloc) && !segments.is_empty() && segments.iter().all(grows) {
            return RecordedAllocator::Gapless;
        }
        RecordedAllocator::PyTorch
    }

    /// Returns the settings that were on, unless they are the defaults.
    fn settings(&self, settings: Ref) -> Option<RecordedSettings> {
        let values = self.values;
        let text = values.text(settings, key::CONF).unwrap_or_default().chars().take(CONF_CHARS).collect::<String>();
        let mut found = RecordedSettings { text, ..RecordedSettings::default() };
        found.expandable_segments = matches!(values.field(settings, key::EXPANDABLE), Some(Value::Bool(true)));
        found.max_split_bytes = values.number(settings, key::MAX_SPLIT);
        found.garbage_collection_threshold = match values.field(settings, key::THRESHOLD) {
            Some(Value::Float(threshold)) if threshold > 0.0 => Some(threshold),
            _ => None,
        };
        (found != RecordedSettings::default()).then_some(found)
    }

    /// Collects the live blocks of the segments at the end, as far as the segments have all fields.
    fn live_at_end(&mut self, device: usize, top: Ref) {
        let values = self.values;
        self.events.lists_live = values.list(top, key::SEGMENTS).is_some();
        // In a malicious file, segments may share their blocks.
        let mut left = self.limits.ops;
        for segment in self.segments(device, top) {
            let stream = values.number(segment, key::STREAM).unwrap_or(0);
            let pool = self.pool(segment, key::SEGMENT_POOL_ID).unwrap_or(NO_POOL);
            let stream = self.events.stream_of(stream, pool);
            let mut addr = values.number(segment, key::ADDRESS).unwrap_or(0);
            for &block in values.list(segment, key::BLOCKS).unwrap_or(&[]) {
                let bytes = values.number(block, key::SIZE).unwrap_or(0);
                addr = values.number(block, key::ADDRESS).unwrap_or(addr);
                let Some(less) = left.checked_sub(1) else { return };
                left = less;
                if values.text(block, key::STATE) == Some("active_allocated") {
                    let requested = values.number(block, key::REQUESTED_SIZE).filter(|requested| *requested > 0);
                    let origin = self.origin(block, key::FRAMES);
                    self.events.live_at_end.push(LiveAtEnd { addr, bytes: requested.unwrap_or(bytes), stream, origin });
                }
                addr = addr.saturating_add(bytes);
            }
        }
    }
}

/// Returns the label of an annotation. It is cut, since many annotations may share one long text.
fn label(name: &str) -> String {
    name.chars().take(LABEL_CHARS).map(|char| if matches!(char, '\n' | '\r') { ' ' } else { char }).collect()
}

/// The parts of a snapshot that are kept. Of the frames of an entry that is one, and each different stack once, so that the stacks
/// of millions of entries take little memory.
const KEPT: Kept = Kept { keys: KEYS, shortened: Some((key::FRAMES, innermost)) };

/// Returns the innermost frame of the program, or else the innermost in Python, or else the innermost frame.
fn innermost(values: &Values, frames: &[Ref]) -> Option<Ref> {
    let file = |frame: &Ref| values.text(*frame, key::FILENAME).unwrap_or_default();
    let of_program = |frame: &&Ref| frames::is_python(file(frame)) && !frames::is_of_pytorch(file(frame));
    let of_python = |frame: &&Ref| frames::is_python(file(frame));
    frames.iter().find(of_program).or_else(|| frames.iter().find(of_python)).or_else(|| frames.first()).copied()
}

/// The keys of a snapshot's dictionaries that are read.
const KEYS: Keys = &[
    "PYTORCH_CUDA_ALLOC_CONF",
    "action",
    "addr",
    "address",
    "allocator_settings",
    "backend",
    "blocks",
    "device",
    "device_free",
    "device_traces",
    "expandable_segments",
    "external_annotations",
    "filename",
    "frames",
    "garbage_collection_threshold",
    "is_expandable",
    "line",
    "max_split_size",
    "name",
    "pool_id",
    "requested_size",
    "segment_pool_id",
    "segments",
    "size",
    "stage",
    "state",
    "stream",
    "time_us",
    "total_size",
    "trace_alloc_overflowed",
];

/// The numbers of the keys.
mod key {
    use super::{KEYS, Key};

    pub const ACTION: Key = Key::of(KEYS, "action");
    pub const ADDR: Key = Key::of(KEYS, "addr");
    pub const ADDRESS: Key = Key::of(KEYS, "address");
    pub const ALLOCATOR_SETTINGS: Key = Key::of(KEYS, "allocator_settings");
    pub const BACKEND: Key = Key::of(KEYS, "backend");
    pub const BLOCKS: Key = Key::of(KEYS, "blocks");
    pub const CONF: Key = Key::of(KEYS, "PYTORCH_CUDA_ALLOC_CONF");
    pub const DEVICE: Key = Key::of(KEYS, "device");
    pub const DEVICE_FREE: Key = Key::of(KEYS, "device_free");
    pub const DEVICE_TRACES: Key = Key::of(KEYS, "device_traces");
    pub const EXPANDABLE: Key = Key::of(KEYS, "expandable_segments");
    pub const EXTERNAL_ANNOTATIONS: Key = Key::of(KEYS, "external_annotations");
    pub const FILENAME: Key = Key::of(KEYS, "filename");
    pub const FRAMES: Key = Key::of(KEYS, "frames");
    pub const IS_EXPANDABLE: Key = Key::of(KEYS, "is_expandable");
    pub const LINE: Key = Key::of(KEYS, "line");
    pub const MAX_SPLIT: Key = Key::of(KEYS, "max_split_size");
    pub const NAME: Key = Key::of(KEYS, "name");
    pub const OVERFLOWED: Key = Key::of(KEYS, "trace_alloc_overflowed");
    pub const POOL_ID: Key = Key::of(KEYS, "pool_id");
    pub const REQUESTED_SIZE: Key = Key::of(KEYS, "requested_size");
    pub const SEGMENTS: Key = Key::of(KEYS, "segments");
    pub const SEGMENT_POOL_ID: Key = Key::of(KEYS, "segment_pool_id");
    pub const SIZE: Key = Key::of(KEYS, "size");
    pub const STAGE: Key = Key::of(KEYS, "stage");
    pub const STATE: Key = Key::of(KEYS, "state");
    pub const STREAM: Key = Key::of(KEYS, "stream");
    pub const THRESHOLD: Key = Key::of(KEYS, "garbage_collection_threshold");
    pub const TIME_US: Key = Key::of(KEYS, "time_us");
    pub const TOTAL_SIZE: Key = Key::of(KEYS, "total_size");
}

/// Maximum length of a frame in characters; longer ones are cut.
const FRAME_CHARS: usize = 200;
/// Most frames of a stack that are kept, the innermost first.
const MOST_FRAMES: usize = 128;
/// Maximum length of a label in characters; longer ones are cut.
const LABEL_CHARS: usize = 200;
/// Maximum length of recorded settings in characters; longer ones are cut.
const CONF_CHARS: usize = 1000;
/// PyTorch rounds the size of every block up to a multiple of this.
const ROUNDING_BYTES: u64 = 512;
/// Most devices that an error names.
const MOST_DEVICES_NAMED: usize = 16;
/// Maximum number of annotations that become marks.
const MOST_MARKS: usize = 1 << 16;
