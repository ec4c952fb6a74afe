//! The live blocks at one moment, one by one.

use crate::{Op, Trace};

/// The largest blocks that are live before an op: at most [`MOST_BLOCKS`], in the order in which they were allocated. The lists are
/// equally long.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LiveBlocks {
    /// Index of the first op that had not run.
    pub op: u64,
    /// The index of the op that allocated each.
    pub allocated_at: Vec<u64>,
    /// The requested bytes of each.
    pub bytes: Vec<u64>,
    /// The recorder's number of the stream of each.
    pub streams: Vec<u64>,
    /// Number of live blocks that are not listed.
    pub left_out: u64,
}

impl LiveBlocks {
    pub(super) fn before(trace: &Trace, op: u64) -> Self {
        let mut of_slot: Vec<Option<(u64, u64, u16)>> = vec![None; trace.slots() as usize];
        for (index, op) in (0..op).zip(trace.ops()) {
            match *op {
                Op::Alloc { slot, stream, bytes, .. } => of_slot[slot as usize] = Some((index, bytes, stream)),
                Op::Free { slot } => of_slot[slot as usize] = None,
                Op::Sleep { .. } | Op::Wake { .. } | Op::Refused { .. } | Op::Mark { .. } => {}
            }
        }
        let mut live: Vec<(u64, u64, u16)> = of_slot.into_iter().flatten().collect();
        live.sort_unstable_by_key(|&(index, bytes, _)| (std::cmp::Reverse(bytes), index));
        let left_out = live.len().saturating_sub(MOST_BLOCKS) as u64;
        live.truncate(MOST_BLOCKS);
        live.sort_unstable();
        let mut found = Self { op, left_out, ..Self::default() };
        for (index, bytes, stream) in live {
            found.allocated_at.push(index);
            found.bytes.push(bytes);
            found.streams.push(trace.streams()[usize::from(stream)]);
        }
        found
    }
}

/// Most blocks of a moment that are listed.
pub const MOST_BLOCKS: usize = 2048;
