//! Heap: which bytes of a range of addresses are free. Plain data: no driver, no locks, no unsafe code.
//!
//! Blocks cover the range without gaps. A block is unmapped ([`BlockState::Hole`]), free, live, pending or claimed:
//!
//! ```text
//!          set (map)             alloc                 free
//! Unmapped ─────────▶ Free ──────────────▶ Live ──────────────▶ Free
//!    ▲                 │ ▲                   └─ free, shared ─▶ Pending ─ settle ─▶ Free
//!    │       set       ▼ │ set (undo)      claim_parts
//!    └────────────── Claimed ◀─────────────────────── Pending     (owned by a transaction; nothing else changes it)
//! ```
//!
//! - I1  blocks tile `[0, extent)`; each block's `prev_size` is the size of the block before it.
//! - I2  no two neighbours are both free or both unmapped: such blocks are merged.
//! - I3  the free index contains exactly the free blocks, `unmapped` exactly the unmapped ones.
//! - I4  `live_bytes + waste == sum of live block sizes`.
//! - I5  only live and pending blocks are shared, or have waste.
//! - I6  `starts` holds exactly the stretches in which a block starts.
//!
//! Cost: `alloc` and `free` touch the block, one or two bins, and neighbours that may be free (`edges.rs`). `alloc_aligned` looks
//! at up to [`LOOK_AT`] free blocks. `set` is O(blocks in the range). `block_around` looks at up to 128 offsets.
//! Threads: not synchronized; the owner holds a lock.
#![forbid(unsafe_code)]

pub mod bins;
mod check;
mod contents;
mod edges;
mod entries;
mod index;
mod starts;
mod table;

pub use bins::{GRANULE, MOST_EXTENT};
pub use index::FreeBlock;
pub use table::{Block, BlockState};

use crate::units::{KIB, MIB};
use index::{Cut, FreeIndex};
use starts::{StartMap, stretch_of};
use std::collections::BTreeMap;
use std::ops::Range;
use table::BlockTable;

/// A best-fit allocator of the offsets of one range of addresses.
///
/// In this order, what an allocation and a free need lies in the first three lines of the processor's caches.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Heap {
    live_block_bytes: u64,
    live_bytes: u64,
    live_count: u64,
    table: BlockTable,
    extent: u64,
    free: FreeIndex,
    starts: StartMap,
    unmapped: BTreeMap<u64, u64>,
    pending_bytes: u64,
    pending_count: u64,
}

/// Number of free blocks that [`Heap::alloc_aligned`] looks at one by one.
pub const LOOK_AT: usize = 64;

/// Sizes of blocks that lie apart from larger ones: smaller ones have regions of their own, and larger ones fill a chunk.
pub const SMALL_BESIDE_LARGE: Range<u64> = 64 * KIB..2 * MIB;

/// Free blocks from this size on have two ends: two of the smallest chunks.
const MUCH: u64 = 4 * MIB;

/// Why [`Heap::free`] cannot free the block at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLive {
    /// No block starts there.
    NoBlock,
    /// The block that starts there is in this state.
    State(BlockState),
    /// The live block that starts there is also used by other streams: [`Heap::free_later`] frees it.
    Shared,
}

impl Heap {
    /// Creates a heap of `extent` bytes, all of it one unmapped block.
    ///
    /// # Panics
    /// Panics if `extent` is not a positive multiple of [`GRANULE`], or exceeds [`MOST_EXTENT`].
    pub fn new(extent: u64) -> Self {
        assert!(extent > 0 && extent.is_multiple_of(GRANULE), "a heap's extent is a positive number of whole granules");
        assert!(extent <= MOST_EXTENT, "a heap's extent is at most {MOST_EXTENT} bytes");
        let mut heap = Self {
            table: BlockTable::default(),
            free: FreeIndex::default(),
            unmapped: BTreeMap::new(),
            starts: StartMap::default(),
            extent,
            live_block_bytes: 0,
            live_bytes: 0,
            live_count: 0,
            pending_bytes: 0,
            pending_count: 0,
        };
        heap.link(Block {
            offset: 0,
            size: extent,
            prev_size: 0,
            epoch: 0,
            waste: 0,
            state: BlockState::Hole,
            shared: false,
        });
        heap
    }

