//! Block table: every block of a heap by its offset, usually found at the first slot examined.
//!
//! A hash table with open addressing and linear probing. Records are stored in the slots themselves, so a lookup
//! usually touches one cache line. Records are found by offset only and may move: nothing keeps a reference or an index
//! into the table.
//!
//! - I1  a record is reachable from its home slot without crossing an empty slot.
//! - I2  at most [`limit`] slots are occupied.

use super::bins::GRANULE;
use super::index::FreeBlock;
use crate::{hash, host_memory};

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
#[non_exhaustive]
pub enum BlockState {
    /// Unmapped: no memory may be used at these addresses, since nothing is mapped there, or only a stale view.
    Hole,
    /// Mapped and free: cached memory.
    Free,
    /// Allocated to a caller.
    Live,
    /// Freed, but streams other than the heap's own may still use it.
    Pending,
    /// Reserved by a driver transaction in progress.
    Claimed,
}

/// One block. The blocks of a heap cover it without gaps.
///
/// Aligned so that no record lies in two cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(32))]
pub struct Block {
    /// Offset from the heap's start in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// Size of the previous block in bytes, which leads to its offset; 0 for the first block.
    pub prev_size: u64,
    /// For free blocks: the epoch of the heap's stream in which a byte of the block was last freed.
    pub epoch: u32,
    /// For live blocks: `size` minus the number of bytes requested.
    pub waste: u16,
    /// The block's state.
    pub state: BlockState,
    /// For live blocks: other streams also use the block. The heap's owner knows which.
    pub shared: bool,
}

impl Block {
    /// The entry of a free block in the free index.
    #[inline]
    pub fn as_free(&self) -> FreeBlock {
        FreeBlock { size: self.size, offset: self.offset }
    }
}

/// The `offset` of an empty slot.
const EMPTY: u64 = u64::MAX;
/// Number of slots from which a table counts as large.
const MANY_SLOTS: usize = 1 << 16;

/// Returns how many of `slots` slots may be occupied. A small table favours short probes, a large one favours memory.
fn limit(slots: usize) -> usize {
    slots / 16 * if slots < MANY_SLOTS { 11 } else { 13 }
}

const VACANT: Block =
    Block { offset: EMPTY, size: 0, prev_size: 0, epoch: 0, waste: 0, state: BlockState::Hole, shared: false };

/// The blocks of one heap by offset.
#[derive(Clone, Debug)]
pub struct BlockTable {
    slots: Box<[Block]>,
    len: usize,
    limit: usize,
    shift: u32,
}

impl Default for BlockTable {
    fn default() -> Self {
        Self::with_slots(64)
    }
}

impl BlockTable {
    fn with_slots(slots: usize) -> Self {
        debug_assert!(slots.is_power_of_two());
        Self {
            slots: host_memory::table(VACANT, slots),
            len: 0,
            limit: limit(slots),
            shift: 64 - slots.trailing_zeros(),
        }
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the host memory that the table uses, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        size_of_val(&*self.slots) as u64
    }

    #[inline]
    fn home(&self, offset: u64) -> usize {
        (hash::fibonacci(offset / GRANULE) >> self.shift) as usize
    }

    /// Returns the slot of the block that starts at `offset`. It stays that block's until one is added or removed.
    #[inline]
    pub fn find(&self, offset: u64) -> Option<usize> {
        #[cfg(test)]
        crate::testing::step();
        let mask = self.slots.len() - 1;
        let mut slot = self.home(offset);
        loop {
            let found = self.slots[slot & mask].offset;
            if found == offset {
                return Some(slot & mask);
            }
            if found == EMPTY {
                return None;
            }
            slot += 1;
        }
    }

    /// Returns the block in a slot that [`find`](Self::find) has returned.
    #[inline]
    pub fn at(&self, slot: usize) -> &Block {
        &self.slots[slot]
    }

    /// As [`at`](Self::at). Everything but the block's offset may be changed.
    #[inline]
    pub fn at_mut(&mut self, slot: usize) -> &mut Block {
        &mut self.slots[slot]
    }

    /// Returns the block that starts at `offset`.
    #[inline]
    pub fn get(&self, offset: u64) -> Option<&Block> {
        self.find(offset).map(|slot| &self.slots[slot])
    }

    /// Returns the block that starts at `offset`. Everything but its offset may be changed.
    #[inline]
    pub fn get_mut(&mut self, offset: u64) -> Option<&mut Block> {
        self.find(offset).map(|slot| &mut self.slots[slot])
    }

    /// Adds a block. Its offset must not be in the table.
    #[inline]
    pub fn insert(&mut self, block: Block) {
        debug_assert!(
            block.offset != EMPTY && self.find(block.offset).is_none(),
            "two blocks at offset {:#x}",
            block.offset
        );
        if self.len == self.limit {
            self.grow();
        }
        self.place(block);
        self.len += 1;
    }

