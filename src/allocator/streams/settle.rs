//! Settling: blocks that wait for streams are freed once those have passed, and waited for where nothing else is left.

use super::pending::Pending;
use super::progress::Progress;
use super::state::{Stream, StreamState};
use crate::driver::{Driver, DriverError};
use crate::stream::{Fence, StreamIndex};
use std::collections::{BTreeMap, BTreeSet};

/// The answer of a stream.
struct Answer {
    /// The epoch that it was asked about.
    until: u64,
    /// The last epoch that it has passed.
    passed: u64,
}

/// The answers of the streams, each from its moment of the same work.
type Answers = BTreeMap<StreamIndex, Answer>;

/// A pending block that is in no queue.
struct Moved {
    /// The stream of its region.
    owner: StreamIndex,
    block: Pending,
    /// Number of its fences, from the first on, that have passed.
    passed: usize,
}

impl Moved {
    /// The first fence that is not known to have passed.
    fn awaited(&self) -> Option<Fence> {
        self.block.fences.get(self.passed).copied()
    }
}

impl<D: Driver> Progress<'_, D> {
    /// Frees the pending blocks whose fences have passed. One query for each stream that a block waits for; the blocks whose
    /// fences have not passed are not looked at.
    pub fn settle_pending(&self) -> Result<(), DriverError> {
        let mut answers = Answers::new();
        for (index, epoch) in self.awaited() {
            self.ask(index, epoch, &mut answers)?;
        }
        let mut moved = Vec::new();
        for stream in self.streams.with_pending() {
            let has_passed =
                |fence: Fence| answers.get(&fence.stream).is_some_and(|answer| fence.epoch <= answer.passed);
            let mut from = Some(Fence { stream: StreamIndex(0), epoch: 0 });
            while let Some(at) = from {
                let (wait_elsewhere, next) = stream.piece(|state| {
                    let taken = state.pending.take_passed(at, has_passed);
                    self.settle(stream, state, taken.over);
                    (taken.moved, taken.next)
                });
                moved.extend(wait_elsewhere.into_iter().map(|block| Moved { owner: stream.index, block, passed: 0 }));
                from = next;
            }
        }
        // A block that has waited for one stream may wait for another.
        let (stopped, outcome) = self.go_on(moved, &mut answers);
        for Moved { owner, mut block, passed } in stopped {
            block.fences.drain(..passed);
            let stream = self.streams.get(owner);
            self.settle(stream, &mut stream.lock(), [block]);
        }
        outcome
    }

    /// The last epoch of each stream that pending blocks wait for now.
    fn awaited(&self) -> BTreeMap<StreamIndex, u64> {
        let mut awaited = BTreeMap::new();
        for stream in self.streams.with_pending() {
            for fence in stream.lock().pending.awaited() {
                let last = awaited.entry(fence.stream).or_default();
                *last = fence.epoch.max(*last);
            }
        }
        awaited
    }

    /// Asks for blocks that are in no queue about one stream after the other, as far as they have passed. Looks at each fence once,
    /// and asks a stream once for all blocks that have come to it. Returns the blocks, also where the driver fails.
    fn go_on(&self, blocks: Vec<Moved>, answers: &mut Answers) -> (Vec<Moved>, Result<(), DriverError>) {
        let mut by_stream: BTreeMap<StreamIndex, Vec<Moved>> = BTreeMap::new();
        for moved in blocks {
            let fence = moved.awaited().expect("it waits for another stream");
            by_stream.entry(fence.stream).or_default().push(moved);
        }
        let (mut stopped, mut outcome) = (Vec::new(), Ok(()));
        while let Some((index, blocks)) = by_stream.pop_first() {
            let latest = blocks.iter().filter_map(Moved::awaited).map(|fence| fence.epoch).max().unwrap_or(0);
            let answer = match outcome {
                Ok(()) => self.ask(index, latest, answers),
                Err(_) => Ok(0),
            };
            let passed = answer.unwrap_or_else(|error| {
                outcome = Err(error);
                0
            });
            for mut moved in blocks {
                let has_passed = |fence: &Fence| fence.stream == index && fence.epoch <= passed;
                while moved.awaited().as_ref().is_some_and(has_passed) {
                    #[cfg(test)]
                    crate::testing::step();
                    moved.passed += 1;
                }
                match moved.awaited() {
                    Some(fence) if fence.stream != index => by_stream.entry(fence.stream).or_default().push(moved),
                    _ => stopped.push(moved),
                }
            }
        }
        (stopped, outcome)
    }

    /// Frees pending blocks of a stream, whose state is locked, or lets them wait for the first of the fences they have left.
    fn settle(&self, stream: &Stream, state: &mut StreamState, blocks: impl IntoIterator<Item = Pending>) {
        for block in blocks {
            match block.fences.is_empty() {
                true => state.settle(&block),
                false => state.pending.push(block),
            }
        }
        self.streams.note_pending(stream.index, state);
    }

    /// The last epoch that a stream has passed. It is asked unless it has been about this epoch or a later one.
    fn ask(&self, index: StreamIndex, epoch: u64, answers: &mut Answers) -> Result<u64, DriverError> {
        if let Some(answer) = answers.get(&index)
            && epoch <= answer.until
        {
            return Ok(answer.passed);
        }
        let stream = self.streams.get(index);
        let mut clock = stream.clock.lock();
        self.cover(stream, &mut clock, epoch)?;
        let passed = self.poll(stream, &mut clock)?;
        answers.insert(index, Answer { until: epoch.max(passed), passed });
        Ok(passed)
    }

    /// Waits for the streams that pending blocks wait for, as far as possible, and frees the blocks. Returns whether a stream was
    /// waited for. What others free meanwhile need not be waited for.
    pub fn wait_for_all_pending(&self) -> Result<bool, DriverError> {
        let mut waited = false;
        // A block may wait for one stream after another.
        for _ in self.streams.iter() {
            let mut passed = false;
            for (index, epoch) in self.awaited() {
                passed |= self.wait_until_passed(index, epoch)?;
            }
            if !passed {
                break;
            }
            self.settle_pending()?;
            waited = true;
        }
        Ok(waited)
    }

    /// Waits for the oldest pending block that can be waited for. Returns false when there is none.
    pub fn wait_for_pending(&self) -> Result<bool, DriverError> {
        for stream in self.streams.with_pending() {
            // Fences that cannot be waited for: what waits for them comes to their queues, so that others are found.
            let mut hopeless: BTreeSet<StreamIndex> = BTreeSet::new();
            loop {
                let oldest = stream.lock().pending.oldest();
                let Some((queue, fences)) = oldest.into_iter().find(|(queue, _)| !hopeless.contains(queue)) else {
                    break;
                };
                // A block is settled by the wait only when all its users have passed; else the caller comes back for ever.
                match self.first_hopeless(&fences)? {
                    None => return Ok(true),
                    Some(fence) => {
                        hopeless.insert(fence.stream);
                        stream.lock().pending.defer(queue, fence);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Waits for these fences, as far as possible. Returns the first that cannot be waited for.
    fn first_hopeless(&self, fences: &[Fence]) -> Result<Option<Fence>, DriverError> {
        for fence in fences {
            if !self.wait_until_passed(fence.stream, fence.epoch)? {
                return Ok(Some(*fence));
            }
        }
        Ok(None)
    }

    /// Whether a pending block waits for an epoch that no event covers.
    pub(super) fn has_uncovered_pending(&self) -> bool {
        let awaited = |stream: &Stream| -> Vec<Fence> { stream.lock().pending.awaited().collect() };
        let uncovered = |fence: &Fence| !self.streams.get(fence.stream).clock.lock().covers(fence.epoch);
        self.streams.with_pending().any(|stream| awaited(stream).iter().any(uncovered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::driver::{ModelDriver, WorkDriver};
    use crate::units::StreamId;
    use std::sync::Arc;

    const MAIN: StreamIndex = StreamIndex(0);
    const OTHER: StreamIndex = StreamIndex(1);

    /// The stream that uses the block has not freed anything itself.
    #[test]
    fn the_device_is_waited_for_where_a_block_waits_for_a_stream_that_cannot_be_named() {
        let driver = Arc::new(ModelDriver::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let block = allocator.alloc_raw(100, StreamId::DEFAULT).unwrap();
        let progress = allocator.inner.shared.streams.progress(None);
        assert!(!progress.wait_for_device().unwrap());
        allocator.record_stream(block, driver.create_stream().unwrap()).unwrap();
        assert!(!progress.wait_for_device().unwrap(), "the block is live");
        allocator.free(block).unwrap();
        assert!(progress.wait_for_device().unwrap());
        progress.settle_pending().unwrap();
        assert_eq!(allocator.stats().pending_bytes, 0);
    }

    /// Blocks of several streams wait for moments of one: its last one is asked for, whichever stream's block waits for that.
    #[test]
    fn blocks_that_wait_for_two_moments_of_a_stream_are_settled_at_once() {
        for later_first in [false, true] {
            let driver = Arc::new(ModelDriver::default());
            let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
            let [other, user] = [(); 2].map(|()| driver.create_stream().unwrap());
            let mut blocks = [StreamId::DEFAULT, other].map(|stream| {
                allocator.keep_stream(stream).unwrap();
                allocator.alloc_raw(100, stream).unwrap()
            });
            allocator.keep_stream(user).unwrap();
            driver.hold(user);
            if later_first {
                blocks.reverse();
            }
            for block in blocks {
                allocator.record_stream(block, user).unwrap();
                driver.fill(user, block, 100, 1).unwrap();
                allocator.free(block).unwrap();
                // An event is recorded at the first free only, and the second block waits for a later moment.
                let clock = allocator.inner.shared.streams.find(user).unwrap().clock.lock();
                assert_eq!((clock.sealed(), clock.open()), (1, 2));
            }
            driver.resume(user);
            allocator.inner.shared.streams.progress(None).settle_pending().unwrap();
            assert_eq!(allocator.stats().pending_bytes, 0, "later first: {later_first}");
            allocator.check();
        }
    }

    #[test]
    fn a_block_that_waits_for_two_streams_is_settled_at_once() {
        let driver = Arc::new(ModelDriver::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let block = allocator.alloc_raw(100, StreamId::DEFAULT).unwrap();
        for _ in 0..2 {
            let user = driver.create_stream().unwrap();
            allocator.keep_stream(user).unwrap();
            allocator.record_stream(block, user).unwrap();
        }
        let streams = &allocator.inner.shared.streams;
        let has_pending = |index| streams.pending.iter().any(|other| other == index);
        assert!(!has_pending(MAIN));
        allocator.free(block).unwrap();
        assert!(has_pending(MAIN) && !has_pending(OTHER));
        streams.progress(None).settle_pending().unwrap();
        assert!(!has_pending(MAIN));
        assert_eq!(streams.get(MAIN).lock().pending.iter().count(), 0);
    }
}
