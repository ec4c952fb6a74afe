//! Compares the heap with a plain map of granules.

use super::starts::STRETCH;
use super::*;
use crate::testing::{Break, assert_noticed, steps_of};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Several stretches of the start map, and a part of one.
const GRANULES: u64 = 300;
/// Granules with memory at the start.
const MAPPED: u64 = 280;
/// Address of the heap's start, in granules: less aligned than the alignments that are requested.
const BASE: u64 = 5;

#[derive(Clone, Debug)]
enum HeapOp {
    Alloc { granules: u64, waste: u16 },
    AllocAligned { granules: u64, waste: u16, shift: u32 },
    Share(usize),
    Free(usize),
    FreeLater(usize),
    Settle(usize),
    Set { start: u64, len: u64, to: BlockState },
    TakeLive { block: usize, before: u64, granules: u64, waste: u16 },
}

fn heap_op() -> impl Strategy<Value = HeapOp> {
    let waste = 0..GRANULE as u16;
    let size = || prop_oneof![4 => 1..12u64, 1 => 12..150u64];
    prop_oneof![
        4 => (size(), waste.clone()).prop_map(|(granules, waste)| HeapOp::Alloc { granules, waste }),
        2 => (size(), waste.clone(), 9..14u32)
            .prop_map(|(granules, waste, shift)| HeapOp::AllocAligned { granules, waste, shift }),
        1 => any::<usize>().prop_map(HeapOp::Share),
        4 => any::<usize>().prop_map(HeapOp::Free),
        1 => any::<usize>().prop_map(HeapOp::FreeLater),
        1 => any::<usize>().prop_map(HeapOp::Settle),
        3 => (0..GRANULES, 1..200u64, prop_oneof![
            Just(BlockState::Hole), Just(BlockState::Free), Just(BlockState::Claimed)])
            .prop_map(|(start, len, to)| HeapOp::Set { start, len, to }),
        1 => (any::<usize>(), 0..80u64, 1..80u64, waste)
            .prop_map(|(block, before, granules, waste)| HeapOp::TakeLive { block, before, granules, waste }),
    ]
}

/// A live or pending block.
#[derive(Clone, Copy, Debug)]
struct Held {
    size: u64,
    waste: u16,
    shared: bool,
}

/// The expected heap: the state of every granule, and the blocks in use. A granule of the map is `unit` bytes.
struct Map {
    unit: u64,
    granules: Vec<BlockState>,
    live: BTreeMap<u64, Held>,
    pending: BTreeMap<u64, Held>,
}

impl Map {
    fn paint(&mut self, offset: u64, size: u64, state: BlockState) {
        let start = (offset / self.unit) as usize;
        self.granules[start..start + (size / self.unit) as usize].fill(state);
    }

