//! Ledger: who holds what in a simulated device's memory, and the rules of the driver contract.
//!
//! Owns the books of reservations, mappings, access and chunks. It makes no system call and knows no stream. `model`
//! turns a broken rule into a panic, `host` into an `InvalidValue` error, so both refuse the same things in the same
//! words. A caller that must act between the two asks first (`check_*`, changes nothing) and then writes (the
//! method of the same name, which relies on the answer).
//!
//! - I1  every mapping lies in one reservation, and no two mappings overlap;
//! - I2  `accessible` is the union of the mappings that have access;
//! - I3  a chunk is in the books while its handle is held or a mapping goes through it; `held` is the sum of those;
//! - I4  chunk handles are never used again for another chunk, nor given out by two ledgers of one process.
//!
//! Threads: none of its own; its owner locks. Cost: O(log n) a call, and O(mappings in the range) for `set_access` and
//! `unmap`.

use super::intervals::IntervalSet;
use super::{ChunkHandle, DriverUsage, HostMemory, MemoryInfo};
use crate::sync::unseen::Mutex;
use crate::units::{ByteSize, DeviceAddr};
use std::collections::{BTreeMap, HashMap};

/// Why the ledger refuses a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is not enough: the caller did nothing wrong.
    Shortage(String),
    /// A rule of the contract is broken, and which.
    Misuse(String),
}

/// The memory of a chunk: what its last mapping or handle leaves behind when it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkMemory {
    /// The value that the owner stored at `create`.
    pub tag: u64,
    pub bytes: u64,
}

