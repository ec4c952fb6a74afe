//! The check of every invariant.

use super::super::shared::Shared;
use super::super::streams::region::RegionId;
use super::super::streams::state::{Exposed, StreamState};
use super::Door;
use crate::driver::Driver;
use crate::heap::{Block, BlockState};
use crate::pages::{PageCount, PageRange};
use crate::segment::{Segment, View, ViewState};
use std::ops::Range;

impl Door {
    /// Checks invariants 1 to 5, 7 to 10, and 12 to 14 of `docs/internals/mechanisms.md`, and those of every part. Blocks tile
    /// their heap, so that no two overlap.
    ///
    /// # Panics
    /// When an invariant does not hold; the message names it.
    pub fn check<D: Driver>(&self, shared: &Shared<D>) {
        let mapper = self.lock();
        let clocks: Vec<_> = shared.streams.iter().map(|stream| stream.clock.lock()).collect();
        let states = shared.streams.lock_all();
        let asleep = mapper.asleep().check(mapper.segments());
        mapper.check(|at| asleep.is_without_memory(at));
        shared.streams.peak.check(&states);
        let (mut block_bytes, mut live_asleep) = (0, 0);
        for ((stream, clock), state) in shared.streams.iter().zip(&clocks).zip(&states) {
            clock.check();
            assert_eq!(clock.open(), state.open_epoch(), "invariant 3: the open epoch");
            state.regions.check();
            let (mut live, mut pending_blocks) = (0, 0);
            for (id, region) in state.regions.iter() {
                region.heap.check();
                live += region.heap.live_bytes();
                let segment = mapper.segment(region.segment);
                for block in region.heap.blocks() {
                    let pages = PageRange::around(&(block.offset..block.offset + block.size), region.page_bytes);
                    pending_blocks += usize::from(block.state == BlockState::Pending);
                    match block.state {
                        BlockState::Live if !segment.table.all_active(pages) => {
                            let is_asleep = state.is_asleep((id, block.offset));
                            let excused = asleep.excuse(region.segment, segment, pages);
                            assert!(
                                is_asleep && excused,
                                "invariant 2: Live block at {:#x} of {} bytes is not backed",
                                block.offset,
                                block.size
                            );
                            let awake = active_bytes(&block, segment);
                            block_bytes += awake;
                            live_asleep += block.size - awake;
                        }
                        BlockState::Live | BlockState::Pending | BlockState::Free => {
                            block_bytes += block.size;
                            assert!(
                                segment.table.all_active(pages),
                                "invariant 2: {:?} block at {:#x} of {} bytes is not backed",
                                block.state,
                                block.offset,
                                block.size
                            );
                        }
                        BlockState::Hole => {
                            assert!(block.offset.is_multiple_of(region.page_bytes), "unmapped blocks are whole pages");
                            assert!(
                                segment.table.none_active(pages),
                                "invariant 4: an active view in the unmapped block at {:#x}",
                                block.offset
                            );
                        }
                        BlockState::Claimed => {
                            let excused = asleep.contain(region.segment, pages) || is_exposed(state, id, &block);
                            assert!(
                                segment.poisoned || excused,
                                "a claim outlived its transaction at {:#x}",
                                block.offset
                            );
                            block_bytes += active_bytes(&block, segment);
                        }
                    }
                    // One beyond the open epoch where something was freed while sealing failed.
                    assert!(
                        block.state != BlockState::Free || block.epoch <= state.epoch + 1,
                        "invariant 3: a block freed in an epoch to come"
                    );
                    if block.state == BlockState::Live && block.shared {
                        assert!(state.extras.contains_key(&(id, block.offset)), "a shared block has sharers");
                    }
                }
            }
            assert_eq!(live, state.live_bytes, "invariant 5: live bytes");
            state.pending.check();
            for pending in state.pending.iter() {
                let region = state.regions.get(pending.region).expect("pending blocks have a region");
                let block = region.heap.block(pending.offset).expect("pending blocks are in the table");
                assert_eq!(block.state, BlockState::Pending, "invariant 3: a pending block");
            }
            check_extras(state);
            check_exposed(state);
            mapper.asleep().check_marks(stream.index, state);
            let freed = state.extras.values().filter(|extras| extras.freed.is_some());
            let waiting = state.pending.iter().count() + freed.count();
            assert_eq!(pending_blocks, waiting, "invariant 8: pending blocks wait for a stream or a pin");
        }
        let stuck: PageCount = mapper
            .chunks()
            .iter()
            .filter(|(_, chunk)| chunk.lent_out.is_none() && chunk.active.is_none() && !chunk.stale.is_empty())
            .map(|(_, chunk)| chunk.pages)
            .sum();
        assert_eq!(
            block_bytes
                + mapper.chunks().range_bytes()
                + mapper.chunks().registered_bytes()
                + stuck.bytes(shared.geometry.page_bytes)
                + mapper.chunks().idle_bytes()
                + mapper.chunks().withheld_bytes(),
            mapper.chunks().held_bytes(),
            "invariant 5: blocks, ranges, registered blocks, and idle and withheld chunks are what is reserved"
        );
        assert!(
            states.iter().map(|state| state.live_bytes).sum::<u64>() <= mapper.chunks().held_bytes() + live_asleep,
            "invariant 5"
        );
    }
}

