//! Free index: the free blocks of a heap by size, for an exact best fit that prefers the lowest address.
//!
//! - I1  every block is in the bin of its size; a bin is marked in the map exactly when it exists and has an entry.
//! - I2  `edges` has the edges of exactly these blocks.
//!
//! An entry is a block as one number: by how much it is larger than the smallest size of its bin, then its offset. So entries are
//! in the order of blocks. Bins are made up to that of the largest block so far: 288 of 1,889 for blocks of up to 2 MiB.
//!
//! Cost: a removal or an insertion touches one bin; it is O(1) while that has few entries, and O(log n) beyond (`entries.rs`).
//! The common cases are a block that is freed and allocated again, and a large block that loses a little at one end and gets it
//! back: its entry changes in its place.

use super::bins::{BinMap, GRANULE, OFFSET_BITS, bin_and_rest, bin_of, sizes_in};
use super::edges::{Edges, Places};
use super::entries::{Entries, Inserted, OTHERS_BYTES};
use std::ops::Range;

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
    /// Returns its offsets.
    #[inline]
    pub fn range(self) -> Range<u64> {
        self.offset..self.offset + self.size
    }

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

/// Number of bins by which the index grows: those of a doubling.
const BINS_AT_A_TIME: usize = 32;

/// Returns the bin of a block, and the entry there: of one that starts inside a granule, the next larger one.
#[inline]
fn entry_of(block: FreeBlock) -> (usize, u64) {
    let (bin, rest) = bin_and_rest(block.size);
    (bin, (rest << OFFSET_BITS) | block.offset.div_ceil(GRANULE))
}

/// Returns the entry of a block in a bin whose smallest size is `least`.
#[inline]
fn entry_in(least: u64, block: FreeBlock) -> u64 {
    (((block.size - least) / GRANULE) << OFFSET_BITS) | (block.offset / GRANULE)
}

/// Returns the block of an entry in a bin whose smallest size is `least`.
#[inline]
fn block_from(least: u64, entry: u64) -> FreeBlock {
    let (rest, granules) = (entry >> OFFSET_BITS, entry & ((1 << OFFSET_BITS) - 1));
    FreeBlock { size: least + rest * GRANULE, offset: granules * GRANULE }
}

/// Returns the block of an entry in a bin.
fn block_of(bin: usize, entry: u64) -> FreeBlock {
    block_from(sizes_in(bin).start, entry)
}