    /// Returns the runs of granules in `state`, each as size and offset in bytes, smallest first.
    fn runs(&self, state: BlockState) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < self.granules.len() {
            let run = self.granules[at..].iter().take_while(|granule| **granule == state).count();
            if run > 0 {
                runs.push((run as u64 * self.unit, at as u64 * self.unit));
            }
            at += run.max(1);
        }
        runs.sort_unstable();
        runs
    }

    /// Returns the offset that `alloc` must choose for `size` bytes: in the smallest run that fits, the lowest of several; at its
    /// end where the block is smaller than the smallest chunk and the run much larger.
    fn fit(&self, size: u64) -> Option<u64> {
        let (len, offset) = self.runs(BlockState::Free).into_iter().find(|(len, _)| *len >= size)?;
        let at_end = (64 << 10..2 << 20).contains(&size) && len >= 4 << 20;
        Some(if at_end { offset + len - size } else { offset })
    }

    /// Returns the offset that `alloc_aligned` must choose: at the start of the smallest run that fits, the lowest of several.
    fn fit_aligned(&self, size: u64, alignment: u64) -> Option<u64> {
        let fits_anywhere = size + alignment.max(GRANULE) - GRANULE;
        let large_enough = self.runs(BlockState::Free).into_iter().filter(|(len, _)| *len >= size).enumerate();
        large_enough.filter(|(nth, (len, _))| *nth < LOOK_AT || *len >= fits_anywhere).find_map(|(_, (len, offset))| {
            let base = BASE * self.unit;
            let start = (base + offset).next_multiple_of(alignment) - base;
            (start + size <= offset + len).then_some(start)
        })
    }

    fn hand_out(&mut self, offset: u64, size: u64, waste: u16) {
        self.paint(offset, size, BlockState::Live);
        self.live.insert(offset, Held { size, waste, shared: false });
    }

    fn assert_same(&self, heap: &Heap) {
        let mut seen = vec![BlockState::Hole; GRANULES as usize];
        let mut last = None;
        for block in heap.blocks() {
            let start = (block.offset / self.unit) as usize;
            seen[start..start + (block.size / self.unit) as usize].fill(block.state);
            for inside in [0, block.size / 2, block.size - 1] {
                assert_eq!(heap.block_around(block.offset + inside), Some(block));
            }
            assert_eq!(heap.before(&block).copied(), last);
            last = Some(block);
        }
        assert_eq!(seen, self.granules);
        assert_eq!(heap.extent(), GRANULES * self.unit);
        let blocks: Vec<Block> = heap.blocks().collect();
        for (number, block) in blocks.iter().enumerate() {
            assert!(heap.blocks_from(block.offset).eq(blocks[number..].iter().copied()));
            assert!(heap.blocks_from(block.offset + 1).eq(blocks[number + 1..].iter().copied()));
        }
        assert_eq!(heap.block_around(GRANULES * self.unit), None);
        for (offset, held) in &self.live {
            let block = heap.block(*offset).expect("a live block");
            assert_eq!((block.size, block.waste, block.shared), (held.size, held.waste, held.shared));
        }
        let sum = |held: &BTreeMap<u64, Held>| held.values().map(|held| held.size).sum::<u64>();
        assert_eq!(heap.live_block_bytes(), sum(&self.live));
        assert_eq!(heap.live_bytes(), self.live.values().map(|held| held.size - u64::from(held.waste)).sum::<u64>());
        assert_eq!(heap.live_count(), self.live.len() as u64);
        assert_eq!(heap.pending_bytes(), sum(&self.pending));
        let free = self.runs(BlockState::Free);
        assert_eq!(heap.free_bytes(), free.iter().map(|(len, _)| len).sum::<u64>());
        assert_eq!(heap.largest_free().map(|block| block.size), free.last().map(|(len, _)| *len));
        for granules in [1, 2, 5, 9] {
            let wanted: Vec<_> = free.iter().copied().filter(|(len, _)| *len >= granules * self.unit).collect();
            let found = heap.free_blocks_from(granules * self.unit).map(|block| (block.size, block.offset));
            assert_eq!(found.collect::<Vec<_>>(), wanted);
            let best = heap.best_fit(granules * self.unit).map(|block| (block.size, block.offset));
            assert_eq!(best, wanted.first().copied());
        }
        let mut unmapped = self.runs(BlockState::Hole);
        unmapped.sort_unstable_by_key(|(_, offset)| *offset);
        assert_eq!(heap.unmapped_from(0).map(|(offset, len)| (len, offset)).collect::<Vec<_>>(), unmapped);
        let middle = unmapped.len() / 2;
        let from = unmapped.get(middle).map_or(0, |(_, offset)| *offset);
        assert_eq!(heap.unmapped_from(from).map(|(offset, len)| (len, offset)).collect::<Vec<_>>(), unmapped[middle..]);
    }
}

