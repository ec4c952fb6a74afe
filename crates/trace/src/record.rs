//! Recorder: writes the allocations and frees of a running program as a trace.
//!
//! - I1  an id is used once; blocks allocated before the recording began do not appear, and neither do their frees.
//! - I2  a free is written before the memory can be allocated again: call [`Recorder::free`] before the allocator's.
//!
//! Streams are numbered in the order in which they first appear; the default stream is 0. Times since the start are
//! written as comment lines, `# at MICROSECONDS`: one before the first op, and one whenever [`TIME_STEP`] has passed
//! since the last one.
//!
//! Threads: any; one lock. Cost: a line of text per op, written through a buffer.

use crate::{Compression, TextWriter, TraceOp};
use gapless::units::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Writes a trace while a program runs.
pub struct Recorder<W: Write> {
    state: Mutex<State<W>>,
}

struct State<W: Write> {
    writer: TextWriter<W>,
    start: Instant,
    told: Option<Duration>,
    live: HashMap<DeviceAddr, u64>,
    next_id: u64,
    streams: HashMap<StreamId, u64>,
    failed: Option<io::Error>,
}

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
        let streams = HashMap::from([(StreamId::DEFAULT, 0)]);
        let state = State {
            writer,
            start: Instant::now(),
            told: None,
            live: HashMap::new(),
            next_id: 1,
            streams,
            failed: None,
        };
        Ok(Self { state: Mutex::new(state) })
    }

    /// Records a successful allocation of `bytes` bytes at `addr`.
    pub fn alloc(&self, addr: DeviceAddr, bytes: u64, stream: StreamId) {
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        // If the address is live, its free was not recorded. The block gets a new id.
        if let Some(lost) = state.live.insert(addr, id) {
            state.write(&TraceOp::Free { id: lost });
        }
        let next = state.streams.len() as u64;
        let stream = *state.streams.entry(stream).or_insert(next);
        state.write(&TraceOp::Alloc { id, bytes, stream });
    }

    /// Records that the allocation at `addr` is about to be freed. Does nothing if its allocation was not recorded.
    pub fn free(&self, addr: DeviceAddr) {
        let mut state = self.state.lock();
        if let Some(id) = state.live.remove(&addr) {
            state.write(&TraceOp::Free { id });
        }
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
    /// Writes an op. After an error nothing more is written, and the recorded program continues.
    fn write(&mut self, op: &TraceOp) {
        if self.failed.is_some() {
            return;
        }
        self.failed = self.try_write(op).err();
    }

    fn try_write(&mut self, op: &TraceOp) -> io::Result<()> {
        let now = self.start.elapsed();
        if self.told.is_none_or(|told| now - told >= TIME_STEP) {
            self.writer.comment(&format!("at {}", now.as_micros()))?;
            self.told = Some(now);
        }
        self.writer.op(op)
    }
}

/// Minimum time between two lines with the time.
const TIME_STEP: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, Trace};

    #[test]
    fn a_recording_reads_back_as_a_trace() {
        let recorder = Recorder::new(Vec::new(), Compression::Gzip, &[("made", "by a test")]).unwrap();
        let (one, two) = (DeviceAddr(0x1000), DeviceAddr(0x2000));
        recorder.free(two);
        recorder.alloc(one, 100, StreamId(77));
        recorder.alloc(two, 200, StreamId::DEFAULT);
        recorder.free(one);
        recorder.mark("step\n1");
        recorder.alloc(one, 300, StreamId(77));
        let trace = Trace::read("t", &recorder.finish().unwrap()[..]).unwrap();
        assert_eq!(trace.streams(), [1, 0]);
        assert_eq!(trace.labels().collect::<Vec<_>>(), ["step 1"]);
        assert_eq!(trace.peak_live_bytes(), 500);
        assert_eq!(trace.ops().iter().filter(|op| matches!(op, Op::Free { .. })).count(), 1);
        assert_eq!(trace.header().value("made"), Some("by a test"));
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
        recorder.alloc(DeviceAddr(1), 1, StreamId::DEFAULT);
        recorder.free(DeviceAddr(1));
        assert_eq!(recorder.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