/// The books of one device.
#[derive(Debug)]
pub(super) struct Ledger {
    granularity: u64,
    capacity: u64,
    external: u64,
    held: u64,
    mapping_limit: usize,
    reservations: BTreeMap<u64, u64>,
    reserved: u64,
    mappings: BTreeMap<u64, Mapping>,
    accessible: IntervalSet,
    accessible_mappings: usize,
    chunks: HashMap<u64, Chunk>,
    handles: usize,
    handle_base: u64,
    handles_made: u64,
    /// Pieces of the host's memory: bytes and tag.
    host_memory: HashMap<HostMemory, (u64, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Mapping {
    bytes: u64,
    chunk: u64,
    accessible: bool,
}

#[derive(Debug, Clone, Copy)]
struct Chunk {
    bytes: u64,
    tag: u64,
    mappings: u32,
    /// Number of releases that the handle needs: each import of a shared chunk counts.
    handles: u32,
}

impl Ledger {
    /// # Panics
    /// When `granularity` is not a power of two.
    pub fn new(granularity: u64, capacity: u64, external: u64, mapping_limit: usize) -> Self {
        assert!(granularity.is_power_of_two(), "granularity {granularity} is not a power of two");
        Self {
            granularity,
            capacity,
            external,
            held: 0,
            mapping_limit,
            reservations: BTreeMap::new(),
            reserved: 0,
            mappings: BTreeMap::new(),
            accessible: IntervalSet::default(),
            accessible_mappings: 0,
            chunks: HashMap::new(),
            handles: 0,
            handle_base: token_base(),
            handles_made: 0,
            host_memory: HashMap::new(),
        }
    }

    pub fn granularity(&self) -> u64 {
        self.granularity
    }

    pub fn set_external(&mut self, bytes: u64) {
        self.external = bytes;
    }

    pub fn memory_info(&self) -> MemoryInfo {
        MemoryInfo { free: self.capacity.saturating_sub(self.held).saturating_sub(self.external), total: self.capacity }
    }

    /// Returns what is in the books. The caller adds events and streams.
    pub fn usage(&self) -> DriverUsage {
        DriverUsage {
            chunks: self.chunks.len(),
            handles: self.handles,
            bytes: self.held,
            mappings: self.mappings.len(),
            reservations: self.reservations.len(),
            address_bytes: self.reserved,
            host_memory: self.host_memory.len(),
            ..DriverUsage::default()
        }
    }

    pub fn mapping_count(&self) -> usize {
        self.mappings.len()
    }

    /// Returns the first address and the length in bytes of every reservation, in address order.
    pub fn reservations(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.reservations.iter().map(|(&addr, &bytes)| (addr, bytes))
    }

    /// Checks the size and the alignment of a reservation.
    pub fn check_reserve(&self, bytes: u64, alignment: u64) -> Result<(), Refusal> {
        self.check_size(bytes)?;
        if !alignment.is_power_of_two() || alignment < self.granularity {
            return misuse(format!("alignment {alignment} is no power of two of at least {}", self.granularity));
        }
        Ok(())
    }

    pub fn reserve(&mut self, addr: u64, bytes: u64) {
        self.reservations.insert(addr, bytes);
        self.reserved += bytes;
    }

    pub fn check_address_free(&self, addr: DeviceAddr, bytes: u64) -> Result<(), Refusal> {
        match self.reservations.get(&addr.0) {
            None => misuse(format!("address_free of {addr}, where no reservation starts")),
            Some(&reserved) if reserved != bytes => {
                misuse(format!("address_free of {bytes} bytes at {addr}, a reservation of {reserved} bytes"))
            }
            Some(_) => match self.mappings.range(addr.0..addr.0 + bytes).next() {
                Some((&at, _)) => misuse(format!("address_free of {addr} with a mapping in it, at {}", DeviceAddr(at))),
                None => Ok(()),
            },
        }
    }

    pub fn address_free(&mut self, addr: DeviceAddr) {
        if let Some(bytes) = self.reservations.remove(&addr.0) {
            self.reserved -= bytes;
        }
    }

    pub fn check_create(&self, bytes: u64) -> Result<(), Refusal> {
        self.check_size(bytes)?;
        let free = self.memory_info().free;
        if bytes > free {
            return Err(Refusal::Shortage(format!(
                "{} asked for, {} of {} free",
                ByteSize(bytes),
                ByteSize(free),
                ByteSize(self.capacity)
            )));
        }
        Ok(())
    }

    /// `tag` comes back in [`ChunkMemory`].
    pub fn create(&mut self, bytes: u64, tag: u64) -> ChunkHandle {
        let handle = self.handle_base + self.handles_made;
        self.handles_made += 1;
        self.chunks.insert(handle, Chunk { bytes, tag, mappings: 0, handles: 1 });
        self.handles += 1;
        self.held += bytes;
        ChunkHandle(handle)
    }

    /// Returns a handle of the chunk with this tag, which is to be released once more than before, or `None` if there is none.
    pub fn retain(&mut self, tag: u64) -> Option<ChunkHandle> {
        let (&handle, chunk) = self.chunks.iter_mut().find(|(_, chunk)| chunk.tag == tag)?;
        chunk.handles += 1;
        self.handles += 1;
        Some(ChunkHandle(handle))
    }

    /// Returns the tag and the size of a chunk.
    pub fn check_export(&self, handle: ChunkHandle) -> Result<ChunkMemory, Refusal> {
        self.chunk(handle, "export").map(|chunk| ChunkMemory { tag: chunk.tag, bytes: chunk.bytes })
    }

    /// Replaces a chunk's tag.
    pub fn set_tag(&mut self, handle: ChunkHandle, tag: u64) {
        if let Some(chunk) = self.chunks.get_mut(&handle.0) {
            chunk.tag = tag;
        }
    }

    /// Returns where a chunk is mapped, and whether with access.
    pub fn mappings_of(&self, handle: ChunkHandle) -> Vec<(u64, bool)> {
        let of_chunk = self.mappings.iter().filter(|(_, mapping)| mapping.chunk == handle.0);
        of_chunk.map(|(&addr, mapping)| (addr, mapping.accessible)).collect()
    }

    /// Returns the chunk of a mapping, which is given whole.
    pub fn check_mapping(&self, addr: DeviceAddr, bytes: u64) -> Result<ChunkHandle, Refusal> {
        match self.mappings.get(&addr.0) {
            Some(mapping) if mapping.bytes == bytes => Ok(ChunkHandle(mapping.chunk)),
            _ => misuse(format!("no mapping of {bytes} bytes is at {addr}")),
        }
    }

    /// Releases the handle. Returns the memory that this frees; `None` while the chunk is still mapped.
    pub fn release(&mut self, handle: ChunkHandle) -> Result<Option<ChunkMemory>, Refusal> {
        self.chunk(handle, "release")?;
        self.handles -= 1;
        Ok(self.drop_reference(handle.0, |chunk| chunk.handles -= 1))
    }

    /// Returns the chunk's tag.
    pub fn check_map(&self, addr: DeviceAddr, bytes: u64, handle: ChunkHandle) -> Result<u64, Refusal> {
        let end = self.check_range(addr, bytes)?;
        let chunk = self.chunk(handle, "map")?;
        if chunk.bytes != bytes {
            return misuse(format!(
                "a chunk is mapped whole: {bytes} bytes at {addr} of a chunk of {} bytes",
                chunk.bytes
            ));
        }
        if let Some((&at, mapping)) = self.mappings.range(..end).next_back()
            && at + mapping.bytes > addr.0
        {
            return misuse(format!("map over a mapping: {bytes} bytes at {addr}, mapped at {}", DeviceAddr(at)));
        }
        Ok(chunk.tag)
    }

    pub fn map(&mut self, addr: DeviceAddr, bytes: u64, handle: ChunkHandle) {
        self.mappings.insert(addr.0, Mapping { bytes, chunk: handle.0, accessible: false });
        if let Some(chunk) = self.chunks.get_mut(&handle.0) {
            chunk.mappings += 1;
        }
    }

    /// Returns the number of mappings that tile the range.
    pub fn check_set_access(&self, addr: DeviceAddr, bytes: u64) -> Result<usize, Refusal> {
        let tiles = self.check_tiled(addr, bytes, "set_access")?;
        if self.accessible_mappings + tiles.without_access > self.mapping_limit {
            return Err(Refusal::Shortage(format!("the limit of {} mappings is reached", self.mapping_limit)));
        }
        Ok(tiles.count)
    }

    pub fn set_access(&mut self, addr: DeviceAddr, bytes: u64) {
        let range = addr.0..addr.0 + bytes;
        for mapping in self.mappings.range_mut(range.clone()).map(|(_, mapping)| mapping) {
            if !mapping.accessible {
                mapping.accessible = true;
                self.accessible_mappings += 1;
            }
        }
        self.accessible.insert(range.start, range.end);
    }

    /// Returns the number of mappings that tile the range.
    pub fn check_unmap(&self, addr: DeviceAddr, bytes: u64) -> Result<usize, Refusal> {
        Ok(self.check_tiled(addr, bytes, "unmap")?.count)
    }

    /// Calls `freed` for each chunk whose last reference this was.
    pub fn unmap(&mut self, addr: DeviceAddr, bytes: u64, mut freed: impl FnMut(ChunkMemory)) {
        let end = addr.0 + bytes;
        let mut at = addr.0;
        while at < end {
            let Some(mapping) = self.mappings.remove(&at) else { break };
            self.accessible_mappings -= usize::from(mapping.accessible);
            if let Some(chunk) = self.drop_reference(mapping.chunk, |chunk| chunk.mappings -= 1) {
                freed(chunk);
            }
            at += mapping.bytes;
        }
        self.accessible.remove(addr.0, end);
    }

    /// Notes memory of the host, which its driver finds by `tag`.
    pub fn host_alloc(&mut self, bytes: u64, tag: u64) -> HostMemory {
        let memory = HostMemory(self.handle_base + self.handles_made);
        self.handles_made += 1;
        self.host_memory.insert(memory, (bytes, tag));
        memory
    }

    /// Forgets memory of the host. Returns its tag.
    pub fn host_free(&mut self, memory: HostMemory) -> Result<u64, Refusal> {
        match self.host_memory.remove(&memory) {
            Some((_, tag)) => Ok(tag),
            None => misuse(format!("{memory:?} was freed or is not of this driver")),
        }
    }

    /// Checks that a range of the host's memory is there. Returns the tag.
    pub fn check_host(&self, memory: HostMemory, offset: u64, bytes: u64) -> Result<u64, Refusal> {
        match self.host_memory.get(&memory) {
            Some((size, tag)) if offset.checked_add(bytes).is_some_and(|end| end <= *size) => Ok(*tag),
            Some((size, _)) => misuse(format!("{bytes} bytes at {offset} of {size} bytes of the host's memory")),
            None => misuse(format!("{memory:?} was freed or is not of this driver")),
        }
    }

    /// Checks that work may touch the range: all of it is mapped, with access.
    pub fn check_access(&self, addr: DeviceAddr, bytes: u64) -> Result<(), Refusal> {
        let Some(end) = addr.0.checked_add(bytes) else {
            return misuse(format!("work on {bytes} bytes at {addr} reaches past the end of all addresses"));
        };
        if bytes == 0 || self.accessible.contains(addr.0, end) {
            return Ok(());
        }
        let fault = DeviceAddr(self.accessible.first_missing(addr.0));
        let mapped =
            self.mappings.range(..=fault.0).next_back().is_some_and(|(&at, mapping)| at + mapping.bytes > fault.0);
        let why = if mapped { "mapped, but set_access has not covered it" } else { "not mapped" };
        misuse(format!("work on {bytes} bytes at {addr} touches {fault}, which is {why}"))
    }

    /// Asserts the invariants, in O(n log n).
    #[cfg(test)]
    pub fn check(&self) {
        let mut union = IntervalSet::default();
        let mut references: HashMap<u64, u32> = HashMap::new();
        let (mut last_end, mut accessible) = (0, 0);
        for (&at, mapping) in &self.mappings {
            assert!(at >= last_end, "I1: mappings overlap at {at:#x}");
            last_end = at + mapping.bytes;
            let (&start, &bytes) = self.reservations.range(..=at).next_back().expect("I1: mapping in a reservation");
            assert!(last_end <= start + bytes, "I1: mapping at {at:#x} leaves its reservation");
            if mapping.accessible {
                union.insert(at, last_end);
                accessible += 1;
            }
            *references.entry(mapping.chunk).or_default() += 1;
        }
        assert_eq!(union, self.accessible, "I2");
        assert_eq!(accessible, self.accessible_mappings, "I2");
        for (handle, chunk) in &self.chunks {
            assert_eq!(chunk.mappings, references.remove(handle).unwrap_or(0), "I3: references of {handle:#x}");
            assert!(chunk.mappings > 0 || chunk.handles > 0, "I3: {handle:#x} is forgotten");
        }
        assert!(references.is_empty(), "I3: mappings of chunks that are gone");
        assert_eq!(self.held, self.chunks.values().map(|chunk| chunk.bytes).sum::<u64>(), "I3");
        assert_eq!(self.handles, self.chunks.values().map(|chunk| chunk.handles as usize).sum::<usize>(), "I3");
        assert_eq!(self.reserved, self.reservations.values().sum::<u64>());
    }

    fn drop_reference(&mut self, handle: u64, change: impl FnOnce(&mut Chunk)) -> Option<ChunkMemory> {
        let chunk = self.chunks.get_mut(&handle)?;
        change(chunk);
        if chunk.mappings > 0 || chunk.handles > 0 {
            return None;
        }
        let freed = ChunkMemory { tag: chunk.tag, bytes: chunk.bytes };
        self.held -= freed.bytes;
        self.chunks.remove(&handle);
        Some(freed)
    }

    /// Returns the chunk of a handle that has not been released.
    fn chunk(&self, handle: ChunkHandle, call: &str) -> Result<Chunk, Refusal> {
        match self.chunks.get(&handle.0) {
            Some(chunk) if chunk.handles > 0 => Ok(*chunk),
            Some(_) => misuse(format!("{call} of {handle:?}, which was released")),
            None if handle.0.wrapping_sub(self.handle_base) < self.handles_made => {
                misuse(format!("{call} of {handle:?}, which was released and is gone"))
            }
            None => misuse(format!("{call} of {handle:?}, which is not a handle of this driver")),
        }
    }

    fn check_size(&self, bytes: u64) -> Result<(), Refusal> {
        if bytes == 0 || !bytes.is_multiple_of(self.granularity) {
            return misuse(format!("{bytes} bytes are not a positive multiple of the page, {}", self.granularity));
        }
        Ok(())
    }

    /// Checks that a range is page-aligned and inside one reservation; returns its end.
    fn check_range(&self, addr: DeviceAddr, bytes: u64) -> Result<u64, Refusal> {
        self.check_size(bytes)?;
        if !addr.is_aligned(self.granularity) {
            return misuse(format!("address {addr} is not a multiple of the page, {}", self.granularity));
        }
        let inside = addr.0.checked_add(bytes).filter(|&end| {
            let reservation = self.reservations.range(..=addr.0).next_back();
            reservation.is_some_and(|(&start, &reserved)| end <= start + reserved)
        });
        match inside {
            Some(end) => Ok(end),
            None => misuse(format!("{bytes} bytes at {addr} do not lie inside one reservation")),
        }
    }

    fn check_tiled(&self, addr: DeviceAddr, bytes: u64, call: &str) -> Result<Tiles, Refusal> {
        let end = self.check_range(addr, bytes)?;
        if let Some((&at, mapping)) = self.mappings.range(..addr.0).next_back()
            && at + mapping.bytes > addr.0
        {
            return misuse(format!(
                "{call} of part of a mapping: it starts at {}, before the range at {addr}",
                DeviceAddr(at)
            ));
        }
        let mut tiles = Tiles { count: 0, without_access: 0 };
        let mut expected = addr.0;
        for (&at, mapping) in self.mappings.range(addr.0..end) {
            if at != expected {
                break;
            }
            expected = at + mapping.bytes;
            tiles.count += 1;
            tiles.without_access += usize::from(!mapping.accessible);
        }
        match expected {
            _ if expected == end => Ok(tiles),
            _ if expected > end => misuse(format!(
                "{call} of part of a mapping: it ends at {}, behind the range's end at {}",
                DeviceAddr(expected),
                DeviceAddr(end)
            )),
            _ => misuse(format!("{call} over unmapped addresses: nothing is mapped at {}", DeviceAddr(expected))),
        }
    }
}

/// How a range is tiled by mappings.
struct Tiles {
    count: usize,
    without_access: usize,
}

fn misuse<T>(text: String) -> Result<T, Refusal> {
    Err(Refusal::Misuse(text))
}

/// Where the tokens of one more simulated driver start: far enough from all others that a token of one is foreign to
/// every other.
pub(super) fn token_base() -> u64 {
    static DRIVERS: Mutex<u64> = Mutex::new(0);
    let mut drivers = DRIVERS.lock();
    *drivers += 1;
    *drivers << TOKEN_BITS
}

/// A simulated driver gives out fewer than `1 << TOKEN_BITS` tokens of a kind.
const TOKEN_BITS: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 1 << 16;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(PAGE, 64 * PAGE, 0, usize::MAX);
        ledger.reserve(0, 16 * PAGE);
        ledger
    }

