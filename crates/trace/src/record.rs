//! Recorder: writes the allocations and frees of a running program as a trace.
//!
//! - I1  an id is used once; blocks allocated before the recording began do not appear, and neither do their frees.
//! - I2  a free is written before the memory can be allocated again: call [`Recorder::free`] before the allocator's.
//!
//! Streams are numbered in the order in which they first appear; the default stream is 0. A handle does not say which stream it
//! is: its value is used again once its stream has been destroyed, and one value is a stream of its own on every thread. So a
//! stream is known by its key and number ([`RecordedStream`]). Times since the start are
//! written as comment lines, `# at MICROSECONDS`: one before the first op, and one whenever [`TIME_STEP`] has passed
//! since the last one.
//!
//! A tag is any text in the program and one short word in the file ([`Words`]).
//!
//! Threads: any; one lock. Cost: a line of text per op, written through a buffer.

use crate::op::{MOST_TAG_BYTES, MOST_TAGS};
use crate::{Compression, Content, TextWriter, TraceOp};
use gapless::units::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// A stream, as the driver identifies it (`StreamIdentity`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedStream {
    /// The key under which the driver files the stream.
    pub key: StreamId,
    /// The number that no other stream of the process has. `None` where the driver did not report it: the stream is the last one
    /// that was recorded under its key.
    pub number: Option<u64>,
}

/// Writes a trace while a program runs.
pub struct Recorder<W: Write> {
    state: Mutex<State<W>>,
}

impl<W: Write> fmt::Debug for Recorder<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

struct State<W: Write> {
    writer: TextWriter<W>,
    start: Instant,
    written_time: Option<Duration>,
    live: HashMap<DeviceAddr, u64>,
    next_id: u64,
    /// By key, the last stream: its number if that is known, and its number in the trace.
    streams: HashMap<StreamId, (Option<u64>, u64)>,
    next_stream: u64,
    words: Words,
    failed: Option<io::Error>,
}

/// The words for tags, each of which stands for one tag.
#[derive(Default)]
struct Words {
    /// `None` for a tag that came when the file had as many as it can have.
    by_tag: HashMap<Box<str>, Option<Box<str>>>,
    given: HashSet<Box<str>>,
}

impl Words {
    /// The word for a tag. White space, and the `/` behind the name of a process, become `_`.
    fn of(&mut self, tag: &str) -> Option<Box<str>> {
        if let Some(known) = self.by_tag.get(tag) {
            return known.clone();
        }
        let word = if self.given.len() < MOST_TAGS { Some(self.new_word(tag)) } else { None };
        self.given.extend(word.clone());
        self.by_tag.insert(tag.into(), word.clone());
        word
    }

    fn new_word(&self, tag: &str) -> Box<str> {
        let begins_well = tag.starts_with(|first: char| !first.is_ascii_digit() && first != '*');
        let mut word = String::from(if begins_well { "" } else { "_" });
        for letter in tag.chars().map(|letter| if letter.is_whitespace() || letter == '/' { '_' } else { letter }) {
            if word.len() + letter.len_utf8() > MOST_TAG_BYTES - NUMBER_BYTES {
                break;
            }
            word.push(letter);
        }
        let free = |candidate: &String| !self.given.contains(candidate.as_str());
        let numbered = (2..).map(|number| format!("{word}_{number}"));
        std::iter::once(word.clone()).chain(numbered).find(free).unwrap_or_default().into()
    }
}

/// Room in a word for a number that sets it apart from another one.
const NUMBER_BYTES: usize = 4;

impl<W: Write> Recorder<W> {
    /// Starts a recording that is written to `target`, beginning with the `header` lines.
    ///
    /// # Errors
    /// Returns the errors of [`TextWriter::header`].
    pub fn new(target: W, compression: Compression, header: &[(&str, &str)]) -> io::Result<Self> {
        let mut writer = TextWriter::new(target, compression);
        for (key, value) in header {
            writer.header(key, value)?;
        }
        let streams = HashMap::from([(StreamId::DEFAULT, (None, 0))]);
        let state = State {
            writer,
            start: Instant::now(),
            written_time: None,
            live: HashMap::new(),
            next_id: 1,
            streams,
            next_stream: 1,
            words: Words::default(),
            failed: None,
        };
        Ok(Self { state: Mutex::new(state) })
    }

