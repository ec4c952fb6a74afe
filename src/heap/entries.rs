//! Entries of one bin of the free index, in order: the smallest one at hand, the next ones in an array, the others in a tree.
//!
//! An entry is a number. What it stands for is the index's business: here only the order counts.
//!
//! - I1  `near` is sorted from largest to smallest. `smallest` is less than every entry of `near`, and those are less than every
//!   entry of `far`.
//! - I2  there is no `smallest` only where `near` is empty, which it is only where `far` is.
//!
//! Cost: O(1) for the smallest entry, and while there are at most [`NEAR`] others; O(log n) beyond. What is freed and allocated
//! again is mostly the smallest entry, or the only one, for which nothing but `smallest` is read.

use std::collections::BTreeSet;

/// Number of entries in the array, apart from the smallest one.
pub(super) const NEAR: usize = 27;

/// `smallest` where there are no entries. No entry is that large.
const NONE: u64 = u64::MAX;

/// A set of numbers below `u64::MAX`.
#[derive(Clone, Debug)]
pub struct Entries {
    smallest: u64,
    /// The others. Made when there is a second entry, and kept.
    others: Option<Box<Others>>,
}

/// Where an entry was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// It is the only one.
    First,
    /// Beside others.
    Beside,
    /// Beside another, and [`OTHERS_BYTES`] of memory were taken for it, which stay.
    InNewMemory,
}

/// Bytes of the array, and of what is in its memory beside it.
pub const OTHERS_BYTES: usize = size_of::<Others>();

/// All entries but the smallest.
#[derive(Clone, Debug, Default)]
struct Others {
    /// The smaller ones, the largest of them first: `len` elements.
    near: [u64; NEAR],
    len: usize,
    /// The larger ones. An empty tree owns no memory.
    far: BTreeSet<u64>,
}

impl Default for Entries {
    fn default() -> Self {
        Self { smallest: NONE, others: None }
    }
}

impl Entries {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.smallest == NONE
    }

    /// Returns the smallest entry.
    #[inline]
    pub fn smallest(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.smallest)
    }

    /// Adds an entry.
    #[inline]
    pub fn insert(&mut self, entry: u64) -> Inserted {
        if self.is_empty() {
            self.smallest = entry;
            return Inserted::First;
        }
        let larger = self.smallest.max(entry);
        self.smallest = self.smallest.min(entry);
        match &mut self.others {
            Some(others) => {
                others.insert(larger);
                Inserted::Beside
            }
            None => {
                self.others.insert(Box::default()).insert(larger);
                Inserted::InNewMemory
            }
        }
    }

    /// Puts `entry`, which is less than all others, in the place of the smallest one.
    #[inline]
    pub fn replace_smallest(&mut self, entry: u64) {
        self.smallest = entry;
    }

    /// Puts the larger entry `grown` in the place of `entry` if that is the smallest one, and stays so. Returns whether it did.
    #[inline]
    pub fn grow_smallest(&mut self, entry: u64, grown: u64) -> bool {
        let stays = self.smallest == entry && self.others.as_ref().is_none_or(|others| grown < others.smallest());
        if stays {
            self.smallest = grown;
        }
        stays
    }

    /// Removes the smallest entry.
    #[inline]
    pub fn pop(&mut self) {
        self.smallest = self.others.as_mut().map_or(NONE, |others| others.pop());
    }

    /// Removes an entry. Returns whether there was one.
    #[inline]
    pub fn remove(&mut self, entry: u64) -> bool {
        if self.smallest == entry {
            self.pop();
            return true;
        }
        self.others.as_mut().is_some_and(|others| others.remove(entry))
    }

    /// Returns the entries in their order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.iter_from(0)
    }

    /// Returns the entries of at least `least`, in their order.
    pub fn iter_from(&self, least: u64) -> impl Iterator<Item = u64> {
        let smallest = self.smallest().filter(|smallest| *smallest >= least);
        let others = self.others.iter().flat_map(move |others| others.iter_from(least));
        smallest.into_iter().chain(others)
    }

    /// Returns the entries up to `most`, the largest first.
    pub fn iter_down_from(&self, most: u64) -> impl Iterator<Item = u64> {
        let smallest = self.smallest().filter(|smallest| *smallest <= most);
        let others = self.others.iter().flat_map(move |others| others.iter_down_from(most));
        others.chain(smallest)
    }

    /// Returns the number of entries in the tree.
    pub fn far_len(&self) -> usize {
        self.others.as_ref().map_or(0, |others| others.far.len())
    }

    /// Whether memory was taken for a second entry.
    pub fn has_memory(&self) -> bool {
        self.others.is_some()
    }

    /// Asserts I1 and I2 of bin `number`.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check(&self, number: usize) {
        if let Some(others) = &self.others {
            assert!(others.len <= NEAR, "entries I1: bin {number} has {} near entries", others.len);
            assert!(!self.is_empty() || others.len == 0, "entries I2: bin {number} has no smallest entry");
            assert!(others.len > 0 || others.far.is_empty(), "entries I2: bin {number} has far entries only");
        }
        assert!(self.iter().is_sorted_by(|a, b| a < b), "entries I1: bin {number} is not in order");
    }
}

