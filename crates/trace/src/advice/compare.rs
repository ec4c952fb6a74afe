//! Two recordings of one program, set against each other: what it needs, and what holds more than before.

use super::{Advice, Holder, MOST_PEAK_HOLDERS};
use std::collections::BTreeMap;

/// What has changed from an old recording of a program to a new one.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The most that was asked for at once: the peak of live bytes, or what was live with a request that was refused at the end.
    pub peak: Change,
    /// [`Advice::peak_reserved_bytes`], if both have it.
    pub reserved: Option<Change>,
    /// Whether the new run ended with a request that was refused, and the old one did not.
    pub fails_now: bool,
    /// The places of the program that held a different amount at the peak: first those that hold more, the largest growth first.
    pub holders: Vec<HolderChange>,
}

/// A figure of both recordings, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Change {
    /// The figure of the old one.
    pub old_bytes: u64,
    /// The figure of the new one.
    pub new_bytes: u64,
}

/// What one place of the program held at the peak of each recording.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct HolderChange {
    /// The function and the name of its file, such as `forward (model.py)`, if that is recorded. Lines and folders are left out,
    /// since they differ between versions of a program.
    pub origin: Option<String>,
    /// Size of each block in bytes, where places are not recorded.
    pub block_bytes: Option<u64>,
    /// What it held in the old recording. `None` where that has too many holders to list, and this one was not among the largest.
    pub old_bytes: Option<u64>,
    /// What it holds in the new recording, likewise.
    pub new_bytes: Option<u64>,
    /// By how much that is more, and at least where one of the two is not known: negative where it is less.
    pub growth_bytes: i128,
}

impl Comparison {
    /// Compares the advice on two recordings.
    #[must_use]
    pub fn of(old: &Advice, new: &Advice) -> Self {
        let reserved = old.peak_reserved_bytes.zip(new.peak_reserved_bytes);
        Self {
            peak: Change { old_bytes: demand_bytes(old), new_bytes: demand_bytes(new) },
            reserved: reserved.map(|(old_bytes, new_bytes)| Change { old_bytes, new_bytes }),
            fails_now: new.failure_is_recorded && !old.failure_is_recorded,
            holders: holders(&old.peak_holders, &new.peak_holders),
        }
    }
}

impl Change {
    /// Returns whether the figure grew by more than `percent` percent.
    #[must_use]
    pub fn exceeds(&self, percent: f64) -> bool {
        #[allow(clippy::cast_precision_loss, reason = "a share of a size")]
        let (old, grown) = (self.old_bytes as f64, self.new_bytes.saturating_sub(self.old_bytes) as f64);
        grown * 100.0 > old * percent
    }
}

/// Returns the most that was asked for at once.
fn demand_bytes(advice: &Advice) -> u64 {
    let refused = advice.failed.filter(|_| advice.failure_is_recorded);
    let with_refused = refused.map_or(0, |request| advice.live_bytes.saturating_add(request.bytes));
    advice.peak_live_bytes.max(with_refused)
}

/// A place of the program, or a size of blocks.
type Place = (Option<String>, Option<u64>);

fn holders(old: &[Holder], new: &[Holder]) -> Vec<HolderChange> {
    let mut places: BTreeMap<Place, [Option<u64>; 2]> = BTreeMap::new();
    let sides = [old, new];
    for (side, holders) in sides.iter().enumerate() {
        for holder in *holders {
            let place = match &holder.origin {
                Some(origin) => (Some(without_line(origin)), None),
                None => (None, holder.block_bytes),
            };
            *places.entry(place).or_default()[side].get_or_insert(0) += holder.bytes;
        }
    }
    // The most that a place which is not listed may have held.
    let unlisted =
        sides.map(
            |holders| if holders.len() < MOST_PEAK_HOLDERS { 0 } else { holders.last().map_or(0, |least| least.bytes) },
        );
    let change = |((origin, block_bytes), bytes): (Place, [Option<u64>; 2])| {
        let [old_bytes, new_bytes] = [0, 1].map(|side| bytes[side].or((unlisted[side] == 0).then_some(0)));
        let growth_bytes = match (old_bytes, new_bytes) {
            (Some(old), Some(new)) => i128::from(new) - i128::from(old),
            (None, new) => (i128::from(new.unwrap_or(0)) - i128::from(unlisted[0])).max(0),
            (old, None) => (i128::from(unlisted[1]) - i128::from(old.unwrap_or(0))).min(0),
        };
        HolderChange { origin, block_bytes, old_bytes, new_bytes, growth_bytes }
    };
    let mut changes: Vec<HolderChange> =
        places.into_iter().map(change).filter(|change| change.growth_bytes != 0).collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.growth_bytes));
    changes
}

