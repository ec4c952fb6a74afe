//! Sets of addresses or file offsets, kept as disjoint intervals.

use std::collections::BTreeMap;

/// Disjoint intervals, joined where they touch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IntervalSet {
    ends: BTreeMap<u64, u64>,
}

impl IntervalSet {
    /// Returns true when all of `[start, end)` is in the set.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        self.run_at(start).is_some_and(|(_, run_end)| end <= run_end)
    }

    /// Returns the first address from `at` on that is in no interval.
    pub fn first_missing(&self, at: u64) -> u64 {
        self.run_at(at).map_or(at, |(_, end)| end)
    }

    /// Adds `[start, end)`; parts of it may be in the set already.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, &before_end)) = self.ends.range(..start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.ends.range(start..=end).next() {
            end = end.max(next_end);
            self.ends.remove(&next);
        }
        self.ends.insert(start, end);
    }

    /// Removes `[start, end)`; parts of it may not be in the set.
    pub fn remove(&mut self, start: u64, end: u64) {
        if let Some((before, before_end)) = self.run_at(start)
            && before < start
        {
            self.ends.insert(before, start);
            if before_end > end {
                self.ends.insert(end, before_end);
            }
        }
        while let Some((&next, &next_end)) = self.ends.range(start..end).next() {
            self.ends.remove(&next);
            if next_end > end {
                self.ends.insert(end, next_end);
            }
        }
    }

    /// Returns the start of the lowest interval that is at least `bytes` long.
    pub fn first_fit(&self, bytes: u64) -> Option<u64> {
        self.ends.iter().find(|&(&start, &end)| end - start >= bytes).map(|(&start, _)| start)
    }

    fn run_at(&self, at: u64) -> Option<(u64, u64)> {
        self.ends.range(..=at).next_back().map(|(&start, &end)| (start, end)).filter(|&(_, end)| at < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_fit_is_the_lowest() {
        let mut set = IntervalSet::default();
        set.insert(0, 2);
        set.insert(10, 15);
        set.insert(20, 30);
        assert_eq!([1, 3, 6, 11].map(|bytes| set.first_fit(bytes)), [Some(0), Some(10), Some(20), None]);
    }

    proptest! {
        /// The set of intervals against one bit per unit.
        #[test]
        fn interval_set_is_a_set(ops in prop::collection::vec((any::<bool>(), 0_u64..60, 1_u64..20), 1..60)) {
            let mut set = IntervalSet::default();
            let mut bits = [false; 80];
            for (insert, start, len) in ops {
                let end = start + len;
                if insert { set.insert(start, end) } else { set.remove(start, end) }
                bits[start as usize..end as usize].fill(insert);
                let mut joined = IntervalSet::default();
                for at in (0..80).filter(|&at| bits[at as usize]) {
                    joined.insert(at, at + 1);
                }
                prop_assert_eq!(&set, &joined);
                for at in 0..79 {
                    prop_assert_eq!(set.contains(at, at + 1), bits[at as usize]);
                }
            }
        }
    }
}