impl Others {
    fn near(&self) -> &[u64] {
        &self.near[..self.len]
    }

    #[inline]
    fn smallest(&self) -> u64 {
        self.near().last().copied().unwrap_or(NONE)
    }

    /// Adds an entry.
    #[inline]
    fn insert(&mut self, entry: u64) {
        if self.len == NEAR || self.near[0] < entry && !self.far.is_empty() {
            return self.insert_beside_far(entry);
        }
        let mut at = self.len;
        self.len += 1;
        while at > 0 && self.near[at - 1] < entry {
            self.near[at] = self.near[at - 1];
            at -= 1;
        }
        self.near[at] = entry;
    }

    /// As [`insert`](Self::insert), where `near` is full, or the entry may belong to `far`.
    #[inline(never)]
    fn insert_beside_far(&mut self, entry: u64) {
        let largest = self.near[0];
        if entry > largest {
            if self.len == NEAR || self.far.first().is_some_and(|first| *first < entry) {
                self.far.insert(entry);
            } else {
                self.near.copy_within(..self.len, 1);
                self.near[0] = entry;
                self.len += 1;
            }
            return;
        }
        self.far.insert(largest);
        let above = self.near().partition_point(|other| *other > entry);
        self.near.copy_within(1..above, 0);
        self.near[above - 1] = entry;
    }

    /// Removes and returns the smallest entry, [`NONE`] where there is none.
    #[inline]
    fn pop(&mut self) -> u64 {
        let Some(last) = self.len.checked_sub(1) else { return NONE };
        self.len = last;
        let smallest = self.near[last];
        if last == 0 {
            self.refill();
        }
        smallest
    }

    #[inline]
    fn remove(&mut self, entry: u64) -> bool {
        let at = self.near().partition_point(|other| *other > entry);
        if at == self.len || self.near[at] != entry {
            return self.far.remove(&entry);
        }
        self.near.copy_within(at + 1..self.len, at);
        self.len -= 1;
        if self.len == 0 {
            self.refill();
        }
        true
    }

    #[inline]
    fn refill(&mut self) {
        if !self.far.is_empty() {
            self.refill_from_far();
        }
    }

    #[cold]
    fn refill_from_far(&mut self) {
        while self.len < NEAR / 2
            && let Some(entry) = self.far.pop_first()
        {
            self.near[self.len] = entry;
            self.len += 1;
        }
        self.near[..self.len].reverse();
    }

    fn iter_from(&self, least: u64) -> impl Iterator<Item = u64> {
        let near = self.near().partition_point(|other| *other >= least);
        self.near[..near].iter().rev().copied().chain(self.far.range(least..).copied())
    }

    fn iter_down_from(&self, most: u64) -> impl Iterator<Item = u64> {
        let near = self.near().partition_point(|other| *other > most);
        self.far.range(..=most).rev().chain(&self.near()[near..]).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Break, assert_noticed};

