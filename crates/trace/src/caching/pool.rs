//! The blocks of one pool that are not live: the free ones for best fit, the unmapped ones by address.
//!
//! Free blocks are ordered by (stream, bytes, address), like the `std::set` in PyTorch: the best fit for a stream is its
//! first entry at or after (bytes, 0), which is the lowest address among equal sizes.

use super::blocks::BlockId;
use super::free::FreeBlocks;
use gapless::units::{DeviceAddr, StreamId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Pool {
    free: BTreeMap<StreamId, FreeBlocks>,
    unmapped: BTreeSet<(StreamId, DeviceAddr, BlockId)>,
    /// Number of searches for a free block, which is what the age of free blocks is counted in.
    pub(super) searches: u64,
}

impl Pool {
    /// Returns the smallest free block of `stream` with at least `bytes` bytes: its size, and its number.
    pub(super) fn best_fit(&self, stream: StreamId, bytes: u64) -> Option<(u64, BlockId)> {
        self.free.get(&stream)?.best_fit(bytes)
    }

    /// Returns the free blocks of `stream` with at least `bytes` bytes, the smallest first.
    pub(super) fn fits(&self, stream: StreamId, bytes: u64) -> impl Iterator<Item = (u64, BlockId)> {
        self.free.get(&stream).into_iter().flat_map(move |free| free.fits(bytes))
    }

    pub(super) fn insert(&mut self, stream: StreamId, bytes: u64, addr: DeviceAddr, block: BlockId) {
        let is_new = self.free.entry(stream).or_default().insert(bytes, addr, block);
        debug_assert!(is_new, "{block:?} is already free");
    }

    pub(super) fn remove(&mut self, stream: StreamId, bytes: u64, addr: DeviceAddr, block: BlockId) {
        let known = self.free.get_mut(&stream).is_some_and(|free| free.remove(bytes, addr, block));
        debug_assert!(known, "{block:?} is not free");
    }

    /// Returns all free blocks in order.
    pub(super) fn blocks(&self) -> Vec<BlockId> {
        self.free.values().flat_map(|free| free.fits(0)).map(|(_, block)| block).collect()
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
