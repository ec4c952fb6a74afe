//! The blocks of a device, of its pools too: what each is, and whose.
//!
//! Threads: any. Cost: that of the allocators' snapshots, or of a walk over what is live.

use crate::device::Device;
use crate::driver::DeviceDriver;
use crate::pools::PoolId;
use gapless::allocator::{BlockState, LiveAllocation, RegionKind, Snapshot};
use gapless::{DeviceAddr, GRANULE, StreamId};

/// A block of a device's memory, or a live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its use.
    pub state: BlockUse,
    /// Whether it is in a region for small blocks.
    pub small: bool,
    /// Its region among those of the device, counted from 1; 0 where it was not looked for.
    pub region: u32,
    /// First address.
    pub addr: DeviceAddr,
    /// Bytes, rounding included.
    pub bytes: u64,
    /// Bytes requested; 0 for free memory.
    pub requested_bytes: u64,
    /// The stream that it was allocated on, or its region's.
    pub stream: StreamId,
    /// The pool; [`NO_POOL`](crate::NO_POOL) for none.
    pub pool: PoolId,
}

/// The use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// Free memory.
    Free,
    /// A live allocation.
    Live,
    /// Freed memory that waits for streams, of whichever device.
    Waiting,
}

impl<D: DeviceDriver> Device<D> {
    /// The live allocation that an address lies in.
    pub fn block_around(&self, addr: DeviceAddr) -> Option<Block> {
        let (pool, live) = self.live_around(addr).filter(|(_, live)| !self.foreign.is_deferred(live.addr))?;
        Some(of_live(pool, &live))
    }

    /// The live allocations of the device and its pools, or of one pool, in address order within a region.
    pub fn live_blocks(&self, wanted: Option<PoolId>) -> Vec<Block> {
        let mut found = Vec::new();
        self.each_allocator(wanted, |pool, allocator| {
            let live = allocator.live();
            let live = live.iter().filter(|live| !self.foreign.is_deferred(live.addr));
            found.extend(live.map(|live| of_live(pool, live)));
        });
        found
    }

    /// All blocks of the device and its pools, or of one pool, in address order within a region.
    pub fn blocks(&self, wanted: Option<PoolId>) -> Vec<Block> {
        let mut found = Vec::new();
        let mut regions = 0;
        self.each_allocator(wanted, |pool, allocator| {
            self.add_blocks(pool, &allocator.snapshot(), &mut regions, &mut found);
        });
        found
    }

    fn add_blocks(&self, pool: PoolId, snapshot: &Snapshot, regions: &mut u32, found: &mut Vec<Block>) {
        for region in &snapshot.regions {
            *regions += 1;
            for block in &region.blocks {
                let state = match block.state {
                    BlockState::Free => BlockUse::Free,
                    BlockState::Live if !self.foreign.is_deferred(block.addr) => BlockUse::Live,
                    BlockState::Live | BlockState::Pending => BlockUse::Waiting,
                    // Claimed by a growth that another thread is in the middle of.
                    _ => continue,
                };
                found.push(Block {
                    state,
                    small: region.kind == RegionKind::Small,
                    region: *regions,
                    addr: block.addr,
                    bytes: block.bytes,
                    requested_bytes: block.requested_bytes,
                    stream: block.borrowed_by.unwrap_or(region.stream),
                    pool,
                });
            }
        }
    }
}

fn of_live(pool: PoolId, live: &LiveAllocation) -> Block {
    Block {
        state: BlockUse::Live,
        small: false,
        region: 0,
        addr: live.addr,
        bytes: live.bytes.max(1).next_multiple_of(GRANULE),
        requested_bytes: live.bytes,
        stream: live.stream,
        pool,
    }
}
