//! Opens a recording of any format that can be read.

use crate::error::{ReadError, ReadErrorKind};
use crate::{Limits, TextReader, Trace, foreign};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// File name extensions that do not belong to a trace's name.
const ENDINGS: [&str; 7] = [".gz", ".txt", ".text", ".csv", ".pickle", ".pkl", ".trace"];

impl Trace {
    /// Reads the file at `path`. The trace gets the file's name without folder and extensions.
    ///
    /// # Errors
    /// Returns [`ReadError`] if the trace cannot be read or is not valid.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Self::open_device(path, None)
    }

    /// Reads a trace within the default [`Limits`]. The format is detected from the content: this crate's text format,
    /// a PyTorch memory snapshot, or an RMM log, each with or without gzip compression.
    ///
    /// Threads: what comes after the first MiB of a snapshot is read on a thread of its own, ahead of the caller's. The call
    /// returns once a read of `file` that has begun there has returned.
    ///
    /// # Errors
    /// Returns [`ReadError`] if the trace cannot be read or is not valid.
    pub fn read(name: &str, file: impl Read + Send) -> Result<Self, ReadError> {
        Self::read_device(name, file, None)
    }

    /// Like [`read`](Self::read), with the history of one of a snapshot's devices; see [`open_device`](Self::open_device).
    ///
    /// # Errors
    /// Returns [`ReadError`] if the trace cannot be read or is not valid, or if the snapshot has no history of the device.
    pub fn read_device(name: &str, file: impl Read + Send, device: Option<usize>) -> Result<Self, ReadError> {
        let (format, file) =
            foreign::detect(file).map_err(|error| ReadError { line: 0, kind: ReadErrorKind::Io(error) })?;
        if let Some(device) = device.filter(|_| matches!(format, foreign::Format::Text | foreign::Format::RmmLog)) {
            return Err(ReadError { line: 0, kind: ReadErrorKind::OneDevice { device } });
        }
        match format {
            foreign::Format::Other(what) => Err(ReadError { line: 0, kind: ReadErrorKind::OtherFormat { what } }),
            foreign::Format::Text => Self::from_reader(name, TextReader::new(file)?),
            foreign::Format::Snapshot => foreign::snapshot::read(name, file, device, Limits::default()),
            foreign::Format::RmmLog => foreign::rmm::read(name, file, Limits::default()),
        }
    }

    /// Like [`open`](Self::open), with the history of one of a snapshot's devices. Without a number, the
    /// device that ran out of memory, or else the one with most allocations and frees.
    ///
    /// # Errors
    /// Returns [`ReadError`] if the trace cannot be read or is not valid, if the snapshot has no history of the device, or if the
    /// file is no snapshot and a device is asked for.
    pub fn open_device(path: &Path, device: Option<usize>) -> Result<Self, ReadError> {
        let file = File::open(path).map_err(|error| ReadError { line: 0, kind: ReadErrorKind::Io(error) })?;
        Self::read_device(&Self::name_of(path), file, device)
    }

    /// Returns the name that the trace of a file gets: the file's name without folder and extensions.
    #[must_use]
    pub fn name_of(path: &Path) -> String {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        ENDINGS.iter().fold(&*name, |name, ending| name.strip_suffix(ending).unwrap_or(name)).to_owned()
    }
}