    #[inline]
    fn place(&mut self, block: Block) {
        let mask = self.slots.len() - 1;
        let mut slot = self.home(block.offset);
        while self.slots[slot & mask].offset != EMPTY {
            slot += 1;
        }
        self.slots[slot & mask] = block;
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Self::with_slots(self.slots.len() * 2);
        for block in self.slots.iter().filter(|block| block.offset != EMPTY) {
            larger.place(*block);
        }
        larger.len = self.len;
        *self = larger;
    }

    /// Removes and returns the block that starts at `offset`.
    ///
    /// # Panics
    /// Panics if there is none: the caller's view of the heap is wrong.
    #[inline]
    pub fn remove(&mut self, offset: u64) -> Block {
        let Some(slot) = self.find(offset) else { panic!("no block at offset {offset:#x}") };
        self.remove_at(slot)
    }

    /// Removes and returns the block in a slot that [`find`](Self::find) has returned.
    #[inline]
    pub fn remove_at(&mut self, slot: usize) -> Block {
        let mut gap = slot;
        let removed = self.slots[gap];
        // Close the gap: move up every later record of the cluster whose home is not between the gap and its slot.
        let mask = self.slots.len() - 1;
        let mut slot = gap;
        loop {
            slot = (slot + 1) & mask;
            let block = self.slots[slot];
            if block.offset == EMPTY {
                break;
            }
            let from_home = slot.wrapping_sub(self.home(block.offset)) & mask;
            if from_home >= (slot.wrapping_sub(gap) & mask) {
                self.slots[gap] = block;
                gap = slot;
            }
        }
        self.slots[gap] = VACANT;
        self.len -= 1;
        removed
    }

    /// Returns all blocks in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = &Block> {
        self.slots.iter().filter(|block| block.offset != EMPTY)
    }

    /// Asserts I1 and I2.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check(&self) {
        assert!(self.len <= limit(self.slots.len()), "I2: {} of {} *slots occupied", self.len, self.slots.len());
        let mut count = 0;
        for block in self.iter() {
            assert!(self.get(block.offset) == Some(block), "I1: the block at {:#x} cannot be found", block.offset);
            count += 1;
        }
        assert_eq!(count, self.len, "block table count");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Break, assert_noticed};
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_an_ordered_map() {
        let (mut table, mut oracle) = (BlockTable::default(), BTreeMap::new());
        let mut state = 7u64;
        for step in 0..20_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = ((state >> 40) % 3000) * GRANULE;
            let block = Block { offset, size: step, ..VACANT };
            if let std::collections::btree_map::Entry::Vacant(entry) = oracle.entry(offset) {
                entry.insert(block);
                table.insert(block);
            } else if state.is_multiple_of(3) {
                table.get_mut(offset).unwrap().size = step;
                oracle.get_mut(&offset).unwrap().size = step;
            } else {
                assert_eq!(Some(table.remove(offset)), oracle.remove(&offset));
            }
            if step % 1000 == 0 {
                table.check();
            }
        }
        table.check();
        assert_eq!(table.len(), oracle.len());
        for (offset, block) in &oracle {
            assert_eq!(table.get(*offset), Some(block));
        }
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<BlockTable>] = &[
            ("I1: the block at 0x400 cannot be found", |table| {
                let slot = table.find(2 * GRANULE).unwrap();
                table.slots.swap(slot, (slot + 7) % 64);
            }),
            ("I2: 60 of 64 *slots occupied", |table| table.len = 60),
            ("block table count", |table| table.len += 1),
        ];
        let table = || {
            let mut table = BlockTable::default();
            table.insert(Block { offset: 2 * GRANULE, ..VACANT });
            table
        };
        assert_noticed(table, BlockTable::check, breaks);
    }

    /// Searches are short on average for every stride of the offsets: linear probing at this load takes 2.1 slots with
    /// random hashes.
    #[test]
    fn records_are_near_their_home() {
        assert_eq!((limit(64), limit(1 << 15), limit(1 << 16)), (44, 22_528, 53_248));
        for stride in [1, 2, 3, 80, 4096, (64 << 20) / GRANULE] {
            let mut table = BlockTable::default();
            let records = limit(4096) as u64;
            for number in 0..records {
                table.insert(Block { offset: number * stride * GRANULE, ..VACANT });
            }
            assert_eq!(table.slots.len(), 4096, "filled up to the limit");
            let home = |slot: usize| table.home(table.slots[slot].offset);
            let taken = (0..4096).filter(|slot| table.slots[*slot].offset != EMPTY);
            let distance: usize = taken.map(|slot| slot.wrapping_sub(home(slot)) % 4096).sum();
            assert!(distance < 3 * records as usize, "stride {stride}: {distance} slots for {records} records");
        }
    }

    #[test]
    fn a_record_is_half_a_cache_line() {
        assert_eq!((size_of::<Block>(), align_of::<Block>()), (32, 32));
    }

    #[test]
    fn a_large_table_is_filled_further() {
        let parts = [16, 1 << 15, 1 << 16, 1 << 20].map(|slots| 16 * limit(slots) / slots);
        assert_eq!(parts, [11, 11, 13, 13]);
    }
}
