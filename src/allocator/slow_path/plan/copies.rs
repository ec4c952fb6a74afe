//! Copies of what a plan looks at: no stream is locked while it is made. What has changed meanwhile is noticed when it is
//! claimed.
//!
//! Holes and views change under the mapper's lock only, which whoever plans holds. So a copy that is made in pieces has all of
//! them; what may be out of date is which bytes between them are free.
//!
//! Cost: O([`PIECE`]) each time that a stream is locked; in all, O(holes) of the region, and O(free blocks of a page or more)
//! of all streams where chunks have to be found.

use super::super::super::streams::region::{Region, RegionId};
use super::super::super::streams::state::StreamState;
use super::super::mapper::Mapper;
use super::sources::{Sources, free_chunks};
use super::states::{PIECE, States};
use crate::driver::Driver;
use crate::heap::{Block, BlockState, Heap};
use crate::stream::StreamIndex;
use crate::units::DeviceAddr;
use std::collections::BTreeMap;

/// What has been copied for the plans of one round.
#[derive(Debug, Default)]
pub struct Copies {
    sources: Option<Sources>,
    regions: BTreeMap<RegionId, Target>,
}

/// What a plan knows of the region that it places a request in.
#[derive(Debug)]
pub struct Target {
    /// Address of its first byte.
    pub base: DeviceAddr,
    /// Number of its segment.
    pub segment: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Its holes, and the free blocks beside them, in address order.
    pub blocks: Vec<Block>,
}

impl Copies {
    /// The completely free chunks; with a stream, those of that one.
    pub fn sources<D: Driver>(
        &mut self,
        mapper: &Mapper,
        states: &mut States<'_, D>,
        of_stream: Option<StreamIndex>,
    ) -> &Sources {
        self.sources.get_or_insert_with(|| Sources::new(mapper, free_chunks(mapper, states, of_stream)))
    }

    /// A region of a stream, which has it.
    pub fn target<D: Driver>(&mut self, states: &mut States<'_, D>, stream: StreamIndex, id: RegionId) -> &Target {
        self.regions.entry(id).or_insert_with(|| Target::new(states, stream, id))
    }

    /// Both, as far as they have been copied.
    pub fn both(&self, id: RegionId) -> (Option<&Sources>, Option<&Target>) {
        (self.sources.as_ref(), self.regions.get(&id))
    }
}

impl Target {
    fn new<D: Driver>(states: &mut States<'_, D>, stream: StreamIndex, id: RegionId) -> Self {
        let (base, segment, page_bytes) = states.with(stream, |state| {
            let region = region_of(state, id);
            (region.base, region.segment, region.page_bytes)
        });
        let mut blocks = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            from = states.with(stream, |state| copy_piece(&region_of(state, id).heap, &mut blocks, at));
        }
        Self { base, segment, page_bytes, blocks }
    }
}

fn region_of(state: &StreamState, id: RegionId) -> &Region {
    state.regions.get(id).expect("regions stay")
}

/// Copies the next holes from offset `from` on, with the free blocks beside them, and returns where to go on.
fn copy_piece(heap: &Heap, copied: &mut Vec<Block>, from: u64) -> Option<u64> {
    let mut from = from;
    // The last piece may have ended amid a run of them. Where one ends, another block starts now as then: a free block is not
    // followed by another one, and holes stay.
    let runs_on = copied.last().is_some_and(|last| last.offset + last.size == from);
    let mut next = if runs_on { heap.block(from).copied() } else { None };
    for _ in 0..PIECE {
        let block = match next.filter(|block| is_open(block.state)) {
            Some(block) => block,
            None => first_of_next_run(heap, from)?,
        };
        copied.push(block);
        from = block.offset + block.size;
        next = heap.after(&block).copied();
    }
    Some(from)
}

/// Whether a block may be a part of a room.
fn is_open(state: BlockState) -> bool {
    matches!(state, BlockState::Free | BlockState::Hole)
}

/// The free block before the next hole that starts at `from` or above, or else the hole itself.
fn first_of_next_run(heap: &Heap, from: u64) -> Option<Block> {
    let (offset, _) = heap.holes_from(from).next()?;
    let hole = heap.block(offset).expect("I3: holes are blocks");
    let before = heap.before(hole).filter(|before| before.state == BlockState::Free);
    // What lies below was copied in the piece before, and has been merged with this one since.
    let clipped = before.map(|before| {
        let start = before.offset.max(from);
        Block { offset: start, size: before.offset + before.size - start, ..*before }
    });
    Some(clipped.filter(|block| block.size > 0).unwrap_or(*hole))
}
