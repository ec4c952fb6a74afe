//! The largest live blocks, found without a look at all of them.
//!
//! A region is divided into windows, and each has a bound for the live blocks that start in it. An allocation raises the bound of
//! its window; a free changes nothing. Whoever looks for the largest blocks goes through the windows with the highest bounds
//! until no other one can have a larger block, and lowers the bounds that were too high. So a window is looked at in vain once for
//! a block that was larger than what is left there.
//!
//! - I1  no live block is larger than the bound of the window that it starts in, but for one that is being handed out.
//!
//! Memory: 8 bytes for each window up to the last in which a block ever started.
//! Cost: a comparison for an allocation; what starts further up than any block before adds the windows between. A search reads all
//! bounds and looks at the blocks of few windows.

use super::super::reports::LiveAllocation;
use super::Streams;
use super::live_bounds::requested;
use super::region::RegionId;
use super::state::{Stream, StreamState};
use crate::driver::Driver;
use crate::heap::BlockState;
use crate::stream::StreamIndex;
use crate::units::DeviceAddr;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

/// Number of bounds that are read while their stream's state is locked.
const BOUNDS: usize = 4096;
/// Number of blocks that are looked at while their stream's state is locked.
const BLOCKS: usize = 1024;

/// The order of live blocks: by their bytes, the lowest address first. The largest is the first.
type Rank = (Reverse<u64>, DeviceAddr);

fn rank(allocation: &LiveAllocation) -> Rank {
    (Reverse(allocation.bytes), allocation.addr)
}

/// A window: the best rank that a block of it may have, and where it is.
type Window = (Rank, StreamIndex, RegionId, usize);

/// The largest blocks that were found so far.
struct Largest {
    listed: Vec<LiveAllocation>,
    most: usize,
}

impl Largest {
    /// The rank that a block has to exceed to be among them, if they are as many as there may be.
    fn last(&self) -> Option<Rank> {
        self.listed.get(self.most - 1).map(rank)
    }

    /// Whether a block, or one of a window, of this rank would be among them.
    fn admits(&self, rank: Rank) -> bool {
        self.last().is_none_or(|last| rank < last)
    }

    fn note(&mut self, allocation: LiveAllocation) {
        let at = self.listed.partition_point(|other| rank(other) < rank(&allocation));
        self.listed.insert(at, allocation);
        self.listed.truncate(self.most);
    }
}

impl<D: Driver> Streams<D> {
    /// The largest live allocations, `most` at most, the largest first and those of a size by their addresses. What is allocated
    /// and freed meanwhile may be among them or not. Locks one stream after the other, for a piece of the work.
    pub fn largest_live(&self, most: usize) -> Vec<LiveAllocation> {
        let mut largest = Largest { listed: Vec::with_capacity(most + 1), most };
        let mut seen = HashSet::new();
        // More in each round, since every round reads all bounds.
        let mut windows = most;
        loop {
            let best = self.best_windows(windows, &largest, &seen);
            for (rank, stream, region, window) in &best {
                if largest.admits(*rank) {
                    self.look_into(self.get(*stream), *region, *window, &mut largest);
                    seen.insert((*stream, *region, *window));
                }
            }
            // All other windows come after the last of those.
            match best.last() {
                Some((rank, ..)) if best.len() == windows && largest.admits(*rank) => windows *= 2,
                _ => return largest.listed,
            }
        }
    }

    /// The windows, `most` at most, whose bounds are highest, and which may have one of the largest blocks and were not looked into
    /// before. The highest first.
    fn best_windows(
        &self,
        most: usize,
        largest: &Largest,
        seen: &HashSet<(StreamIndex, RegionId, usize)>,
    ) -> Vec<Window> {
        let mut best: BinaryHeap<Window> = BinaryHeap::with_capacity(most + 1);
        // What a window has to exceed.
        let mut limit = largest.last();
        for stream in self.iter() {
            for id in stream.region_ids() {
                for from in (0..).step_by(BOUNDS) {
                    let state = stream.lock();
                    let Some(region) = state.regions.get(id) else { break };
                    let bounds = region.bounds.of_windows.get(from..).unwrap_or_default();
                    if bounds.is_empty() {
                        break;
                    }
                    #[cfg(test)]
                    crate::testing::step();
                    for (window, bound) in (from..).zip(bounds.iter().take(BOUNDS)) {
                        let Some(bytes) = bound.checked_sub(1) else { continue };
                        let rank = (Reverse(bytes), region.base.offset(region.bounds.offsets(window).start));
                        if limit.is_some_and(|limit| rank >= limit) || seen.contains(&(stream.index, id, window)) {
                            continue;
                        }
                        best.push((rank, stream.index, id, window));
                        if best.len() > most {
                            best.pop();
                        }
                        if best.len() == most {
                            limit = best.peek().map(|(last, ..)| *last);
                        }
                    }
                }
            }
        }
        best.into_sorted_vec()
    }

    /// Looks at the blocks of a window.
    fn look_into(&self, stream: &Stream, id: RegionId, window: usize, largest: &mut Largest) {
        let mut from = None;
        loop {
            from = stream.piece(|state| self.look_from(stream, state, (id, window), from, largest));
            if from.is_none() {
                return;
            }
        }
    }

