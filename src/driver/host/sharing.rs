//! Sharing: chunks with a file of their own, which other processes can map.
//!
//! The first export of a chunk copies it to such a file and puts that behind its mappings, while no work runs. An import of a
//! file that is known returns the chunk that has it.

use super::books::Books;
use super::{HostDriver, kernel};
use crate::driver::ledger::{Ledger, Refusal};
use crate::driver::{ChunkHandle, DriverCall, DriverError, DriverErrorKind, DriverResult};
use crate::units::DeviceAddr;
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

impl HostDriver {
    /// Exports a chunk as [`export`](crate::driver::MemoryDriver::export) does, with a text of up to 200 bytes without NUL
    /// that [`label_of`](Self::label_of) returns in every process. The first export decides the label.
    ///
    /// # Errors
    /// As for `export`.
    pub fn export_labelled(&self, chunk: ChunkHandle, label: &str) -> DriverResult<OwnedFd> {
        self.export_which(DriverCall::Export, label, |_| Ok(chunk))
    }

    pub(super) fn export_mapping(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<OwnedFd> {
        self.export_which(DriverCall::ExportDmaBuf, "", |ledger| ledger.check_mapping(addr, bytes))
    }

    fn export_which(
        &self,
        call: DriverCall,
        label: &str,
        which: impl FnOnce(&Ledger) -> Result<ChunkHandle, Refusal>,
    ) -> DriverResult<OwnedFd> {
        let _nothing_runs = self.books.running.write();
        let mut guard = self.call(call);
        let books = &mut *guard;
        let answer = which(&books.ledger).and_then(|chunk| Ok((chunk, books.ledger.check_export(chunk)?)));
        let (chunk, memory) = books.enforce(call, answer)?;
        if books.pages.shared.file(memory.tag).is_none() {
            let place = books.pages.share(memory.tag, memory.bytes, label).map_err(|errno| kernel(call, errno))?;
            if let Err(errno) = books.move_mappings(chunk, memory.bytes, memory.tag, place) {
                books.pages.free(place, memory.bytes);
                return Err(kernel(call, errno));
            }
            books.ledger.set_tag(chunk, place);
            books.pages.free(memory.tag, memory.bytes);
            return books.pages.shared.duplicate(place).map_err(|errno| kernel(call, errno));
        }
        books.pages.shared.duplicate(memory.tag).map_err(|errno| kernel(call, errno))
    }

    pub(super) fn import_chunk(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> DriverResult<ChunkHandle> {
        const CALL: DriverCall = DriverCall::Import;
        let refused = |text: &str| DriverError::new(CALL, DriverErrorKind::InvalidValue, text.to_owned());
        let mut books = self.call(CALL);
        let (_, found) =
            identify(descriptor).ok_or_else(|| refused("the descriptor is not that of an exported chunk"))?;
        if found.bytes != bytes || !bytes.is_multiple_of(self.granularity) {
            return Err(refused(&format!("{bytes} bytes are not the size of the exported chunk, {}", found.bytes)));
        }
        if let Some(place) = books.pages.shared.place(found) {
            return books.ledger.retain(place).ok_or_else(|| refused("the chunk is gone"));
        }
        let file = rustix::io::fcntl_dupfd_cloexec(descriptor, 0).map_err(|errno| kernel(CALL, errno))?;
        let place = books.pages.shared.insert(file, found);
        Ok(books.ledger.create(bytes, place))
    }

    /// Returns the label of an exported chunk and its size in bytes, or `None` for any other descriptor.
    pub fn label_of(descriptor: BorrowedFd<'_>) -> Option<(String, u64)> {
        identify(descriptor).map(|(label, chunk)| (label, chunk.bytes))
    }

    /// Returns the chunks on this device that were exported or imported.
    pub fn shared_chunks(&self) -> Vec<SharedChunk> {
        self.books.lock().pages.shared.files.values().map(|(_, chunk)| *chunk).collect()
    }
}

impl Books {
    /// Puts another place behind all mappings of a chunk, or behind none.
    fn move_mappings(&self, chunk: ChunkHandle, bytes: u64, from: u64, to: u64) -> Result<(), Errno> {
        let mappings = self.ledger.mappings_of(chunk);
        for (index, &(addr, accessible)) in mappings.iter().enumerate() {
            if let Err(errno) = self.pages.move_mapping(addr, bytes, to, accessible) {
                for &(addr, accessible) in &mappings[..index] {
                    let undone = self.pages.move_mapping(addr, bytes, from, accessible);
                    undone.expect("the mapping that was here a moment ago is possible again");
                }
                return Err(errno);
            }
        }
        Ok(())
    }
}

/// The files of shared chunks, by place.
#[derive(Debug, Default)]
pub(super) struct SharedFiles {
    files: HashMap<u64, (OwnedFd, SharedChunk)>,
    made: u64,
}

impl SharedFiles {
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

    fn insert(&mut self, file: OwnedFd, chunk: SharedChunk) -> u64 {
        let place = FIRST_PLACE + self.made;
        self.made += 1;
        self.files.insert(place, (file, chunk));
        place
    }

    fn place(&self, chunk: SharedChunk) -> Option<u64> {
        self.files.iter().find(|(_, (_, known))| *known == chunk).map(|(place, _)| *place)
    }

    fn duplicate(&self, place: u64) -> Result<OwnedFd, Errno> {
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
fn identify(descriptor: BorrowedFd<'_>) -> Option<(String, SharedChunk)> {
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