    #[test]
    fn agree_with_an_ordered_set() {
        for spread in [2_u64, 20, 60, 3000] {
            let (mut entries, mut oracle) = (Entries::default(), BTreeSet::new());
            let mut state = spread;
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state >> 33
            };
            for step in 0..20_000 {
                let entry = 1 + random() % spread;
                match random() % 5 {
                    0 | 1 if !oracle.contains(&entry) => {
                        assert_eq!(entries.insert(entry) == Inserted::First, oracle.is_empty());
                        oracle.insert(entry);
                    }
                    2 => assert_eq!(entries.remove(entry), oracle.remove(&entry)),
                    3 => {
                        entries.pop();
                        oracle.pop_first();
                    }
                    _ if !oracle.is_empty() => {
                        let smallest = *oracle.first().unwrap();
                        let stays = oracle.range(smallest + 1..).next().is_none_or(|next| entry < *next);
                        if entry > smallest {
                            assert_eq!(entries.grow_smallest(smallest, entry), stays);
                            assert!(!entries.grow_smallest(smallest - 1, entry));
                        }
                        if entry > smallest && stays {
                            oracle.remove(&smallest);
                            oracle.insert(entry);
                        }
                    }
                    _ => {}
                }
                assert_eq!((entries.smallest(), entries.is_empty()), (oracle.first().copied(), oracle.is_empty()));
                if step % 100 == 0 {
                    entries.check(0);
                    assert!(entries.iter().eq(oracle.iter().copied()));
                    assert!(entries.iter_from(entry).eq(oracle.range(entry..).copied()));
                    assert!(entries.iter_down_from(entry).eq(oracle.range(..=entry).rev().copied()));
                }
            }
        }
    }

    #[test]
    fn the_smallest_grows_only_up_to_the_next() {
        let mut entries = Entries::default();
        let last = NEAR as u64 + 3;
        (1..=last).for_each(|number| _ = entries.insert(10 * number));
        (1..last - 2).for_each(|_| entries.pop());
        let smallest = entries.smallest().unwrap();
        assert!(!entries.grow_smallest(smallest, smallest + 11));
        assert!(entries.grow_smallest(smallest, smallest + 9));
        assert_eq!(entries.smallest(), Some(smallest + 9));
        entries.check(0);
    }

    #[test]
    fn one_entry_takes_no_memory() {
        let mut entries = Entries::default();
        assert!(!entries.has_memory());
        let inserted: Vec<_> = (1..=NEAR as u64 + 2).map(|entry| entries.insert(entry)).collect();
        assert_eq!(inserted[..3], [Inserted::First, Inserted::InNewMemory, Inserted::Beside]);
        assert!(inserted[3..].iter().all(|inserted| *inserted == Inserted::Beside));
        assert_eq!((entries.has_memory(), entries.far_len()), (true, 1));
        assert_eq!((size_of::<Entries>(), OTHERS_BYTES), (16, 248));
        // It stays, for the next second entry.
        (1..=NEAR as u64 + 2).for_each(|_| entries.pop());
        assert!(entries.has_memory() && entries.is_empty());
        assert_eq!([1, 2].map(|entry| entries.insert(entry)), [Inserted::First, Inserted::Beside]);
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<Entries>] = &[
            ("entries I1: bin 7 is not in order", |entries| entries.smallest = 25),
            ("entries I1: bin 7 is not in order", |entries| entries.smallest = 20),
            ("entries I1: bin 7 is not in order", |entries| entries.others.as_mut().unwrap().near[1] = 40),
            ("entries I1: bin 7 has 28 near entries", |entries| entries.others.as_mut().unwrap().len = NEAR + 1),
            ("entries I2: bin 7 has no smallest entry", |entries| entries.smallest = NONE),
            ("entries I2: bin 7 has far entries only", |entries| {
                let others = entries.others.as_mut().unwrap();
                (others.len, others.far) = (0, BTreeSet::from([50]));
            }),
        ];
        let entries = || {
            let mut entries = Entries::default();
            [10, 20, 30].into_iter().for_each(|entry| _ = entries.insert(entry));
            entries
        };
        assert_noticed(entries, |entries| entries.check(7), breaks);
    }
}
