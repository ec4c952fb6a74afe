//! The files of shared chunks, one each.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A chunk that was exported or imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedChunk {
    /// A number that is the same in every process that has the chunk, and that no other chunk has meanwhile.
    pub file: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// The files of shared chunks, by place.
#[derive(Debug, Default)]
pub(super) struct SharedFiles {
    files: HashMap<u64, (OwnedFd, SharedChunk)>,
    made: u64,
}

impl SharedFiles {
    /// Returns the chunks that have a file.
    pub fn chunks(&self) -> impl Iterator<Item = SharedChunk> + '_ {
        self.files.values().map(|(_, chunk)| *chunk)
    }

    /// Returns the file at a place that is not an offset.
    pub fn file(&self, place: u64) -> Option<&OwnedFd> {
        self.files.get(&place).map(|(file, _)| file)
    }

    /// Copies a range of a file to one of its own.
    pub fn copy(&mut self, source: &OwnedFd, offset: u64, bytes: u64, label: &str) -> Result<u64, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(format!("{NAME}{label}"), flags)?;
        rustix::fs::ftruncate(&file, bytes)?;
        let mut buffer = vec![0; COPIED_AT_ONCE];
        let mut done = 0;
        while done < bytes {
            let left = usize::try_from(bytes - done).unwrap_or(usize::MAX);
            let part = &mut buffer[..left.min(COPIED_AT_ONCE)];
            let read = retry_on_intr(|| rustix::io::pread(source, &mut *part, offset + done))?;
            // Zeros are what a new file holds, without memory behind them.
            if read == 0 {
                break;
            }
            if part[..read].iter().any(|&byte| byte != 0) {
                write_all(&file, &part[..read], done)?;
            }
            done += read as u64;
        }
        rustix::fs::fcntl_add_seals(&file, seals())?;
        let (_, chunk) = identify(file.as_fd()).ok_or(Errno::INVAL)?;
        Ok(self.insert(file, chunk))
    }

    /// Keeps a file. Returns its place.
    pub fn insert(&mut self, file: OwnedFd, chunk: SharedChunk) -> u64 {
        let place = FIRST_PLACE + self.made;
        self.made += 1;
        self.files.insert(place, (file, chunk));
        place
    }

    /// Returns the place of a known chunk.
    pub fn place(&self, chunk: SharedChunk) -> Option<u64> {
        self.files.iter().find(|(_, (_, known))| *known == chunk).map(|(place, _)| *place)
    }

    /// Duplicates the descriptor of the file at a place.
    pub fn duplicate(&self, place: u64) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self.file(place).ok_or(Errno::BADF)?, 0)
    }

    /// Closes the file at a place. Returns `false` if there is none.
    pub fn forget(&mut self, place: u64) -> bool {
        self.files.remove(&place).is_some()
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = retry_on_intr(|| rustix::io::pwrite(file, bytes, offset))?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

/// Returns label and chunk if the descriptor is one of [`SharedFiles`], of any process.
pub(super) fn identify(descriptor: BorrowedFd<'_>) -> Option<(String, SharedChunk)> {
    if rustix::fs::fcntl_get_seals(descriptor).ok()? != seals() {
        return None;
    }
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()?;
    let label = link.to_str()?.strip_prefix("/memfd:")?.strip_prefix(NAME)?.strip_suffix(" (deleted)")?.to_owned();
    let status = rustix::fs::fstat(descriptor).ok()?;
    let chunk = SharedChunk { file: status.st_ino, bytes: u64::try_from(status.st_size).ok()? };
    Some((label, chunk))
}

/// The seals of a chunk's file: its size stays, and so do the seals.
fn seals() -> SealFlags {
    SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL
}

/// The start of the name of a chunk's file.
const NAME: &str = "gapless-chunk:";
/// The places of shared chunks are above all offsets of the device's file.
const FIRST_PLACE: u64 = 1 << 63;
const COPIED_AT_ONCE: usize = 1 << 20;