    /// Allocates `size` bytes (a non-zero multiple of [`GRANULE`]) of the smallest free block that is large enough, the lowest if
    /// there are several, and returns the offset. The rest of that block stays free.
    ///
    /// Blocks that are smaller than the smallest chunk are cut from the end where much more is free, so that they lie together, and
    /// large blocks at the start. Between large blocks, each would keep a chunk of many pages from being moved.
    ///
    /// `waste` is the part of `size`, in bytes, that the caller did not request. Returns `None` if no free block is
    /// large enough.
    #[inline]
    pub fn alloc(&mut self, size: u64, waste: u16) -> Option<u64> {
        // Without a branch: sizes differ from request to request.
        let beside_large = SMALL_BESIDE_LARGE.contains(&size);
        let cut = |found: FreeBlock| if beside_large & (found.size >= MUCH) { Cut::End } else { Cut::Start };
        let found = self.free.take(size, cut)?;
        if cut(found) == Cut::End {
            return Some(self.hand_out_end(found, size, waste));
        }
        self.hand_out_start(found, size, waste);
        Some(found.offset)
    }

    /// Makes the end of a free block live, of which the index has only the rest. Returns its offset.
    #[inline(never)]
    fn hand_out_end(&mut self, found: FreeBlock, size: u64, waste: u16) -> u64 {
        let block = self.table.get_mut(found.offset).expect("I3: an indexed block is in the table");
        debug_assert!(block.state == BlockState::Free && block.size == found.size);
        block.size = found.size - size;
        let (offset, prev_size, epoch) = (found.offset + block.size, block.size, block.epoch);
        self.insert_second(Block { offset, size, prev_size, epoch, waste, state: BlockState::Live, shared: false });
        self.count_live(size, waste);
        offset
    }

    /// Makes the start of a free block live, of which the index has only the rest.
    #[inline]
    fn hand_out_start(&mut self, found: FreeBlock, size: u64, waste: u16) {
        let block = self.table.get_mut(found.offset).expect("I3: an indexed block is in the table");
        debug_assert!(block.state == BlockState::Free && block.size == found.size);
        block.state = BlockState::Live;
        block.waste = waste;
        if found.size > size {
            block.size = size;
            let epoch = block.epoch;
            // The next block is not free (I2), so nothing is merged.
            let (offset, rest) = (found.offset + size, found.size - size);
            let free = BlockState::Free;
            self.insert_second(Block {
                offset,
                size: rest,
                prev_size: size,
                epoch,
                waste: 0,
                state: free,
                shared: false,
            });
        }
        self.count_live(size, waste);
    }

    /// Like [`alloc`](Self::alloc), at an address that is a multiple of `alignment` (a power of two). `base` is the
    /// address of the heap's start.
    ///
    /// Of the free blocks that are large enough, only the smallest [`LOOK_AT`] are looked at, and one that is so large that
    /// the alignment does not matter: a block that happens to fit may be passed over.
    pub fn alloc_aligned(&mut self, size: u64, waste: u16, alignment: u64, base: u64) -> Option<u64> {
        let place = |block: FreeBlock| {
            let start = crate::units::round_up(base + block.offset, alignment)? - base;
            (start.checked_add(size)? <= block.offset + block.size).then_some((block, start))
        };
        let (found, start) = self.free.iter_from(size).take(LOOK_AT).find_map(place).or_else(|| {
            let fits_anywhere = size.checked_add(alignment.saturating_sub(GRANULE))?;
            self.free.best_fit(fits_anywhere).and_then(place)
        })?;
        self.take_live(found.offset, start, size, waste);
        Some(start)
    }

    /// Makes `[start, start + size)` a live block. It lies inside the free or claimed block at `offset`, of which the
    /// rest on either side becomes free.
    ///
    /// # Panics
    /// Panics if no block starts at `offset`, or if that block is neither free nor claimed.
    pub fn take_live(&mut self, offset: u64, start: u64, size: u64, waste: u16) {
        let mut block = self.unlink(offset);
        assert!(
            matches!(block.state, BlockState::Free | BlockState::Claimed),
            "only a free or claimed block can become live"
        );
        let end = block.offset + block.size;
        debug_assert!(start >= block.offset && start + size <= end);
        let (before, after) = (start - block.offset, end - start - size);
        if before > 0 {
            block.prev_size = self.link_merged(Block { size: before, state: BlockState::Free, ..block });
        }
        self.link(Block { offset: start, size, state: BlockState::Live, waste, ..block });
        if after > 0 {
            self.link_merged(Block {
                offset: start + size,
                size: after,
                prev_size: size,
                state: BlockState::Free,
                ..block
            });
        }
        self.count_live(size, waste);
    }

