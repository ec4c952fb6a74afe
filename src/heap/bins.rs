//! Size bins: which bin of the free index a size belongs to, and which bin to search next.
//!
//! Sizes are in granules of [`GRANULE`] bytes. Below `EXACT` granules every size has its own bin. Above, every doubling
//! is divided into `SUB_BINS` equal parts, so that the sizes in a bin differ by at most 1/32. This is the two-level
//! segregated fit of Masmano et al. (2004); the free index makes the search inside a bin exact.

/// The unit of allocation in bytes: every block's offset and size is a multiple of it.
pub const GRANULE: u64 = 512;

/// Number of granules below which every size has its own bin.
const EXACT: u64 = 64;
/// log2 of [`EXACT`].
const EXACT_BITS: u32 = EXACT.trailing_zeros();
/// Bins per doubling above [`EXACT`].
const SUB_BINS: u64 = 32;
/// log2 of [`SUB_BINS`].
const SUB_BITS: u32 = SUB_BINS.trailing_zeros();
/// Number of doublings from [`EXACT`] to the largest size, 2^64 bytes.
const DOUBLINGS: u64 = 64 - GRANULE.trailing_zeros() as u64 - EXACT_BITS as u64;

/// Number of bins.
const BINS: usize = (EXACT + DOUBLINGS * SUB_BINS) as usize;

/// Returns the bin for blocks of `size` bytes (a non-zero multiple of [`GRANULE`]).
#[inline]
pub fn bin_of(size: u64) -> usize {
    let granules = size / GRANULE;
    if granules < EXACT {
        return granules as usize;
    }
    let log = granules.ilog2();
    let sub = (granules >> (log - SUB_BITS)) & (SUB_BINS - 1);
    (EXACT + u64::from(log - EXACT_BITS) * SUB_BINS + sub) as usize
}

/// One bit per bin, and a summary with one bit per 64 bins: finds the next non-empty bin in two steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinMap {
    words: [u64; BINS.div_ceil(64)],
    summary: u64,
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
        self.words[bin / 64] & (1 << (bin % 64)) != 0
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
        // `word + 1 <= 63`, since BINS / 64 is well below 64.
        let above = self.summary & (u64::MAX << (word + 1));
        if above == 0 {
            return None;
        }
        let word = above.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
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
        let bin = bin as u64;
        if bin < EXACT {
            return bin * GRANULE;
        }
        let log = (bin - EXACT) / SUB_BINS + u64::from(EXACT_BITS);
        let sub = (bin - EXACT) % SUB_BINS;
        ((SUB_BINS + sub) << (log - u64::from(SUB_BITS))) * GRANULE
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
        for shift in 9..64 {
            for size in [1u64 << shift, (1u64 << shift).wrapping_sub(GRANULE), (1u64 << shift) + GRANULE] {
                if size >= GRANULE {
                    let bin = bin_of(size);
                    assert!(bin < BINS);
                    assert!(smallest_of(bin) <= size);
                    assert_eq!(bin_of(smallest_of(bin)), bin);
                }
            }
        }
    }

    #[test]
    fn the_largest_size_has_the_last_bin() {
        assert_eq!(bin_of(u64::MAX), BINS - 1);
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
        map.clear(BINS - 1);
        assert_eq!(map.last(), Some(200));
        map.clear(200);
        assert_eq!(map.next_from(65), None);
        assert!(map.contains(64) && !map.contains(200));
    }
}
