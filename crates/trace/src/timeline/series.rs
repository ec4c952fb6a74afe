//! Bytes over time, in a bounded number of buckets, and op by op around a few moments.

use std::ops::Range;

/// The least and the most bytes in each bucket of ops, in KiB, rounded up.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Series {
    /// The least of each bucket.
    pub low_kib: Vec<u64>,
    /// The most of each bucket. As long as `low_kib`; shorter than the trace where a replay ended early.
    pub high_kib: Vec<u64>,
    /// The bytes after each op of the windows, one window after the other. Shorter where a replay ended early.
    pub close_kib: Vec<u64>,
}

impl Series {
    /// Records that there are `bytes` bytes after the op at an index. Ops come in their order.
    pub(super) fn record(&mut self, buckets: &Buckets, op: usize, bytes: u64) {
        let (bucket, kib) = (op / buckets.ops_each, bytes.div_ceil(1024));
        if self.high_kib.len() <= bucket {
            self.low_kib.push(kib);
            self.high_kib.push(kib);
        } else {
            self.low_kib[bucket] = self.low_kib[bucket].min(kib);
            self.high_kib[bucket] = self.high_kib[bucket].max(kib);
        }
        if buckets.windows.iter().any(|window| window.contains(&op)) {
            self.close_kib.push(kib);
        }
    }
}

/// How ops are put into buckets, and which are kept one by one.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    ops_each: usize,
    windows: Vec<Range<usize>>,
}

impl Buckets {
    /// Returns the buckets of so many ops, with windows around `close`.
    pub(super) fn of(ops: usize, close: &[u64]) -> Self {
        let ops_each = ops.div_ceil(MOST_BUCKETS).max(1);
        let mut windows: Vec<Range<usize>> = Vec::new();
        // Where each op has a bucket of its own, there is nothing more to see.
        if ops_each > 1 {
            let mut close: Vec<usize> = close.iter().filter_map(|&op| usize::try_from(op).ok()).collect();
            close.sort_unstable();
            for op in close {
                let window = op.saturating_sub(OPS_BEFORE)..op.saturating_add(OPS_AFTER).min(ops);
                match windows.last_mut() {
                    Some(last) if last.end >= window.start => last.end = window.end,
                    _ => windows.push(window),
                }
            }
        }
        Self { ops_each, windows }
    }

    pub(super) const fn ops_each(&self) -> usize {
        self.ops_each
    }

    /// Returns the windows in which every op is kept: from the first op on, and the one after the last. They do not overlap.
    pub(super) fn windows(&self) -> Vec<[u64; 2]> {
        self.windows.iter().map(|window| [window.start as u64, window.end as u64]).collect()
    }
}

/// Most buckets of a series.
pub(super) const MOST_BUCKETS: usize = 4096;
/// Ops of a window before its moment, and after.
const OPS_BEFORE: usize = 768;
const OPS_AFTER: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_keeps_the_least_and_the_most() {
        let mut series = Series::default();
        let buckets = Buckets::of(3 * MOST_BUCKETS, &[]);
        for (op, bytes) in [(0, 4096), (1, 1), (2, 2048), (3, 0)] {
            series.record(&buckets, op, bytes);
        }
        assert_eq!((series.low_kib, series.high_kib, series.close_kib), (vec![1, 0], vec![4, 0], vec![]));
    }

    #[test]
    fn buckets_cover_all_ops_and_are_bounded() {
        for ops in [0, 1, MOST_BUCKETS, MOST_BUCKETS + 1, 1_000_000] {
            let buckets = Buckets::of(ops, &[]);
            assert!(ops.saturating_sub(1) / buckets.ops_each < MOST_BUCKETS, "{ops}");
        }
        assert_eq!(Buckets::of(MOST_BUCKETS, &[7]).ops_each(), 1);
        assert_eq!(Buckets::of(MOST_BUCKETS, &[7]).windows(), Vec::<[u64; 2]>::new());
    }

    #[test]
    fn ops_around_a_moment_are_kept_one_by_one() {
        assert_eq!(Buckets::of(1_000_000, &[999_990, 10]).windows(), [[0, 266], [999_222, 1_000_000]]);
        assert_eq!(Buckets::of(1_000_000, &[5_000, 5_300]).windows(), [[4_232, 5_556]]);
        let mut series = Series::default();
        let buckets = Buckets::of(100_000, &[0, 90_000]);
        for op in 0..100_000 {
            series.record(&buckets, op, op as u64 * 1024);
        }
        let expected: Vec<u64> = (0..256).chain(89_232..90_256).collect();
        assert_eq!(series.close_kib, expected);
    }
}
