//! Blocks that were freed while streams other than that of their region may still use them.
//!
//! A block waits in the queue of one stream that it needs, in the order of the epochs; when that has passed, in the queue of
//! the next. So what has to be looked at is the front of each queue, and as many blocks as there are fences that have passed.
//!
//! - I1  each queue is in the order of its epochs, and no queue is empty.

use super::region::RegionId;
use crate::stream::{Fence, StreamIndex};
use std::collections::{BTreeMap, VecDeque};

/// A block that was freed while streams other than that of its region may still use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The region that the block is in.
    pub region: RegionId,
    /// Its offset in the region, in bytes.
    pub offset: u64,
    /// The block is free once all of these have passed.
    pub fences: Vec<Fence>,
    /// Whether its memory goes back to the driver first.
    pub exposed: bool,
}

/// A block and the epoch that it waits for.
#[derive(Debug)]
struct Waiting {
    epoch: u64,
    /// Its other fences are those that are left.
    block: Pending,
}

/// A place among the pending blocks of one stream's regions. The default is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The stream whose queue it is in.
    queue: StreamIndex,
    /// The number of the block in that queue.
    number: usize,
}

impl Default for Cursor {
    fn default() -> Self {
        Self { queue: StreamIndex(0), number: 0 }
    }
}

/// Most blocks, and fronts of queues, that are looked at at once.
const AT_ONCE: usize = 16;

/// Blocks that are in no queue any more.
#[derive(Debug)]
pub struct Passed {
    /// All of their fences have passed.
    pub over: Vec<Pending>,
    /// They wait for another stream now. Whoever has them adds them again.
    pub moved: Vec<Pending>,
    /// The stream with whose queue to go on, and the last of its epochs that is known to have passed.
    pub next: Option<Fence>,
}

/// The pending blocks of one stream's regions.
#[derive(Debug, Default)]
pub struct PendingBlocks {
    queues: BTreeMap<StreamIndex, VecDeque<Waiting>>,
}

impl PendingBlocks {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Adds a block that has at least one fence.
    pub fn push(&mut self, block: Pending) {
        let fence = *block.fences.first().expect("a pending block waits for something");
        self.wait_for(block, fence);
    }

    /// Puts a block into the queue of the stream of one of its fences.
    fn wait_for(&mut self, block: Pending, fence: Fence) {
        let queue = self.queues.entry(fence.stream).or_default();
        // Mostly at the end: what is freed later waits for a later epoch.
        let at = queue.iter().rposition(|other| other.epoch <= fence.epoch).map_or(0, |last| last + 1);
        queue.insert(at, Waiting { epoch: fence.epoch, block });
    }

    /// The last moment of each stream that a block waits for now. Blocks may wait for others later.
    pub fn awaited(&self) -> impl Iterator<Item = Fence> {
        let last = |queue: &VecDeque<Waiting>| queue.back().map_or(0, |waiting| waiting.epoch);
        self.queues.iter().map(move |(stream, queue)| Fence { stream: *stream, epoch: last(queue) })
    }

    /// All fences of the block that has waited for each stream the longest.
    pub fn oldest(&self) -> Vec<(StreamIndex, Vec<Fence>)> {
        let front = |queue: &VecDeque<Waiting>| queue.front().map(|waiting| waiting.block.fences.clone());
        self.queues.iter().filter_map(|(stream, queue)| Some((*stream, front(queue)?))).collect()
    }

