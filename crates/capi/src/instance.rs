//! One allocator with what the C interface keeps beside it: sums, the last out-of-memory report and a recording.
//!
//! A handle names one (`registry`), and every device of this process has one (`process`).
//!
//! Threads: any. Cost: the allocator's, and for each request an atomic addition and a load of an atomic.

use crate::status::{Answer, Failure, GAPLESS_ERROR_IN_USE, GAPLESS_ERROR_IO, GAPLESS_ERROR_NOT_FOUND};
use crate::streams::StreamLives;
use gapless::allocator::{AllocError, FreeError, OutOfMemory};
use gapless::driver::cuda::CudaDriver;
use gapless::{Allocator, DeviceAddr, StreamId};
use gapless_trace::{Compression, Recorder};
use parking_lot::{Mutex, RwLock};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An allocator as callers of the C interface see it.
#[derive(Debug)]
pub(crate) struct Instance {
    pub allocator: Allocator<CudaDriver>,
    last_report: Mutex<Option<Box<OutOfMemory>>>,
    /// Requests that ran out of memory, pools included.
    out_of_memory: AtomicU64,
    /// Bytes requested by the allocations that were served since the start, pools included.
    allocated_bytes: AtomicU64,
    recording: AtomicBool,
    recorder: RwLock<Option<FileRecorder>>,
}

/// A request for memory, as the caller made it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub bytes: u64,
    /// A power of two. 1: no more than every allocation has.
    pub alignment: u64,
    pub stream: StreamId,
    pub lives: StreamLives,
}

impl Request {
    #[inline]
    pub fn serve(&self, allocator: &Allocator<CudaDriver>) -> Result<DeviceAddr, AllocError> {
        if self.lives == StreamLives::AsLongAsTheProcess {
            // Most requests end here: the stream is looked up once.
            if let Some(addr) = self.serve_cached(allocator) {
                return Ok(addr);
            }
            allocator.keep_stream(self.stream)?;
        }
        match self.alignment {
            1 => allocator.alloc(self.bytes, self.stream),
            alignment => allocator.alloc_aligned(self.bytes, alignment, self.stream),
        }
    }

    /// As [`serve`](Self::serve), if the allocator has cached memory for it: takes moments.
    #[inline]
    pub fn serve_cached(&self, allocator: &Allocator<CudaDriver>) -> Option<DeviceAddr> {
        allocator.alloc_cached(self.bytes, self.alignment, self.stream)
    }
}

struct FileRecorder(Recorder<BufWriter<File>>);

impl std::fmt::Debug for FileRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

impl Instance {
    pub fn new(allocator: Allocator<CudaDriver>) -> Self {
        Self {
            allocator,
            last_report: Mutex::new(None),
            out_of_memory: AtomicU64::new(0),
            allocated_bytes: AtomicU64::new(0),
            recording: AtomicBool::new(false),
            recorder: RwLock::new(None),
        }
    }

    pub fn alloc(&self, request: &Request) -> Result<DeviceAddr, AllocError> {
        let outcome = request.serve(&self.allocator);
        self.note_request(request, &outcome);
        outcome
    }

    pub fn free(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        self.note_free(addr);
        self.allocator.free(addr)
    }

    /// Counts and records a request that the allocator, or a pool beside it, has answered.
    #[inline]
    pub fn note_request(&self, request: &Request, outcome: &Result<DeviceAddr, AllocError>) {
        match outcome {
            Ok(addr) => {
                // Relaxed: a sum, which orders nothing.
                self.allocated_bytes.fetch_add(request.bytes, Ordering::Relaxed);
                self.with_recorder(|recorder| recorder.alloc(*addr, request.bytes, request.stream));
            }
            Err(error) => self.note_refusal(error),
        }
    }

    #[cold]
    fn note_refusal(&self, error: &AllocError) {
        if is_out_of_memory(error) {
            self.out_of_memory.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(report) = error.report() {
            *self.last_report.lock() = Some(Box::new(report.clone()));
        }
    }

    /// Counts and records an allocation that was made again at its address.
    pub fn note_again(&self, addr: DeviceAddr, bytes: u64, stream: StreamId) {
        self.allocated_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.with_recorder(|recorder| recorder.alloc(addr, bytes, stream));
    }

    /// Records a free. Comes before the free itself: by then another thread may have been given the same address.
    pub fn note_free(&self, addr: DeviceAddr) {
        self.with_recorder(|recorder| recorder.free(addr));
    }

    /// Bytes requested by the allocations that were served since the start, pools included.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }

    /// The number of requests that ran out of memory, pools included.
    pub fn out_of_memory(&self) -> u64 {
        self.out_of_memory.load(Ordering::Relaxed)
    }

    /// The report of the last request that ran out of memory, on whatever thread.
    pub fn last_report(&self) -> Answer<Box<OutOfMemory>> {
        self.last_report
            .lock()
            .clone()
            .ok_or_else(|| Failure::new(GAPLESS_ERROR_NOT_FOUND, "no request has run out of memory so far"))
    }

    fn with_recorder(&self, note: impl FnOnce(&Recorder<BufWriter<File>>)) {
        // Relaxed: what happens while a recording starts may be in it or not.
        if self.recording.load(Ordering::Relaxed)
            && let Some(recorder) = &*self.recorder.read()
        {
            note(&recorder.0);
        }
    }

    /// Marks the end of a step in the recording, if there is one.
    pub fn mark(&self, label: &str) {
        if let Some(recorder) = &*self.recorder.read() {
            recorder.0.mark(label);
        }
    }

    /// Starts recording into a file: gzip when its name ends in `.gz`.
    pub fn record(&self, path: &Path) -> Answer<()> {
        let mut recorder = self.recorder.write();
        if recorder.is_some() {
            return Err(Failure::new(
                GAPLESS_ERROR_IN_USE,
                "this allocator is being recorded already; stop that recording first",
            ));
        }
        let named = |error: std::io::Error| {
            Failure::new(GAPLESS_ERROR_IO, format!("cannot record into {}: {error}", path.display()))
        };
        let file = BufWriter::new(File::create(path).map_err(named)?);
        let gzip = path.extension().is_some_and(|ending| ending == "gz");
        let driver = self.allocator.driver();
        let header = [
            ("made", concat!("gapless ", env!("CARGO_PKG_VERSION"))),
            ("device", driver.info().name.as_str()),
            ("device_bytes", &driver.info().total.0.to_string()),
            ("budget_bytes", &self.allocator.budget().to_string()),
        ];
        let compression = if gzip { Compression::Gzip } else { Compression::Plain };
        *recorder = Some(FileRecorder(Recorder::new(file, compression, &header).map_err(named)?));
        self.recording.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Completes the recording.
    pub fn stop_recording(&self) -> Answer<()> {
        self.recording.store(false, Ordering::Relaxed);
        let recorder = self.recorder.write().take();
        let recorder = recorder.ok_or_else(|| Failure::new(GAPLESS_ERROR_NOT_FOUND, "nothing is being recorded"))?;
        recorder.0.finish()?;
        Ok(())
    }

    /// Returns all memory to the driver.
    pub fn close(self) -> Answer<()> {
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