/// Returns `forward (/home/me/model.py:12)` as `forward (model.py)`.
fn without_line(origin: &str) -> String {
    let parts = origin.strip_suffix(')').and_then(|text| text.split_once(" ("));
    let Some((function, place)) = parts else { return origin.to_owned() };
    let is_line = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let file = place.rsplit_once(':').filter(|(_, line)| is_line(line)).map_or(place, |(file, _)| file);
    let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
    format!("{function} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(origin: Option<&str>, block_bytes: u64, blocks: u64) -> Holder {
        Holder {
            origin: origin.map(ToOwned::to_owned),
            block_bytes: Some(block_bytes),
            blocks,
            bytes: block_bytes * blocks,
            oldest_op: 0,
            newest_op: 0,
        }
    }

    fn of_place(line: &str, bytes: u64) -> Holder {
        holder(Some(line), bytes, 1)
    }

    #[test]
    fn places_are_the_same_on_another_line_and_in_another_folder() {
        assert_eq!(without_line("forward (/a/b/model.py:12)"), "forward (model.py)");
        assert_eq!(without_line("<lambda> (C:\\x\\m (1).py:3)"), "<lambda> (m (1).py)");
        assert_eq!(without_line("forward (model.py)"), "forward (model.py)");
        assert_eq!(without_line("something else"), "something else");
        let old = [of_place("f (/old/m.py:3)", 100), of_place("f (/old/m.py:9)", 20)];
        assert_eq!(holders(&old, &[of_place("f (/new/m.py:4)", 120)]), []);
    }

    #[test]
    fn growth_comes_first_the_largest_at_the_top() {
        let old = [of_place("f (m.py:1)", 100), of_place("g (m.py:2)", 50), of_place("h (m.py:3)", 10)];
        let new = [of_place("f (m.py:1)", 130), of_place("g (m.py:2)", 20), of_place("new (m.py:9)", 70)];
        let found: Vec<_> = holders(&old, &new)
            .into_iter()
            .map(|it| (it.origin.unwrap(), it.old_bytes, it.new_bytes, it.growth_bytes))
            .collect();
        let expected = [
            ("new (m.py)", Some(0), Some(70), 70),
            ("f (m.py)", Some(100), Some(130), 30),
            ("h (m.py)", Some(10), Some(0), -10),
            ("g (m.py)", Some(50), Some(20), -30),
        ];
        assert_eq!(found, expected.map(|(name, old, new, growth)| (name.to_owned(), old, new, growth)));
    }

    #[test]
    fn blocks_without_a_place_are_told_apart_by_their_size() {
        let found = holders(&[holder(None, 8, 2), holder(None, 4, 1)], &[holder(None, 8, 3), holder(None, 4, 1)]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].block_bytes, found[0].growth_bytes), (Some(8), 8));
    }

    /// Of a place that is not among the largest, no more is said than is known.
    #[test]
    fn a_list_that_is_full_leaves_the_rest_unknown() {
        let full: Vec<Holder> = (0..50).map(|number| of_place(&format!("f{number} (m.py:1)"), 1000 - number)).collect();
        let new = [full.as_slice(), &[of_place("new (m.py:2)", 2000)]].concat();
        let found = holders(&full, &new);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].old_bytes, found[0].new_bytes, found[0].growth_bytes), (None, Some(2000), 2000 - 951));
        // It may have held as much before.
        assert_eq!(holders(&full, &[full.as_slice(), &[of_place("small (m.py:2)", 900)]].concat()), []);
    }

    #[test]
    fn a_tolerance_is_a_share_of_the_old_figure() {
        let change = |old_bytes, new_bytes| Change { old_bytes, new_bytes };
        for (old, new, percent, exceeds) in [
            (100, 102, 2.0, false),
            (100, 103, 2.0, true),
            (100, 101, 0.0, true),
            (100, 100, 0.0, false),
            (100, 50, 0.0, false),
            (0, 0, 2.0, false),
            (0, 1, 2.0, true),
            (1000, 1025, 2.5, false),
            (1000, 1026, 2.5, true),
        ] {
            assert_eq!(change(old, new).exceeds(percent), exceeds, "{old} {new} {percent}");
        }
    }
}