fn nth<T: Copy>(map: &BTreeMap<u64, T>, which: usize) -> Option<(u64, T)> {
    map.iter().nth(which % map.len().max(1)).map(|(offset, held)| (*offset, *held))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// In granules, and in steps that are large enough for blocks at the ends of free ones.
    #[test]
    fn agrees_with_a_map_of_granules(
        unit in prop_oneof![Just(GRANULE), Just(128 << 10)],
        ops in prop::collection::vec(heap_op(), 1..120),
    ) {
        let mut heap = Heap::new(GRANULES * unit);
        heap.set(0, 0, MAPPED * unit, BlockState::Free, 0);
        let mut map = Map {
            unit,
            granules: vec![BlockState::Hole; GRANULES as usize],
            live: BTreeMap::new(),
            pending: BTreeMap::new(),
        };
        map.paint(0, MAPPED * unit, BlockState::Free);
        for op in ops {
            match op {
                HeapOp::Alloc { granules, waste } => {
                    let size = granules * unit;
                    let found = heap.alloc(size, waste);
                    prop_assert_eq!(found, map.fit(size));
                    if let Some(offset) = found {
                        map.hand_out(offset, size, waste);
                    }
                }
                HeapOp::AllocAligned { granules, waste, shift } => {
                    let size = granules * unit;
                    let alignment = (1 << shift) * (unit / GRANULE);
                    let found = heap.alloc_aligned(size, waste, alignment, BASE * unit);
                    prop_assert_eq!(found, map.fit_aligned(size, alignment));
                    if let Some(offset) = found {
                        map.hand_out(offset, size, waste);
                    }
                }
                HeapOp::Share(which) => {
                    if let Some((offset, _)) = nth(&map.live, which) {
                        heap.share(offset).unwrap();
                        map.live.get_mut(&offset).unwrap().shared = true;
                    }
                }
                HeapOp::Free(which) => {
                    let Some((offset, held)) = nth(&map.live, which) else { continue };
                    if held.shared {
                        prop_assert_eq!(heap.free(offset, 1), Err(NotLive::Shared));
                        continue;
                    }
                    prop_assert_eq!(heap.free(offset, 1).unwrap().size, held.size);
                    prop_assert!(heap.free(offset, 1).is_err(), "a double free is refused");
                    map.live.remove(&offset);
                    map.paint(offset, held.size, BlockState::Free);
                }
                HeapOp::FreeLater(which) => {
                    let Some((offset, held)) = nth(&map.live, which) else { continue };
                    let block = heap.free_later(offset).unwrap();
                    prop_assert_eq!((block.size, block.shared), (held.size, held.shared));
                    prop_assert!(heap.share(offset).is_err(), "a pending block cannot be shared");
                    map.live.remove(&offset);
                    map.paint(offset, held.size, BlockState::Pending);
                    map.pending.insert(offset, held);
                }
                HeapOp::Settle(which) => {
                    let Some((offset, held)) = nth(&map.pending, which) else { continue };
                    heap.settle(offset, 2);
                    map.pending.remove(&offset);
                    map.paint(offset, held.size, BlockState::Free);
                }
                HeapOp::Set { start, len, to } => {
                    let end = (start + len).min(GRANULES);
                    let range = &map.granules[start as usize..end as usize];
                    if range.iter().any(|state| matches!(state, BlockState::Live | BlockState::Pending)) {
                        continue;
                    }
                    // A claim belongs to one transaction, so it is made and undone as a whole.
                    let first = heap.block_around(start * unit).unwrap();
                    let last = heap.block_around((end - 1) * unit).unwrap();
                    let cuts_claim = [first, last].iter().any(|block| block.state == BlockState::Claimed
                        && (block.offset < start * unit || block.offset + block.size > end * unit));
                    if cuts_claim {
                        continue;
                    }
                    heap.set(first.offset, start * unit, (end - start) * unit, to, 1);
                    map.paint(start * unit, (end - start) * unit, to);
                }
                HeapOp::TakeLive { block, before, granules, waste } => {
                    let takable = |block: &Block| matches!(block.state, BlockState::Free | BlockState::Claimed);
                    let blocks: Vec<Block> = heap.blocks().filter(takable).collect();
                    let Some(block) = blocks.get(block % blocks.len().max(1)) else { continue };
                    let (start, size) = (block.offset + before * unit, granules * unit);
                    if start + size > block.offset + block.size {
                        continue;
                    }
                    heap.take_live(block.offset, start, size, waste);
                    // The rest of a claim becomes free.
                    map.paint(block.offset, block.size, BlockState::Free);
                    map.hand_out(start, size, waste);
                }
            }
            heap.check();
            map.assert_same(&heap);
        }
    }
}

/// Small blocks lie at one end of what is free and large ones at the other, so that none keeps what is free between large ones.
#[test]
fn small_blocks_and_large_ones_lie_apart() {
    const SMALL: u64 = 64 << 10;
    const LARGE: u64 = 8 << 20;
    let mut heap = Heap::new(40 * LARGE);
    heap.set(0, 0, 40 * LARGE, BlockState::Free, 0);
    for number in 0..16 {
        assert_eq!(heap.alloc(LARGE, 0), Some(number * LARGE));
        assert_eq!(heap.alloc(SMALL, 0), Some(40 * LARGE - (number + 1) * SMALL));
    }
    (0..16).for_each(|number| _ = heap.free(number * LARGE, 0).unwrap());
    heap.check();
    assert_eq!(heap.largest_free().map(|block| block.size), Some(40 * LARGE - 16 * SMALL));
}

