//! Free index: the free blocks of a heap by size, for an exact best fit that prefers the lowest address.
//!
//! - I1  every entry is in the bin of its size; a bin is marked in the map exactly when it exists and has an entry.
//! - I2  inside a bin, `near` is sorted from largest to smallest, and every entry of `near` is smaller than every entry
//!   of `far`; `near` is empty only when `far` is, and never longer than [`NEAR`].
//!
//! Bins are made up to that of the largest block so far: 288 of 1,632 for blocks of up to 2 MiB.
//!
//! Cost: a removal or an insertion touches one bin; it is O(1) while the bin has at most [`NEAR`] entries, and O(log n)
//! beyond. The common cases are a block that is freed and allocated again, a push and a pop at the end of a short vector,
//! and a large block that loses a little at one end and gets it back: its entry changes in its place.

use super::bins::{BinMap, bin_of};
use std::collections::BTreeSet;

/// A free block. Ordered by size, then by offset: the first one that is large enough is the best fit at the lowest
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FreeBlock {
    /// Size in bytes, a non-zero multiple of [`GRANULE`](super::GRANULE).
    pub size: u64,
    /// Offset from the heap's start in bytes.
    pub offset: u64,
}

/// From which end of a free block bytes are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Start,
    End,
}

impl FreeBlock {
    /// Returns the rest of the block after `size` bytes are taken.
    #[inline]
    fn without(self, size: u64, cut: Cut) -> Self {
        let offset = match cut {
            Cut::Start => self.offset + size,
            Cut::End => self.offset,
        };
        Self { size: self.size - size, offset }
    }
}

/// Number of entries of a bin in its sorted vector; the others are in a tree. One less than a power of two, because the
/// vector briefly holds one more, and its capacity is a power of two.
const NEAR: usize = 31;

/// Number of bins by which the index grows: those of a doubling.
const BINS_AT_A_TIME: usize = 32;

#[derive(Clone, Debug, Default)]
struct Bin {
    /// The smallest entries, largest first, so that the smallest one is popped from the end.
    near: Vec<FreeBlock>,
    /// The other entries. An empty tree owns no memory.
    far: BTreeSet<FreeBlock>,
}

impl Bin {
    fn is_empty(&self) -> bool {
        self.near.is_empty()
    }

    /// Adds an entry. Returns whether it is the only one.
    #[inline]
    fn insert(&mut self, block: FreeBlock) -> bool {
        let only = match self.near.last() {
            None => true,
            Some(smallest) if *smallest < block => {
                self.insert_above(block);
                return false;
            }
            Some(_) => false,
        };
        // The smallest entry is taken first, and what was freed last is often the smallest again.
        self.near.push(block);
        self.limit_near();
        only
    }

    /// Adds an entry that is larger than the smallest one.
    #[inline]
    fn insert_above(&mut self, block: FreeBlock) {
        let at = self.near.partition_point(|other| *other > block);
        if at == 0 && self.far.first().is_some_and(|first| *first < block) {
            self.far.insert(block);
            return;
        }
        self.near.insert(at, block);
        self.limit_near();
    }

    #[inline]
    fn limit_near(&mut self) {
        if self.near.len() > NEAR {
            let largest = self.near.remove(0);
            self.far.insert(largest);
        }
    }

    /// Returns the smallest entry of at least `size` bytes.
    #[inline]
    fn best(&self, size: u64) -> Option<FreeBlock> {
        let fitting = self.near.partition_point(|other| other.size >= size);
        if fitting > 0 {
            return Some(self.near[fitting - 1]);
        }
        self.far.range(FreeBlock { size, offset: 0 }..).next().copied()
    }

    #[inline]
    fn remove(&mut self, block: FreeBlock) -> bool {
        // The block is usually the smallest one, at the end.
        if self.near.last() == Some(&block) {
            self.pop();
            return true;
        }
        if let Ok(at) = self.near.binary_search_by(|other| block.cmp(other)) {
            self.near.remove(at);
        } else {
            return self.far.remove(&block);
        }
        if self.near.is_empty() {
            self.refill();
        }
        true
    }

    /// Puts `grown` in the place of `block` if that is the smallest entry, and stays so. Returns whether it did.
    #[inline]
    fn grow_smallest(&mut self, block: FreeBlock, grown: FreeBlock) -> bool {
        match self.near.as_mut_slice() {
            [.., next, last] if *last == block && *next > grown => *last = grown,
            [only] if *only == block && self.far.is_empty() => *only = grown,
            _ => return false,
        }
        true
    }