    /// Frees the live block at `offset`, which no other stream uses, in `epoch` of the heap's stream, and merges it
    /// with its free neighbours. Returns the block as it was before.
    ///
    /// # Errors
    /// Returns [`NotLive`] if no live, unshared block starts there. Nothing has changed then.
    #[inline]
    pub fn free(&mut self, offset: u64, epoch: u32) -> Result<Block, NotLive> {
        let slot = self.live_slot(offset)?;
        let block = *self.table.at(slot);
        if block.shared {
            return Err(NotLive::Shared);
        }
        self.uncount_live(&block);
        self.merge_free(slot, block, epoch);
        Ok(block)
    }

    /// Makes the live block at `offset` pending: it is freed, but not available again until [`settle`](Self::settle).
    /// Returns the block as it was before.
    ///
    /// # Errors
    /// Returns [`NotLive`] if no live block starts there. Nothing has changed then.
    pub fn free_later(&mut self, offset: u64) -> Result<Block, NotLive> {
        let slot = self.live_slot(offset)?;
        let block = *self.table.at(slot);
        self.uncount_live(&block);
        self.pending_bytes += block.size;
        self.pending_count += 1;
        self.table.at_mut(slot).state = BlockState::Pending;
        Ok(block)
    }

    /// Frees the pending block at `offset` in `epoch` of the heap's stream, and merges it with its free neighbours.
    ///
    /// # Panics
    /// Panics if no pending block starts there.
    pub fn settle(&mut self, offset: u64, epoch: u32) {
        let slot = self.table.find(offset).expect("a pending block is in the table");
        let block = *self.table.at(slot);
        assert_eq!(block.state, BlockState::Pending, "only a pending block can be settled");
        self.pending_bytes -= block.size;
        self.pending_count -= 1;
        self.merge_free(slot, block, epoch);
    }

    /// Whether a live block starts at `offset`.
    ///
    /// # Errors
    /// Returns [`NotLive`] if none does.
    pub fn expect_live(&self, offset: u64) -> Result<(), NotLive> {
        self.live_slot(offset).map(|_| ())
    }

    /// Marks the live block at `offset` as also used by other streams.
    ///
    /// # Errors
    /// Returns [`NotLive`] if no live block starts there. Nothing has changed then.
    pub fn share(&mut self, offset: u64) -> Result<(), NotLive> {
        let slot = self.live_slot(offset)?;
        self.table.at_mut(slot).shared = true;
        Ok(())
    }

    /// Ends what [`share`](Self::share) began, for the live block at `offset`. Does nothing where there is none.
    pub fn unshare(&mut self, offset: u64) {
        if let Ok(slot) = self.live_slot(offset) {
            self.table.at_mut(slot).shared = false;
        }
    }

    /// Cuts the pending block at `offset` up: the bytes of `claimed`, ranges in the order of their offsets, are claimed from
    /// now on, and each piece beside them is a pending block of its own. Returns the offsets of those.
    ///
    /// # Panics
    /// Panics if no pending block starts there, or if it does not contain the ranges.
    pub fn claim_parts(&mut self, offset: u64, claimed: &[Range<u64>]) -> Vec<u64> {
        let block = self.unlink(offset);
        let end = block.offset + block.size;
        assert_eq!(block.state, BlockState::Pending, "only a pending block is cut up so");
        assert!(claimed.iter().all(|part| part.start >= offset && part.end <= end && part.start < part.end));
        self.pending_bytes -= block.size;
        self.pending_count -= 1;
        let (mut at, mut prev_size, mut pending) = (offset, block.prev_size, Vec::new());
        let mut add = |heap: &mut Self, until: u64, state| {
            if until > at {
                let size = until - at;
                heap.link(Block { offset: at, size, prev_size, epoch: block.epoch, waste: 0, state, shared: false });
                if state == BlockState::Pending {
                    heap.pending_bytes += size;
                    heap.pending_count += 1;
                    pending.push(at);
                }
                (at, prev_size) = (until, size);
            }
        };
        for part in claimed {
            add(self, part.start, BlockState::Pending);
            add(self, part.end, BlockState::Claimed);
        }
        add(self, end, BlockState::Pending);
        pending
    }

