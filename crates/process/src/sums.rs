//! How the statistics of several allocators add up to those of a device: each figure as its kind says.
//!
//! Cost: that of a copy of the statistics.

use gapless::allocator::{FigureKind, Stats};
use gapless::driver::DriverCall;

/// Changes the figures of a kind by those of others.
pub(crate) fn change(sums: &mut Stats, its: &Stats, kind: FigureKind, by: impl Fn(u64, u64) -> u64) {
    for (figure, its) in Stats::FIGURES.iter().zip(its.figures().values()) {
        if figure.kind == kind
            && let Some(sum) = figure.field(sums)
        {
            *sum = by(*sum, its);
        }
    }
}

/// Adds the counts of an allocator to those of others, or takes them away again: `by` is a sum or a difference.
pub(crate) fn change_counts(sums: &mut Stats, its: &Stats, by: impl Fn(u64, u64) -> u64) {
    change(sums, its, FigureKind::Count, &by);
    for call in DriverCall::ALL {
        sums.driver_calls[call] = by(sums.driver_calls[call], its.driver_calls[call]);
    }
    for size in &its.sizes {
        match sums.sizes.binary_search_by_key(&size.from_bytes, |known| known.from_bytes) {
            Ok(at) => sums.sizes[at].allocs = by(sums.sizes[at].allocs, size.allocs),
            Err(at) => {
                let mut new = *size;
                new.allocs = by(0, size.allocs);
                sums.sizes.insert(at, new);
            }
        }
    }
}

/// Adds what an allocator of a pool has to what others have. A pool keeps its free memory while it is alive, so a trim returns none
/// of it; and what it may hold beyond what it does is left to the device's budget.
pub(crate) fn add_pool(sums: &mut Stats, its: &Stats) {
    change(sums, its, FigureKind::Amount, u64::wrapping_add);
    change(sums, its, FigureKind::Largest, u64::max);
    change(sums, its, FigureKind::Peak, u64::wrapping_add);
    change_counts(sums, its, u64::wrapping_add);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statistics whose figures are `first`, `first + 1`, and so on.
    fn stats(first: u64) -> Stats {
        let mut stats = Stats::default();
        for (figure, value) in Stats::FIGURES.iter().zip(first..) {
            if let Some(field) = figure.field(&mut stats) {
                *field = value;
            }
        }
        stats
    }

    #[test]
    fn every_figure_adds_up_as_its_kind_says() {
        let mut sums = stats(1000);
        add_pool(&mut sums, &stats(1));
        let expected = |kind: FigureKind, own: u64, its: u64| match kind {
            FigureKind::Amount | FigureKind::Count | FigureKind::Peak => own + its,
            FigureKind::Largest => own.max(its),
            _ => own,
        };
        for (number, figure) in (0..).zip(Stats::FIGURES) {
            if let Some(sum) = figure.field(&mut sums) {
                assert_eq!(*sum, expected(figure.kind, 1000 + number, 1 + number), "{figure:?}");
            }
        }
    }
}
