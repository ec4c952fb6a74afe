//! Directory: from an address to the heap that it belongs to, in a few loads and without a lock.
//!
//! Addresses are reserved in *arenas* of equal, power-of-two *slots*; a slot holds one region of one stream. So the slot
//! is a shift away once the arena is known, and there are few arenas: each has more slots than the one of its kind before.

use super::region::RegionId;
use crate::stream::{Slots, StreamIndex};
use crate::sync::{AtomicU64, OnceLock, Ordering};
use crate::units::DeviceAddr;

/// Most arenas. With doubling numbers of slots no address space holds as many, unless it is left in small pieces.
pub const MAX_ARENAS: usize = 64;

/// The region in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The stream that the region belongs to.
    pub stream: StreamIndex,
    /// The number of the region among the stream's.
    pub region: RegionId,
}

/// One reservation, cut into slots.
#[derive(Debug)]
pub struct Arena {
    /// First address.
    pub base: DeviceAddr,
    /// Bytes of all slots.
    pub bytes: u64,
    slot_shift: u32,
    slots: Box<[OnceLock<Owner>]>,
    /// Number of slots that have an owner; they are given away in order.
    taken: AtomicU64,
}

impl Arena {
    /// `slots` slots of `slot_bytes` (a power of two) from `base` on.
    pub fn new(base: DeviceAddr, slot_bytes: u64, slots: usize) -> Self {
        Self {
            base,
            bytes: slot_bytes * slots as u64,
            slot_shift: slot_bytes.trailing_zeros(),
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
            taken: AtomicU64::new(0),
        }
    }

    /// The offset of an address from the arena's start, if it is inside.
    #[inline]
    fn offset_of(&self, addr: DeviceAddr) -> Option<u64> {
        let offset = addr.0.wrapping_sub(self.base.0);
        (offset < self.bytes).then_some(offset)
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u64 {
        1 << self.slot_shift
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether no slot is free.
    pub fn is_full(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == self.slots.len() as u64
    }

    /// Gives the next free slot to `owner` and returns its address. The caller is the only one who takes slots.
    pub fn take_slot(&self, owner: Owner) -> Option<DeviceAddr> {
        let slot = self.taken.load(Ordering::Relaxed);
        self.slots.get(slot as usize)?.set(owner).ok()?;
        self.taken.store(slot + 1, Ordering::Relaxed);
        Some(self.base.offset(slot << self.slot_shift))
    }
}

/// The owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A region; the address is this many bytes from its start.
    Region(Owner, u64),
    /// A slot of this allocator without a region.
    Unused,
    /// Nothing of this allocator.
    Foreign,
}

/// All arenas.
#[derive(Debug)]
pub struct Directory {
    arenas: Slots<Arena>,
}

impl Default for Directory {
    fn default() -> Self {
        Self { arenas: Slots::new(MAX_ARENAS) }
    }
}

impl Directory {
    /// Returns the owner of `addr`.
    #[inline]
    pub fn find(&self, addr: DeviceAddr) -> Place {
        for arena in self.arenas.iter() {
            if let Some(offset) = arena.offset_of(addr) {
                return match arena.slots[(offset >> arena.slot_shift) as usize].get() {
                    Some(owner) => Place::Region(*owner, offset & (arena.slot_bytes() - 1)),
                    None => Place::Unused,
                };
            }
        }
        Place::Foreign
    }

    /// Whether `addr` is in a slot of this allocator, with a region or without.
    #[inline]
    pub fn contains(&self, addr: DeviceAddr) -> bool {
        self.arenas.iter().any(|arena| arena.offset_of(addr).is_some())
    }

    /// Adds an arena. Returns false when there are too many.
    pub fn add(&self, arena: Arena) -> bool {
        self.arenas.push(arena).is_some()
    }

    /// All arenas, oldest first.
    pub fn arenas(&self) -> impl Iterator<Item = &Arena> {
        self.arenas.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::kind::RegionKind;
    use super::*;

    #[test]
    fn addresses_find_their_slot() {
        let directory = Directory::default();
        let owner = |stream| Owner { stream: StreamIndex(stream), region: RegionId::first(RegionKind::Large) };
        directory.add(Arena::new(DeviceAddr(1 << 30), 1 << 20, 2));
        directory.add(Arena::new(DeviceAddr(1 << 20), 1 << 21, 1));
        let arenas: Vec<_> = directory.arenas().collect();
        assert_eq!((arenas[0].slots(), arenas[1].slots()), (2, 1));
        assert_eq!(arenas[0].take_slot(owner(0)), Some(DeviceAddr(1 << 30)));
        assert_eq!(arenas[1].take_slot(owner(1)), Some(DeviceAddr(1 << 20)));
        assert_eq!(arenas[1].take_slot(owner(2)), None);
        assert_eq!(directory.find(DeviceAddr((1 << 30) + 5)), Place::Region(owner(0), 5));
        assert_eq!(directory.find(DeviceAddr((1 << 20) + 7)), Place::Region(owner(1), 7));
        assert_eq!(directory.find(DeviceAddr((1 << 30) + (1 << 20))), Place::Unused);
        assert!(directory.contains(DeviceAddr((1 << 30) + (1 << 20))) && directory.contains(DeviceAddr(1 << 20)));
        assert!(
            !directory.contains(DeviceAddr((1 << 20) - 1)) && !directory.contains(DeviceAddr((1 << 30) + (1 << 21)))
        );
        assert_eq!(directory.find(DeviceAddr((1 << 30) + (1 << 21))), Place::Foreign);
        assert_eq!(directory.find(DeviceAddr(0)), Place::Foreign);
    }
}
