//! One allocator with what is kept beside it: the number of failures, the last out-of-memory report and a recording.
//!
//! Every device of a process has one; a program may make others.
//!
//! Threads: any. Cost: the allocator's, and for each request a load of an atomic.

use crate::driver::{DeviceDriver, driver_of};
use crate::error::Error;
use crate::recording_file;
use crate::streams::StreamLives;
use gapless::allocator::{AllocError, Backup, FreeError, OutOfMemory};
use gapless::driver::Driver;
use gapless::{Allocator, DeviceAddr, StreamId};
use gapless_trace::{Compression, Content, RecordedStream, Recorder};
use parking_lot::{Mutex, RwLock};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An allocator with the number of its failures, its last report and its recording.
pub struct Recorded<D: Driver> {
    pub(crate) allocator: Allocator<D>,
    last_report: Mutex<Option<Box<OutOfMemory>>>,
    /// Requests that ran out of memory, pools included.
    out_of_memory: AtomicU64,
    recording: AtomicBool,
    recorder: RwLock<Option<Recorder<BufWriter<File>>>>,
}

/// A request for memory, as the caller made it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Bytes; 0 is an allocation, too.
    pub bytes: u64,
    /// A power of two. 1: no more than every allocation has.
    pub alignment: u64,
    /// The stream whose work uses the memory first.
    pub stream: StreamId,
    /// Whether the stream may be destroyed.
    pub lives: StreamLives,
}

impl Request {
    /// A request on a stream that nobody has promised anything about, at any address that an allocation may have.
    pub fn new(bytes: u64, stream: StreamId) -> Self {
        Self { bytes, alignment: 1, stream, lives: StreamLives::Unknown }
    }

    #[inline]
    pub(crate) fn serve<D: Driver>(&self, allocator: &Allocator<D>) -> Result<DeviceAddr, AllocError> {
        if self.lives == StreamLives::AsLongAsTheProcess {
            // The stream is looked up once where memory is cached.
            if let Some(addr) = self.serve_cached(allocator) {
                return Ok(addr);
            }
            allocator.keep_stream(self.stream)?;
        }
        match self.alignment {
            1 => allocator.alloc_raw(self.bytes, self.stream),
            alignment => allocator.alloc_raw_aligned(self.bytes, alignment, self.stream),
        }
    }

    /// As [`serve`](Self::serve), if the allocator has cached memory for it: takes moments.
    #[inline]
    pub(crate) fn serve_cached<D: Driver>(&self, allocator: &Allocator<D>) -> Option<DeviceAddr> {
        allocator.alloc_raw_cached(self.bytes, self.alignment, self.stream)
    }
}

impl<D: DeviceDriver> Recorded<D> {
    /// An allocator that nothing is recorded of yet.
    pub fn new(allocator: Allocator<D>) -> Self {
        Self {
            allocator,
            last_report: Mutex::new(None),
            out_of_memory: AtomicU64::new(0),
            recording: AtomicBool::new(false),
            recorder: RwLock::new(None),
        }
    }

    /// The allocator itself. What is allocated from it and freed directly is in no recording.
    pub fn allocator(&self) -> &Allocator<D> {
        &self.allocator
    }

