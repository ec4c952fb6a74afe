//! The heap against a plain map of granules.

use super::*;
use proptest::prelude::*;

const GRANULES: u64 = 64;

#[derive(Clone, Debug)]
enum HeapOp {
    Alloc(u64),
    AllocAligned(u64, u32),
    Free(usize),
    FreeLater(usize),
    Settle(usize),
    Set { start: u64, len: u64, to: BlockState },
}

fn heap_op() -> impl Strategy<Value = HeapOp> {
    prop_oneof![
        4 => (1..12u64).prop_map(HeapOp::Alloc),
        1 => (1..12u64, 9..14u32).prop_map(|(size, shift)| HeapOp::AllocAligned(size, shift)),
        4 => any::<usize>().prop_map(HeapOp::Free),
        1 => any::<usize>().prop_map(HeapOp::FreeLater),
        1 => any::<usize>().prop_map(HeapOp::Settle),
        3 => (0..GRANULES, 1..24u64, prop_oneof![
            Just(BlockState::Hole), Just(BlockState::Free), Just(BlockState::Claimed)])
            .prop_map(|(start, len, to)| HeapOp::Set { start, len, to }),
    ]
}

/// Smallest run of free granules that fits, lowest first: what best fit must find.
fn best_run(granules: &[BlockState], size: u64) -> Option<u64> {
    let mut best: Option<(u64, u64)> = None;
    let mut at = 0;
    while at < granules.len() {
        let run = granules[at..].iter().take_while(|state| **state == BlockState::Free).count();
        if run as u64 >= size && best.is_none_or(|(len, _)| (run as u64) < len) {
            best = Some((run as u64, at as u64));
        }
        at += run.max(1);
    }
    best.map(|(_, start)| start * GRANULE)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_map_of_granules(ops in prop::collection::vec(heap_op(), 1..120)) {
        let mut heap = Heap::new(GRANULES * GRANULE);
        heap.set(0, 0, 40 * GRANULE, BlockState::Free, 0);
        let mut granules = vec![BlockState::Hole; GRANULES as usize];
        granules[..40].fill(BlockState::Free);
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut pending: Vec<(u64, u64)> = Vec::new();
        let paint = |granules: &mut Vec<BlockState>, offset: u64, size: u64, state| {
            let start = (offset / GRANULE) as usize;
            granules[start..start + (size / GRANULE) as usize].fill(state);
        };
        for op in ops {
            match op {
                HeapOp::Alloc(size) => {
                    let size = size * GRANULE;
                    let expected = best_run(&granules, size / GRANULE);
                    let found = heap.alloc(size, 3);
                    prop_assert_eq!(found, expected);
                    if let Some(offset) = found {
                        paint(&mut granules, offset, size, BlockState::Live);
                        live.push((offset, size));
                    }
                }
                HeapOp::AllocAligned(size, shift) => {
                    let size = size * GRANULE;
                    let base = 5 * GRANULE;
                    if let Some(offset) = heap.alloc_aligned(size, 0, 1 << shift, base) {
                        prop_assert!((base + offset).is_multiple_of(1 << shift));
                        let start = (offset / GRANULE) as usize;
                        let run = &granules[start..start + (size / GRANULE) as usize];
                        prop_assert!(run.iter().all(|state| *state == BlockState::Free));
                        paint(&mut granules, offset, size, BlockState::Live);
                        live.push((offset, size));
                    }
                }
                HeapOp::Free(which) if !live.is_empty() => {
                    let (offset, size) = live.swap_remove(which % live.len());
                    prop_assert_eq!(heap.free(offset, 1).unwrap().size, size);
                    prop_assert!(heap.free(offset, 1).is_err(), "a double free is refused");
                    paint(&mut granules, offset, size, BlockState::Free);
                }
                HeapOp::FreeLater(which) if !live.is_empty() => {
                    let (offset, size) = live.swap_remove(which % live.len());
                    heap.free_later(offset).unwrap();
                    paint(&mut granules, offset, size, BlockState::Pending);
                    pending.push((offset, size));
                }
                HeapOp::Settle(which) if !pending.is_empty() => {
                    let (offset, size) = pending.swap_remove(which % pending.len());
                    heap.settle(offset, 2);
                    paint(&mut granules, offset, size, BlockState::Free);
                }
                HeapOp::Set { start, len, to } => {
                    let end = (start + len).min(GRANULES);
                    let range = &granules[start as usize..end as usize];
                    if range.iter().any(|state| matches!(state, BlockState::Live | BlockState::Pending)) {
                        continue;
                    }
                    // Claimed neighbours must not be merged away, so claims are made and undone whole.
                    let first = heap.block_around(start * GRANULE).unwrap();
                    let last = heap.block_around((end - 1) * GRANULE).unwrap();
                    let cuts_claim = [first, last].iter().any(|block| block.state == BlockState::Claimed
                        && (block.offset < start * GRANULE || block.offset + block.size > end * GRANULE));
                    if cuts_claim {
                        continue;
                    }
                    heap.set(first.offset, start * GRANULE, (end - start) * GRANULE, to, 1);
                    paint(&mut granules, start * GRANULE, (end - start) * GRANULE, to);
                }
                _ => {}
            }
            heap.check();
            let mut seen = vec![BlockState::Hole; GRANULES as usize];
            for block in heap.blocks() {
                paint(&mut seen, block.offset, block.size, block.state);
            }
            prop_assert_eq!(&seen, &granules);
        }
    }
}

#[test]
fn bad_frees_are_told_apart() {
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
            // The latest of all is freed first: what merges with it later must not make it look older.
            heap.free(blocks[block], 9 - number as u32).unwrap();
        }
        assert_eq!(heap.block(0).unwrap().epoch, 9, "{order:?}");
        let again = heap.alloc(GRANULE, 0).unwrap();
        heap.free_later(again).unwrap();
        heap.settle(0, 1);
        assert_eq!(heap.block(0).unwrap().epoch, 9, "{order:?}: settled beside a later one");
        heap.set(0, 0, 2 * GRANULE, BlockState::Claimed, 0);
        heap.set(0, 0, 2 * GRANULE, BlockState::Free, 0);
        assert_eq!(heap.block(0).unwrap().epoch, 9, "{order:?}: claimed and given back");
    }
}