/// The free blocks of one heap, by size and offset.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct FreeIndex {
    /// The first bins: as many as were needed so far.
    bins: Vec<Entries>,
    len: usize,
    bytes: u64,
    edges: Edges,
    map: BinMap,
    /// Number of bins that have taken memory for a second entry.
    with_memory: usize,
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
        self.insert_at(block, self.edges.places_of(block.range()));
    }

    /// Adds a block whose edges have these [places](Edges::places_of).
    #[inline]
    pub fn insert_at(&mut self, block: FreeBlock, places: Places) {
        let (bin, entry) = entry_of(block);
        self.edges.add(places);
        self.add(bin, entry);
        self.len += 1;
        self.bytes += block.size;
        if self.edges.are_crowded(self.len) {
            self.add_places();
        }
    }

    #[cold]
    fn add_places(&mut self) {
        self.edges = self.edges.grown(self.iter_from(0).map(FreeBlock::range));
    }

    /// Returns the edges of the blocks.
    #[inline]
    pub fn edges(&self) -> &Edges {
        &self.edges
    }

    #[inline]
    fn add(&mut self, bin: usize, entry: u64) {
        if bin >= self.bins.len() {
            self.add_bins(bin);
        }
        match self.bins[bin].insert(entry) {
            Inserted::First => self.map.set(bin),
            Inserted::Beside => {}
            Inserted::InNewMemory => self.with_memory += 1,
        }
    }

    /// Adds the bins up to `bin`, and those of the same doubling.
    #[cold]
    fn add_bins(&mut self, bin: usize) {
        let wanted = (bin + 1).next_multiple_of(BINS_AT_A_TIME);
        self.bins.reserve_exact(wanted - self.bins.len());
        self.bins.resize_with(wanted, Entries::default);
    }

    /// Removes a block.
    ///
    /// # Panics
    /// Panics if the block is not in the index: the index and the block table disagree.
    #[inline]
    pub fn remove(&mut self, block: FreeBlock) {
        let (bin, entry) = entry_of(block);
        self.take_out(bin, entry);
        self.edges.remove(block.range());
        self.len -= 1;
        self.bytes -= block.size;
    }

    #[inline]
    fn take_out(&mut self, bin: usize, entry: u64) {
        let entries = &mut self.bins[bin];
        let removed = entries.remove(entry);
        assert!(removed, "free index has no entry {entry:#x} in bin {bin}");
        if entries.is_empty() {
            self.map.clear(bin);
        }
    }

    /// Takes `size` bytes of the smallest block that has so many, the lowest if there are several, from the end that `cut`
    /// says, and returns that block as it was. The rest of it stays in the index.
    #[inline]
    pub fn take(&mut self, size: u64, cut: impl Fn(FreeBlock) -> Cut) -> Option<FreeBlock> {
        let bin = self.map.next_from(bin_of(size))?;
        let entries = &mut self.bins[bin];
        let smallest = entries.smallest().expect("I1: a marked bin has an entry");
        let least = sizes_in(bin).start;
        let found = block_from(least, smallest);
        if found.size < size {
            return self.take_above_smallest(size, cut);
        }
        self.bytes -= size;
        if found.size == size {
            self.edges.remove(found.range());
            self.len -= 1;
            entries.pop();
            if entries.is_empty() {
                self.map.clear(bin);
            }
            return Some(found);
        }
        let rest = found.without(size, cut(found));
        self.edges.change(found.range(), rest.range());
        if rest.size >= least {
            // Smaller than before, it is still the smallest one.
            entries.replace_smallest(entry_in(least, rest));
            return Some(found);
        }
        entries.pop();
        if entries.is_empty() {
            self.map.clear(bin);
        }
        let (bin, entry) = entry_of(rest);
        self.add(bin, entry);
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

    /// Puts the larger block `grown`, which has the same start or the same end, in the place of `block`, which is in the index.
    ///
    /// # Panics
    /// Panics if `block` is not in the index.
    #[inline]
    pub fn grow(&mut self, block: FreeBlock, grown: FreeBlock) {
        let bin = bin_of(block.size);
        let sizes = sizes_in(bin);
        let entry = entry_in(sizes.start, block);
        self.bytes += grown.size - block.size;
        self.edges.change(block.range(), grown.range());
        if grown.size < sizes.end && self.bins[bin].grow_smallest(entry, entry_in(sizes.start, grown)) {
            return;
        }
        self.take_out(bin, entry);
        let (bin, entry) = entry_of(grown);
        self.add(bin, entry);
    }

    /// Returns the smallest block of at least `size` bytes, the lowest if there are several. It stays in the index.
    #[inline]
    pub fn best_fit(&self, size: u64) -> Option<FreeBlock> {
        self.iter_from(size).next()
    }

    /// Returns the blocks of at least `size` bytes, smallest first.
    pub fn iter_from(&self, size: u64) -> impl Iterator<Item = FreeBlock> {
        self.iter_since(FreeBlock { size, offset: 0 })
    }

    /// Returns `first`, if it is in the index, and the blocks after it, in their order.
    pub fn iter_since(&self, first: FreeBlock) -> impl Iterator<Item = FreeBlock> {
        let (own, entry) = entry_of(first);
        let mut next = self.map.next_from(own);
        std::iter::from_fn(move || {
            let bin = next?;
            next = self.map.next_from(bin + 1);
            let least = if bin == own { entry } else { 0 };
            Some(self.bins[bin].iter_from(least).map(move |entry| block_of(bin, entry)))
        })
        .flatten()
        .inspect(|_| {
            #[cfg(test)]
            crate::testing::step();
        })
    }

    /// Returns `first`, if it is in the index, and the blocks before it, from the largest down: all of them for `None`.
    pub fn iter_down_from(&self, first: Option<FreeBlock>) -> impl Iterator<Item = FreeBlock> {
        let (own, entry) = first.map_or((None, u64::MAX), |first| {
            let (bin, entry) = entry_of(first);
            (Some(bin), entry)
        });
        let mut next = own.map_or_else(|| self.map.last(), |own| self.map.last_until(own));
        std::iter::from_fn(move || {
            let bin = next?;
            next = bin.checked_sub(1).and_then(|below| self.map.last_until(below));
            let most = if Some(bin) == own { entry } else { u64::MAX };
            Some(self.bins[bin].iter_down_from(most).map(move |entry| block_of(bin, entry)))
        })
        .flatten()
        .inspect(|_| {
            #[cfg(test)]
            crate::testing::step();
        })
    }

    /// Returns the largest block, the highest if there are several.
    pub fn largest(&self) -> Option<FreeBlock> {
        self.iter_down_from(None).next()
    }

    /// Returns the host memory that the index uses, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        // Only of bins with entries, since there are hundreds without, and thousands of streams: those have none in a tree.
        let marked = std::iter::successors(self.map.next_from(0), |bin| self.map.next_from(bin + 1));
        let in_trees: usize = marked.map(|bin| self.bins[bin].far_len()).sum();
        let entries = self.with_memory * OTHERS_BYTES + 2 * in_trees * size_of::<u64>();
        (self.bins.capacity() * size_of::<Entries>() + entries) as u64 + self.edges.metadata_bytes()
    }

    /// Asserts I1 and I2, and the invariants of the entries.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check(&self) {
        let (mut len, mut bytes) = (0, 0);
        let with_memory = self.bins.iter().filter(|bin| bin.has_memory()).count();
        assert_eq!(with_memory, self.with_memory, "free index counts: bins with memory");
        assert!(self.map.last().is_none_or(|last| last < self.bins.len()), "I1: a bin that does not exist is marked");
        for (number, bin) in self.bins.iter().enumerate() {
            assert_eq!(self.map.contains(number), !bin.is_empty(), "I1: bin {number} is marked wrongly");
            bin.check(number);
            // Most bins are empty, and this runs after every operation of a test.
            if bin.is_empty() {
                continue;
            }
            for block in bin.iter().map(|entry| block_of(number, entry)) {
                assert_eq!(bin_of(block.size), number, "I1: a block of {} bytes in bin {number}", block.size);
                len += 1;
                bytes += block.size;
            }
        }
        assert_eq!((len, bytes), (self.len, self.bytes), "free index counts");
        let bins = self.bins.iter().enumerate();
        self.edges.check(bins.flat_map(|(number, bin)| bin.iter().map(move |entry| block_of(number, entry).range())));
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
                        let block = FreeBlock { size, offset: step << 32 };
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
                    assert!(index.iter_down_from(None).eq(oracle.iter().rev().copied()));
                    assert!(index.iter_from(size).eq(oracle.range(FreeBlock { size, offset: 0 }..).copied()));
                    for first in oracle.iter().step_by(7) {
                        let next = FreeBlock { size: first.size, offset: first.offset + 1 };
                        assert!(index.iter_since(*first).eq(oracle.range(first..).copied()));
                        assert!(index.iter_since(next).eq(oracle.range(next..).copied()));
                        assert!(index.iter_down_from(Some(*first)).eq(oracle.range(..=first).rev().copied()));
                    }
                }
            }
            index.check();
        }
    }

    #[test]
    fn bins_are_made_up_to_the_largest_block() {
        let mut index = FreeIndex::default();
        let edges = |index: &FreeIndex| index.edges.metadata_bytes();
        assert_eq!(index.metadata_bytes(), edges(&index));
        let bin_bytes = size_of::<Entries>() as u64;
        let sizes = [(GRANULE, 32), (2 << 20, 288), (8 << 20, 352), (4 << 10, 352), (1 << 40, 896)];
        for (size, bins) in sizes {
            index.insert(FreeBlock { size, offset: 0 });
            assert_eq!(index.metadata_bytes() - edges(&index), bins * bin_bytes, "with a block of {size} bytes");
            index.check();
        }
        // A second entry of a bin takes memory, and so does each that is too many for its array.
        let (bins, others) = (896 * bin_bytes, OTHERS_BYTES as u64);
        for (count, bytes) in [(1, 0), (2, others), (28, others), (29, others + 16), (30, others + 32)] {
            let before = index.iter_from(0).filter(|block| block.size == GRANULE).count() as u64;
            (before..count).for_each(|number| index.insert(FreeBlock { size: GRANULE, offset: 2 * number * GRANULE }));
            assert_eq!(index.metadata_bytes() - edges(&index), bins + bytes, "{count} blocks in one bin");
            index.check();
        }
    }

    #[test]
    fn no_block_is_large_enough_for_too_much() {
        let mut index = FreeIndex::default();
        index.insert(FreeBlock { size: 1 << 46, offset: 0 });
        for size in [(1 << 46) + GRANULE, 1 << 47, 1 << 60, u64::MAX - GRANULE + 1] {
            assert_eq!((index.best_fit(size), index.take(size, |_| Cut::Start)), (None, None), "{size} bytes");
        }
        assert_eq!(index.best_fit(1 << 46), index.largest());
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<FreeIndex>] = &[
            ("I1: bin 1 is marked wrongly", |index| index.map.clear(1)),
            ("I1: bin 9 is marked wrongly", |index| index.map.set(9)),
            ("free index counts: bins with memory", |index| index.with_memory += 1),
            ("I1: a bin that does not exist is marked", |index| index.map.set(index.bins.len())),
            ("I1: a block of 1024 bytes in bin 1", |index| {
                index.bins[1].pop();
                index.bins[1].replace_smallest(1 << OFFSET_BITS);
            }),
            ("entries I1: bin 1 is not in order", |index| index.bins[1].replace_smallest(8)),
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
    #[should_panic(expected = "free index has no entry 0x1 in bin 1")]
    fn removing_an_absent_block_panics() {
        let mut index = FreeIndex::default();
        index.insert(FreeBlock { size: GRANULE, offset: 0 });
        index.remove(FreeBlock { size: GRANULE, offset: GRANULE });
    }
}