    /// Makes `[start, start + len)` one block in state `to` (unmapped, free or claimed). The range consists of unmapped, free
    /// and claimed blocks, or parts of them. `first` is the offset of the block that contains `start`.
    ///
    /// # Panics
    /// Panics if the range overlaps a live or pending block.
    pub fn set(&mut self, first: u64, start: u64, len: u64, to: BlockState, epoch: u32) {
        debug_assert!(matches!(to, BlockState::Hole | BlockState::Free | BlockState::Claimed));
        let end = start + len;
        debug_assert!(end <= self.extent && len > 0);
        let mut head = self.unlink(first);
        let mut latest = epoch;
        if start > head.offset {
            let front = Block { size: start - head.offset, ..head };
            self.link(front);
            head.size -= front.size;
            head.prev_size = front.size;
            head.offset = start;
        }
        let prev_size = head.prev_size;
        let mut last = head;
        loop {
            assert!(
                matches!(last.state, BlockState::Hole | BlockState::Free | BlockState::Claimed),
                "a {:?} block at {:#x} is in the way",
                last.state,
                last.offset
            );
            latest = latest.max(last.epoch);
            let block_end = last.offset + last.size;
            if block_end >= end {
                break;
            }
            last = self.unlink(block_end);
        }
        let rest = last.offset + last.size - end;
        if rest > 0 {
            self.link(Block { offset: end, size: rest, ..last });
        }
        let block = Block { offset: start, size: len, prev_size, epoch: latest, waste: 0, state: to, shared: false };
        if to == BlockState::Claimed {
            self.link(block);
        } else {
            self.link_merged(block);
        }
    }

    /// Lowers every epoch by `by`, to no less than 0. The owner renumbers epochs before they overflow.
    pub fn renumber(&mut self, by: u32) {
        let offsets: Vec<u64> = self.table.iter().map(|block| block.offset).collect();
        for offset in offsets {
            let block = self.table.get_mut(offset).expect("just listed");
            block.epoch = block.epoch.saturating_sub(by);
        }
    }

    #[inline]
    fn live_slot(&self, offset: u64) -> Result<usize, NotLive> {
        let slot = self.table.find(offset).ok_or(NotLive::NoBlock)?;
        match self.table.at(slot).state {
            BlockState::Live => Ok(slot),
            other => Err(NotLive::State(other)),
        }
    }

    #[inline]
    fn count_live(&mut self, size: u64, waste: u16) {
        self.live_block_bytes += size;
        self.live_bytes += size - u64::from(waste);
        self.live_count += 1;
    }

    #[inline]
    fn uncount_live(&mut self, block: &Block) {
        self.live_block_bytes -= block.size;
        self.live_bytes -= block.size - u64::from(block.waste);
        self.live_count -= 1;
    }

    /// Adds the second part of a block that was split. Its neighbours are not merged with it.
    #[inline]
    fn insert_second(&mut self, second: Block) {
        let Block { offset, size, prev_size, .. } = second;
        self.table.insert(second);
        self.set_prev_size(offset + size, size);
        if stretch_of(offset) != stretch_of(offset - prev_size) {
            self.starts.add(stretch_of(offset));
        }
    }

    /// Notes that no block starts at `removed` any more: the block of `[start, end)` covers it.
    #[inline]
    fn forget_start(&mut self, removed: u64, start: u64, end: u64) {
        let stretch = stretch_of(removed);
        if stretch != stretch_of(start) && (stretch != stretch_of(end) || end == self.extent) {
            self.starts.remove(stretch);
        }
    }

    #[inline]
    fn set_prev_size(&mut self, offset: u64, prev_size: u64) {
        if offset != self.extent {
            self.table.get_mut(offset).expect("I1: blocks tile the heap").prev_size = prev_size;
        }
    }

    /// Turns `block`, which is in the table at `slot` but in no index, into a free block merged with its free neighbours.
    #[inline]
    fn merge_free(&mut self, slot: usize, block: Block, epoch: u32) {
        let edges = self.free.edges();
        let places = edges.places_of(block.as_free().range());
        if !edges.none_at(places) {
            return self.merge_with_neighbours(slot, block, epoch);
        }
        *self.table.at_mut(slot) = Block { epoch, waste: 0, state: BlockState::Free, shared: false, ..block };
        self.free.insert_at(block.as_free(), places);
    }