/// Whether all bytes of a block are of exposed ones that were freed.
fn is_exposed(state: &StreamState, region: RegionId, block: &Block) -> bool {
    let within =
        |range: &Range<u64>| (block.offset + block.size).min(range.end).saturating_sub(block.offset.max(range.start));
    let exposed = state.exposed.iter().filter(|exposed| exposed.region == region);
    exposed.map(|exposed| within(&exposed.range)).sum::<u64>() == block.size
}

/// Bytes of a block in pages with an active view.
fn active_bytes(block: &Block, segment: &Segment) -> u64 {
    let range = block.offset..block.offset + block.size;
    let views = segment.table.views_in(PageRange::around(&range, segment.page_bytes));
    let of_view = |view: &View| {
        let bytes = view.pages.bytes(segment.page_bytes);
        bytes.end.min(range.end) - bytes.start.max(range.start)
    };
    views.filter(|view| view.state == ViewState::Active).map(of_view).sum()
}

/// Asserts invariants 8 and 9, and that what is kept of blocks is of those that their heaps have as shared.
fn check_extras(state: &StreamState) {
    let freed = state.extras.iter().filter(|(_, extras)| extras.pins > 0 && extras.freed.is_some());
    let open: u64 = freed.map(|(at, _)| state.pinned_bytes(*at)).sum();
    for ((id, offset), extras) in &state.extras {
        let block = state.regions.get(*id).and_then(|region| region.heap.block(*offset));
        let is_shared = |as_what| block.is_some_and(|block| block.state == as_what && block.shared);
        if extras.ticket.is_some() {
            assert!(is_shared(BlockState::Live), "invariant 9: a ticket names a live block");
        }
        match (extras.pins, &extras.freed) {
            (0, None) => assert!(is_shared(BlockState::Live), "sharers of a block that is not shared"),
            (pins, freed) => {
                let kept = is_shared(if freed.is_some() { BlockState::Pending } else { BlockState::Live });
                assert!(kept && pins > 0, "invariant 8: a pinned block is live, or pending once it is freed");
            }
        }
    }
    assert_eq!(state.open_elsewhere_bytes, open, "invariant 8: bytes of the freed blocks that pins hold");
}