    /// Removes some of the blocks for which the stream that they wait for has passed, from the queue of a stream on of which `from`
    /// is known to have passed. After so many as can be looked at at once, there may be more to go on with.
    pub fn take_passed(&mut self, from: Fence, mut has_passed: impl FnMut(Fence) -> bool) -> Passed {
        let mut taken = Passed { over: Vec::new(), moved: Vec::new(), next: None };
        let (mut left, mut emptied) = (AT_ONCE, Vec::new());
        'queues: for (stream, queue) in self.queues.range_mut(from.stream..) {
            let mut passed = if *stream == from.stream { from.epoch } else { 0 };
            while !queue.is_empty() {
                if left == 0 {
                    taken.next = Some(Fence { stream: *stream, epoch: passed });
                    break 'queues;
                }
                left -= 1;
                let first = queue.pop_front_if(|waiting| {
                    waiting.epoch <= passed || has_passed(Fence { stream: *stream, epoch: waiting.epoch })
                });
                let Some(Waiting { epoch, mut block }) = first else { continue 'queues };
                passed = epoch;
                block.fences.retain(|fence| {
                    #[cfg(test)]
                    crate::testing::step();
                    fence.stream != *stream || fence.epoch > passed
                });
                match block.fences.first() {
                    None => taken.over.push(block),
                    Some(_) => taken.moved.push(block),
                }
            }
            emptied.push(*stream);
        }
        for stream in emptied {
            self.queues.remove(&stream);
        }
        taken
    }

    /// Lets the block that has waited longest for `stream` wait for `fence`, another one of its own, first.
    pub fn defer(&mut self, stream: StreamIndex, fence: Fence) {
        let Some(queue) = self.queues.get_mut(&stream) else { return };
        if !queue.front().is_some_and(|waiting| waiting.block.fences.contains(&fence)) || fence.stream == stream {
            return;
        }
        let waiting = queue.pop_front().expect("it has a front");
        if queue.is_empty() {
            self.queues.remove(&stream);
        }
        self.wait_for(waiting.block, fence);
    }

    /// The blocks from a place on, in no order, each with its own place: a walk that was broken off goes on there. What is added
    /// or removed meanwhile may be met or not, and others once more.
    pub fn since(&self, from: Cursor) -> impl Iterator<Item = (Cursor, &Pending)> {
        self.queues.range(from.queue..).flat_map(move |(queue, blocks)| {
            let skipped = if *queue == from.queue { from.number } else { 0 };
            let numbered = blocks.iter().enumerate().skip(skipped);
            numbered.map(|(number, waiting)| (Cursor { queue: *queue, number }, &waiting.block))
        })
    }

