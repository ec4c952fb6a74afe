//! The part of the stress test that sleeps and wakes: one thread does, while the others allocate and free. Who works with a block
//! asks a gate first, since no work may use what is asleep or about to be.
//!
//! Nobody waits at the gate: a thread that cannot pass does something else.

use super::shared::{Block, Shared};
use crate::device::Device;
use gapless::allocator::{AllocError, Backup};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Says which blocks may be used.
#[derive(Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of sleeps and wakes that have begun or ended.
    time: u64,
    /// Since when blocks that were allocated before have been asleep, or are about to be.
    asleep_since: Option<u64>,
    /// Whether the thread that sleeps waits for those who are inside.
    closing: bool,
    inside: u64,
}

impl Gate {
    /// The time, for a block that is allocated from now on.
    pub fn time(&self) -> u64 {
        self.0.lock().time
    }

    /// Runs `work` with a block that was allocated after `born`, unless it may be asleep.
    pub fn pass<T>(&self, born: u64, work: impl FnOnce() -> T) -> Option<T> {
        {
            let mut state = self.0.lock();
            if state.closing || state.asleep_since.is_some_and(|since| born < since) {
                return None;
            }
            state.inside += 1;
        }
        let result = work();
        self.0.lock().inside -= 1;
        Some(result)
    }

    /// Whether everybody who was inside has left. Nobody enters meanwhile.
    fn close(&self) -> bool {
        let mut state = self.0.lock();
        state.closing = true;
        state.inside == 0
    }

    fn is_asleep(&self) -> bool {
        self.0.lock().asleep_since.is_some()
    }

    /// Opens the gate for blocks that are allocated from now on; for the others as well if they are awake.
    fn open(&self, is_asleep: bool) {
        let mut state = self.0.lock();
        state.time += 1;
        state.asleep_since = is_asleep.then_some(state.time);
        state.closing = false;
    }
}

impl<D: Device> Shared<'_, D> {
    /// Sleeps, as soon as nobody uses a block, or wakes. One thread calls this.
    pub(crate) fn step_sleep(&self) {
        if self.gate.is_asleep() {
            match self.allocator.wake(Duration::ZERO) {
                Ok(woken) => {
                    self.progress.woken.fetch_add(u64::from(woken.mapped_bytes > 0), Ordering::Relaxed);
                    self.gate.open(false);
                }
                // What was freed meanwhile is not mapped again, so that a later wake may find enough.
                Err(AllocError::OutOfMemory(_)) => {}
                Err(error) => self.expect_injected(&error),
            }
        } else if self.gate.close() {
            if let Err(error) = self.allocator.sleep(Backup::Pinned) {
                self.expect_injected(&error);
            }
            let is_asleep = self.allocator.stats().asleep_bytes > 0;
            self.progress.slept.fetch_add(u64::from(is_asleep), Ordering::Relaxed);
            self.gate.open(is_asleep);
        }
    }

    /// Runs `work` with a block, unless it may be asleep.
    pub(crate) fn with_memory<T>(&self, block: &Block, work: impl FnOnce() -> T) -> Option<T> {
        self.gate.pass(block.born, work)
    }
}
