//! Looking at all blocks: in pieces, so that no stream waits for long.

use super::super::reports::LiveAllocation;
use super::Streams;
use super::directory::Owner;
use super::region::{Region, RegionId};
use super::state::{Stream, StreamState};
use crate::driver::Driver;
use crate::heap::{Block, BlockState};

/// Number of blocks that are looked at while their stream's state is locked.
const PIECE: usize = 1024;

impl<D: Driver> Streams<D> {
    /// Shows the blocks of a region to `look` in address order. Each piece of them is of a moment of its own: what is freed and
    /// allocated meanwhile may be missing.
    pub fn look_at_blocks(&self, stream: &Stream, id: RegionId, mut look: impl FnMut(&StreamState, &Region, &Block)) {
        let mut at = 0;
        loop {
            let state = stream.lock();
            let Some(region) = state.regions.get(id) else { return };
            let before = at;
            for block in region.heap.blocks_from(at).take(PIECE) {
                look(&state, region, &block);
                at = block.offset + block.size;
            }
            if at == before || at == region.heap.extent() {
                return;
            }
        }
    }

    /// The live allocations of all streams, in address order within each region. Locks one stream after the other, for a piece
    /// at a time. O(blocks).
    pub fn live(&self) -> Vec<LiveAllocation> {
        let mut found = Vec::new();
        self.look_at_live(|allocation| found.push(allocation));
        found
    }

    /// Shows the live allocations of all streams to `look`, as [`live`](Self::live) returns them.
    pub fn look_at_live(&self, mut look: impl FnMut(LiveAllocation)) {
        for stream in self.iter() {
            for id in stream.region_ids() {
                self.look_at_blocks(stream, id, |state, region, block| {
                    if block.state == BlockState::Live {
                        look(self.live_allocation((stream, state), (id, region), block));
                    }
                });
            }
        }
    }

    /// The live allocation that an offset of a region lies in.
    pub fn live_around(&self, owner: Owner, offset: u64) -> Option<LiveAllocation> {
        let stream = self.get(owner.stream);
        let state = stream.lock();
        let region = state.regions.get(owner.region)?;
        let block = region.heap.block_around(offset).filter(|block| block.state == BlockState::Live)?;
        Some(self.live_allocation((stream, &state), (owner.region, region), &block))
    }

    /// The live block `block` of a region, as plain data.
    pub(super) fn live_allocation(
        &self,
        (stream, state): (&Stream, &StreamState),
        (id, region): (RegionId, &Region),
        block: &Block,
    ) -> LiveAllocation {
        let at = (id, block.offset);
        let home = state.extras.get(&at).map_or(stream.index, |extras| extras.sharers.home);
        LiveAllocation {
            addr: region.base.offset(block.offset),
            bytes: block.size - u64::from(block.waste),
            stream: self.get(home).id(),
            asleep: state.is_asleep(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PIECE;
    use crate::Allocator;
    use crate::driver::ModelDriver;
    use crate::sync::Arc;
    use crate::units::StreamId;

    /// However many pieces the blocks are looked at in.
    #[test]
    fn all_live_blocks_are_listed() {
        let allocator = Allocator::builder(Arc::new(ModelDriver::default())).build().unwrap();
        for more in [PIECE - 1, 1, 1, PIECE] {
            let before = allocator.live().len();
            for _ in 0..more {
                allocator.alloc_raw(512, StreamId::DEFAULT).unwrap();
            }
            let live = allocator.live();
            assert_eq!(live.len(), before + more);
            assert!(live.is_sorted_by(|a, b| a.addr < b.addr), "each is listed once");
        }
    }
}