    /// Records a successful allocation of `bytes` bytes at `addr`, with the tag of the memory that sleeps with it.
    pub fn alloc(&self, addr: DeviceAddr, bytes: u64, stream: RecordedStream, tag: Option<&str>) {
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        // If the address is live, its free was not recorded. The block gets a new id.
        if let Some(lost) = state.live.insert(addr, id) {
            state.write(&TraceOp::Free { id: lost });
        }
        let stream = state.number_of(stream);
        let tag = tag.and_then(|tag| state.words.of(tag));
        state.write(&TraceOp::Alloc { id, bytes, stream, tag });
    }

    /// Records that a request for `bytes` bytes was refused, since memory was short.
    pub fn refused(&self, bytes: u64, stream: RecordedStream) {
        let mut state = self.state.lock();
        let stream = state.number_of(stream);
        state.write(&TraceOp::Refused { bytes, stream });
    }

    /// Records that the allocation at `addr` is about to be freed. Does nothing if its allocation was not recorded.
    pub fn free(&self, addr: DeviceAddr) {
        let mut state = self.state.lock();
        if let Some(id) = state.live.remove(&addr) {
            state.write(&TraceOp::Free { id });
        }
    }

    /// Records that what is live of a tag, or with `None` all memory, fell asleep.
    pub fn sleep(&self, tag: Option<&str>, content: Content) {
        self.state.lock().write_of(tag, |tag| TraceOp::Sleep { tag, content });
    }

    /// Records that what is asleep of a tag, or with `None` of all memory, woke.
    pub fn wake(&self, tag: Option<&str>) {
        self.state.lock().write_of(tag, |tag| TraceOp::Wake { tag });
    }

    /// Records the end of a step of the program. Line breaks in the label become spaces.
    pub fn mark(&self, label: &str) {
        let label = label.replace(['\n', '\r'], " ");
        self.state.lock().write(&TraceOp::Mark(label));
    }

    /// Completes the file and returns the target.
    ///
    /// # Errors
    /// Returns the first error of writing since the start of the recording.
    pub fn finish(self) -> io::Result<W> {
        let state = self.state.into_inner();
        match state.failed {
            Some(error) => Err(error),
            None => state.writer.finish(),
        }
    }
}

impl<W: Write> State<W> {
    /// Returns the number that a stream has in the trace.
    fn number_of(&mut self, stream: RecordedStream) -> u64 {
        if let Some((number, known)) = self.streams.get_mut(&stream.key)
            && (stream.key == StreamId::DEFAULT
                || stream.number.is_none()
                || number.is_none()
                || *number == stream.number)
        {
            *number = stream.number.or(*number);
            return *known;
        }
        let new = self.next_stream;
        self.next_stream += 1;
        self.streams.insert(stream.key, (stream.number, new));
        new
    }

    /// Writes an op of a tag, or of all memory. Of a tag without a word there is nothing in the file.
    fn write_of(&mut self, tag: Option<&str>, op: impl FnOnce(Option<Box<str>>) -> TraceOp) {
        let word = tag.and_then(|tag| self.words.of(tag));
        if tag.is_none() || word.is_some() {
            self.write(&op(word));
        }
    }

    /// Writes an op. After an error nothing more is written, and the recorded program continues.
    fn write(&mut self, op: &TraceOp) {
        if self.failed.is_some() {
            return;
        }
        self.failed = self.try_write(op).err();
    }

    fn try_write(&mut self, op: &TraceOp) -> io::Result<()> {
        let now = self.start.elapsed();
        if self.written_time.is_none_or(|written| now - written >= TIME_STEP) {
            self.writer.comment(&format!("at {}", now.as_micros()))?;
            self.written_time = Some(now);
        }
        self.writer.op(op)
    }
}