    /// All blocks, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.queues.values().flatten().map(|waiting| &waiting.block)
    }

    /// Asserts I1.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub fn check(&self) {
        for (stream, queue) in &self.queues {
            assert!(!queue.is_empty(), "pending I1: an empty queue");
            assert!(queue.iter().is_sorted_by_key(|waiting| waiting.epoch), "pending I1: the order of a queue");
            for waiting in queue {
                let fence = Fence { stream: *stream, epoch: waiting.epoch };
                assert!(waiting.block.fences.contains(&fence), "pending I1: a block waits for a fence of its own");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::kind::RegionKind;
    use super::*;
    use crate::testing::{Break, assert_noticed};

    fn fence(stream: u32, epoch: u64) -> Fence {
        Fence { stream: StreamIndex(stream), epoch }
    }

    /// Removes the blocks all of whose fences have passed. Returns whether another block waits for another stream than before.
    fn settle(pending: &mut PendingBlocks, mut has_passed: impl FnMut(Fence) -> bool) -> (Vec<Pending>, bool) {
        let (mut over, mut moved, mut from) = (Vec::new(), Vec::new(), Some(fence(0, 0)));
        while let Some(at) = from {
            let taken = pending.take_passed(at, &mut has_passed);
            pending.check();
            assert!(taken.over.len() + taken.moved.len() <= AT_ONCE);
            over.extend(taken.over);
            moved.extend(taken.moved);
            from = taken.next;
        }
        let waits_elsewhere = !moved.is_empty();
        moved.into_iter().for_each(|block| pending.push(block));
        (over, waits_elsewhere)
    }

    fn block(offset: u64, fences: &[Fence]) -> Pending {
        Pending { region: RegionId::first(RegionKind::Large), offset, fences: fences.to_vec(), exposed: false }
    }

    #[test]
    fn what_has_not_passed_is_not_looked_at() {
        let mut pending = PendingBlocks::default();
        for offset in 0..10_000 {
            pending.push(block(offset, &[fence(1 + (offset % 3) as u32, offset / 100)]));
        }
        let mut asked = 0;
        let (over, moved) = settle(&mut pending, |fence| {
            asked += 1;
            fence.epoch < 10
        });
        assert_eq!((over.len(), moved), (1000, false));
        assert!(asked <= 3 * 11, "asked {asked} times: once for each epoch of each stream, and once more");
        pending.check();
        let last: Vec<Fence> = pending.awaited().collect();
        assert_eq!(last, [fence(1, 99), fence(2, 99), fence(3, 99)]);
    }

    #[test]
    fn a_block_is_settled_when_all_fences_have_passed() {
        let mut pending = PendingBlocks::default();
        pending.push(block(0, &[fence(1, 5), fence(2, 7)]));
        pending.push(block(1, &[fence(2, 8)]));
        pending.push(block(2, &[fence(1, 4)]));
        pending.check();
        assert_eq!(pending.oldest()[0], (StreamIndex(1), vec![fence(1, 4)]));
        let (over, moved) = settle(&mut pending, |fence| fence.stream == StreamIndex(1));
        assert_eq!((over, moved), (vec![block(2, &[])], true));
        pending.check();
        let (over, moved) = settle(&mut pending, |fence| fence.epoch <= 7);
        assert_eq!((over, moved), (vec![block(0, &[])], false));
        assert_eq!(pending.iter().count(), 1);
    }

    #[test]
    fn a_block_can_wait_for_another_stream_first() {
        let mut pending = PendingBlocks::default();
        pending.push(block(0, &[fence(1, 5), fence(2, 7)]));
        pending.push(block(1, &[fence(1, 6)]));
        pending.defer(StreamIndex(1), fence(2, 7));
        pending.check();
        let oldest = pending.oldest();
        assert_eq!(oldest, [(StreamIndex(1), vec![fence(1, 6)]), (StreamIndex(2), vec![fence(1, 5), fence(2, 7)])]);
        let (over, moved) = settle(&mut pending, |_| true);
        assert_eq!((over.len(), moved), (1, true), "the other waits for the first stream again");
        let (over, moved) = settle(&mut pending, |_| true);
        assert_eq!((over.len(), moved, pending.is_empty()), (1, false, true));
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<PendingBlocks>] = &[
            ("pending I1: an empty queue", |pending| {
                pending.queues.entry(StreamIndex(9)).or_default();
            }),
            ("pending I1: the order of a queue", |pending| {
                pending.queues.get_mut(&StreamIndex(1)).unwrap().swap(0, 1);
            }),
            ("pending I1: a block waits for a fence of its own", |pending| {
                pending.queues.get_mut(&StreamIndex(1)).unwrap()[0].epoch = 4;
            }),
        ];
        let pending = || {
            let mut pending = PendingBlocks::default();
            pending.push(block(0, &[fence(1, 5), fence(2, 7)]));
            pending.push(block(1, &[fence(1, 6)]));
            pending
        };
        assert_noticed(pending, PendingBlocks::check, breaks);
    }

    /// Two moments of one stream: the later one counts.
    #[test]
    fn a_block_waits_for_the_last_moment_of_a_stream() {
        let mut pending = PendingBlocks::default();
        pending.push(block(0, &[fence(1, 5), fence(1, 9)]));
        let (over, moved) = settle(&mut pending, |fence| fence.epoch <= 5);
        assert_eq!((over.len(), moved), (0, true));
        assert_eq!(pending.awaited().collect::<Vec<_>>(), [fence(1, 9)]);
        pending.check();
        assert_eq!(settle(&mut pending, |fence| fence.epoch <= 9), (vec![block(0, &[])], false));
    }

    #[test]
    fn a_block_does_not_wait_for_what_is_not_its_own() {
        let mut pending = PendingBlocks::default();
        pending.push(block(0, &[fence(1, 5), fence(2, 7)]));
        for (stream, other) in [(1, fence(3, 7)), (1, fence(2, 8)), (1, fence(1, 5)), (2, fence(1, 5))] {
            pending.defer(StreamIndex(stream), other);
            assert_eq!(pending.awaited().collect::<Vec<_>>(), [fence(1, 5)], "{stream} after {other:?}");
        }
        pending.check();
    }
}
