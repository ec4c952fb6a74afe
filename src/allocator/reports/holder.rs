//! Who has memory open beside the allocator.

use crate::units::ByteSize;
use std::fmt;

/// A process that has blocks of this one open. A block that several processes have open counts for each of them.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// Its number. `None` for all processes of other namespaces, as in other containers: they have no number here.
    pub process: Option<u32>,
    /// Blocks that it has open.
    pub blocks: usize,
    /// Bytes of these, rounding included.
    pub bytes: u64,
    /// Those of `bytes` that are of freed blocks: they are held for that process alone.
    pub freed_bytes: u64,
}

impl Holder {
    /// A process that has nothing open yet.
    #[must_use]
    pub fn new(process: Option<u32>) -> Self {
        Self { process, blocks: 0, bytes: 0, freed_bytes: 0 }
    }

    /// Counts a block that the process has open.
    pub fn add(&mut self, bytes: u64, is_freed: bool) {
        self.blocks += 1;
        self.bytes += bytes;
        self.freed_bytes += if is_freed { bytes } else { 0 };
    }

    /// Who holds how much of what was freed, most first: "512 MiB in process 77, 2 MiB in process 78 and 3 MiB in 2 others". Empty
    /// where nobody does.
    pub(super) fn of_freed(holders: &[Self]) -> String {
        let mut holding: Vec<_> = holders.iter().filter(|holder| holder.freed_bytes > 0).collect();
        holding.sort_by_key(|holder| (std::cmp::Reverse(holder.freed_bytes), holder.process));
        let (named, others) = holding.split_at(holding.len().min(MOST_NAMED));
        let named = named.iter().map(|holder| format!("{} in {holder}", ByteSize(holder.freed_bytes)));
        let mut text = named.collect::<Vec<_>>().join(", ");
        if !others.is_empty() {
            let bytes = ByteSize(others.iter().map(|holder| holder.freed_bytes).sum());
            text.push_str(&format!(" and {bytes} in {} others", others.len()));
        }
        text
    }
}

/// Most processes that a report names.
const MOST_NAMED: usize = 4;

/// The process alone.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process}"),
            None => f.write_str("processes of other namespaces"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MIB;

    #[test]
    fn who_holds_most_is_named_first() {
        let holder = |process, freed: &[u64]| {
            let mut holder = Holder::new(process);
            holder.add(8 * MIB, false);
            freed.iter().for_each(|bytes| holder.add(*bytes, true));
            holder
        };
        let mut holders = vec![holder(Some(1), &[]), holder(None, &[2 * MIB]), holder(Some(3), &[MIB, 2 * MIB])];
        assert_eq!(Holder::of_freed(&holders[..1]), "");
        assert_eq!(Holder::of_freed(&holders), "3 MiB in process 3, 2 MiB in processes of other namespaces");
        assert_eq!((holders[2].blocks, holders[2].bytes, holders[2].freed_bytes), (3, 11 * MIB, 3 * MIB));
        holders.extend((4..8).map(|process| holder(Some(process), &[MIB])));
        let last = ", 1 MiB in process 5 and 2 MiB in 2 others";
        assert!(Holder::of_freed(&holders).ends_with(last), "{}", Holder::of_freed(&holders));
    }
}
