//! The largest holders of memory: by the place in the program that allocated it, or else by size.

use super::moment::LiveBlock;
use crate::Trace;
use std::collections::HashMap;

/// Live blocks that one place in the program allocated; where places are not recorded, blocks of one size.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Holder {
    /// The place, such as `forward (model.py:12)`, if it is recorded.
    pub origin: Option<String>,
    /// Size of each block in bytes, if all have the same.
    pub block_bytes: Option<u64>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their size together.
    pub bytes: u64,
    /// Index of the op that allocated the oldest one.
    pub oldest_op: u64,
    /// Index of the op that allocated the newest one.
    pub newest_op: u64,
}

/// Returns the `most` largest holders among `live`, the largest first.
pub(super) fn largest(trace: &Trace, live: &[LiveBlock], most: usize) -> Vec<Holder> {
    let mut holders: HashMap<(Option<&str>, u64), Holder> = HashMap::new();
    for block in live {
        let origin = trace.origin(block.op_index);
        // Blocks of one place belong together whatever their size.
        let key = (origin, if origin.is_some() { 0 } else { block.bytes });
        let holder = holders.entry(key).or_insert_with(|| Holder {
            origin: origin.map(ToOwned::to_owned),
            block_bytes: Some(block.bytes),
            blocks: 0,
            bytes: 0,
            oldest_op: block.op_index,
            newest_op: block.op_index,
        });
        holder.blocks += 1;
        holder.bytes += block.bytes;
        holder.block_bytes = holder.block_bytes.filter(|&bytes| bytes == block.bytes);
        holder.oldest_op = holder.oldest_op.min(block.op_index);
        holder.newest_op = holder.newest_op.max(block.op_index);
    }
    let mut holders: Vec<Holder> = holders.into_values().filter(|holder| holder.bytes > 0).collect();
    holders.sort_by(|a, b| (b.bytes, a.oldest_op).cmp(&(a.bytes, b.oldest_op)));
    holders.truncate(most);
    holders
}