    /// Removes the smallest entry. There is one.
    #[inline]
    fn pop(&mut self) {
        self.near.pop();
        if self.near.is_empty() {
            self.refill();
        }
    }

    #[inline]
    fn refill(&mut self) {
        if !self.far.is_empty() {
            self.refill_from_far();
        }
    }

    #[cold]
    fn refill_from_far(&mut self) {
        while self.near.len() < NEAR / 2 {
            let Some(block) = self.far.pop_first() else { break };
            self.near.push(block);
        }
        self.near.reverse();
    }

    fn iter(&self) -> impl Iterator<Item = FreeBlock> {
        self.near.iter().rev().copied().chain(self.far.iter().copied())
    }

    /// Returns `first`, if it is an entry, and the entries after it.
    fn iter_since(&self, first: FreeBlock) -> impl Iterator<Item = FreeBlock> {
        let near = self.near.partition_point(|other| *other >= first);
        self.near[..near].iter().rev().copied().chain(self.far.range(first..).copied())
    }
}

/// The free blocks of one heap, by size and offset.
#[derive(Clone, Debug, Default)]
pub struct FreeIndex {
    /// The first bins: as many as were needed so far.
    bins: Vec<Bin>,
    map: BinMap,
    len: usize,
    bytes: u64,
}

impl FreeIndex {
    /// Returns the number of free blocks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the total size of the free blocks in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a block, which must not be in the index.
    #[inline]
    pub fn insert(&mut self, block: FreeBlock) {
        let bin = bin_of(block.size);
        if bin >= self.bins.len() {
            self.add_bins(bin);
        }
        if self.bins[bin].insert(block) {
            self.map.set(bin);
        }
        self.len += 1;
        self.bytes += block.size;
    }

    /// Adds the bins up to `bin`, and those of the same doubling.
    #[cold]
    fn add_bins(&mut self, bin: usize) {
        let wanted = (bin + 1).next_multiple_of(BINS_AT_A_TIME);
        self.bins.reserve_exact(wanted - self.bins.len());
        self.bins.resize_with(wanted, Bin::default);
    }

    /// Removes a block.
    ///
    /// # Panics
    /// Panics if the block is not in the index: the index and the block table disagree.
    #[inline]
    pub fn remove(&mut self, block: FreeBlock) {
        let bin = bin_of(block.size);
        let removed = self.bins.get_mut(bin).is_some_and(|bin| bin.remove(block));
        assert!(removed, "free index has no block of {} bytes at {:#x}", block.size, block.offset);
        self.count_removed(bin, block.size);
    }

    /// Takes `size` bytes of the smallest block that has so many, the lowest if there are several, from the end that `cut`
    /// says, and returns that block as it was. The rest of it stays in the index.
    #[inline]
    pub fn take(&mut self, size: u64, cut: impl Fn(FreeBlock) -> Cut) -> Option<FreeBlock> {
        let bin = self.map.next_from(bin_of(size))?;
        let near = &mut self.bins[bin].near;
        let smallest = near.last_mut().expect("I1: a marked bin has an entry, I2: which is near");
        let found = *smallest;
        if found.size < size {
            return self.take_above_smallest(size, cut);
        }
        let rest = found.without(size, cut(found));
        if rest.size > 0 && bin_of(rest.size) == bin {
            // Smaller than before, it is still the smallest one.
            *smallest = rest;
            self.bytes -= size;
            return Some(found);
        }
        self.bins[bin].pop();
        self.count_removed(bin, found.size);
        if rest.size > 0 {
            self.insert(rest);
        }
        Some(found)
    }

    /// As [`take`](Self::take), where the bin of that size has smaller blocks as well.
    fn take_above_smallest(&mut self, size: u64, cut: impl Fn(FreeBlock) -> Cut) -> Option<FreeBlock> {
        let best = self.best_fit(size)?;
        self.remove(best);
        if best.size > size {
            self.insert(best.without(size, cut(best)));
        }
        Some(best)
    }

    /// Puts the larger block `grown` in the place of `block`, which is in the index.
    ///
    /// # Panics
    /// Panics if `block` is not in the index.
    #[inline]
    pub fn grow(&mut self, block: FreeBlock, grown: FreeBlock) {
        let bin = bin_of(block.size);
        if bin_of(grown.size) == bin && self.bins[bin].grow_smallest(block, grown) {
            self.bytes += grown.size - block.size;
            return;
        }
        self.remove(block);
        self.insert(grown);
    }

