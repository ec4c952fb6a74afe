//! How far the streams are: which epochs have passed, waiting for them, ordering work behind them, and the blocks that
//! wait for it.

use super::Streams;
use super::state::Stream;
use crate::driver::{Driver, DriverError, DriverErrorKind, StreamDriver};
use crate::stream::{Fence, StreamClock, StreamIndex};
use crate::sync::Ordering;

/// Number of epochs of one stream that may be sealed and not passed before [`Streams::refresh_clocks`] seals no more.
const MAX_SEALED: usize = 4;

impl<D: Driver> Streams<D> {
    /// Frees the pending blocks whose fences have passed.
    pub fn settle_pending(&self) -> Result<(), DriverError> {
        for stream in self.iter() {
            stream.clock.lock().poll(&self.driver, &self.events)?;
        }
        for stream in self.iter() {
            let pending = {
                let mut state = stream.lock();
                if state.pending.is_empty() {
                    continue;
                }
                std::mem::take(&mut state.pending)
            };
            let mut failure = None;
            let (over, mut waiting): (Vec<_>, Vec<_>) = pending.into_iter().partition(|block| {
                block.fences.iter().all(|fence| {
                    self.has_passed(fence.stream, fence.epoch).unwrap_or_else(|error| {
                        failure = Some(error);
                        false
                    })
                })
            });
            let mut state = stream.lock();
            let epoch = state.epoch;
            for block in over {
                state.region(block.region).expect("a pending block has a region").heap.settle(block.offset, epoch);
            }
            waiting.append(&mut state.pending);
            state.pending = waiting;
            drop(state);
            if let Some(error) = failure {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns whether `stream` has passed `epoch`, which is sealed first if need be.
    pub fn has_passed(&self, stream: StreamIndex, epoch: u64) -> Result<bool, DriverError> {
        let stream = self.get(stream);
        let mut clock = stream.clock.lock();
        if epoch <= clock.passed() {
            return Ok(true);
        }
        // What was freed while sealing failed is stamped one epoch ahead; what is further ahead never passes.
        while epoch >= clock.open() {
            if epoch > clock.open() + 1 || !self.seal(stream, &mut clock)? {
                return Ok(false);
            }
        }
        Ok(epoch <= clock.poll(&self.driver, &self.events)?)
    }

    /// Records an event for the open epoch of a stream. Returns false while that is impossible: during a capture, and
    /// once the stream has been destroyed.
    pub fn seal(&self, stream: &Stream, clock: &mut StreamClock) -> Result<bool, DriverError> {
        {
            // Stamp frees from now on with the next epoch first: a free that slips in before the event is covered by it
            // and only believed to be later.
            let mut state = stream.lock();
            if state.epoch >= self.epoch_limit {
                state.renumber();
            }
            state.epoch += 1;
            state.dirty = false;
        }
        let sealed = match clock.seal(&self.driver, &self.events) {
            // Its owner has destroyed the stream: nothing can be learned about it any more, which concerns what was
            // freed on it and nothing else.
            Err(error) if error.kind == DriverErrorKind::InvalidHandle => Ok(false),
            sealed => sealed,
        };
        if !matches!(sealed, Ok(true)) {
            let mut state = stream.lock();
            state.epoch -= 1;
            state.dirty = true;
        }
        sealed
    }

    /// Seals and polls all streams but `except`, so that the epochs they have passed are known.
    pub fn refresh_clocks(&self, except: Option<StreamIndex>) -> Result<(), DriverError> {
        for stream in self.iter().filter(|stream| Some(stream.index) != except) {
            let mut clock = stream.clock.lock();
            if stream.lock().dirty && clock.sealed() < MAX_SEALED {
                self.seal(stream, &mut clock)?;
            }
            clock.poll(&self.driver, &self.events)?;
        }
        Ok(())
    }

    /// Waits for the oldest pending block that can be waited for. Returns false when there is none.
    pub fn wait_for_pending(&self) -> Result<bool, DriverError> {
        for stream in self.iter() {
            let pending: Vec<Vec<Fence>> = stream.lock().pending.iter().map(|block| block.fences.clone()).collect();
            for fences in pending {
                // A block is settled by the wait only when all its users have passed; else the caller comes back for ever.
                let mut passed = true;
                for fence in fences {
                    passed = passed && self.wait_until_passed(fence.stream, fence.epoch)?;
                }
                if passed {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Blocks the host until `stream` has passed `epoch`. Returns false when the host cannot wait for that: during a
    /// capture, and once the stream has been destroyed.
    pub fn wait_until_passed(&self, stream: StreamIndex, epoch: u64) -> Result<bool, DriverError> {
        if self.has_passed(stream, epoch)? {
            return Ok(true);
        }
        let mut clock = self.get(stream).clock.lock();
        if epoch >= clock.open() {
            return Ok(false);
        }
        self.host_waits.fetch_add(1, Ordering::Relaxed);
        clock.wait(epoch, &self.driver, &self.events)?;
        Ok(true)
    }

    /// Makes the device run later work of `waiter` behind `epoch` of `stream`. Returns false when that is impossible.
    /// While `waiter` is being captured the host waits instead: the capture would fail for a wait on work outside of it.
    pub fn order_behind(&self, waiter: StreamIndex, stream: StreamIndex, epoch: u64) -> Result<bool, DriverError> {
        if self.has_passed(stream, epoch)? {
            return Ok(true);
        }
        if self.driver.is_capturing(self.get(waiter).id) {
            return self.wait_until_passed(stream, epoch);
        }
        let clock = self.get(stream).clock.lock();
        if epoch >= clock.open() {
            return Ok(false);
        }
        clock.hold_back(self.get(waiter).id, epoch, &self.driver)?;
        Ok(true)
    }

    /// The last epoch that each stream is known to have passed, by the streams' numbers.
    pub fn passed(&self) -> Vec<u64> {
        self.iter().map(|stream| stream.clock.lock().passed()).collect()
    }

    /// Blocks the host until all streams have done what is queued on them now. Returns false when the host cannot wait
    /// for one of them.
    pub fn wait_for_all(&self) -> Result<bool, DriverError> {
        for stream in self.iter() {
            let open = stream.clock.lock().open();
            if !self.wait_until_passed(stream.index, open)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Blocks the host until `stream` has done what is queued on it now. Returns false when the host cannot wait for all of
    /// that: during a capture, and once the stream has been destroyed.
    pub fn drain(&self, stream: &Stream) -> Result<bool, DriverError> {
        let mut clock = stream.clock.lock();
        // A stream that neither allocated nor freed anything may use memory that was recorded on it.
        let sealed = self.seal(stream, &mut clock)?;
        let last = clock.open() - 1;
        clock.wait(last, &self.driver, &self.events)?;
        Ok(sealed)
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::Allocator;
    use crate::driver::{ModelDriver, WorkDriver};
    use crate::units::StreamId;
    use std::sync::Arc;

    /// Epochs of blocks stay small, however often a stream is sealed, and name the same moments as before.
    #[test]
    fn epochs_are_renumbered_at_the_limit() {
        let driver = Arc::new(ModelDriver::default());
        let other = driver.create_stream().unwrap();
        let allocator = Allocator::builder(Arc::clone(&driver)).epoch_limit(4).build().unwrap();
        let kept = allocator.alloc(100, other).unwrap();
        for _ in 0..30 {
            // Freed on its own stream while the other uses it: the other is sealed.
            let block = allocator.alloc(100, StreamId::DEFAULT).unwrap();
            allocator.record_stream(block, other).unwrap();
            allocator.free(block).unwrap();
            let other = allocator.inner.shared.streams.find(other).unwrap();
            allocator.inner.shared.streams.settle_pending().unwrap();
            let (clock, state) = (other.clock.lock(), other.lock());
            assert!(state.epoch <= 4, "epoch {}", state.epoch);
            assert_eq!(state.open_epoch(), clock.open());
        }
        assert!(allocator.inner.shared.streams.find(other).unwrap().lock().epoch_base > 20);
        assert_eq!(allocator.stats().host_waits, 0, "all had passed");
        allocator.check();
        allocator.free(kept).unwrap();
        allocator.close().unwrap();
    }

    /// What is freed while sealing fails is stamped one epoch ahead.
    #[test]
    fn one_epoch_ahead_passes_and_no_more() {
        let allocator = Allocator::builder(Arc::new(ModelDriver::default())).build().unwrap();
        let block = allocator.alloc(100, StreamId::DEFAULT).unwrap();
        let stream = allocator.inner.shared.streams.find(StreamId::DEFAULT).unwrap();
        let open = || stream.clock.lock().open();
        for (ahead, passes) in [(0, true), (1, true), (2, false), (u64::MAX - open() - 10, false)] {
            let epoch = open() + ahead;
            assert_eq!(
                allocator.inner.shared.streams.has_passed(stream.index, epoch).unwrap(),
                passes,
                "{ahead} ahead"
            );
        }
        allocator.check();
        allocator.free(block).unwrap();
    }
}
