//! Size bins: which bin of the free index a size belongs to, and which bin to search next.
//!
//! Sizes are in granules of [`GRANULE`] bytes. Below twice `SUB_BINS` granules every size has its own bin. Above, every doubling
//! is divided into `SUB_BINS` equal parts, so that the sizes in a bin differ by at most 1/32; from 2^42 bytes on the parts
//! stay as they are. This is the two-level segregated fit of Masmano et al. (2004); the free index makes the search inside a
//! bin exact.

use std::ops::Range;

/// The unit of allocation in bytes: every block's offset and size is a multiple of it.
pub const GRANULE: u64 = 512;

/// log2 of the bytes of the largest heap.
const EXTENT_BITS: u32 = 46;
/// Bytes of the largest heap.
pub const MOST_EXTENT: u64 = 1 << EXTENT_BITS;
/// log2 of the granules of the largest heap: a place in it has so many bits.
pub const OFFSET_BITS: u32 = EXTENT_BITS - GRANULE.trailing_zeros();

/// Bins per doubling.
const SUB_BINS: u64 = 1 << SUB_BITS;
/// log2 of [`SUB_BINS`].
const SUB_BITS: u32 = 5;
/// log2 of the most granules by which the sizes in a bin differ: with a place they make a word.
const MOST_WIDTH_BITS: u32 = 64 - OFFSET_BITS;

/// Number of bins.
const BINS: usize = bin_of(MOST_EXTENT) + 1;

/// Returns the bin for blocks of `size` bytes (a multiple of [`GRANULE`]), and log2 of the number of sizes in that bin, without a
/// branch.
#[inline]
const fn bin_and_width(size: u64) -> (usize, u32) {
    let granules = size / GRANULE;
    let width = (granules | SUB_BINS).ilog2() - SUB_BITS;
    let width = if width < MOST_WIDTH_BITS { width } else { MOST_WIDTH_BITS };
    (((width as u64) << SUB_BITS) as usize + (granules >> width) as usize, width)
}

/// Returns the bin for blocks of `size` bytes (a multiple of [`GRANULE`]).
#[inline]
pub const fn bin_of(size: u64) -> usize {
    bin_and_width(size).0
}

/// Returns the bin for blocks of `size` bytes (a multiple of [`GRANULE`]), and by how many granules that is more than the
/// smallest size in it.
#[inline]
pub fn bin_and_rest(size: u64) -> (usize, u64) {
    let (bin, width) = bin_and_width(size);
    (bin, (size / GRANULE) & ((1 << width) - 1))
}

/// Returns the sizes in bytes that belong to `bin`.
#[inline]
pub fn sizes_in(bin: usize) -> Range<u64> {
    let bin = bin as u64;
    let width = (bin >> SUB_BITS).saturating_sub(1).min(u64::from(MOST_WIDTH_BITS));
    let least = (bin - (width << SUB_BITS)) << width;
    least * GRANULE..(least + (1 << width)) * GRANULE
}

/// One bit per bin, and a summary with one bit per 64 bins: finds the next non-empty bin in two steps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BinMap {
    summary: u64,
    words: [u64; BINS.div_ceil(64)],
}

impl Default for BinMap {
    fn default() -> Self {
        Self { words: [0; BINS.div_ceil(64)], summary: 0 }
    }
}