/// Asserts that nobody has the bytes of exposed blocks that were freed.
fn check_exposed(state: &StreamState) {
    for Exposed { region, range } in &state.exposed {
        let heap = &state.regions.get(*region).expect("an exposed block has a region").heap;
        let first = heap.block_around(range.start).map_or(range.start, |block| block.offset);
        let mut blocks = heap.blocks_from(first).take_while(|block| block.offset < range.end);
        assert!(
            blocks.all(|block| block.state == BlockState::Claimed),
            "invariant 14: an exposed block that was freed is claimed"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::kind::RegionKind;
    use super::super::super::streams::extras::Extras;
    use super::super::super::streams::pending::Pending;
    use super::*;
    use crate::allocator::mappings::{Change, NewView};
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{MemoryDriver, ModelConfig, ModelDriver, WorkDriver};
    use crate::pages::PageIndex;
    use crate::segment::listeners::MapListeners;
    use crate::stream::{Fence, StreamIndex};
    use crate::testing::{Break, assert_noticed};
    use crate::units::{DeviceAddr, StreamId};
    use std::mem::ManuallyDrop;
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const LARGE: RegionId = RegionId::first(RegionKind::Large);

    /// An allocator that a test breaks, and that is therefore never closed.
    type Broken = ManuallyDrop<Allocator<ModelDriver>>;

    /// Four pages: live, free, live and shared, free; unmapped, with a stale view, where a fifth was.
    fn allocator() -> Broken {
        let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 4 * PAGE, ..ModelConfig::default() }));
        let other = driver.create_stream().unwrap();
        let main = StreamId::DEFAULT;
        let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let blocks: Vec<DeviceAddr> = (0..4).map(|_| allocator.alloc_raw(PAGE, main).unwrap()).collect();
        allocator.record_stream(blocks[2], other).unwrap();
        allocator.free(blocks[1]).unwrap();
        allocator.free(blocks[3]).unwrap();
        // Both free pages move behind the last; one of them is free again.
        let joined = allocator.alloc_raw(2 * PAGE, main).unwrap();
        allocator.free(joined).unwrap();
        ManuallyDrop::new(allocator)
    }

    fn with_state(allocator: &Broken, change: impl FnOnce(&mut StreamState)) {
        change(&mut allocator.inner.shared.streams.get(StreamIndex(0)).lock());
    }

    /// Gives the block at `offset` other extras than it has.
    fn insert(allocator: &Broken, offset: u64, extras: Extras) {
        with_state(allocator, |state| drop(state.extras.insert((LARGE, offset), extras)));
    }

    /// Makes the pages `[start, start + pages)` of the region of large blocks one block of another state.
    fn set(allocator: &Broken, start: u64, pages: u64, to: BlockState) {
        with_state(allocator, |state| {
            let heap = &mut state.region(LARGE).unwrap().heap;
            let first = heap.block_around(start * PAGE).unwrap().offset;
            heap.set(first, start * PAGE, pages * PAGE, to, 1);
        });
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<Broken>] = &[
            ("invariant 2: Free block", |allocator| set(allocator, 7, 1, BlockState::Free)),
            ("invariant 4: an active view", |allocator| set(allocator, 4, 2, BlockState::Hole)),
            ("a claim outlived its transaction", |allocator| set(allocator, 4, 2, BlockState::Claimed)),
            ("invariant 3: the open epoch", |allocator| with_state(allocator, |state| state.epoch += 1)),
            ("invariant 5: live bytes", |allocator| with_state(allocator, |state| state.live_bytes += 1)),
            ("invariant 3: a block freed in an epoch to come", |allocator| {
                with_state(allocator, |state| {
                    let epoch = state.epoch + 2;
                    let heap = &mut state.region(LARGE).unwrap().heap;
                    let free = heap.blocks().find(|block| block.state == BlockState::Free).unwrap();
                    heap.set(free.offset, free.offset, free.size, BlockState::Free, epoch);
                });
            }),
            ("invariant 3: a pending block", |allocator| {
                let fences = vec![Fence { stream: StreamIndex(1), epoch: 1 }];
                let pending = Pending { region: LARGE, offset: 0, fences, exposed: false };
                with_state(allocator, |state| state.pending.push(pending));
            }),
            ("invariant 8: a pinned block is live", |allocator| {
                insert(allocator, PAGE, Extras { pins: 1, ..Extras::new(StreamIndex(0)) });
            }),
            ("invariant 8: a pinned block is live", |allocator| {
                // Live, but not marked.
                insert(allocator, 0, Extras { pins: 1, ..Extras::new(StreamIndex(0)) });
            }),
            ("invariant 8: a pinned block is live", |allocator| {
                // Marked and freed, but nothing pins it.
                with_state(allocator, |state| {
                    state.region(LARGE).unwrap().heap.free_later(2 * PAGE).unwrap();
                    state.live_bytes -= PAGE;
                });
                insert(allocator, 2 * PAGE, Extras { freed: Some(Vec::new()), ..Extras::new(StreamIndex(0)) });
            }),
            ("invariant 8: pending blocks wait for a stream or a pin", |allocator| {
                with_state(allocator, |state| {
                    state.extras.clear();
                    state.region(LARGE).unwrap().heap.free_later(2 * PAGE).unwrap();
                    state.live_bytes -= PAGE;
                });
            }),
            ("invariant 9: a ticket names a live block", |allocator| {
                insert(allocator, PAGE, Extras { ticket: Some(0), ..Extras::new(StreamIndex(0)) });
            }),
            ("invariant 9: a ticket names a live block", |allocator| {
                // Live, but not marked: its free would not look for a ticket.
                insert(allocator, 0, Extras { ticket: Some(0), ..Extras::new(StreamIndex(0)) });
            }),
            ("invariant 9: a ticket names a live block", |allocator| {
                // Pinned, and freed.
                with_state(allocator, |state| {
                    state.region(LARGE).unwrap().heap.free_later(2 * PAGE).unwrap();
                    state.live_bytes -= PAGE;
                });
                let freed = Some(Vec::new());
                let extras = Extras { pins: 1, ticket: Some(0), freed, ..Extras::new(StreamIndex(0)) };
                insert(allocator, 2 * PAGE, extras);
            }),
            ("invariant 8: bytes of the freed blocks", |allocator| {
                with_state(allocator, |state| state.open_elsewhere_bytes += 1);
            }),
            ("invariant 14: an exposed block that was freed", |allocator| {
                with_state(allocator, |state| state.exposed.push(Exposed { region: LARGE, range: 0..PAGE }));
            }),
            ("a shared block has sharers", |allocator| with_state(allocator, |state| state.extras.clear())),
            ("sharers of a block that is not shared", |allocator| {
                insert(allocator, 0, Extras::new(StreamIndex(0)));
            }),
            ("invariant 5: blocks, ranges, registered blocks, and idle", |allocator| {
                // A chunk that is mapped, but neither behind a block nor for a range.
                let (elsewhere, listeners) = (ModelDriver::default(), MapListeners::default());
                let (handle, base) = (elsewhere.create(PAGE).unwrap(), elsewhere.reserve(PAGE, PAGE).unwrap());
                allocator.inner.door.with_mappings(|mappings| {
                    let (chunk, segment) =
                        (mappings.add_chunk(handle, PageCount::ONE), mappings.add_segment(base, PAGE));
                    let pages = PageRange::new(PageIndex(0), PageCount::ONE);
                    let map = [NewView { chunk, pages, last_use: None }];
                    let change = Change {
                        segment,
                        lend_to: None,
                        stuck: ViewState::stuck(StreamIndex(0)),
                        revive: &[],
                        map: &map,
                    };
                    mappings.map(&elsewhere, &listeners, &change).unwrap();
                });
            }),
        ];
        assert_noticed(allocator, |allocator| allocator.check(), breaks);
    }
}
