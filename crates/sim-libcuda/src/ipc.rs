//! The file behind a handle of CUDA's inter-process communication: an open file of the process that made it.
//!
//! A handle names that process, when it was started, and the descriptor. Others open the file through `/proc`, for which
//! they must belong to the same user. Nothing is left behind when a process is killed.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::accounts::start_time;

/// The size of a handle in bytes, of an event and of memory.
pub const HANDLE_BYTES: usize = 64;

/// A handle, as programs pass it by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handle(pub [u8; HANDLE_BYTES]);

/// The kind of object that a handle stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum Kind {
    /// An event.
    Event = 0x746e_6576_656d_6973,
    /// Memory of `cuMemAlloc`.
    Memory = 0x726f_6d65_6d6d_6973,
}

/// An open file of a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OfProcess {
    kind: Kind,
    process: u64,
    started: u64,
    descriptor: u64,
}

impl OfProcess {
    /// Names a descriptor of this process.
    pub fn own(kind: Kind, descriptor: BorrowedFd<'_>) -> Self {
        let process = u64::from(std::process::id());
        let started = start_time(process).unwrap_or(0);
        Self { kind, process, started, descriptor: descriptor.as_raw_fd().unsigned_abs().into() }
    }

    /// Returns the handle, whose other bytes are 0.
    pub fn handle(self) -> Handle {
        let mut handle = Handle([0; HANDLE_BYTES]);
        let words = [self.kind as u64, self.process, self.started, self.descriptor];
        for (bytes, word) in handle.0.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        handle
    }

    /// Reads a handle, or returns `None` for other bytes.
    pub fn read(kind: Kind, handle: &Handle) -> Option<Self> {
        let mut words = handle.0.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        let (is_of_kind, process, started) = (words.next()? == kind as u64, words.next()?, words.next()?);
        let found = Self { kind, process, started, descriptor: words.next()? };
        (is_of_kind && words.all(|word| word == 0)).then_some(found)
    }

    /// Returns `true` if this process made the handle.
    pub fn is_own(self) -> bool {
        self.process == u64::from(std::process::id())
    }

    /// Opens the file, or returns `None` if the process has ended or has closed it.
    pub fn open(self) -> Option<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        (start_time(self.process) == Some(self.started)).then(|| file.into())
    }
}

/// An event that several processes record and wait for.
pub struct SharedEvent {
    file: File,
    counters: *const Counters,
}

/// In the event's file: what was recorded, in the order of the calls.
#[repr(C)]
struct Counters {
    /// Number of recordings.
    recorded: AtomicU64,
    /// The last recording whose work has completed.
    completed: AtomicU64,
    /// The process that recorded last, and when it was started. Its work ends with it.
    process: AtomicU64,
    started: AtomicU64,
}

// SAFETY: the counters are atomic, and mapped as long as the event exists.
unsafe impl Send for SharedEvent {}
// SAFETY: as above.
unsafe impl Sync for SharedEvent {}

impl SharedEvent {
    /// Creates an event of this process.
    ///
    /// # Errors
    /// The system's error.
    pub fn create() -> std::io::Result<Self> {
        // SAFETY: a name that ends with NUL.
        let descriptor = unsafe { libc::memfd_create(c"sim-event".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which nothing else owns.
        let file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(descriptor) };
        file.set_len(size_of::<Counters>() as u64)?;
        Self::over(file)
    }

    /// Opens an event of another process.
    ///
    /// # Errors
    /// The system's error, also for a file that is no event.
    pub fn open(descriptor: OwnedFd) -> std::io::Result<Self> {
        let file = File::from(descriptor);
        if file.metadata()?.len() != size_of::<Counters>() as u64 {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        Self::over(file)
    }

    fn over(file: File) -> std::io::Result<Self> {
        let (bytes, access) = (size_of::<Counters>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping of a file that is as long, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { file, counters: at.cast() })
    }

    /// Returns what other processes open the event by.
    pub fn name(&self) -> OfProcess {
        OfProcess::own(Kind::Event, self.file.as_fd())
    }

    /// Counts a recording, and returns its number, for [`complete`](Self::complete).
    pub fn record(&self) -> u64 {
        let own = u64::from(std::process::id());
        self.counters().process.store(own, Ordering::SeqCst);
        self.counters().started.store(start_time(own).unwrap_or(0), Ordering::SeqCst);
        self.counters().recorded.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Notes that the work before a recording has completed.
    pub fn complete(&self, recording: u64) {
        self.counters().completed.fetch_max(recording, Ordering::SeqCst);
    }

    /// Returns the number of the last recording.
    pub fn last(&self) -> u64 {
        self.counters().recorded.load(Ordering::SeqCst)
    }

    /// Returns `true` if the work before a recording has completed, or has ended with its process.
    pub fn is_complete(&self, recording: u64) -> bool {
        self.counters().completed.load(Ordering::SeqCst) >= recording || self.recorder_has_ended()
    }

    /// Blocks until the work before a recording has completed.
    pub fn wait(&self, recording: u64) {
        while !self.is_complete(recording) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn recorder_has_ended(&self) -> bool {
        let process = self.counters().process.load(Ordering::SeqCst);
        start_time(process) != Some(self.counters().started.load(Ordering::SeqCst))
    }

    fn counters(&self) -> &Counters {
        // SAFETY: mapped as long as the event exists, and every bit pattern is valid.
        unsafe { &*self.counters }
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        // SAFETY: the mapping that `over` made, which nothing refers to any more.
        unsafe { libc::munmap(self.counters.cast_mut().cast(), size_of::<Counters>()) };
    }
}
