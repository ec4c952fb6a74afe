//! Bytes over time, in a bounded number of buckets.

/// The least and the most bytes in each bucket of ops, in KiB, rounded up.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Series {
    /// The least of each bucket.
    pub low_kib: Vec<u64>,
    /// The most of each bucket. As long as `low_kib`; shorter than the trace where a replay ended early.
    pub high_kib: Vec<u64>,
}

impl Series {
    /// Records that there are `bytes` bytes after an op that belongs to `bucket`. Buckets come in their order.
    pub(super) fn record(&mut self, bucket: usize, bytes: u64) {
        let kib = bytes.div_ceil(1024);
        if self.high_kib.len() <= bucket {
            self.low_kib.push(kib);
            self.high_kib.push(kib);
        } else {
            self.low_kib[bucket] = self.low_kib[bucket].min(kib);
            self.high_kib[bucket] = self.high_kib[bucket].max(kib);
        }
    }
}

/// How ops are put into buckets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buckets {
    ops_each: usize,
}

impl Buckets {
    pub(super) fn of(ops: usize) -> Self {
        Self { ops_each: ops.div_ceil(MOST_BUCKETS).max(1) }
    }

    pub(super) const fn ops_each(self) -> usize {
        self.ops_each
    }

    pub(super) const fn of_op(self, op: usize) -> usize {
        op / self.ops_each
    }
}

/// Most buckets of a series.
pub(super) const MOST_BUCKETS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_keeps_the_least_and_the_most() {
        let mut series = Series::default();
        for (bucket, bytes) in [(0, 4096), (0, 1), (0, 2048), (1, 0)] {
            series.record(bucket, bytes);
        }
        assert_eq!((series.low_kib, series.high_kib), (vec![1, 0], vec![4, 0]));
    }

    #[test]
    fn buckets_cover_all_ops_and_are_bounded() {
        for ops in [0, 1, MOST_BUCKETS, MOST_BUCKETS + 1, 1_000_000] {
            let buckets = Buckets::of(ops);
            assert!(buckets.of_op(ops.saturating_sub(1)) < MOST_BUCKETS, "{ops}");
        }
        assert_eq!(Buckets::of(MOST_BUCKETS).ops_each(), 1);
    }
}
