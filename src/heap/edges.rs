//! Edges: where no free block starts or ends, so that a block that is freed need not look up neighbours that are in use.
//!
//! Each edge of a free block, its start and its end, is counted at the place that a hash of the edge's offset gives. Where a place
//! counts none, no free block has an edge that belongs there; where it counts some, one may, and the block table tells. That is a
//! counting Bloom filter with one hash function (Fan, Cao, Almeida and Broder, *Summary cache*, 2000). A live block asks for both
//! of its own edges: the free block before it would end at one, and the free block after it start at the other.
//!
//! - I1  each place counts the edges that belong there, up to [`FULL`]. A place that is full stays so: how many edges it has is not
//!   known any more.
//!
//! Cost: O(1); O(free blocks) where the filter doubles. One byte a place, at least [`PLACES`] places for each free block.

use super::bins::GRANULE;
use crate::hash;
use std::ops::Range;

/// The largest count.
const FULL: u8 = u8::MAX;
/// Places for each free block, at least: so many that of a hundred blocks without a free neighbour, 22 at most seem to have one.
const PLACES: usize = 16;
/// Number of places for the first free blocks.
const FIRST_PLACES: usize = 64;

/// How many free blocks have an edge at each place.
#[derive(Clone, Debug)]
pub struct Edges {
    /// A power of two of them.
    counts: Box<[u8]>,
}

/// The places of a block's two edges. They stay the same until the filter grows.
#[derive(Clone, Copy, Debug)]
pub struct Places([usize; 2]);

impl Default for Edges {
    fn default() -> Self {
        Self::with_places(FIRST_PLACES)
    }
}

impl Edges {
    fn with_places(places: usize) -> Self {
        debug_assert!(places.is_power_of_two());
        Self { counts: vec![0; places].into_boxed_slice() }
    }

    #[inline]
    fn place(&self, offset: u64) -> usize {
        (hash::fibonacci(offset / GRANULE) >> 32) as usize & (self.counts.len() - 1)
    }

    /// Returns the places of the edges of a block, which need not be free, by its offsets.
    #[inline]
    pub fn places_of(&self, block: Range<u64>) -> Places {
        Places([self.place(block.start), self.place(block.end)])
    }

    /// Whether no free block has an edge at either place.
    #[inline]
    pub fn none_at(&self, Places([start, end]): Places) -> bool {
        self.counts[start] | self.counts[end] == 0
    }

    /// Counts the edges of a block that becomes free, at its places.
    #[inline]
    pub fn add(&mut self, Places([start, end]): Places) {
        self.count(start);
        self.count(end);
    }

    /// Stops counting the edges of a block that is not free any more.
    #[inline]
    pub fn remove(&mut self, block: Range<u64>) {
        let Places([start, end]) = self.places_of(block);
        self.discount(start);
        self.discount(end);
    }

    /// Counts the edges of the free block `to` in place of those of `from`. The two have the same start or the same end.
    #[inline]
    pub fn change(&mut self, from: Range<u64>, to: Range<u64>) {
        debug_assert!((from.start == to.start) != (from.end == to.end), "one edge moves");
        let (old, new) = if from.start == to.start { (from.end, to.end) } else { (from.start, to.start) };
        self.discount(self.place(old));
        self.count(self.place(new));
    }

    #[inline]
    fn count(&mut self, place: usize) {
        let count = &mut self.counts[place];
        *count += u8::from(*count < FULL);
    }

    #[inline]
    fn discount(&mut self, place: usize) {
        let count = &mut self.counts[place];
        *count -= u8::from(*count < FULL);
    }

    /// Whether there are too few places for so many free blocks.
    #[inline]
    pub fn are_crowded(&self, blocks: usize) -> bool {
        blocks * PLACES > self.counts.len()
    }

    /// Returns twice as many places, with the edges of all free blocks.
    pub fn grown(&self, blocks: impl Iterator<Item = Range<u64>>) -> Self {
        let mut grown = Self::with_places(2 * self.counts.len());
        blocks.for_each(|block| grown.add(grown.places_of(block)));
        grown
    }

