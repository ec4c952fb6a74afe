//! Live allocations as plain data.

use super::super::streams::Streams;
use super::super::streams::region::{Region, RegionId};
use super::super::streams::state::{Stream, StreamState};
use crate::driver::Driver;
use crate::heap::{Block, BlockState};
use crate::units::{DeviceAddr, StreamId};

/// An allocation that has not been freed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LiveAllocation {
    /// Its address.
    pub addr: DeviceAddr,
    /// Bytes requested.
    pub bytes: u64,
    /// The stream it was allocated on.
    pub stream: StreamId,
}

impl LiveAllocation {
    /// The live block `block` of a region.
    pub(super) fn new<D: Driver>(
        streams: &Streams<D>,
        (stream, state): (&Stream, &StreamState),
        (id, region): (RegionId, &Region),
        block: &Block,
    ) -> Self {
        let home = state.sharers.get(&(id, block.offset)).map_or(stream.index, |sharers| sharers.home);
        Self {
            addr: region.base.offset(block.offset),
            bytes: block.size - u64::from(block.waste),
            stream: streams.get(home).id,
        }
    }
}

/// The live allocations, in address order within each region. Locks one stream after the other. O(blocks).
pub fn live_blocks<D: Driver>(streams: &Streams<D>) -> Vec<LiveAllocation> {
    let mut found = Vec::new();
    for stream in streams.iter() {
        let state = stream.lock();
        for (id, region) in state.regions.iter() {
            let live = region.heap.blocks().filter(|block| block.state == BlockState::Live);
            found.extend(live.map(|block| LiveAllocation::new(streams, (stream, &state), (id, region), &block)));
        }
    }
    found
}
