//! Sharing: the driver's calls on chunks with a file of their own, which other processes can map.
//!
//! The first export of a chunk copies it to such a file and puts that behind its mappings, while no work runs. An import of a
//! file that is known returns the chunk that has it.

use super::books::Books;
use super::shared_files::{SharedChunk, identify};
use super::{HostDriver, kernel};
use crate::driver::ledger::{Ledger, Refusal};
use crate::driver::{ChunkHandle, DriverCall, DriverError, DriverErrorKind, DriverResult};
use crate::units::DeviceAddr;
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};

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
    #[must_use]
    pub fn label_of(descriptor: BorrowedFd<'_>) -> Option<(String, u64)> {
        identify(descriptor).map(|(label, chunk)| (label, chunk.bytes))
    }

    /// Returns the chunks on this device that were exported or imported.
    #[must_use]
    pub fn shared_chunks(&self) -> Vec<SharedChunk> {
        self.books.lock().pages.shared.chunks().collect()
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