    /// As [`merge_free`](Self::merge_free), for a block that may have free neighbours.
    #[inline(never)]
    fn merge_with_neighbours(&mut self, slot: usize, block: Block, epoch: u32) {
        let mut merged = Block { epoch, waste: 0, state: BlockState::Free, shared: false, ..block };
        let (mut preceding, mut following) = (None, None);
        let next = block.offset + block.size;
        if next != self.extent {
            let slot = self.table.find(next).expect("I1: blocks tile the heap");
            let other = *self.table.at(slot);
            if other.state == BlockState::Free {
                following = Some((slot, other.as_free()));
                merged.size += other.size;
                merged.epoch = merged.epoch.max(other.epoch);
            }
        }
        if block.offset != 0 {
            let slot = self.table.find(block.offset - block.prev_size).expect("I1: blocks tile the heap");
            let other = *self.table.at(slot);
            if other.state == BlockState::Free {
                preceding = Some((slot, other.as_free()));
                merged.offset = other.offset;
                merged.size += other.size;
                merged.prev_size = other.prev_size;
                merged.epoch = merged.epoch.max(other.epoch);
            }
        }
        *self.table.at_mut(preceding.map_or(slot, |(slot, _)| slot)) = merged;
        let grown = merged.as_free();
        match (preceding, following) {
            (None, None) => return self.free.insert(grown),
            (Some((_, other)), None) | (None, Some((_, other))) => self.free.grow(other, grown),
            (Some((_, before)), Some((_, after))) => {
                self.free.remove(after);
                self.free.grow(before, grown);
            }
        }
        let end = merged.offset + merged.size;
        if let Some((slot, _)) = following {
            self.table.remove_at(slot);
            self.forget_start(next, merged.offset, end);
        }
        if preceding.is_some() {
            // The removal just above may have moved it.
            self.table.remove(block.offset);
            self.forget_start(block.offset, merged.offset, end);
        }
        self.set_prev_size(end, merged.size);
    }

    /// Adds a block at offsets without one, without merging.
    fn link(&mut self, block: Block) {
        self.table.insert(block);
        match block.state {
            BlockState::Free => self.free.insert(FreeBlock { size: block.size, offset: block.offset }),
            BlockState::Hole => {
                self.unmapped.insert(block.offset, block.size);
            }
            BlockState::Live | BlockState::Pending | BlockState::Claimed => {}
        }
        let next = block.offset + block.size;
        // Whatever started inside the block was unlinked before.
        self.starts.add(stretch_of(block.offset));
        let first_after = if next == self.extent { stretch_of(next - 1) + 1 } else { stretch_of(next) };
        self.starts.remove_between(stretch_of(block.offset), first_after);
        // The next block may be missing while a range is being rebuilt.
        if next != self.extent
            && let Some(following) = self.table.get_mut(next)
        {
            following.prev_size = block.size;
        }
    }

    /// Adds a free or unmapped block, merged with neighbours in the same state. Returns the size of the merged block.
    fn link_merged(&mut self, mut block: Block) -> u64 {
        let next = block.offset + block.size;
        if next != self.extent && self.table.get(next).is_some_and(|following| following.state == block.state) {
            let following = self.unlink(next);
            block.size += following.size;
            block.epoch = block.epoch.max(following.epoch);
        }
        if block.offset != 0
            && self.table.get(block.offset - block.prev_size).is_some_and(|before| before.state == block.state)
        {
            let before = self.unlink(block.offset - block.prev_size);
            block.offset = before.offset;
            block.size += before.size;
            block.prev_size = before.prev_size;
            block.epoch = block.epoch.max(before.epoch);
        }
        self.link(block);
        block.size
    }

    /// Removes the block at `offset` from the table and the indexes. Its neighbours do not change.
    fn unlink(&mut self, offset: u64) -> Block {
        let block = self.table.remove(offset);
        match block.state {
            BlockState::Free => self.free.remove(FreeBlock { size: block.size, offset }),
            BlockState::Hole => {
                self.unmapped.remove(&offset);
            }
            BlockState::Live | BlockState::Pending | BlockState::Claimed => {}
        }
        block
    }
}

#[cfg(test)]
mod tests;
