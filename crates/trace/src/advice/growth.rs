//! Steady growth: blocks that a program allocates again and again and never frees.

use super::moment::LiveBlock;
use crate::{Op, Trace};
use std::collections::HashMap;

/// Memory that grows by about as much in every step.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Growth {
    /// The place that allocates it, if that is recorded.
    pub origin: Option<String>,
    /// Size of all its blocks, in bytes.
    pub bytes: u64,
    /// Number of times that it grew.
    pub times: u64,
    /// How much it grew each time, in bytes: the median.
    pub bytes_each: u64,
    /// Number of ops from one time to the next, on average.
    pub ops_between: u64,
    /// Whether the times are steps that the recording marks.
    pub by_step: bool,
}

/// Returns what grew steadily until the op at `end`, by the place that allocated it or else by size: the largest first.
///
/// Where steps are marked, a place grows if blocks of nearly every step from its first one on are live, and of at least
/// [`LEAST_STEPS`]. Else its blocks of one size have to be spread evenly over most of the run, and to be so many that they are not
/// the layers of one large model.
pub(super) fn steady(trace: &Trace, live: &[LiveBlock], end: u64) -> Vec<Growth> {
    let live_bytes: u64 = live.iter().map(|block| block.bytes).sum();
    let marks: Vec<u64> =
        (0..end).zip(trace.ops()).filter(|(_, op)| matches!(op, Op::Mark { .. })).map(|(index, _)| index).collect();
    let by_step = marks.len() >= LEAST_STEPS;
    let mut places: HashMap<(Option<&str>, u64), Vec<LiveBlock>> = HashMap::new();
    for block in live {
        let origin = trace.origin(block.op_index);
        let size = if by_step && origin.is_some() { 0 } else { block.bytes };
        places.entry((origin, size)).or_default().push(*block);
    }
    let mut found: Vec<Growth> = Vec::new();
    for ((origin, _), mut blocks) in places {
        blocks.sort_unstable_by_key(|block| block.op_index);
        let bytes: u64 = blocks.iter().map(|block| block.bytes).sum();
        if bytes.saturating_mul(LEAST_PART) < live_bytes {
            continue;
        }
        let grown = if by_step { in_steps(&blocks, &marks) } else { evenly(&blocks, end) };
        let Some(mut grown) = grown else { continue };
        let first = blocks[0].op_index;
        let times = grown.len() as u64;
        grown.sort_unstable();
        found.push(Growth {
            origin: origin.map(ToOwned::to_owned),
            bytes,
            times,
            bytes_each: grown[grown.len() / 2],
            ops_between: (end - first) / times,
            by_step,
        });
    }
    found.sort_by(|a, b| (b.bytes, &a.origin).cmp(&(a.bytes, &b.origin)));
    found
}

/// Returns how much was added in each step that a block is live from, if those are nearly all from the first one on.
fn in_steps(blocks: &[LiveBlock], marks: &[u64]) -> Option<Vec<u64>> {
    let step_of = |block: &LiveBlock| marks.partition_point(|mark| *mark < block.op_index);
    let mut grown: Vec<(usize, u64)> = Vec::new();
    for block in blocks {
        let step = step_of(block);
        match grown.last_mut() {
            Some((last, bytes)) if *last == step => *bytes += block.bytes,
            _ => grown.push((step, block.bytes)),
        }
    }
    // The last step, in which memory ran out, is not complete.
    let steps = marks.len().saturating_sub(grown.first()?.0);
    let many = grown.len() >= LEAST_STEPS && 2 * steps >= marks.len();
    (many && 10 * grown.len() >= 9 * steps).then(|| grown.into_iter().map(|(_, bytes)| bytes).collect())
}

/// Returns the sizes of the blocks if they are many, and spread evenly over most of the ops before `end`.
fn evenly(blocks: &[LiveBlock], end: u64) -> Option<Vec<u64>> {
    let (first, count) = (blocks.first()?.op_index, blocks.len() as u64);
    if count < LEAST_BLOCKS || 2 * first > end {
        return None;
    }
    let span = end - first;
    // Compared with the middles of equal parts of the span.
    let near = |(index, block): (u64, &LiveBlock)| {
        let expected = first + span * (2 * index + 1) / (2 * count);
        block.op_index.abs_diff(expected).saturating_mul(EVEN_PART) <= span
    };
    (0..).zip(blocks).all(near).then(|| blocks.iter().map(|block| block.bytes).collect())
}

/// Fewest steps in which something grows.
const LEAST_STEPS: usize = 5;
/// Fewest blocks where no steps are marked: more than any model has layers.
const LEAST_BLOCKS: u64 = 150;
/// Growth is reported if it is at least this part of what is live: one in twenty.
const LEAST_PART: u64 = 20;
/// How far a block may be from its place in an even sequence, as a part of the run.
const EVEN_PART: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    /// The growth of a run in which each step has `step` as its lines, with `{}` for a number of its own.
    fn of(steps: u64, marked: bool, step: impl Fn(u64) -> String) -> Vec<(u64, u64, bool)> {
        let mut text = "a 1000000 1000000 0\n".to_owned();
        for number in 0..steps {
            text += &step(number);
            if marked {
                writeln!(text, "m step {number}").unwrap();
            }
        }
        let trace = Trace::read("t", format!("{text}r 1000000000 0\n").as_bytes()).unwrap();
        let end = trace.failed_request().unwrap().op_index;
        let live = crate::advice::moment::live_before(&trace, end);
        steady(&trace, &live, end).into_iter().map(|growth| (growth.times, growth.bytes_each, growth.by_step)).collect()
    }

    #[test]
    fn what_every_step_leaves_behind_is_found() {
        let leaks = |number: u64| {
            let id = number + 5000;
            format!("a {number} 50000 0\na {id} 900 0\nf {id}\n")
        };
        assert_eq!(of(8, true, leaks), [(8, 50_000, true)]);
        assert_eq!(of(200, false, leaks), [(200, 50_000, false)]);
        // It may as well be the layers of a model.
        assert_eq!(of(80, false, leaks), []);
        assert_eq!(of(3, true, leaks), []);
    }

    #[test]
    fn what_only_some_steps_leave_behind_is_not_growth() {
        let kept = |number: u64| {
            let id = number + 900;
            if number < 5 { format!("a {number} 50000 0\n") } else { format!("a {id} 1 0\nf {id}\n") }
        };
        assert_eq!(of(20, true, kept), []);
        let early = |number: u64| {
            let id = number + 900;
            if number < 160 { format!("a {number} 50000 0\n") } else { format!("a {id} 10 0\nf {id}\n") }
        };
        assert_eq!(of(1000, false, early), []);
    }
}