    #[test]
    fn memory_is_free_once_handle_and_last_mapping_are_gone() {
        let mut ledger = ledger();
        let chunk = ledger.create(PAGE, 7);
        ledger.map(DeviceAddr(0), PAGE, chunk);
        ledger.map(DeviceAddr(PAGE), PAGE, chunk);
        assert_eq!(ledger.release(chunk), Ok(None));
        assert!(matches!(ledger.release(chunk), Err(Refusal::Misuse(text)) if text.contains("released")));
        let mut freed = Vec::new();
        ledger.unmap(DeviceAddr(0), PAGE, |chunk| freed.push(chunk));
        assert!(freed.is_empty());
        ledger.unmap(DeviceAddr(PAGE), PAGE, |chunk| freed.push(chunk));
        assert_eq!(freed, [ChunkMemory { tag: 7, bytes: PAGE }]);
        assert!(matches!(ledger.release(chunk), Err(Refusal::Misuse(text)) if text.contains("gone")));
        assert_eq!(ledger.memory_info().free, 64 * PAGE);
        ledger.check();
    }

    #[test]
    fn handles_of_another_ledger_are_foreign() {
        let foreign = ledger().create(PAGE, 0);
        assert!(matches!(ledger().release(foreign), Err(Refusal::Misuse(text)) if text.contains("not a handle")));
    }

    proptest! {
        /// Whatever is asked, the books stay consistent, and a refused call changes nothing.
        #[test]
        fn books_stay_consistent(ops in prop::collection::vec((0_u8..6, 0_u64..18, 1_u64..5, 0_usize..8), 1..80)) {
            let mut ledger = ledger();
            let mut chunks = Vec::new();
            for (op, page, pages, pick) in ops {
                let (addr, bytes) = (DeviceAddr(page * PAGE), pages * PAGE);
                let chunk = chunks.get(pick).copied();
                match (op, chunk) {
                    (0, _) if ledger.check_create(bytes).is_ok() => chunks.push(ledger.create(bytes, 0)),
                    (1, Some(chunk)) => { let _ = ledger.release(chunk); }
                    (2 | 3, Some(chunk)) if ledger.check_map(addr, bytes, chunk).is_ok() => ledger.map(addr, bytes, chunk),
                    (4, _) if ledger.check_set_access(addr, bytes).is_ok() => ledger.set_access(addr, bytes),
                    (5, _) if ledger.check_unmap(addr, bytes).is_ok() => ledger.unmap(addr, bytes, |_| ()),
                    _ => {}
                }
                ledger.check();
            }
        }
    }
}