impl BinMap {
    /// Marks `bin` as not empty.
    #[inline]
    pub fn set(&mut self, bin: usize) {
        self.words[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
    }

    /// Marks `bin` as empty.
    #[inline]
    pub fn clear(&mut self, bin: usize) {
        self.words[bin / 64] &= !(1 << (bin % 64));
        if self.words[bin / 64] == 0 {
            self.summary &= !(1 << (bin / 64));
        }
    }

    /// Returns `true` if `bin` is marked as not empty.
    pub fn contains(&self, bin: usize) -> bool {
        self.words.get(bin / 64).is_some_and(|word| word & (1 << (bin % 64)) != 0)
    }

    /// Returns the lowest non-empty bin that is `bin` or above.
    #[inline]
    pub fn next_from(&self, bin: usize) -> Option<usize> {
        if bin >= BINS {
            return None;
        }
        let word = bin / 64;
        let here = self.words[word] & (u64::MAX << (bin % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        // `word + 1 <= 63`, since BINS / 64 is below 63.
        let above = self.summary & (u64::MAX << (word + 1));
        if above == 0 {
            return None;
        }
        let word = above.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// Returns the highest non-empty bin that is `bin` or below.
    pub fn last_until(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let here = self.words.get(word)? & (u64::MAX >> (63 - bin % 64));
        if here != 0 {
            return Some(word * 64 + here.ilog2() as usize);
        }
        let word = (self.summary & ((1 << word) - 1)).checked_ilog2()? as usize;
        Some(word * 64 + self.words[word].ilog2() as usize)
    }

    /// Returns the highest non-empty bin.
    pub fn last(&self) -> Option<usize> {
        let word = self.summary.checked_ilog2()? as usize;
        Some(word * 64 + self.words[word].ilog2() as usize)
    }
}

const _: () = assert!(BINS.div_ceil(64) < 64, "one summary word covers all bins");

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the smallest size in bytes that belongs to `bin`.
    fn smallest_of(bin: usize) -> u64 {
        sizes_in(bin).start
    }

    #[test]
    fn bins_are_ordered_and_tight() {
        let mut last = 0;
        for granules in 1..200_000u64 {
            let size = granules * GRANULE;
            let bin = bin_of(size);
            assert!(bin == last || bin == last + 1, "size {size}: bin {bin} after {last}");
            assert!(smallest_of(bin) <= size);
            assert!(smallest_of(bin + 1) > size);
            last = bin;
        }
        for shift in 9..=EXTENT_BITS {
            for size in [1u64 << shift, (1u64 << shift).wrapping_sub(GRANULE), (1u64 << shift) + GRANULE] {
                if (GRANULE..=MOST_EXTENT).contains(&size) {
                    let bin = bin_of(size);
                    assert!(bin < BINS);
                    assert!(smallest_of(bin) <= size);
                    assert_eq!(bin_of(smallest_of(bin)), bin);
                }
            }
        }
    }

    #[test]
    fn the_sizes_in_a_bin_differ_by_little() {
        for bin in 64..BINS - 1 {
            let (least, next) = (smallest_of(bin), smallest_of(bin + 1));
            assert!((next - least) * SUB_BINS <= least, "bin {bin}: {least} to {next}");
        }
        // Where the parts do not grow any more, they are smaller than that.
        assert_eq!(smallest_of(BINS - 1) - smallest_of(BINS - 2), GRANULE << MOST_WIDTH_BITS);
    }

    #[test]
    fn a_size_is_put_together_again() {
        for shift in 9..=EXTENT_BITS {
            for more in [0, 1, 2, 31, 12_345] {
                let size = ((1u64 << shift) + more * GRANULE).min(MOST_EXTENT);
                let (bin, rest) = bin_and_rest(size);
                assert_eq!((bin, sizes_in(bin).start + rest * GRANULE), (bin_of(size), size), "{size} bytes");
                assert!(rest < 1 << MOST_WIDTH_BITS);
            }
        }
    }

    #[test]
    fn the_largest_heap_has_the_last_bin() {
        assert_eq!((bin_of(MOST_EXTENT), BINS), (BINS - 1, 1889));
        assert!(bin_of(u64::MAX) >= BINS, "larger sizes have none");
    }

    #[test]
    fn the_map_finds_the_next_and_the_last_bin() {
        let mut map = BinMap::default();
        assert_eq!(map.next_from(0), None);
        assert_eq!(map.last(), None);
        for bin in [0, 1, 63, 64, 200, BINS - 1] {
            map.set(bin);
        }
        assert_eq!(map.next_from(2), Some(63));
        assert_eq!(map.next_from(64), Some(64));
        assert_eq!(map.next_from(65), Some(200));
        assert_eq!(map.next_from(201), Some(BINS - 1));
        assert_eq!(map.next_from(BINS), None);
        assert_eq!(map.last(), Some(BINS - 1));
        assert_eq!(map.last_until(BINS - 1), Some(BINS - 1));
        assert_eq!(map.last_until(BINS - 2), Some(200));
        assert_eq!(map.last_until(200), Some(200));
        assert_eq!(map.last_until(199), Some(64));
        assert_eq!(map.last_until(63), Some(63));
        assert_eq!(map.last_until(62), Some(1));
        assert_eq!(map.last_until(BINS + 64), None);
        map.clear(BINS - 1);
        assert_eq!(map.last(), Some(200));
        map.clear(200);
        assert_eq!(map.next_from(65), None);
        assert!(map.contains(64) && !map.contains(200));
    }
}
