//! One allocator with what the boundary keeps beside it: the last out-of-memory report and a recording.
//!
//! Threads: any. Cost: the allocator's, and a load of an atomic for the recording that is usually not there.

use crate::status::{Answer, Failure, GAPLESS_ERROR_IN_USE, GAPLESS_ERROR_NOT_FOUND};
use gapless::allocator::{AllocError, FreeError, OutOfMemory};
use gapless::driver::cuda::CudaDriver;
use gapless::{Allocator, DeviceAddr, StreamId};
use gapless_trace::{Compression, Recorder};
use parking_lot::{Mutex, RwLock};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An allocator as callers of the C ABI see it.
#[derive(Debug)]
pub(crate) struct Heap {
    pub allocator: Allocator<CudaDriver>,
    last_oom: Mutex<Option<Box<OutOfMemory>>>,
    pub failures: AtomicU64,
    recording: AtomicBool,
    recorder: RwLock<Option<FileRecorder>>,
}

struct FileRecorder(Recorder<BufWriter<File>>);

impl std::fmt::Debug for FileRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

impl Heap {
    pub fn new(allocator: Allocator<CudaDriver>) -> Self {
        Self {
            allocator,
            last_oom: Mutex::new(None),
            failures: AtomicU64::new(0),
            recording: AtomicBool::new(false),
            recorder: RwLock::new(None),
        }
    }

    pub fn alloc(&self, bytes: u64, alignment: Option<u64>, stream: StreamId) -> Result<DeviceAddr, AllocError> {
        let outcome = match alignment {
            None => self.allocator.alloc(bytes, stream),
            Some(alignment) => self.allocator.alloc_aligned(bytes, alignment, stream),
        };
        match &outcome {
            Ok(addr) => self.note_alloc(*addr, bytes, stream),
            Err(error) => self.note_failure(error),
        }
        outcome
    }

    pub fn free(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        self.note_free(addr);
        self.allocator.free(addr)
    }

    pub fn note_failure(&self, error: &AllocError) {
        if matches!(error, AllocError::OutOfMemory(_) | AllocError::TooLarge { .. }) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(report) = error.report() {
            *self.last_oom.lock() = Some(Box::new(report.clone()));
        }
    }

    /// The report of the last request that ran out of memory.
    pub fn last_oom(&self) -> Answer<Box<OutOfMemory>> {
        self.last_oom
            .lock()
            .clone()
            .ok_or_else(|| Failure::new(GAPLESS_ERROR_NOT_FOUND, "no request has run out of memory so far"))
    }

    pub fn note_alloc(&self, addr: DeviceAddr, bytes: u64, stream: StreamId) {
        // Relaxed: an op that races with the start of a recording may be in it or not.
        if self.recording.load(Ordering::Relaxed)
            && let Some(recorder) = &*self.recorder.read()
        {
            recorder.0.alloc(addr, bytes, stream);
        }
    }

    pub fn note_free(&self, addr: DeviceAddr) {
        if self.recording.load(Ordering::Relaxed)
            && let Some(recorder) = &*self.recorder.read()
        {
            recorder.0.free(addr);
        }
    }

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
                "this allocator is being recorded already; stop that first",
            ));
        }
        let named = |error: std::io::Error| {
            Failure::new(crate::status::GAPLESS_ERROR_IO, format!("cannot record into {}: {error}", path.display()))
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

    /// Gives everything back.
    pub fn close(self) -> Answer<()> {
        let recorded = if self.recorder.read().is_some() { self.stop_recording() } else { Ok(()) };
        self.allocator.close()?;
        recorded
    }
}
