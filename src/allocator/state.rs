//! What the allocator keeps for each stream: its regions, its pending blocks, its counts.

use super::region::{Region, RegionId, Regions};
use crate::heap::GRANULE;
use crate::stream::{Fence, StreamClock, StreamIndex};
use crate::sync::{CachePadded, Mutex, MutexGuard};
use crate::units::StreamId;
use std::collections::HashMap;

/// A block that was freed while streams other than the heap's own may still use it.
#[derive(Debug)]
pub struct Pending {
    /// Which region.
    pub region: RegionId,
    /// Where.
    pub offset: u64,
    /// It is free once all of these have passed.
    pub fences: Vec<Fence>,
}

/// Who uses a live block besides, or instead of, the heap's own stream.
#[derive(Clone, Debug)]
pub struct Sharers {
    /// The stream that it was allocated on.
    pub home: StreamIndex,
    /// The streams it was recorded on.
    pub others: Vec<StreamIndex>,
}

/// Counts of one stream, under its lock.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Allocations.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
    /// Allocations per power of two of the block's size, from one granule up.
    pub by_size: [u64; SIZE_RANGES],
}

/// Power-of-two size ranges told apart in the statistics: one granule up to 2^40 bytes and more.
pub const SIZE_RANGES: usize = 32;

/// The size range that a block of `size` bytes is counted in.
#[inline]
pub fn size_range(size: u64) -> usize {
    ((size / GRANULE).max(1).ilog2() as usize).min(SIZE_RANGES - 1)
}

/// One stream's state.
#[derive(Debug)]
pub struct StreamState {
    /// The regions, made on first use.
    pub regions: Regions,
    /// The open epoch of the stream, less `epoch_base`.
    pub epoch: u32,
    /// What to add to a block's epoch.
    pub epoch_base: u64,
    /// Freed in the open epoch at least once.
    pub dirty: bool,
    /// Blocks waiting for other streams, oldest first.
    pub pending: Vec<Pending>,
    /// Live blocks marked as shared.
    pub sharers: HashMap<(RegionId, u64), Sharers>,
    /// Requested bytes of live blocks in all regions.
    pub live_bytes: u64,
    /// Above this many live bytes, the peak over all streams may be exceeded: see [`super::peak`].
    pub live_limit: u64,
    /// Counts.
    pub tally: Tally,
}

impl StreamState {
    /// The region, if it was made.
    #[inline]
    pub fn region(&mut self, id: RegionId) -> Option<&mut Region> {
        self.regions.get_mut(id)
    }

    /// The open epoch.
    pub fn open_epoch(&self) -> u64 {
        self.epoch_base + u64::from(self.epoch)
    }

    /// Starts the 32-bit epochs of the blocks anew, once in 2^32 seals. What was freed before the last seal counts as freed
    /// right before it: later than it was, which is safe.
    pub fn renumber(&mut self) {
        let by = self.epoch - 1;
        self.epoch = 1;
        self.epoch_base += u64::from(by);
        for region in self.regions.iter_mut() {
            region.heap.renumber(by);
        }
    }
}

/// A stream as the allocator knows it.
#[derive(Debug)]
pub struct StreamHeap {
    /// The caller's handle.
    pub id: StreamId,
    /// Its number here.
    pub index: StreamIndex,
    /// Its epochs.
    pub clock: Mutex<StreamClock>,
    state: CachePadded<Mutex<StreamState>>,
}

impl StreamHeap {
    /// A stream without regions.
    pub fn new(id: StreamId, index: StreamIndex) -> Self {
        Self {
            id,
            index,
            clock: Mutex::new(StreamClock::new(id)),
            state: CachePadded::new(Mutex::new(StreamState {
                regions: Regions::default(),
                epoch: 1,
                epoch_base: 0,
                dirty: false,
                pending: Vec::new(),
                sharers: HashMap::new(),
                live_bytes: 0,
                live_limit: 0,
                tally: Tally { allocs: 0, frees: 0, by_size: [0; SIZE_RANGES] },
            })),
        }
    }

    /// Takes the hot path's lock. Never held over a driver call.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock()
    }
}

/// The locks of all streams, in the order of their numbers.
pub type AllStates<'a> = Vec<MutexGuard<'a, StreamState>>;

/// Sum of the requested live bytes of all streams.
pub fn live_bytes(states: &AllStates<'_>) -> u64 {
    states.iter().map(|state| state.live_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_ranges_are_powers_of_two() {
        for (granules, range) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (1023, 9), (1024, 10)] {
            assert_eq!(size_range(granules * GRANULE), range, "{granules} granules");
        }
        assert_eq!(size_range(u64::MAX), SIZE_RANGES - 1);
    }
}