    #[inline]
    fn count_removed(&mut self, bin: usize, size: u64) {
        if self.bins[bin].is_empty() {
            self.map.clear(bin);
        }
        self.len -= 1;
        self.bytes -= size;
    }

    /// Returns the smallest block of at least `size` bytes, the lowest if there are several. It stays in the index.
    #[inline]
    pub fn best_fit(&self, size: u64) -> Option<FreeBlock> {
        let own = bin_of(size);
        if self.map.contains(own)
            && let Some(block) = self.bins[own].best(size)
        {
            return Some(block);
        }
        let bin = self.map.next_from(own + 1)?;
        self.bins[bin].best(size)
    }

    /// Returns the blocks of at least `size` bytes, smallest first.
    pub fn iter_from(&self, size: u64) -> impl Iterator<Item = FreeBlock> {
        self.iter_since(FreeBlock { size, offset: 0 })
    }

    /// Returns `first`, if it is in the index, and the blocks after it, in their order.
    pub fn iter_since(&self, first: FreeBlock) -> impl Iterator<Item = FreeBlock> {
        let mut next = self.map.next_from(bin_of(first.size));
        std::iter::from_fn(move || {
            let bin = next?;
            next = self.map.next_from(bin + 1);
            Some(self.bins[bin].iter_since(first))
        })
        .flatten()
        .inspect(|_| {
            #[cfg(test)]
            crate::testing::step();
        })
    }

    /// Returns the largest block, the highest if there are several.
    pub fn largest(&self) -> Option<FreeBlock> {
        self.bins[self.map.last()?].iter().last()
    }

