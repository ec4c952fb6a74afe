//! Contents of a heap: its blocks, its free bytes, its counts. All functions here only read.

use super::bins::GRANULE;
use super::starts::{STRETCH, stretch_of};
use super::{Block, FreeBlock, Heap};

impl Heap {
    /// Returns the block that starts at `offset`.
    pub fn block(&self, offset: u64) -> Option<&Block> {
        self.table.get(offset)
    }

    /// Returns the block before `block`, or `None` if it is the first.
    pub fn before(&self, block: &Block) -> Option<&Block> {
        if block.offset == 0 {
            return None;
        }
        Some(self.table.get(block.offset - block.prev_size).expect("I1: blocks tile the heap"))
    }

    /// Returns the block after `block`, or `None` if it is the last.
    pub fn after(&self, block: &Block) -> Option<&Block> {
        let next = block.offset + block.size;
        if next == self.extent {
            return None;
        }
        Some(self.table.get(next).expect("I1: blocks tile the heap"))
    }

    /// Returns the block that contains `offset`. Looks at the offsets of up to two stretches: meant for error messages.
    pub fn block_around(&self, offset: u64) -> Option<Block> {
        if offset >= self.extent {
            return None;
        }
        let stretch = stretch_of(offset);
        let here = if self.starts.contains(stretch) { self.last_start(stretch, offset) } else { None };
        here.or_else(|| {
            let below = self.starts.last_below(stretch)?;
            self.last_start(below, (below as u64 + 1) * STRETCH - GRANULE)
        })
        .copied()
    }

    /// Returns the last block that starts in a stretch, at `until` or below.
    fn last_start(&self, stretch: usize, until: u64) -> Option<&Block> {
        let first = stretch as u64 * STRETCH / GRANULE;
        (first..=until / GRANULE).rev().find_map(|granule| self.table.get(granule * GRANULE))
    }

    /// Returns all blocks in address order.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        self.blocks_after(self.table.get(0).copied())
    }

    /// Returns the blocks that start at `offset` or above, in address order.
    pub fn blocks_from(&self, offset: u64) -> impl Iterator<Item = Block> {
        let around = self.block_around(offset);
        self.blocks_after(
            around.and_then(|block| if block.offset < offset { self.after(&block).copied() } else { Some(block) }),
        )
    }

    /// Returns a block and those after it.
    fn blocks_after(&self, first: Option<Block>) -> impl Iterator<Item = Block> {
        let mut next = first;
        std::iter::from_fn(move || {
            let block = next?;
            next = self.after(&block).copied();
            Some(block)
        })
    }

    /// Returns the unmapped blocks that start at `offset` or above in address order, each as its offset and its size in bytes.
    pub fn unmapped_from(&self, offset: u64) -> impl Iterator<Item = (u64, u64)> {
        self.unmapped.range(offset..).map(|(offset, size)| (*offset, *size))
    }

    /// Returns the free blocks of at least `size` bytes, smallest first.
    pub fn free_blocks_from(&self, size: u64) -> impl Iterator<Item = FreeBlock> {
        self.free_blocks_since(FreeBlock { size, offset: 0 })
    }

    /// Returns the free block `first`, if it is one, and those that come after it in the order of
    /// [`free_blocks_from`](Self::free_blocks_from): a walk that was broken off goes on from there.
    pub fn free_blocks_since(&self, first: FreeBlock) -> impl Iterator<Item = FreeBlock> {
        self.free.iter_since(first)
    }

    /// Returns the free block `first`, if it is one, and those before it in that order, from the largest down: all for `None`.
    pub fn free_blocks_down_from(&self, first: Option<FreeBlock>) -> impl Iterator<Item = FreeBlock> {
        self.free.iter_down_from(first)
    }

    /// Returns the smallest free block of at least `size` bytes, the lowest if there are several.
    pub fn best_fit(&self, size: u64) -> Option<FreeBlock> {
        self.free.best_fit(size)
    }

    /// Returns the largest free block, the highest if there are several.
    pub fn largest_free(&self) -> Option<FreeBlock> {
        self.free.largest()
    }

    /// Returns the total size of the free blocks in bytes.
    pub fn free_bytes(&self) -> u64 {
        self.free.bytes()
    }

    /// Returns the total size of the pending blocks in bytes.
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Returns the number of pending blocks.
    pub fn pending_count(&self) -> u64 {
        self.pending_count
    }

    /// Returns the number of bytes requested for the live blocks, without rounding.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns the total size of the live blocks in bytes, including rounding.
    pub fn live_block_bytes(&self) -> u64 {
        self.live_block_bytes
    }

    /// Returns the number of live blocks.
    pub fn live_count(&self) -> u64 {
        self.live_count
    }

    /// Returns the size of the heap's address range in bytes.
    pub fn extent(&self) -> u64 {
        self.extent
    }

    /// Returns the host memory that the heap uses, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        self.table.metadata_bytes()
            + self.free.metadata_bytes()
            + self.starts.metadata_bytes()
            + (self.unmapped.len() * 32) as u64
    }
}
