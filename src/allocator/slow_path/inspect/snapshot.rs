//! How a snapshot comes about.

use super::super::super::reports::{BlockSnapshot, RegionSnapshot};
use super::super::super::streams::Streams;
use super::super::super::streams::extras::Extras;
use super::super::super::streams::region::{Region, RegionId};
use super::super::super::streams::state::Stream;
use super::super::mapper::Mapper;
use crate::driver::Driver;
use crate::heap::{Block, BlockState};
use crate::stream::StreamIndex;

impl RegionSnapshot {
    /// A region of `stream`, whose state is locked for a piece of it at a time.
    pub(super) fn new<D: Driver>(streams: &Streams<D>, mapper: &Mapper, stream: &Stream, id: RegionId) -> Option<Self> {
        let mut snapshot = {
            let state = stream.lock();
            let region = state.regions.get(id)?;
            Self {
                stream: stream.id(),
                kind: region.kind,
                addr: region.base,
                bytes: region.heap.extent(),
                poisoned: mapper.segment(region.segment).poisoned,
                blocks: Vec::new(),
            }
        };
        streams.look_at_blocks(stream, id, |state, region, block| {
            if block.state != BlockState::Hole {
                let extras = state.extras.get(&(id, block.offset));
                snapshot.blocks.push(BlockSnapshot::new(streams, region, stream.index, block, extras));
            }
        });
        Some(snapshot)
    }
}

impl BlockSnapshot {
    fn new<D: Driver>(
        streams: &Streams<D>,
        region: &Region,
        owner: StreamIndex,
        block: &Block,
        extras: Option<&Extras>,
    ) -> Self {
        let live = block.state == BlockState::Live;
        let is_used = live || block.state == BlockState::Pending;
        let sharers = extras.filter(|_| live).map(|extras| &extras.sharers);
        let handle = |index: StreamIndex| streams.get(index).id();
        Self {
            addr: region.base.offset(block.offset),
            bytes: block.size,
            requested_bytes: if is_used { block.size - u64::from(block.waste) } else { 0 },
            state: block.state,
            borrowed_by: sharers.filter(|sharers| sharers.home != owner).map(|sharers| handle(sharers.home)),
            recorded_on: sharers
                .map(|sharers| sharers.others().iter().map(|other| handle(*other)).collect())
                .unwrap_or_default(),
            pins: extras.map_or(0, |extras| extras.pins),
        }
    }
}
