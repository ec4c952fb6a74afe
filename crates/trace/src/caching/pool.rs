//! The blocks of one pool that are not live: the free ones for best fit, the unmapped ones by address.
//!
//! Free blocks are ordered by (stream, bytes, address), like the `std::set` in PyTorch: the best fit for a stream is its
//! first entry at or after (bytes, 0), which is the lowest address among equal sizes. Each stream has a map of its own, whose
//! keys are one number, since a replay spends most of its time in them.

use super::blocks::BlockId;
use gapless::units::{DeviceAddr, StreamId};
use std::collections::{BTreeMap, BTreeSet};

/// Size and address of a free block, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Free(u128);

impl Free {
    fn new(bytes: u64, addr: DeviceAddr) -> Self {
        Self(u128::from(bytes) << u64::BITS | u128::from(addr.0))
    }

    #[allow(clippy::cast_possible_truncation, reason = "the upper half of 128 bits")]
    const fn bytes(self) -> u64 {
        (self.0 >> u64::BITS) as u64
    }
}

#[derive(Default)]
pub(super) struct Pool {
    free: BTreeMap<StreamId, BTreeMap<Free, BlockId>>,
    unmapped: BTreeSet<(StreamId, DeviceAddr, BlockId)>,
    /// Number of searches for a free block, which is what the age of free blocks is counted in.
    pub(super) searches: u64,
}

impl Pool {
    /// Returns the free blocks of `stream` with at least `bytes` bytes, the smallest first.
    pub(super) fn fits(&self, stream: StreamId, bytes: u64) -> impl Iterator<Item = (u64, BlockId)> {
        let from = Free::new(bytes, DeviceAddr(0));
        self.free
            .get(&stream)
            .into_iter()
            .flat_map(move |free| free.range(from..))
            .map(|(key, block)| (key.bytes(), *block))
    }

    pub(super) fn insert(&mut self, stream: StreamId, bytes: u64, addr: DeviceAddr, block: BlockId) {
        let old = self.free.entry(stream).or_default().insert(Free::new(bytes, addr), block);
        debug_assert!(old.is_none(), "{block:?} is already free");
    }

    pub(super) fn remove(&mut self, stream: StreamId, bytes: u64, addr: DeviceAddr, block: BlockId) {
        let known = self.free.get_mut(&stream).and_then(|free| free.remove(&Free::new(bytes, addr)));
        debug_assert_eq!(known, Some(block), "{block:?} is not free");
    }

    /// Returns all free blocks in order.
    pub(super) fn blocks(&self) -> Vec<BlockId> {
        self.free.values().flat_map(BTreeMap::values).copied().collect()
    }

    /// Returns the unmapped blocks of `stream`, the lowest address first.
    pub(super) fn unmapped(&self, stream: StreamId) -> impl Iterator<Item = BlockId> {
        let from = (stream, DeviceAddr(0), BlockId::FIRST);
        self.unmapped.range(from..).take_while(move |key| key.0 == stream).map(|key| key.2)
    }

    pub(super) fn insert_unmapped(&mut self, stream: StreamId, addr: DeviceAddr, block: BlockId) {
        let new = self.unmapped.insert((stream, addr, block));
        debug_assert!(new, "{block:?} is already unmapped");
    }

    pub(super) fn remove_unmapped(&mut self, stream: StreamId, addr: DeviceAddr, block: BlockId) {
        let known = self.unmapped.remove(&(stream, addr, block));
        debug_assert!(known, "{block:?} is not unmapped");
    }
}