    /// Returns the host memory that the counts use, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        size_of_val(&*self.counts) as u64
    }

    /// Asserts I1 for the free blocks.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub fn check(&self, blocks: impl Iterator<Item = Range<u64>>) {
        let mut counts = vec![0_usize; self.counts.len()];
        for block in blocks {
            self.places_of(block).0.into_iter().for_each(|place| counts[place] += 1);
        }
        for (place, (count, expected)) in self.counts.iter().zip(counts).enumerate() {
            let agrees = *count == FULL || usize::from(*count) == expected;
            assert!(agrees, "edges I1: place {place} counts {count} of {expected} edges");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Break, assert_noticed};

    fn block(start: u64, granules: u64) -> Range<u64> {
        start * GRANULE..(start + granules) * GRANULE
    }

    #[test]
    fn blocks_beside_no_free_block_are_told_apart() {
        let mut edges = Edges::default();
        let free: Vec<_> = (0..4).map(|number| block(1000 * number, 100)).collect();
        free.iter().for_each(|free| edges.add(edges.places_of(free.clone())));
        edges.check(free.iter().cloned());
        for free in &free {
            let end = free.start / GRANULE + 100;
            assert!(!edges.none_at(edges.places_of(block(end, 300))), "after {free:?}");
            if free.start > 0 {
                assert!(!edges.none_at(edges.places_of(block(end - 400, 300))), "before {free:?}");
            }
        }
        let apart = (0..4000).filter(|start| start % 1000 > 100 && start % 1000 < 990);
        let (mut blocks, mut taken_for_neighbours) = (0, 0);
        for start in apart {
            blocks += 1;
            taken_for_neighbours += usize::from(!edges.none_at(edges.places_of(block(start, 7))));
        }
        assert!(taken_for_neighbours * 4 < blocks, "{taken_for_neighbours} of {blocks}");
        free.iter().for_each(|free| edges.remove(free.clone()));
        assert!(edges.counts.iter().all(|count| *count == 0));
    }

    #[test]
    fn one_edge_moves() {
        let mut edges = Edges::default();
        edges.add(edges.places_of(block(100, 50)));
        for (from, to) in [((100, 50), (120, 30)), ((120, 30), (120, 10)), ((120, 10), (90, 40)), ((90, 40), (90, 41))]
        {
            edges.change(block(from.0, from.1), block(to.0, to.1));
            edges.check([block(to.0, to.1)].into_iter());
        }
    }

    #[test]
    fn there_are_enough_places() {
        let edges = Edges::default();
        let grown = edges.grown(std::iter::empty());
        assert_eq!([4, 5].map(|blocks| edges.are_crowded(blocks)), [false, true]);
        assert_eq!([8, 9].map(|blocks| grown.are_crowded(blocks)), [false, true]);
        assert_eq!((edges.metadata_bytes(), grown.metadata_bytes()), (64, 128));
    }

    /// More edges at one place than can be counted: it stays full, until the filter grows.
    #[test]
    fn a_full_place_stays_full() {
        let mut edges = Edges::default();
        let place = edges.place(0);
        let same: Vec<_> =
            (0..).map(|start| block(start, 1 << 20)).filter(|it| edges.place(it.start) == place).take(300).collect();
        same.iter().for_each(|block| edges.add(edges.places_of(block.clone())));
        assert_eq!(edges.counts[place], FULL);
        edges.check(same.iter().cloned());
        same[..299].iter().for_each(|block| edges.remove(block.clone()));
        assert_eq!(edges.counts[place], FULL);
        assert!(!edges.none_at(edges.places_of(same[299].clone())));
        let edges = edges.grown(same[299..].iter().cloned());
        edges.check(same[299..].iter().cloned());
        assert!(edges.counts.iter().all(|count| *count < FULL));
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<Edges>] = &[
            ("counts 0 of 1 edges", |edges| {
                let place = edges.place(3 * GRANULE);
                edges.counts[place] = 0;
            }),
            ("counts 1 of 0 edges", |edges| {
                let place = edges.counts.iter().position(|count| *count == 0).unwrap();
                edges.counts[place] = 1;
            }),
        ];
        let edges = || {
            let mut edges = Edges::default();
            edges.add(edges.places_of(block(3, 5)));
            edges
        };
        assert_noticed(edges, |edges| edges.check([block(3, 5)].into_iter()), breaks);
    }
}
