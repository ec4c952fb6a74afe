//! Accounts: what each process holds of the devices that several processes share.
//!
//! A file, mapped by all of them, has a slot for each process: the bytes that it holds on each device, and its chunks that
//! other processes may have as well, which count once. A process that has ended holds nothing: slots carry the process's
//! number and start time, and its slot is taken by the next one. A chunk whose descriptor is on its way between processes
//! that hold neither handle nor mapping of it is not counted.
//!
//! A child of `fork` has no slot; what it asks for is refused.
//!
//! Threads: any. Locks: that of the file, across processes and threads, over one call of the host driver.
//! Cost: a few system calls, and one for each other process.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use gapless::driver::host::{HostDriver, SharedChunk};
use gapless::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult};
use parking_lot::Mutex;

/// The processes that share a device at most.
const SLOTS: usize = 128;
/// The most devices of which a slot counts the bytes.
const DEVICES: usize = 64;
/// Shared chunks that a process has at most; further ones count in each process that has them.
const CHUNKS: usize = 4096;

/// The memory that a process holds. All zero for a free slot.
#[repr(C)]
struct Slot {
    process: u64,
    started: u64,
    held: [u64; DEVICES],
    chunks: u64,
    /// Device, file and size in bytes of each shared chunk.
    shared: [[u64; 3]; CHUNKS],
}

/// The file of all slots.
pub struct Accounts {
    file: File,
    slots: *mut Slot,
    own: usize,
    process: u32,
    threads: Mutex<()>,
}

// SAFETY: the slots are accessed under both locks only.
unsafe impl Send for Accounts {}
// SAFETY: as above.
unsafe impl Sync for Accounts {}

impl Accounts {
    /// Opens the file at `path`, which is created if need be, and takes a slot.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let bytes = SLOTS * size_of::<Slot>();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.set_len(bytes as u64)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is as long, at an address that the kernel chooses.
        let slots = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if slots == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let process = std::process::id();
        let mut accounts = Self { file, slots: slots.cast(), own: 0, process, threads: Mutex::new(()) };
        let taken = accounts.locked(|| {
            let own = (0..SLOTS).find(|&index| !accounts.slot(index).lives())?;
            let slot = accounts.slot(own);
            (slot.held, slot.chunks) = ([0; DEVICES], 0);
            slot.started = start_time(process.into())?;
            slot.process = process.into();
            Some(own)
        });
        accounts.own = taken.ok_or_else(|| std::io::Error::other("no slot is free"))?;
        Ok(accounts)
    }

    /// Runs `call` on a device that has what other processes leave, and counts what this process holds afterwards.
    pub fn around<T>(
        &self,
        device: usize,
        host: &HostDriver,
        call: impl FnOnce(&HostDriver) -> DriverResult<T>,
    ) -> DriverResult<T> {
        if std::process::id() != self.process {
            let text = "a child of fork has no part of a shared device";
            return Err(DriverError::new(DriverCall::Open, DriverErrorKind::NotSupported, text));
        }
        self.locked(|| {
            host.set_external(self.held_by_others(device, &host.shared_chunks()));
            let result = call(host);
            self.count(device, host);
            result
        })
    }

    fn held_by_others(&self, device: usize, own: &[SharedChunk]) -> u64 {
        let mut counted: HashSet<SharedChunk> = own.iter().copied().collect();
        let others = (0..SLOTS).filter(|&index| index != self.own).map(|index| self.slot(index));
        let held = |slot: &mut Slot| {
            let shared = &slot.shared[..(slot.chunks as usize).min(CHUNKS)];
            let here = shared.iter().filter(|[owner, ..]| *owner == device as u64);
            let again = here.filter(|&&[_, file, bytes]| !counted.insert(SharedChunk { file, bytes }));
            slot.held[device].saturating_sub(again.map(|[.., bytes]| bytes).sum())
        };
        others.filter(|slot| slot.lives()).map(held).sum()
    }

    fn count(&self, device: usize, host: &HostDriver) {
        let slot = self.slot(self.own);
        slot.held[device] = host.usage().bytes;
        let count = (slot.chunks as usize).min(CHUNKS);
        let of_others = slot.shared[..count].iter().copied().filter(|[owner, ..]| *owner != device as u64);
        let here = host.shared_chunks().into_iter().map(|chunk| [device as u64, chunk.file, chunk.bytes]);
        let all: Vec<_> = of_others.chain(here).take(CHUNKS).collect();
        slot.shared[..all.len()].copy_from_slice(&all);
        slot.chunks = all.len() as u64;
    }

    #[expect(clippy::mut_from_ref, reason = "the locks, which every caller holds, make it exclusive")]
    fn slot(&self, index: usize) -> &mut Slot {
        assert!(index < SLOTS);
        // SAFETY: inside the mapping.
        let slot = unsafe { self.slots.add(index) };
        // SAFETY: the mapping lasts as long as the process, and every bit pattern is a slot.
        unsafe { &mut *slot }
    }

    fn locked<T>(&self, run: impl FnOnce() -> T) -> T {
        let _thread = self.threads.lock();
        self.lock_file(libc::LOCK_EX);
        let result = run();
        self.lock_file(libc::LOCK_UN);
        result
    }

    fn lock_file(&self, operation: i32) {
        // SAFETY: an open descriptor.
        while unsafe { libc::flock(self.file.as_raw_fd(), operation) } != 0 {
            let error = std::io::Error::last_os_error();
            assert!(error.kind() == std::io::ErrorKind::Interrupted, "the accounts cannot be locked: {error}");
        }
    }
}

impl Slot {
    fn lives(&self) -> bool {
        self.process != 0 && start_time(self.process) == Some(self.started)
    }
}

/// Returns when a process was started, in clock ticks since the machine was, or `None` if it has ended.
pub(crate) fn start_time(process: u64) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The fields follow the name, which is in parentheses and may contain anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then(|| fields.nth(18)?.parse().ok())?
}
