//! Snapshot: every region, block and chunk as plain data.

use super::super::kind::RegionKind;
use crate::heap::BlockState;
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
    /// The blocks in address order, without the unmapped ones between them.
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
    /// Bytes requested, of a pending block as well; 0 for the others.
    pub requested_bytes: u64,
    /// Free, live, pending or claimed.
    pub state: BlockState,
    /// The stream that the block was allocated on, where that is not the region's (cross-stream reuse).
    pub borrowed_by: Option<StreamId>,
    /// The other streams that a live block was recorded on.
    pub recorded_on: Vec<StreamId>,
    /// Number of its pins.
    pub pins: u32,
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
    /// Whether a growable range holds it.
    pub in_range: bool,
    /// Whether it is a registered block.
    pub registered: bool,
}