#[test]
fn errors_of_free_are_distinguished() {
    let mut heap = Heap::new(16 * GRANULE);
    heap.set(0, 0, 8 * GRANULE, BlockState::Free, 0);
    let offset = heap.alloc(2 * GRANULE, 0).unwrap();
    assert_eq!(heap.free(offset + GRANULE, 0), Err(NotLive::NoBlock));
    assert_eq!(heap.free(8 * GRANULE, 0), Err(NotLive::State(BlockState::Hole)));
    heap.free_later(offset).unwrap();
    assert_eq!(heap.free(offset, 0), Err(NotLive::State(BlockState::Pending)));
    heap.settle(offset, 0);
    assert_eq!(heap.free(offset, 0), Err(NotLive::State(BlockState::Free)));
    heap.check();
}

/// Records move when one is removed, also those of a block that is being merged. Neighbours whose distance is a number of
/// Fibonacci's are near each other in the table.
#[test]
fn blocks_freed_in_any_order_become_one() {
    const BLOCKS: u64 = 300;
    for seed in 0..24_u64 {
        let size = [1, 144, 233, 377][seed as usize % 4] * GRANULE;
        let mut heap = Heap::new(BLOCKS * size);
        heap.set(0, 0, BLOCKS * size, BlockState::Free, 0);
        let mut live: Vec<u64> = (0..BLOCKS).map(|_| heap.alloc(size, 0).unwrap()).collect();
        let mut state = seed;
        while !live.is_empty() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            heap.free(live.swap_remove((state >> 33) as usize % live.len()), 0).unwrap();
            heap.check();
        }
        assert_eq!(heap.largest_free().map(|block| block.size), Some(BLOCKS * size));
    }
}

/// The facts of an error message cost no more when there are many blocks, or large ones.
#[test]
fn the_block_around_an_address_is_found_in_a_bounded_number_of_steps() {
    let most = 2 * STRETCH / GRANULE;
    for (blocks, size) in [(50_000, GRANULE), (50_000, 7 * GRANULE), (20_000, 32 << 20)] {
        let mut heap = Heap::new(4 * blocks * size);
        heap.set(0, 0, blocks * size, BlockState::Free, 0);
        let live: Vec<u64> = (0..blocks).map(|_| heap.alloc(size, 0).unwrap()).collect();
        // A free block of many stretches in the middle, and behind all blocks an unmapped one.
        for offset in &live[live.len() / 3..live.len() / 2] {
            heap.free(*offset, 0).unwrap();
        }
        let free = heap.block(live[live.len() / 3]).copied();
        for at in [live[live.len() / 2] - GRANULE, live[live.len() / 2 - 1], free.unwrap().offset] {
            let steps = steps_of(|| assert_eq!(heap.block_around(at), free));
            assert!(steps <= most, "{steps} steps, {blocks} blocks of {size} bytes");
        }
        for offset in live.iter().step_by(997).chain(live.last()) {
            let steps = steps_of(|| {
                let block = heap.block_around(offset + size - 1).unwrap();
                assert_eq!(block.offset, if heap.block(*offset).is_some() { *offset } else { free.unwrap().offset });
            });
            assert!(steps <= most, "{steps} steps, {blocks} blocks of {size} bytes");
        }
        let steps = steps_of(|| assert_eq!(heap.block_around(4 * blocks * size - 1).unwrap().state, BlockState::Hole));
        assert!(steps <= most, "{steps} steps to the unmapped block");
    }
}

/// Free blocks that are large enough but lie at the wrong addresses cost no more when there are many.
#[test]
fn an_aligned_block_is_found_in_a_bounded_number_of_steps() {
    for blocks in [1_000, 30_000] {
        let mut heap = Heap::new(16 * blocks * GRANULE);
        heap.set(0, 0, 16 * blocks * GRANULE, BlockState::Free, 0);
        let live: Vec<u64> = (0..2 * blocks).map(|_| heap.alloc(7 * GRANULE, 0).unwrap()).collect();
        let alignment = 64 * GRANULE;
        let fits = |offset: &u64| offset.next_multiple_of(alignment) + 4 * GRANULE <= offset + 7 * GRANULE;
        for offset in live.iter().step_by(2).filter(|offset| !fits(offset)) {
            heap.free(*offset, 0).unwrap();
        }
        // The rest behind the last live block is large enough, wherever it starts.
        let steps = steps_of(|| {
            let start = heap.alloc_aligned(4 * GRANULE, 0, alignment, 0).unwrap();
            assert!(start.is_multiple_of(alignment) && start > *live.last().unwrap());
        });
        assert!(steps <= LOOK_AT as u64 + 16, "{steps} steps among {blocks} blocks");
        heap.check();
    }
}

