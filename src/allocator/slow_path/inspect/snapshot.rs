//! How a snapshot comes about.

use super::super::super::reports::{BlockSnapshot, RegionSnapshot};
use super::super::super::streams::Streams;
use super::super::super::streams::region::{Region, RegionId};
use super::super::super::streams::state::{Sharers, Stream};
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
                let sharers = state.sharers.get(&(id, block.offset));
                let pins = state.pins.get(&(id, block.offset)).map_or(0, |pins| pins.count);
                let found = BlockSnapshot::new(streams, region, stream.index, block, sharers);
                snapshot.blocks.push(BlockSnapshot { pins, ..found });
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
        sharers: Option<&Sharers>,
    ) -> Self {
        let live = block.state == BlockState::Live;
        let sharers = sharers.filter(|_| live);
        let handle = |index: StreamIndex| streams.get(index).id();
        Self {
            addr: region.base.offset(block.offset),
            bytes: block.size,
            requested_bytes: if live { block.size - u64::from(block.waste) } else { 0 },
            state: block.state,
            borrowed_by: sharers.filter(|sharers| sharers.home != owner).map(|sharers| handle(sharers.home)),
            recorded_on: sharers
                .map(|sharers| sharers.others().iter().map(|other| handle(*other)).collect())
                .unwrap_or_default(),
            pins: 0,
        }
    }
}