    /// Returns the host memory that the index uses, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        // In one walk: there are hundreds of bins, and thousands of streams.
        let blocks: usize = self.bins.iter().map(|bin| bin.near.capacity() + 2 * bin.far.len()).sum();
        (self.bins.capacity() * size_of::<Bin>() + blocks * size_of::<FreeBlock>()) as u64
    }

    /// Asserts I1 and I2.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check(&self) {
        let (mut len, mut bytes) = (0, 0);
        assert!(self.map.last().is_none_or(|last| last < self.bins.len()), "I1: a bin that does not exist is marked");
        for (number, bin) in self.bins.iter().enumerate() {
            assert_eq!(self.map.contains(number), !bin.is_empty(), "I1: bin {number} is marked wrongly");
            assert!(!bin.near.is_empty() || bin.far.is_empty(), "I2: bin {number} has far entries only");
            assert!(bin.near.len() <= NEAR, "I2: bin {number} has {} near entries", bin.near.len());
            // Most bins are empty, and this runs after every operation of a test.
            if bin.is_empty() {
                continue;
            }
            assert!(bin.iter().is_sorted_by(|a, b| a < b), "I2: bin {number} is not in order");
            for block in bin.iter() {
                assert_eq!(bin_of(block.size), number, "I1: a block of {} bytes in bin {number}", block.size);
                len += 1;
                bytes += block.size;
            }
        }
        assert_eq!((len, bytes), (self.len, self.bytes), "free index counts");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::bins::GRANULE;
    use crate::testing::{Break, assert_noticed};
    use std::collections::BTreeSet;

    /// A linear congruential generator, so that a failure can be reproduced.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    #[test]
    fn agrees_with_an_ordered_set() {
        for spread in [1, 7, 100, 5000] {
            let mut state = spread;
            let (mut index, mut oracle) = (FreeIndex::default(), BTreeSet::new());
            for step in 0..6000 {
                let size = (1 + random(&mut state) % spread) * GRANULE;
                match random(&mut state) % 5 {
                    0..=2 => {
                        // So far apart that what is left of two blocks differs.
                        let block = FreeBlock { size, offset: step << 40 };
                        index.insert(block);
                        oracle.insert(block);
                    }
                    3 => {
                        let expected = oracle.range(FreeBlock { size, offset: 0 }..).next().copied();
                        assert_eq!(index.best_fit(size), expected);
                        if let Some(block) = expected {
                            oracle.remove(&block);
                            match step % 4 {
                                0 | 1 => {
                                    let cut = if step % 8 == 1 { Cut::End } else { Cut::Start };
                                    assert_eq!(index.take(size, |_| cut), expected);
                                    let offset = if cut == Cut::End { block.offset } else { block.offset + size };
                                    let rest = FreeBlock { size: block.size - size, offset };
                                    if rest.size > 0 {
                                        oracle.insert(rest);
                                    }
                                }
                                2 => {
                                    let grown = FreeBlock { size: block.size + size, offset: block.offset };
                                    index.grow(block, grown);
                                    oracle.insert(grown);
                                }
                                _ => index.remove(block),
                            }
                        }
                    }
                    _ => {
                        if let Some(block) = oracle.iter().nth(random(&mut state) as usize % oracle.len().max(1)) {
                            let block = *block;
                            oracle.remove(&block);
                            if step % 3 == 0 {
                                // By little, so that it mostly stays in its bin, where it may be any of the entries.
                                let grown = FreeBlock { size: block.size + GRANULE, ..block };
                                index.grow(block, grown);
                                oracle.insert(grown);
                            } else {
                                index.remove(block);
                            }
                        }
                    }
                }
                assert_eq!(index.largest(), oracle.last().copied());
                if step % 500 == 0 {
                    index.check();
                    assert!(index.iter_from(size).eq(oracle.range(FreeBlock { size, offset: 0 }..).copied()));
                    for first in oracle.iter().step_by(7) {
                        let next = FreeBlock { size: first.size, offset: first.offset + 1 };
                        assert!(index.iter_since(*first).eq(oracle.range(first..).copied()));
                        assert!(index.iter_since(next).eq(oracle.range(next..).copied()));
                    }
                }
            }
            index.check();
        }
    }

    #[test]
    fn the_only_near_entry_grows_past_far_ones() {
        // From 2,048 granules on there are 64 sizes in a bin.
        let block = |more| FreeBlock { size: (2048 + more) * GRANULE, offset: more << 40 };
        let last_near = NEAR as u64 - 1;
        let mut index = FreeIndex::default();
        (0..=last_near + 2).for_each(|more| index.insert(block(more)));
        (0..last_near).for_each(|more| index.remove(block(more)));
        index.grow(block(last_near), FreeBlock { size: block(60).size, ..block(last_near) });
        index.check();
        assert_eq!(index.best_fit(GRANULE), Some(block(last_near + 1)));
    }

    #[test]
    fn bins_are_made_up_to_the_largest_block() {
        let mut index = FreeIndex::default();
        assert_eq!(index.metadata_bytes(), 0);
        // The vectors of blocks begin with room for four.
        let (bin_bytes, near_bytes) = (size_of::<Bin>() as u64, 4 * size_of::<FreeBlock>() as u64);
        let sizes = [(GRANULE, 32), (2 << 20, 288), (8 << 20, 352), (4 << 10, 352), (1 << 40, 896)];
        for (blocks, (size, bins)) in (1..).zip(sizes) {
            index.insert(FreeBlock { size, offset: 0 });
            assert_eq!(index.metadata_bytes(), bins * bin_bytes + blocks * near_bytes, "with a block of {size} bytes");
            index.check();
        }
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<FreeIndex>] = &[
            ("I1: bin 1 is marked wrongly", |index| index.map.clear(1)),
            ("I1: bin 9 is marked wrongly", |index| index.map.set(9)),
            ("I1: a bin that does not exist is marked", |index| index.map.set(index.bins.len())),
            ("I1: a block of 1024 bytes in bin 1", |index| index.bins[1].near[0].size *= 2),
            ("I2: bin 1 is not in order", |index| index.bins[1].near.reverse()),
            ("I2: bin 1 has 32 near entries", |index| {
                let block = index.bins[1].near[0];
                index.bins[1].near.resize(NEAR + 1, block);
            }),
            ("I2: bin 4 has far entries only", |index| {
                index.bins[4].far.insert(FreeBlock { size: 4 * GRANULE, offset: 0 });
            }),
            ("free index counts", |index| index.bytes += 1),
        ];
        let index = || {
            let mut index = FreeIndex::default();
            index.insert(FreeBlock { size: GRANULE, offset: GRANULE });
            index.insert(FreeBlock { size: GRANULE, offset: 7 * GRANULE });
            index
        };
        assert_noticed(index, FreeIndex::check, breaks);
    }

    #[test]
    #[should_panic(expected = "free index has no block")]
    fn removing_an_absent_block_panics() {
        let mut index = FreeIndex::default();
        index.insert(FreeBlock { size: GRANULE, offset: 0 });
        index.remove(FreeBlock { size: GRANULE, offset: GRANULE });
    }
}
