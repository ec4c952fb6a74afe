//! Pages: the system calls behind chunks, reservations and mappings.
//!
//! Chunks are ranges of one sparse file in memory (one descriptor for each chunk would exceed the limit of open files). A
//! released chunk is punched out of the file, which frees its memory at once. A chunk that other processes may map has a
//! file of its own ([`SharedFiles`]): its *place* is a number above all offsets.
//!
//! Owns the file and which of its ranges are free. What is mapped where is the ledger's business: callers have asked it.
//!
//! Threads: none of its own; its owner locks. Cost: a system call each; `create` O(free ranges).

use super::shared_files::SharedFiles;
use crate::driver::intervals::IntervalSet;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;

#[derive(Debug)]
pub(super) struct Pages {
    file: OwnedFd,
    file_bytes: u64,
    /// Every offset at or above this is free.
    high: u64,
    /// Free offsets below `high`.
    free: IntervalSet,
    /// The files of chunks that were exported or imported.
    pub shared: SharedFiles,
}

impl Pages {
    pub fn new() -> Result<Self, Errno> {
        let file = rustix::fs::memfd_create("gapless-host-device", MemfdFlags::CLOEXEC)?;
        Ok(Self { file, file_bytes: 0, high: 0, free: IntervalSet::default(), shared: SharedFiles::default() })
    }

    /// Returns a range of the file for a chunk. It takes no memory before it is written.
    pub fn create(&mut self, bytes: u64) -> Result<u64, Errno> {
        if let Some(offset) = self.free.first_fit(bytes) {
            self.free.remove(offset, offset + bytes);
            return Ok(offset);
        }
        let (offset, end) = (self.high, self.high.checked_add(bytes).ok_or(Errno::NOMEM)?);
        if end > self.file_bytes {
            rustix::fs::ftruncate(&self.file, end)?;
            self.file_bytes = end;
        }
        self.high = end;
        Ok(offset)
    }

    /// Copies a chunk to a file of its own, labelled `label`, and returns its place there.
    pub fn share(&mut self, offset: u64, bytes: u64, label: &str) -> Result<u64, Errno> {
        self.shared.copy(&self.file, offset, bytes, label)
    }

    /// Frees the memory of a chunk; that of a shared one once no other process has it.
    ///
    /// # Panics
    /// When the kernel refuses to punch a hole into a file in memory, for which there is no reason.
    pub fn free(&mut self, offset: u64, bytes: u64) {
        if self.shared.forget(offset) {
            return;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry_on_intr(|| rustix::fs::fallocate(&self.file, hole, offset, bytes)).expect("a memfd can be punched");
        self.free.insert(offset, offset + bytes);
    }

    /// Returns how many bytes of the host's memory are behind all chunks.
    #[cfg(test)]
    pub fn backed(&self) -> u64 {
        const BLOCK: u64 = 512;
        BLOCK * u64::try_from(rustix::fs::fstat(&self.file).unwrap().st_blocks).unwrap()
    }

    /// Reserves addresses without memory.
    pub fn reserve(&self, bytes: u64, alignment: u64) -> Result<u64, Errno> {
        let total = bytes.checked_add(alignment).ok_or(Errno::NOMEM)?;
        // SAFETY: no address is asked for, so no mapping of anyone's is replaced.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), size(total)?, ProtFlags::empty(), UNBACKED) }?;
        let start = start.expose_provenance() as u64;
        let addr = start.next_multiple_of(alignment);
        self.unreserve(start, addr - start);
        self.unreserve(addr + bytes, start + total - (addr + bytes));
        Ok(addr)
    }

    /// Frees addresses. Nothing that is still needed is mapped in them.
    ///
    /// # Panics
    /// When the kernel refuses: the range was not ours.
    pub fn unreserve(&self, addr: u64, bytes: u64) {
        if bytes > 0 {
            // SAFETY: the caller owns these addresses, which came from `reserve`, and nothing refers to them any more.
            unsafe { rustix::mm::munmap(pointer(addr), size(bytes).expect("was mapped")) }
                .expect("own reservations can be unmapped");
        }
    }

    /// Maps a chunk without access.
    pub fn map(&self, addr: u64, bytes: u64, offset: u64) -> Result<(), Errno> {
        self.map_with(addr, bytes, offset, ProtFlags::empty())
    }

    /// Maps another place of a chunk with the same bytes over a mapping of it, with access as before.
    pub fn move_mapping(&self, addr: u64, bytes: u64, place: u64, accessible: bool) -> Result<(), Errno> {
        let access = if accessible { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::empty() };
        self.map_with(addr, bytes, place, access)
    }

    fn map_with(&self, addr: u64, bytes: u64, place: u64, access: ProtFlags) -> Result<(), Errno> {
        let (file, offset) = self.shared.file(place).map_or((&self.file, place), |file| (file, 0));
        let flags = MapFlags::FIXED | MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the range lies in a reservation of this driver. Nothing is mapped there, so that only inaccessible addresses
        // are replaced; or a chunk is, whose bytes the new mapping has too.
        unsafe { rustix::mm::mmap(pointer(addr), size(bytes)?, access, flags, file, offset) }?;
        Ok(())
    }

    /// Makes mapped pages readable and writable. After a failure some of them may be accessible, although the books say
    /// that none is.
    pub fn allow(&self, addr: u64, bytes: u64) -> Result<(), Errno> {
        // SAFETY: the range is tiled by mappings of this driver; more access takes nothing away from anyone.
        unsafe { rustix::mm::mprotect(pointer(addr), size(bytes)?, MprotectFlags::READ | MprotectFlags::WRITE) }
    }

    /// Replaces mappings by addresses without memory.
    pub fn unmap(&self, addr: u64, bytes: u64) -> Result<(), Errno> {
        // SAFETY: the range lies in a reservation of this driver and no work is in flight in it, so nothing will look
        // at what was mapped there.
        unsafe {
            rustix::mm::mmap_anonymous(pointer(addr), size(bytes)?, ProtFlags::empty(), MapFlags::FIXED | UNBACKED)
        }?;
        Ok(())
    }
}

/// Returns how many isolated mappings the kernel has room for, with some left for the process itself.
pub(super) fn mapping_limit() -> usize {
    let granted = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok());
    // A mapping splits the reservation around it: one more for itself, one more for what lies behind it.
    granted.unwrap_or(KERNEL_DEFAULT).saturating_sub(KEPT_FREE) / 2
}

fn size(bytes: u64) -> Result<usize, Errno> {
    usize::try_from(bytes).map_err(|_| Errno::NOMEM)
}

fn pointer(addr: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(addr).expect("an address of this process"))
}

/// The number of mappings that the kernel allows a process by default.
const KERNEL_DEFAULT: usize = 65_530;

/// Mappings left for heaps, stacks, libraries and other drivers in the process.
const KEPT_FREE: usize = 4_096;

/// A mapping that holds addresses and nothing else.
const UNBACKED: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_ranges_are_used_again_and_joined() {
        let page = rustix::param::page_size() as u64;
        let mut pages = Pages::new().unwrap();
        let chunks = [1, 2, 3].map(|count| pages.create(count * page).unwrap());
        assert_eq!(chunks, [0, page, 3 * page]);
        pages.free(chunks[0], page);
        pages.free(chunks[1], 2 * page);
        assert_eq!(pages.create(3 * page), Ok(0), "two neighbours hold one larger chunk");
        assert_eq!(pages.create(page), Ok(6 * page));
    }
}