    /// Allocates memory for a request.
    ///
    /// # Errors
    /// The allocator's.
    pub fn alloc(&self, request: &Request) -> Result<DeviceAddr, AllocError> {
        let outcome = request.serve(&self.allocator);
        match &outcome {
            Ok(addr) => self.note_alloc(*addr, request.bytes, request.stream, |_| None),
            Err(error) => self.note_refusal(request, error),
        }
        outcome
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// The allocator's.
    pub fn free(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        self.note_free(addr);
        self.allocator.free(addr)
    }

    /// Counts a request that the allocator, or a pool beside it, has refused, if memory ran out, and keeps the report.
    #[cold]
    pub(crate) fn note_refusal(&self, request: &Request, error: &AllocError) {
        if is_out_of_memory(error) {
            // Relaxed: a sum, which orders nothing.
            self.out_of_memory.fetch_add(1, Ordering::Relaxed);
            self.with_recorder(|recorder| recorder.refused(request.bytes, self.identify(request.stream)));
        }
        if let Some(report) = error.report() {
            *self.last_report.lock() = Some(Box::new(report.clone()));
        }
    }

    /// Records an allocation, with the tag that the memory at its address has.
    #[inline]
    pub(crate) fn note_alloc(
        &self,
        addr: DeviceAddr,
        bytes: u64,
        stream: StreamId,
        tag: impl FnOnce(DeviceAddr) -> Option<String>,
    ) {
        self.with_recorder(|recorder| recorder.alloc(addr, bytes, self.identify(stream), tag(addr).as_deref()));
    }

    /// Records that the memory of a tag, or all of it, fell asleep.
    pub(crate) fn note_sleep(&self, tag: Option<&str>, backup: Backup) {
        let content = if backup == Backup::Discard { Content::Discard } else { Content::Keep };
        self.with_recorder(|recorder| recorder.sleep(tag, content));
    }

    /// Records that the memory of a tag, or all of it, woke.
    pub(crate) fn note_wake(&self, tag: Option<&str>) {
        self.with_recorder(|recorder| recorder.wake(tag));
    }

    /// Records a free. Comes before the free itself: by then another thread may have been given the same address.
    pub(crate) fn note_free(&self, addr: DeviceAddr) {
        self.with_recorder(|recorder| recorder.free(addr));
    }

    /// The number of requests that ran out of memory, pools included, each once.
    pub fn out_of_memory(&self) -> u64 {
        self.out_of_memory.load(Ordering::Relaxed)
    }

    /// The report of the last request that ran out of memory, on whatever thread.
    ///
    /// # Errors
    /// [`Error::NoReport`] when none has.
    pub fn last_report(&self) -> Result<Box<OutOfMemory>, Error> {
        self.last_report.lock().clone().ok_or(Error::NoReport)
    }

    fn with_recorder(&self, note: impl FnOnce(&Recorder<BufWriter<File>>)) {
        // Relaxed: what happens while a recording starts may be in it or not.
        if self.recording.load(Ordering::Relaxed)
            && let Some(recorder) = &*self.recorder.read()
        {
            note(recorder);
        }
    }

    /// Which stream a handle stands for on this thread.
    fn identify(&self, stream: StreamId) -> RecordedStream {
        match driver_of(&self.allocator).identify(stream) {
            Ok(identity) => RecordedStream { key: identity.key, number: Some(identity.number) },
            // A driver that does not answer during a capture.
            Err(_) => RecordedStream { key: stream, number: None },
        }
    }

    /// Marks the end of a step in the recording, if there is one.
    pub fn mark(&self, label: &str) {
        if let Some(recorder) = &*self.recorder.read() {
            recorder.mark(label);
        }
    }

    /// Starts recording into a file: gzip when its name ends in `.gz`. A new one is for this user alone; one that is there is
    /// replaced, but not while another recording is being written to it.
    ///
    /// # Errors
    /// [`Error::Recording`] while there is a recording, [`Error::Record`] for a file that cannot be written, and for a symbolic
    /// link, a FIFO, or what else is no file of this user's.
    pub fn record(&self, path: &Path) -> Result<(), Error> {
        let mut recorder = self.recorder.write();
        if recorder.is_some() {
            return Err(Error::Recording);
        }
        let named = |cause| Error::Record { path: path.to_owned(), cause };
        let file = BufWriter::new(recording_file::open(path).map_err(named)?);
        let gzip = path.extension().is_some_and(|ending| ending == "gz");
        let driver = driver_of(&self.allocator);
        let mut header = vec![
            ("made", concat!("gapless ", env!("CARGO_PKG_VERSION")).to_owned()),
            ("device", driver.name()),
            ("budget_bytes", self.allocator.budget().to_string()),
        ];
        if let Ok(memory) = driver.memory_info() {
            let others = memory.total.saturating_sub(memory.free).saturating_sub(self.allocator.reserved_bytes());
            header.push(("capacity_bytes", memory.total.to_string()));
            header.push(("external_bytes", others.to_string()));
        }
        let header: Vec<(&str, &str)> = header.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let compression = if gzip { Compression::Gzip } else { Compression::Plain };
        *recorder = Some(Recorder::new(file, compression, &header).map_err(named)?);
        self.recording.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Completes the recording.
    ///
    /// # Errors
    /// [`Error::NotRecording`] when there is none, [`Error::Io`] for a file that could not be completed.
    pub fn stop_recording(&self) -> Result<(), Error> {
        self.recording.store(false, Ordering::Relaxed);
        let recorder = self.recorder.write().take();
        recorder.ok_or(Error::NotRecording)?.finish()?;
        Ok(())
    }

    /// Completes the recording if there is one, and returns all memory to the driver.
    ///
    /// # Errors
    /// [`Error::Close`] as the allocator's `close`, [`Error::Io`] for a recording that could not be completed.
    pub fn close(self) -> Result<(), Error> {
        let recorded = if self.recorder.read().is_some() { self.stop_recording() } else { Ok(()) };
        self.allocator.close()?;
        recorded
    }
}

/// Whether a request counts as out of memory. For hosts that know no other failure, one that exceeds the addresses of a region
/// does too.
pub(crate) fn is_out_of_memory(error: &AllocError) -> bool {
    matches!(error, AllocError::OutOfMemory(_) | AllocError::TooLarge { .. })
}
