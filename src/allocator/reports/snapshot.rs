//! Snapshot: every region, block and chunk as plain data.

use super::super::streams::Streams;
use super::super::streams::region::{Region, RegionId, RegionKind};
use super::super::streams::state::{Sharers, Stream, StreamState};
use crate::driver::Driver;
use crate::heap::{Block, BlockState};
use crate::stream::StreamIndex;
use crate::units::{DeviceAddr, StreamId};

/// Everything an allocator holds, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The budget in bytes.
    pub budget_bytes: u64,
    /// The regions of all streams.
    pub regions: Vec<RegionSnapshot>,
    /// The physical chunks.
    pub chunks: Vec<ChunkSnapshot>,
}

/// One region: the blocks of one stream in one slot of addresses.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct RegionSnapshot {
    /// The stream that the region belongs to.
    pub stream: StreamId,
    /// The kind of blocks in it.
    pub kind: RegionKind,
    /// First address.
    pub addr: DeviceAddr,
    /// Bytes of addresses, mapped or not.
    pub bytes: u64,
    /// Whether a driver sequence here could not be undone, so that addresses are out of use.
    pub poisoned: bool,
    /// The blocks in address order, without the holes between them.
    pub blocks: Vec<BlockSnapshot>,
}

/// One block of a region.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct BlockSnapshot {
    /// First address.
    pub addr: DeviceAddr,
    /// Bytes, rounding included.
    pub bytes: u64,
    /// Bytes requested; 0 unless the block is live.
    pub requested_bytes: u64,
    /// Free, live, pending or claimed.
    pub state: BlockState,
    /// The stream that the block was allocated on, where that is not the region's.
    pub borrowed_by: Option<StreamId>,
    /// The other streams that a live block was recorded on.
    pub recorded_on: Vec<StreamId>,
}

/// One physical chunk.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ChunkSnapshot {
    /// The driver's handle (`CUmemGenericAllocationHandle`).
    pub handle: u64,
    /// Bytes of memory.
    pub bytes: u64,
    /// The address through which its bytes are handed out; none when it is idle.
    pub active: Option<DeviceAddr>,
    /// The other addresses that it is mapped at.
    pub stale: Vec<DeviceAddr>,
    /// Whether a raw range holds it.
    pub in_range: bool,
}

impl RegionSnapshot {
    /// A region of `stream`, whose state is locked.
    pub fn new<D: Driver>(
        streams: &Streams<D>,
        stream: &Stream,
        state: &StreamState,
        id: RegionId,
        region: &Region,
        poisoned: bool,
    ) -> Self {
        let blocks = region.heap.blocks().filter(|block| block.state != BlockState::Hole);
        Self {
            stream: stream.id,
            kind: region.kind,
            addr: region.base,
            bytes: region.heap.extent(),
            poisoned,
            blocks: blocks
                .map(|block| {
                    let sharers = state.sharers.get(&(id, block.offset));
                    BlockSnapshot::new(streams, region, stream.index, &block, sharers)
                })
                .collect(),
        }
    }
}

impl BlockSnapshot {
    fn new<D: Driver>(
        streams: &Streams<D>,
        region: &Region,
        owner: StreamIndex,
        block: &Block,
        sharers: Option<&Sharers>,
    ) -> Self {
        let live = block.state == BlockState::Live;
        let sharers = sharers.filter(|_| live);
        let handle = |index: StreamIndex| streams.get(index).id;
        Self {
            addr: region.base.offset(block.offset),
            bytes: block.size,
            requested_bytes: if live { block.size - u64::from(block.waste) } else { 0 },
            state: block.state,
            borrowed_by: sharers.filter(|sharers| sharers.home != owner).map(|sharers| handle(sharers.home)),
            recorded_on: sharers
                .map(|sharers| sharers.others.iter().map(|other| handle(*other)).collect())
                .unwrap_or_default(),
        }
    }
}
