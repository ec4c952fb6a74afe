//! Snapshot: every segment, chunk and block as plain data.

use super::LiveAllocation;
use super::region::{Region, RegionId, RegionKind};
use super::state::StreamState;
use super::{Allocator, Inner};
use crate::driver::Driver;
use crate::heap::BlockState;
use crate::units::{DeviceAddr, StreamId};

/// Everything an allocator holds, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Snapshot {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The budget.
    pub budget_bytes: u64,
    /// The regions of addresses.
    pub segments: Vec<SegmentSnapshot>,
    /// The physical chunks.
    pub chunks: Vec<ChunkSnapshot>,
}

/// One region of addresses.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SegmentSnapshot {
    /// Its stream.
    pub stream: StreamId,
    /// What it is for.
    pub kind: RegionKind,
    /// First address.
    pub addr: DeviceAddr,
    /// Bytes of addresses.
    pub bytes: u64,
    /// A driver sequence here could not be undone; the addresses concerned are out of use.
    pub poisoned: bool,
    /// Its blocks in address order, holes left out.
    pub blocks: Vec<BlockSnapshot>,
}

/// One block.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BlockSnapshot {
    /// First address.
    pub addr: DeviceAddr,
    /// Bytes.
    pub bytes: u64,
    /// Bytes asked for (live blocks).
    pub requested_bytes: u64,
    /// What it is.
    pub state: BlockState,
    /// The stream it was allocated on, where that is not the segment's.
    pub borrowed_by: Option<StreamId>,
    /// Other streams it was recorded on (live blocks).
    pub recorded_on: Vec<StreamId>,
}

/// One physical chunk.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ChunkSnapshot {
    /// The driver's handle.
    pub handle: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where its bytes are handed out; none when it is idle.
    pub active: Option<DeviceAddr>,
    /// Where else it is mapped.
    pub stale: Vec<DeviceAddr>,
    /// Held by a range of the lower layer.
    pub in_range: bool,
}

impl<D: Driver> Allocator<D> {
    /// Everything the allocator holds. Takes all locks; O(blocks).
    pub fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
    }
}

impl<D: Driver> Inner<D> {
    pub(super) fn for_each_live(&self, mut each: impl FnMut(LiveAllocation)) {
        for stream in self.streams.iter() {
            let state = stream.lock();
            for (id, region) in state.regions.iter() {
                for block in region.heap.blocks().filter(|block| block.state == BlockState::Live) {
                    let home = state.sharers.get(&(id, block.offset)).map_or(stream.index, |sharers| sharers.home);
                    each(LiveAllocation {
                        addr: region.base.offset(block.offset),
                        bytes: block.size - u64::from(block.waste),
                        stream: self.stream_id(home),
                    });
                }
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let mapper = self.mapper.lock();
        let mut segments = Vec::new();
        for stream in self.streams.iter() {
            let state = stream.lock();
            for (id, region) in state.regions.iter() {
                segments.push(SegmentSnapshot {
                    stream: stream.id,
                    kind: region.kind,
                    addr: region.base,
                    bytes: region.heap.extent(),
                    poisoned: mapper.segments[region.segment].poisoned,
                    blocks: self.block_snapshots(&state, id, region, stream.index),
                });
            }
        }
        let address = |at: crate::physical::ViewAt| mapper.segments[at.segment as usize].address(at.page);
        let chunks = mapper
            .pool
            .iter()
            .map(|(_, chunk)| ChunkSnapshot {
                handle: chunk.handle.0,
                bytes: u64::from(chunk.pages) * self.geometry.page_bytes,
                active: chunk.active.map(address),
                stale: chunk.stale.iter().copied().map(address).collect(),
                in_range: chunk.lent_out,
            })
            .collect();
        Snapshot { page_bytes: self.geometry.page_bytes, budget_bytes: self.budget(), segments, chunks }
    }

    fn block_snapshots(
        &self,
        state: &StreamState,
        id: RegionId,
        region: &Region,
        owner: crate::stream::StreamIndex,
    ) -> Vec<BlockSnapshot> {
        region
            .heap
            .blocks()
            .filter(|block| block.state != BlockState::Hole)
            .map(|block| {
                let sharers = state.sharers.get(&(id, block.offset)).filter(|_| block.state == BlockState::Live);
                let live = block.state == BlockState::Live;
                BlockSnapshot {
                    addr: region.base.offset(block.offset),
                    bytes: block.size,
                    requested_bytes: if live { block.size - u64::from(block.waste) } else { 0 },
                    state: block.state,
                    borrowed_by: sharers.filter(|s| s.home != owner).map(|s| self.stream_id(s.home)),
                    recorded_on: sharers
                        .map(|s| s.others.iter().map(|other| self.stream_id(*other)).collect())
                        .unwrap_or_default(),
                }
            })
            .collect()
    }

    fn budget(&self) -> u64 {
        self.budget_bytes.load(crate::sync::Ordering::Relaxed)
    }
}
