//! Start map: in which stretches of a heap's addresses a block starts, so that the block around any address is found in a
//! bounded number of steps.
//!
//! One bit for each [`STRETCH`], and above these, level by level, one bit for each word that is not 0. The map is as long
//! as the highest block start so far needs.
//!
//! - I1  a bit of an upper level is set exactly when the word below it is not 0.
//!
//! Cost: `add` and `remove` change one word, and one more a level only where a word was or becomes 0. `last_below` reads
//! two words a level, and those of the top level, one for each [`TOP_WORD`] bytes.

use super::bins::GRANULE;

/// Bytes that one bit stands for. Small enough for each granule in it to be looked at.
pub const STRETCH: u64 = 64 * GRANULE;

/// Bits in a word, which is one bit of the next level.
const FAN: usize = 64;
/// Number of levels.
const LEVELS: usize = 4;
/// Bytes that a word of the top level stands for.
const TOP_WORD: u64 = STRETCH * (FAN as u64).pow(LEVELS as u32);
const _: () = assert!(TOP_WORD == 512 << 30, "few words at the top");

/// A set of stretches.
#[derive(Clone, Debug, Default)]
pub struct StartMap {
    levels: [Vec<u64>; LEVELS],
}

/// The number of the stretch that `offset` lies in.
#[inline]
pub fn stretch_of(offset: u64) -> usize {
    (offset / STRETCH) as usize
}

impl StartMap {
    /// Adds a stretch.
    #[inline]
    pub fn add(&mut self, stretch: usize) {
        match self.levels[0].get_mut(stretch / FAN) {
            Some(word) if *word != 0 => *word |= 1 << (stretch % FAN),
            _ => self.add_first(stretch),
        }
    }

    /// Adds the first stretch of a word.
    #[cold]
    fn add_first(&mut self, stretch: usize) {
        let mut bit = stretch;
        for level in &mut self.levels {
            let word = bit / FAN;
            if word >= level.len() {
                level.resize(word + 1, 0);
            }
            let before = level[word];
            level[word] |= 1 << (bit % FAN);
            if before != 0 {
                break;
            }
            bit = word;
        }
    }

    /// Removes a stretch, if it is in the map.
    #[inline]
    pub fn remove(&mut self, stretch: usize) {
        let mut bit = stretch;
        for level in &mut self.levels {
            let Some(word) = level.get_mut(bit / FAN) else { return };
            *word &= !(1 << (bit % FAN));
            if *word != 0 {
                return;
            }
            bit /= FAN;
        }
    }

    /// Removes the stretches above `low` and below `high`.
    pub fn remove_between(&mut self, low: usize, high: usize) {
        let mut high = high;
        while let Some(stretch) = self.last_below(high).filter(|stretch| *stretch > low) {
            self.remove(stretch);
            high = stretch;
        }
    }

    /// Whether a stretch is in the map.
    pub fn contains(&self, stretch: usize) -> bool {
        self.levels[0].get(stretch / FAN).is_some_and(|word| word & (1 << (stretch % FAN)) != 0)
    }

    /// The last stretch of the map below `stretch`.
    pub fn last_below(&self, stretch: usize) -> Option<usize> {
        let mut end = stretch;
        for (depth, level) in self.levels.iter().enumerate() {
            let word = end / FAN;
            let bits = level.get(word).copied().unwrap_or(0) & ((1 << (end % FAN)) - 1);
            if bits != 0 {
                return Some(self.last_in(depth, word * FAN + bits.ilog2() as usize));
            }
            end = word;
        }
        let top = &self.levels[LEVELS - 1];
        let word = top[..end.min(top.len())].iter().rposition(|word| *word != 0)?;
        Some(self.last_in(LEVELS - 1, word * FAN + top[word].ilog2() as usize))
    }

    /// The last stretch under a bit that is set.
    fn last_in(&self, depth: usize, bit: usize) -> usize {
        let below = self.levels[..depth].iter().rev();
        below.fold(bit, |bit, level| bit * FAN + level[bit].ilog2() as usize)
    }

    /// Returns the host memory that the map uses, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        self.levels.iter().map(|level| (level.capacity() * size_of::<u64>()) as u64).sum()
    }

    /// Asserts I1, and that the map holds exactly `stretches`, which are in order.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check(&self, stretches: impl Iterator<Item = usize>) {
        for (below, above) in self.levels.iter().zip(&self.levels[1..]) {
            for (place, word) in below.iter().enumerate() {
                let marked = above.get(place / FAN).is_some_and(|bits| bits & (1 << (place % FAN)) != 0);
                assert_eq!(marked, *word != 0, "I1: word {place} is marked wrongly");
            }
        }
        let set = self.levels[0].iter().enumerate().flat_map(|(place, word)| {
            // Most words have few bits set, and this runs after every operation of a test.
            let without_lowest = |word: &u64| Some(word & (word - 1)).filter(|left| *left != 0);
            let rest = std::iter::successors(Some(*word).filter(|word| *word != 0), without_lowest);
            rest.map(move |rest| place * FAN + rest.trailing_zeros() as usize)
        });
        assert!(set.eq(stretches), "the map of starts differs from the blocks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Break, assert_noticed};
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_an_ordered_set() {
        for spread in [3, 64, 5000, 70 << 20] {
            let (mut map, mut oracle) = (StartMap::default(), BTreeSet::new());
            let mut state = spread as u64;
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize
            };
            for step in 0..4000 {
                let stretch = random() % spread;
                match random() % 8 {
                    0..=4 => {
                        map.add(stretch);
                        oracle.insert(stretch);
                    }
                    5 | 6 => {
                        let stretch = oracle.range(stretch..).next().copied().unwrap_or(stretch);
                        map.remove(stretch);
                        oracle.remove(&stretch);
                    }
                    _ => {
                        let high = stretch.saturating_add(random() % (spread / 50 + 2));
                        map.remove_between(stretch, high);
                        oracle.retain(|other| *other <= stretch || *other >= high);
                    }
                }
                assert_eq!(map.last_below(stretch), oracle.range(..stretch).next_back().copied(), "below {stretch}");
                assert_eq!(map.last_below(usize::MAX), oracle.last().copied());
                assert_eq!(map.contains(stretch), oracle.contains(&stretch));
                if step % 1000 == 0 && spread <= 5000 {
                    map.check(oracle.iter().copied());
                }
            }
            map.check(oracle.iter().copied());
        }
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<StartMap>] = &[
            ("I1: word 0 is marked wrongly", |map| map.levels[1][0] &= !1),
            ("I1: word 1 is marked wrongly", |map| map.levels[1][0] |= 2),
            ("differs from the blocks", |map| map.levels[0][0] |= 4),
        ];
        let map = || {
            let mut map = StartMap::default();
            map.add(1);
            map.add(200);
            map
        };
        let check = |map: &StartMap| map.check([1, 200].into_iter());
        assert_noticed(map, check, breaks);
    }

    /// A word for each 64 stretches up to the last, and what the vectors have in reserve.
    #[test]
    fn a_map_takes_little_memory() {
        let mut map = StartMap::default();
        assert_eq!(map.metadata_bytes(), 0);
        for words in [1_u64, 64, 1000] {
            map.add(words as usize * FAN - 1);
            let all = words + words.div_ceil(64) + 2;
            let bytes = map.metadata_bytes();
            assert!((8 * all..=8 * (2 * all + 4 * LEVELS as u64)).contains(&bytes), "{bytes} bytes for {words} words");
        }
    }
}