/// Minimum time between two lines with the time.
const TIME_STEP: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FailedRequest, Op, Tags, Trace};

    #[test]
    fn a_recording_reads_back_as_a_trace() {
        let recorder = Recorder::new(Vec::new(), Compression::Gzip, &[("made", "by a test")]).unwrap();
        let (one, two) = (DeviceAddr(0x1000), DeviceAddr(0x2000));
        recorder.free(two);
        recorder.alloc(one, 100, numbered(77, 5), None);
        recorder.alloc(two, 200, numbered(0, 1), None);
        recorder.free(one);
        recorder.mark("step\n1");
        recorder.alloc(one, 300, numbered(77, 5), None);
        recorder.refused(1 << 40, numbered(77, 5));
        let trace = Trace::read("t", &recorder.finish().unwrap()[..]).unwrap();
        assert_eq!(trace.streams(), [1, 0]);
        assert_eq!(trace.labels().collect::<Vec<_>>(), ["step 1"]);
        assert_eq!(trace.peak_live_bytes(), 500);
        assert_eq!(trace.ops().iter().filter(|op| matches!(op, Op::Free { .. })).count(), 1);
        assert_eq!(trace.header().value("made"), Some("by a test"));
        assert_eq!(trace.failed_request(), Some(FailedRequest { op_index: 5, bytes: 1 << 40 }));
    }

    #[test]
    fn every_tag_has_a_word_of_its_own() {
        let recorder = Recorder::new(Vec::new(), Compression::Plain, &[]).unwrap();
        let long = "é".repeat(100);
        let tags = ["kv", "my cache", "my_cache", "my/cache", "2nd", "*", "", &long, &format!("{long}!"), "kv"];
        for (at, tag) in (1..).zip(tags) {
            recorder.alloc(DeviceAddr(at << 20), 100, numbered(0, 0), Some(tag));
        }
        recorder.sleep(Some("my_cache"), Content::Discard);
        recorder.sleep(None, Content::Keep);
        recorder.wake(Some("my cache"));
        recorder.wake(None);
        let trace = Trace::read("t", &recorder.finish().unwrap()[..]).unwrap();
        let cut = "é".repeat(48);
        let words = ["kv", "my_cache", "my_cache_2", "my_cache_3", "_2nd", "_*", "_", &cut, &format!("{cut}_2")]
            .map(String::from);
        assert_eq!(trace.tags().collect::<Vec<_>>(), words);
        assert_eq!(
            trace.ops()[10..],
            [
                Op::Sleep { tags: Tags::One(3), content: Content::Discard },
                Op::Sleep { tags: Tags::All, content: Content::Keep },
                Op::Wake { tags: Tags::One(2) },
                Op::Wake { tags: Tags::All },
            ]
        );
    }

    #[test]
    fn more_tags_than_a_file_has_are_left_out() {
        let recorder = Recorder::new(Vec::new(), Compression::Plain, &[]).unwrap();
        for number in 0..300 {
            recorder.alloc(DeviceAddr(number << 20), 100, numbered(0, 0), Some(&format!("tag{number}")));
            recorder.sleep(Some(&format!("tag{number}")), Content::Keep);
        }
        let trace = Trace::read("t", &recorder.finish().unwrap()[..]).unwrap();
        assert_eq!((trace.tags().len(), trace.ops().len()), (255, 300 + 255));
    }

    #[test]
    fn streams_are_told_apart_by_what_they_are_not_by_their_handle() {
        let recorder = Recorder::new(Vec::new(), Compression::Plain, &[]).unwrap();
        let during_capture = |key| RecordedStream { number: None, ..numbered(key, 0) };
        let streams = [
            numbered(0, 0),
            // The default streams of two threads.
            numbered(1 << 63 | 1, 21),
            numbered(1 << 63 | 2, 22),
            // A handle whose stream was destroyed, and that another stream has now.
            numbered(0x50, 30),
            numbered(0x50, 31),
            // The driver does not report it, or the allocator has named the default stream otherwise.
            during_capture(0x50),
            during_capture(0x60),
            numbered(0x60, 40),
            numbered(0, 7),
        ];
        for (at, stream) in (1..).zip(streams) {
            recorder.alloc(DeviceAddr(at << 20), 1, stream, None);
        }
        let trace = Trace::read("t", &recorder.finish().unwrap()[..]).unwrap();
        let of_op =
            |op: &Op| if let Op::Alloc { stream, .. } = *op { trace.streams()[usize::from(stream)] } else { 99 };
        assert_eq!(trace.ops().iter().map(of_op).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 4, 5, 5, 0]);
    }

    fn numbered(key: u64, number: u64) -> RecordedStream {
        // SAFETY: no driver gets it.
        let key = unsafe { StreamId::from_raw(key) };
        RecordedStream { key, number: Some(number) }
    }

    #[test]
    fn finish_returns_the_error_of_a_full_disk() {
        #[derive(Debug)]
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let recorder = Recorder::new(Full, Compression::Plain, &[]).unwrap();
        recorder.alloc(DeviceAddr(1), 1, numbered(0, 0), None);
        recorder.free(DeviceAddr(1));
        assert_eq!(recorder.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
