//! Readings: what the clocks of all streams said when they were read last. Only those are read again that may have changed since,
//! so that a plan costs the same beside thousands of streams that do nothing.

use crate::stream::{StreamClock, StreamIndex, StreamSet};
use crate::sync::{Arc, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// The last readings of the clocks of an allocator's streams, by the streams' numbers.
#[derive(Debug, Default)]
pub struct Readings {
    /// Locked before clocks.
    epochs: Mutex<Epochs>,
    /// The streams whose clocks may have changed since.
    pub changed: Arc<StreamSet>,
}

/// The epochs that were read, by the streams' numbers.
#[derive(Debug, Default)]
pub struct Epochs {
    /// The last epoch that the stream is known to have passed.
    pub passed: Vec<u64>,
    /// The result of [`StreamClock::coverable_until`] for calls that were not handed the stream.
    pub coverable: Vec<u64>,
}

impl Readings {
    /// Returns the current readings of the clocks of at least the first `count` streams.
    pub fn of_now<'s>(&self, count: usize, clock: impl Fn(StreamIndex) -> &'s ClockLock) -> MutexGuard<'_, Epochs> {
        let mut epochs = self.epochs.lock();
        // Streams stay: somebody may have counted more of them meanwhile.
        let count = count.max(epochs.passed.len());
        epochs.passed.resize(count, 0);
        epochs.coverable.resize(count, 0);
        for index in self.changed.iter().take_while(|index| (index.0 as usize) < count) {
            #[cfg(test)]
            crate::testing::step();
            // Before it is read: what changes from now on is noted again.
            self.changed.set(index, false);
            let clock = clock(index).lock();
            epochs.passed[index.0 as usize] = clock.passed();
            epochs.coverable[index.0 as usize] = clock.coverable_until(false);
        }
        epochs
    }
}

/// A stream's clock behind its lock.
#[derive(Debug)]
pub struct ClockLock {
    clock: Mutex<StreamClock>,
    index: StreamIndex,
    /// The streams whose clocks may have changed since they were read.
    changed: Arc<StreamSet>,
}

impl ClockLock {
    /// A clock that was not read yet. `changed` gets its stream when the clock may have changed.
    pub fn new(clock: StreamClock, index: StreamIndex, changed: Arc<StreamSet>) -> Self {
        changed.set(index, true);
        Self { clock: Mutex::new(clock), index, changed }
    }

    /// Locks the clock.
    pub fn lock(&self) -> ClockGuard<'_> {
        ClockGuard { clock: self.clock.lock(), lock: self }
    }

    /// Locks the clock if nobody has it.
    #[cfg(test)]
    pub fn try_lock(&self) -> Option<ClockGuard<'_>> {
        Some(ClockGuard { clock: self.clock.try_lock()?, lock: self })
    }
}

/// A locked clock. Who may change it has its stream noted before.
#[derive(Debug)]
pub struct ClockGuard<'a> {
    clock: MutexGuard<'a, StreamClock>,
    lock: &'a ClockLock,
}

impl Deref for ClockGuard<'_> {
    type Target = StreamClock;

    fn deref(&self) -> &StreamClock {
        &self.clock
    }
}

impl DerefMut for ClockGuard<'_> {
    fn deref_mut(&mut self) -> &mut StreamClock {
        self.lock.changed.set(self.lock.index, true);
        &mut self.clock
    }
}