/// A step is a search in the block table: one for the block itself.
#[test]
fn neighbours_in_use_are_not_looked_up() {
    let (count, apart) = (7000, 7);
    let mut heap = Heap::new(count * GRANULE);
    heap.set(0, 0, count * GRANULE, BlockState::Free, 0);
    (0..count).for_each(|_| _ = heap.alloc(GRANULE, 0).unwrap());
    // More and more free blocks, none beside another.
    let numbers = || (1..count).step_by(apart);
    let looked_up = numbers().filter(|number| steps_of(|| _ = heap.free(number * GRANULE, 0).unwrap()) > 1).count();
    assert!(looked_up * 4 < numbers().count(), "{looked_up} of {} frees looked at neighbours", numbers().count());
    heap.check();
    numbers().for_each(|number| _ = heap.free((number + 1) * GRANULE, 0).unwrap());
    assert!(numbers().all(|number| heap.block(number * GRANULE).unwrap().size == 2 * GRANULE));
    heap.check();
}

#[test]
fn a_claim_becomes_live_with_free_edges() {
    let mut heap = Heap::new(16 * GRANULE);
    heap.set(0, 0, 4 * GRANULE, BlockState::Free, 0);
    heap.set(0, 2 * GRANULE, 8 * GRANULE, BlockState::Claimed, 0);
    heap.check();
    heap.take_live(2 * GRANULE, 3 * GRANULE, 5 * GRANULE, 1);
    heap.check();
    assert_eq!(heap.free_bytes(), 5 * GRANULE);
    assert_eq!(heap.largest_free().unwrap().size, 3 * GRANULE);
    assert_eq!(heap.live_bytes(), 5 * GRANULE - 1);
}

#[test]
#[should_panic(expected = "is in the way")]
fn a_live_block_is_never_overwritten() {
    let mut heap = Heap::new(16 * GRANULE);
    heap.set(0, 0, 8 * GRANULE, BlockState::Free, 0);
    heap.alloc(2 * GRANULE, 0).unwrap();
    heap.set(0, 0, 4 * GRANULE, BlockState::Hole, 0);
}

#[test]
fn merged_blocks_keep_the_later_epoch() {
    for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]] {
        let mut heap = Heap::new(16 * GRANULE);
        heap.set(0, 0, 3 * GRANULE, BlockState::Free, 0);
        let blocks: Vec<u64> = (0..3).map(|_| heap.alloc(GRANULE, 0).unwrap()).collect();
        for (number, block) in order.into_iter().enumerate() {
            // The block with the latest epoch is freed first: merging with it must not lower that epoch.
            heap.free(blocks[block], 9 - number as u32).unwrap();
        }
        assert_eq!(heap.block(0).unwrap().epoch, 9, "{order:?}");
        let again = heap.alloc(GRANULE, 0).unwrap();
        heap.free_later(again).unwrap();
        heap.settle(0, 1);
        assert_eq!(heap.block(0).unwrap().epoch, 9, "{order:?}: settled beside a block with a later epoch");
        heap.set(0, 0, 2 * GRANULE, BlockState::Claimed, 0);
        heap.set(0, 0, 2 * GRANULE, BlockState::Free, 0);
        assert_eq!(heap.block(0).unwrap().epoch, 9, "{order:?}: claimed and released");
    }
}

#[test]
fn what_is_set_keeps_the_later_epoch_of_both_neighbours() {
    for (before, own, behind) in [(9, 1, 2), (1, 9, 2), (1, 2, 9)] {
        let mut heap = Heap::new(16 * GRANULE);
        heap.set(0, 0, 2 * GRANULE, BlockState::Free, before);
        heap.set(2 * GRANULE, 4 * GRANULE, 3 * GRANULE, BlockState::Free, behind);
        heap.set(2 * GRANULE, 2 * GRANULE, 2 * GRANULE, BlockState::Free, own);
        let block = heap.block(0).unwrap();
        assert_eq!((block.size, block.epoch), (7 * GRANULE, 9), "{before}, {own}, {behind}");
        heap.check();
    }
}

#[test]
fn epochs_are_lowered_together() {
    let mut heap = Heap::new(16 * GRANULE);
    heap.set(0, 0, 3 * GRANULE, BlockState::Free, 7);
    heap.set(3 * GRANULE, 4 * GRANULE, 3 * GRANULE, BlockState::Claimed, 2);
    heap.renumber(5);
    assert_eq!((heap.block(0).unwrap().epoch, heap.block(4 * GRANULE).unwrap().epoch), (2, 0));
    heap.check();
}