    /// Looks at the blocks of a window: at the first ones, or those from an offset on. Lowers its bound to them if those are all,
    /// and returns the offset of the next block otherwise. They are more than can be looked at at once only where small blocks
    /// fill what is left between large ones; the bound stays as it is then.
    fn look_from(
        &self,
        stream: &Stream,
        state: &mut StreamState,
        (id, window): (RegionId, usize),
        from: Option<u64>,
        largest: &mut Largest,
    ) -> Option<u64> {
        let region = state.regions.get(id)?;
        let offsets = region.bounds.offsets(window);
        let mut bound = 0;
        let blocks = region.heap.blocks_from(from.unwrap_or(offsets.start));
        let mut blocks = blocks.take_while(|block| block.offset < offsets.end);
        for block in blocks.by_ref().take(BLOCKS).filter(|block| block.state == BlockState::Live) {
            bound = bound.max(requested(&block) + 1);
            if largest.admits((Reverse(requested(&block)), region.base.offset(block.offset))) {
                largest.note(self.live_allocation((stream, state), (id, region), &block));
            }
        }
        let next = blocks.next().map(|block| block.offset);
        drop(blocks);
        if from.is_none() && next.is_none() {
            state.regions.get_mut(id)?.bounds.of_windows[window] = bound;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::driver::{ModelConfig, ModelDriver, WorkDriver};
    use crate::testing::{Break, assert_noticed, longest_hold_of, steps_of};
    use crate::units::{KIB, MIB, StreamId};
    use std::sync::Arc;

    const MAIN: StreamId = StreamId::DEFAULT;
    const MOST: usize = 8;

    fn allocator() -> Allocator<ModelDriver> {
        let config = ModelConfig { max_mappings: usize::MAX, ..ModelConfig::default() };
        Allocator::builder(Arc::new(ModelDriver::new(config))).build().unwrap()
    }

    /// Asserts that the blocks found are the first of all live allocations, sorted by their bytes.
    fn assert_exact(allocator: &Allocator<ModelDriver>) {
        let found = allocator.inner.shared.streams.largest_live(MOST);
        let mut live = allocator.live();
        live.sort_by_key(rank);
        live.truncate(MOST);
        assert_eq!(found, live);
    }

    #[test]
    fn the_largest_are_found_whatever_is_freed() {
        let allocator = allocator();
        let streams = [(); 3].map(|()| allocator.driver().create_stream().unwrap());
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let mut live = Vec::new();
        for step in 0..4000 {
            if next(5) < 3 {
                // Many of the same size, some of none at all.
                let bytes = [0, 1, 511, 512, 4 * KIB, 4 * KIB, 100 * KIB, 3 * MIB, next(8 * MIB)][next(9) as usize];
                live.push(allocator.alloc_raw(bytes, streams[next(3) as usize]).unwrap());
            } else if !live.is_empty() {
                let block = live.swap_remove(next(live.len() as u64) as usize);
                allocator.free(block).unwrap();
            }
            if step % 1000 == 999 {
                live.drain(..).for_each(|block| allocator.free(block).unwrap());
            }
            if step % 7 == 0 {
                assert_exact(&allocator);
            }
        }
        allocator.check();
    }

    /// Of blocks of one size, and of many sizes; also after larger ones were there.
    #[test]
    fn few_blocks_are_looked_at() {
        for bytes in [512, 4 * KIB, 40 * KIB, MIB] {
            for count in [1_000, 20_000] {
                let allocator = allocator();
                let streams = &allocator.inner.shared.streams;
                let blocks: Vec<_> =
                    (0..count).map(|number| allocator.alloc_raw(bytes - number % 7, MAIN).unwrap()).collect();
                let search = || _ = streams.largest_live(MOST);
                let steps = steps_of(search);
                assert!(steps <= 8_000, "{steps} steps for {count} blocks of {bytes} bytes");
                let longest = longest_hold_of(search);
                assert!(longest <= 1100, "{longest} steps at once for {count} blocks of {bytes} bytes");
                blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
                (0..count).for_each(|_| _ = allocator.alloc_raw(bytes / 2, MAIN).unwrap());
                search();
                let steps = steps_of(search);
                assert!(steps <= 8_000, "{steps} steps for {count} blocks after others");
                assert_exact(&allocator);
            }
        }
    }

    /// Where a device is full, small blocks fill what is left between large ones: thousands in a window of those.
    #[test]
    fn a_window_of_many_blocks_is_looked_at_in_parts() {
        let config = ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() };
        let allocator = Allocator::builder(Arc::new(ModelDriver::new(config))).build().unwrap();
        let alloc = |bytes| allocator.alloc_raw(bytes, MAIN).unwrap();
        let large: Vec<_> = (0..31).map(|_| alloc(2 * MIB)).collect();
        let last = alloc(512 * KIB);
        let small: Vec<_> = (0..3000).map(|number| alloc(512 - number / 10)).collect();
        assert!(small.iter().all(|block| (large[0]..last.offset(2 * MIB)).contains(block)), "in the page of the last");
        let streams = &allocator.inner.shared.streams;
        let longest = longest_hold_of(|| assert_exact(&allocator));
        assert!(longest <= 1200, "{longest} steps at once");
        for block in large.into_iter().chain([last]) {
            allocator.free(block).unwrap();
            assert_exact(&allocator);
        }
        // What was looked at in parts has kept its bound, and its blocks are still found.
        _ = streams.largest_live(MOST);
        allocator.check();
        allocator.free(small[2999]).unwrap();
        alloc(600);
        assert_exact(&allocator);
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<Allocator<ModelDriver>>] = &[("largest I1: the live block at 0x0", |allocator| {
            let mut state = allocator.inner.shared.streams.get(StreamIndex(0)).lock();
            let (id, _) = state.regions.iter().next().unwrap();
            state.regions.get_mut(id).unwrap().bounds.of_windows[0] -= 1;
        })];
        let one_block = || {
            let allocator = allocator();
            allocator.alloc_raw(100, MAIN).unwrap();
            allocator
        };
        let check = |allocator: &Allocator<ModelDriver>| {
            allocator.inner.shared.streams.get(StreamIndex(0)).lock().regions.check();
        };
        assert_noticed(one_block, check, breaks);
    }
}
