//! Snapshot: every segment, chunk and block as plain data; and the check of every invariant.

use super::error::Leak;
use super::state::{RegionKind, StreamState};
use super::{Allocator, Inner};
use crate::driver::Driver;
use crate::heap::BlockState;
use crate::segment::ViewState;
use crate::units::{DeviceAddr, StreamId};
use std::collections::BTreeMap;

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

    /// Checks every invariant, down to single bytes' backing. Takes all locks; O(blocks + mappings). For tests.
    ///
    /// # Panics
    /// When an invariant does not hold; the message names it.
    pub fn check(&self) {
        self.inner.check();
    }
}

impl<D: Driver> Inner<D> {
    pub(super) fn for_each_live(&self, mut each: impl FnMut(Leak)) {
        for stream in self.streams.iter() {
            let state = stream.lock();
            for (kind, region) in state.regions() {
                for block in region.heap.blocks().filter(|block| block.state == BlockState::Live) {
                    let home = state.sharers.get(&(kind, block.offset)).map_or(stream.index, |sharers| sharers.home);
                    each(Leak {
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
            for (kind, region) in state.regions() {
                segments.push(SegmentSnapshot {
                    stream: stream.id,
                    kind,
                    addr: region.base,
                    bytes: region.heap.extent(),
                    poisoned: mapper.segments[region.segment].poisoned,
                    blocks: self.block_snapshots(&state, kind, stream.index),
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
        kind: RegionKind,
        owner: crate::stream::StreamIndex,
    ) -> Vec<BlockSnapshot> {
        let Some(region) = &state.regions[kind as usize] else { return Vec::new() };
        region
            .heap
            .blocks()
            .filter(|block| block.state != BlockState::Hole)
            .map(|block| {
                let sharers = state.sharers.get(&(kind, block.offset)).filter(|_| block.state == BlockState::Live);
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

    /// The invariants of the design, by number:
    /// 1 and 2: every byte of a live, pending or free block lies in an active view, of one chunk with one active view;
    /// blocks tile their heap, so that live blocks overlap neither in addresses nor in memory. 3: streams' clocks are in
    /// order and pending blocks carry fences. 4: no block uses a stale view. 5: the sums agree.
    fn check(&self) {
        let mapper = self.mapper.lock();
        let clocks: Vec<_> = self.streams.iter().map(|stream| stream.clock.lock()).collect();
        let states = self.lock_all();
        mapper.pool.check();
        let mut active_views = BTreeMap::new();
        for (number, segment) in mapper.segments.iter().enumerate() {
            segment.table.check();
            for view in segment.table.iter() {
                let at = super::plan::view_at(number, view.page);
                let chunk = mapper.pool.get(view.chunk);
                assert_eq!(chunk.pages, view.pages, "a chunk is mapped whole");
                match view.state {
                    ViewState::Active => {
                        assert_eq!(chunk.active, Some(at), "invariant 1: a chunk has one active view");
                        let twice = active_views.insert(view.chunk, at);
                        assert!(twice.is_none(), "invariant 1: two active views of {:?}", view.chunk);
                    }
                    ViewState::Stale(_) => assert!(chunk.stale.contains(&at), "a stale view is known to its chunk"),
                }
            }
        }
        let mut block_bytes = 0;
        for (clock, state) in clocks.iter().zip(&states) {
            clock.check();
            assert_eq!(clock.open(), state.open_epoch(), "invariant 3: the open epoch");
            let mut live = 0;
            for (kind, region) in state.regions() {
                region.heap.check();
                live += region.heap.live_bytes();
                let segment = &mapper.segments[region.segment];
                for block in region.heap.blocks() {
                    let first = block.offset / region.page_bytes;
                    let end = (block.offset + block.size).div_ceil(region.page_bytes);
                    match block.state {
                        BlockState::Live | BlockState::Pending | BlockState::Free => {
                            block_bytes += block.size;
                            assert!(
                                segment.table.all_active(first, end),
                                "invariant 2: {:?} block at {:#x} of {} bytes is not backed",
                                block.state,
                                block.offset,
                                block.size
                            );
                        }
                        BlockState::Hole => {
                            assert!(block.offset.is_multiple_of(region.page_bytes), "holes are whole pages");
                            assert!(
                                segment.table.none_active(first, end),
                                "invariant 4: an active view in the hole at {:#x}",
                                block.offset
                            );
                        }
                        BlockState::Claimed => {
                            assert!(segment.poisoned, "a claim outlived its transaction at {:#x}", block.offset);
                        }
                    }
                    if block.state == BlockState::Live && block.shared {
                        assert!(state.sharers.contains_key(&(kind, block.offset)), "a shared block has sharers");
                    }
                }
            }
            assert_eq!(live, state.live_bytes, "invariant 5: live bytes");
            for pending in &state.pending {
                let region = state.regions[pending.kind as usize].as_ref().expect("pending blocks have a region");
                let block = region.heap.block(pending.offset).expect("pending blocks are in the table");
                assert_eq!(block.state, BlockState::Pending, "invariant 3: a pending block");
            }
            for (kind, offset) in state.sharers.keys() {
                let region = state.regions[*kind as usize].as_ref().expect("shared blocks have a region");
                let shared = region.heap.block(*offset).is_some_and(|b| b.state == BlockState::Live && b.shared);
                assert!(shared, "sharers of a block that is not shared");
            }
        }
        let in_ranges: u64 = mapper
            .pool
            .iter()
            .filter(|(_, chunk)| chunk.lent_out)
            .map(|(_, chunk)| u64::from(chunk.pages) * self.geometry.page_bytes)
            .sum();
        let stuck: u64 = mapper
            .pool
            .iter()
            .filter(|(_, chunk)| !chunk.lent_out && chunk.active.is_none() && !chunk.stale.is_empty())
            .map(|(_, chunk)| u64::from(chunk.pages) * self.geometry.page_bytes)
            .sum();
        assert_eq!(
            block_bytes + in_ranges + stuck + mapper.pool.idle_bytes(),
            mapper.pool.held_bytes(),
            "invariant 5: blocks, ranges and idle chunks are what is reserved"
        );
        assert!(states.iter().map(|state| state.live_bytes).sum::<u64>() <= mapper.pool.held_bytes(), "invariant 5");
    }
}