#[test]
fn check_names_what_is_broken() {
    // Live, free, live, unmapped.
    let heap = || {
        let mut heap = Heap::new(8 * GRANULE);
        heap.set(0, 0, 4 * GRANULE, BlockState::Free, 0);
        heap.alloc(GRANULE, 1).unwrap();
        let free = heap.alloc(2 * GRANULE, 0).unwrap();
        heap.alloc(GRANULE, 0).unwrap();
        heap.free(free, 1).unwrap();
        heap
    };
    let breaks: &[Break<Heap>] = &[
        ("I1: the way back from 0x200", |heap| heap.table.get_mut(GRANULE).unwrap().prev_size = 0),
        ("I1: blocks tile the heap", |heap| heap.extent += GRANULE),
        ("I1: the blocks end early", |heap| {
            heap.table.remove(0);
        }),
        ("I1: blocks outside the tiling", |heap| {
            heap.table.insert(Block { offset: 2 * GRANULE, ..*heap.table.get(GRANULE).unwrap() });
        }),
        ("I1: 2047 bytes at 0x800", |heap| {
            heap.table.get_mut(4 * GRANULE).unwrap().size -= 1;
            heap.extent -= 1;
        }),
        ("I2: two Free neighbours at 0x200", |heap| {
            let block = heap.table.get_mut(0).unwrap();
            (block.state, block.waste) = (BlockState::Free, 0);
        }),
        ("I3: free blocks", |heap| heap.table.get_mut(GRANULE).unwrap().state = BlockState::Claimed),
        ("I3: free blocks", |heap| heap.free.insert(FreeBlock { size: GRANULE, offset: 0 })),
        ("I3: the unmapped block at 0x800", |heap| {
            heap.unmapped.insert(4 * GRANULE, GRANULE);
        }),
        ("I3: unmapped blocks", |heap| {
            heap.unmapped.insert(0, GRANULE);
        }),
        ("I4: live bytes", |heap| heap.table.get_mut(0).unwrap().waste = 0),
        ("I4: pending bytes", |heap| heap.pending_bytes = GRANULE),
        ("the map of starts differs from the blocks", |heap| heap.starts.add(3)),
        ("the map of starts differs from the blocks", |heap| heap.starts.remove(0)),
        ("I5: a shared Free block at 0x200", |heap| heap.table.get_mut(GRANULE).unwrap().shared = true),
        ("I5: waste in a Free block at 0x200", |heap| heap.table.get_mut(GRANULE).unwrap().waste = 1),
    ];
    assert_noticed(heap, Heap::check, breaks);
}

/// Of a pending block, parts are claimed; what is beside them is pending by itself, and can be freed.
#[test]
fn parts_of_a_pending_block_are_claimed() {
    let page = 4096;
    // In pages: what is claimed, and where what is pending starts.
    type Case<'a> = (&'a [(u64, u64)], &'a [u64]);
    let cases: [Case<'_>; 5] =
        [(&[(0, 4)], &[]), (&[(0, 1)], &[1]), (&[(3, 4)], &[0]), (&[(1, 2)], &[0, 2]), (&[(0, 1), (2, 3)], &[1, 3])];
    for (claimed, pending) in cases {
        let claimed: Vec<Range<u64>> = claimed.iter().map(|(start, end)| start * page..end * page).collect();
        let pending: Vec<u64> = pending.iter().map(|at| at * page).collect();
        let mut heap = Heap::new(8 * page);
        heap.set(0, 0, 8 * page, BlockState::Free, 0);
        let block = heap.alloc(4 * page, 100).unwrap();
        heap.share(block).unwrap();
        heap.free_later(block).unwrap();
        let bytes: u64 = claimed.iter().map(|part| part.end - part.start).sum();
        assert_eq!(heap.claim_parts(block, &claimed), pending);
        heap.check();
        assert_eq!((heap.pending_bytes(), heap.pending_count()), (4 * page - bytes, pending.len() as u64));
        pending.iter().for_each(|offset| heap.settle(*offset, 1));
        heap.check();
        assert_eq!(heap.free_bytes(), 8 * page - bytes);
        for part in &claimed {
            heap.set(part.start, part.start, part.end - part.start, BlockState::Free, 1);
        }
        assert_eq!((heap.free_bytes(), heap.blocks().count()), (8 * page, 1));
        heap.check();
    }
}
