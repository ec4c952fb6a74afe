//! The free blocks of one pool, for best fit.
//!
//! Ordered by (stream, bytes, address), like the `std::set` in PyTorch: the best fit for a stream is the first entry at
//! or after (stream, bytes, 0), which is the lowest address among equal sizes.

use super::blocks::BlockId;
use super::{MIB, ROUNDING_BYTES};
use gapless::units::{DeviceAddr, StreamId};
use std::collections::BTreeSet;

/// Which requests a pool serves: small or large ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolKind {
    Small,
    Large,
}

impl PoolKind {
    /// Returns `true` if a block that is `remaining` bytes too large is split (`should_split`).
    pub(super) const fn should_split(self, remaining: u64) -> bool {
        match self {
            Self::Small => remaining >= ROUNDING_BYTES,
            Self::Large => remaining > LARGE_REMAINDER_BYTES,
        }
    }
}

pub(super) struct Pool {
    kind: PoolKind,
    free: BTreeSet<(StreamId, u64, DeviceAddr, BlockId)>,
}

impl Pool {
    pub(super) const fn new(kind: PoolKind) -> Self {
        Self { kind, free: BTreeSet::new() }
    }

    /// Removes and returns the smallest free block of `stream` with at least `bytes` bytes.
    pub(super) fn take_best_fit(&mut self, stream: StreamId, bytes: u64) -> Option<BlockId> {
        let key = *self.free.range((stream, bytes, DeviceAddr(0), BlockId::FIRST)..).next()?;
        if key.0 != stream {
            return None;
        }
        self.free.remove(&key);
        Some(key.3)
    }

    pub(super) fn insert(&mut self, stream: StreamId, bytes: u64, addr: DeviceAddr, block: BlockId) {
        let new = self.free.insert((stream, bytes, addr, block));
        debug_assert!(new, "{block:?} is already free in the {:?} pool", self.kind);
    }

    pub(super) fn remove(&mut self, stream: StreamId, bytes: u64, addr: DeviceAddr, block: BlockId) {
        let known = self.free.remove(&(stream, bytes, addr, block));
        debug_assert!(known, "{block:?} is not free in the {:?} pool", self.kind);
    }

    /// Returns all free blocks in order.
    pub(super) fn blocks(&self) -> Vec<BlockId> {
        self.free.iter().map(|key| key.3).collect()
    }
}

/// `kSmallSize`: a large block is split if more bytes than this remain.
const LARGE_REMAINDER_BYTES: u64 = MIB;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remainders_split_as_in_the_original() {
        assert!(PoolKind::Small.should_split(512));
        assert!(!PoolKind::Small.should_split(0));
        assert!(!PoolKind::Large.should_split(MIB));
        assert!(PoolKind::Large.should_split(MIB + 512));
    }
}
