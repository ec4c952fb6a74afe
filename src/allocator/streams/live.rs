//! The live allocations of all streams.

use super::super::reports::LiveAllocation;
use super::Streams;
use super::region::{Region, RegionId};
use super::state::{Stream, StreamState};
use crate::driver::Driver;
use crate::heap::{Block, BlockState};

impl<D: Driver> Streams<D> {
    /// The live allocations, in address order within each region. Locks one stream after the other. O(blocks).
    pub fn live(&self) -> Vec<LiveAllocation> {
        let mut found = Vec::new();
        for stream in self.iter() {
            let state = stream.lock();
            for (id, region) in state.regions.iter() {
                let live = region.heap.blocks().filter(|block| block.state == BlockState::Live);
                found.extend(live.map(|block| self.live_allocation((stream, &state), (id, region), &block)));
            }
        }
        found
    }

    /// The live block `block` of a region, as plain data.
    pub fn live_allocation(
        &self,
        (stream, state): (&Stream, &StreamState),
        (id, region): (RegionId, &Region),
        block: &Block,
    ) -> LiveAllocation {
        let home = state.sharers.get(&(id, block.offset)).map_or(stream.index, |sharers| sharers.home);
        LiveAllocation {
            addr: region.base.offset(block.offset),
            bytes: block.size - u64::from(block.waste),
            stream: self.get(home).id(),
        }
    }
}
