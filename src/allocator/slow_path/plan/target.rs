//! The target: a copy of what a region has unmapped, and of the free blocks beside that.

use super::super::super::streams::region::{Region, RegionId};
use super::super::super::streams::state::StreamState;
use super::states::{PIECE, States};
use crate::driver::Driver;
use crate::heap::{Block, BlockState, Heap};
use crate::stream::StreamIndex;
use crate::units::DeviceAddr;

/// A copy of the region that a plan places a request in.
#[derive(Debug)]
pub struct Target {
    /// Address of its first byte.
    pub base: DeviceAddr,
    /// Number of its segment.
    pub segment: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Its unmapped blocks, and the free ones beside them, in address order.
    pub blocks: Vec<Block>,
}

impl Target {
    /// Copies a region of a stream.
    pub fn new<D: Driver>(states: &mut States<'_, D>, stream: StreamIndex, id: RegionId) -> Self {
        let (base, segment, page_bytes) = states.with(stream, |state| {
            let region = region_of(state, id);
            (region.base, region.segment, region.page_bytes)
        });
        let mut blocks = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            blocks.reserve(PIECE);
            from = states.with(stream, |state| copy_piece(&region_of(state, id).heap, &mut blocks, at));
        }
        Self { base, segment, page_bytes, blocks }
    }

    /// The runs of blocks that a request of `size` bytes may be placed in. The last one may be too small.
    pub fn adequate_runs(&self, size: u64) -> impl Iterator<Item = &[Block]> {
        let mut runs = self.blocks.chunk_by(|one, next| one.offset + one.size == next.offset).peekable();
        let is_adequate =
            move |run: &[Block], is_last: bool| is_last || run.iter().map(|block| block.size).sum::<u64>() >= size;
        std::iter::from_fn(move || {
            loop {
                let run = runs.next()?;
                if is_adequate(run, runs.peek().is_none()) {
                    return Some(run);
                }
            }
        })
    }
}

fn region_of(state: &StreamState, id: RegionId) -> &Region {
    state.regions.get(id).expect("regions stay")
}

/// Copies the next unmapped blocks from offset `from` on, with the free ones beside them, and returns where to go on.
fn copy_piece(heap: &Heap, copied: &mut Vec<Block>, from: u64) -> Option<u64> {
    let mut from = from;
    // The last piece may have ended amid a run of them. Where one ends, another block starts now as then: a free block is not
    // followed by another one, and unmapped blocks stay.
    let runs_on = copied.last().is_some_and(|last| last.offset + last.size == from);
    let mut next = if runs_on { heap.block(from).copied() } else { None };
    let mut unmapped = heap.unmapped_from(from).map(|(offset, _)| offset);
    for _ in 0..PIECE {
        let block = match next.filter(|block| is_open(block.state)) {
            Some(block) => block,
            None => first_of_next_run(heap, &mut unmapped, from)?,
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

/// The free block before the next of the `unmapped` ones that starts at `from` or above, or else that one itself.
fn first_of_next_run(heap: &Heap, unmapped: &mut impl Iterator<Item = u64>, from: u64) -> Option<Block> {
    let offset = unmapped.find(|offset| *offset >= from)?;
    let unmapped = heap.block(offset).expect("I3: it is a block");
    let before = heap.before(unmapped).filter(|before| before.state == BlockState::Free);
    // What lies below was copied in the piece before, and has been merged with this one since.
    let clipped = before.map(|before| {
        let start = before.offset.max(from);
        Block { offset: start, size: before.offset + before.size - start, ..*before }
    });
    Some(clipped.filter(|block| block.size > 0).unwrap_or(*unmapped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::GRANULE;

    /// Wherever a piece ends: all unmapped blocks are copied, the free ones beside them, and no other free block.
    #[test]
    fn copies_made_in_pieces_lack_nothing() {
        const RUNS: u64 = 3 * PIECE as u64;
        for shift in 0..3 {
            // Runs of an unmapped and a free block, a live block behind each, and at the end a free block between live ones.
            let mut heap = Heap::new((3 * RUNS + 3) * GRANULE);
            heap.set(0, 0, (3 * RUNS + 3) * GRANULE, BlockState::Free, 0);
            let mut expected = Vec::new();
            for run in 0..RUNS {
                let start = 3 * run * GRANULE;
                heap.take_live(start, start + 2 * GRANULE, GRANULE, 0);
                heap.set(start, start, GRANULE, BlockState::Hole, 0);
                // A run of one block moves where the pieces end.
                if run < shift {
                    heap.take_live(start + GRANULE, start + GRANULE, GRANULE, 0);
                }
                expected.push((start, BlockState::Hole));
                if run >= shift {
                    expected.push((start + GRANULE, BlockState::Free));
                }
            }
            heap.take_live(3 * RUNS * GRANULE, (3 * RUNS + 1) * GRANULE, 2 * GRANULE, 0);
            heap.check();
            let (mut copied, mut from) = (Vec::new(), Some(0));
            while let Some(at) = from {
                let before = copied.len();
                from = copy_piece(&heap, &mut copied, at);
                assert!(copied.len() - before <= PIECE);
            }
            let places: Vec<_> = copied.iter().map(|block| (block.offset, block.state)).collect();
            assert_eq!(places, expected);
        }
    }

    /// The free block before an unmapped one may begin in the piece before, or end where that did.
    #[test]
    fn what_the_piece_before_has_is_not_copied_again() {
        let mut heap = Heap::new(4 * GRANULE);
        heap.set(0, 0, 2 * GRANULE, BlockState::Free, 0);
        let found = |granules: u64| {
            let mut unmapped = heap.unmapped_from(0).map(|(offset, _)| offset);
            first_of_next_run(&heap, &mut unmapped, granules * GRANULE)
                .map(|block| (block.offset / GRANULE, block.size / GRANULE, block.state))
        };
        assert_eq!(found(0), Some((0, 2, BlockState::Free)));
        assert_eq!(found(1), Some((1, 1, BlockState::Free)));
        assert_eq!(found(2), Some((2, 2, BlockState::Hole)));
        assert_eq!(found(3), None);
    }
}
