//! The part of the stress test that sleeps and wakes: one thread does, while the others allocate and free.

use super::gate::Gate;
use super::shared::{Random, Shared};
use crate::device::Device;
use crate::errors::of_sleep;
use crate::oracle::Subject;
use gapless::allocator::{AllocError, Backup};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<D: Device> Shared<'_, D> {
    /// Sleeps, as soon as nobody uses a block, or wakes; now and then in part, so that all is as before. One thread calls this.
    pub(crate) fn step_sleep(&self, random: &mut Random) {
        self.step_sleep_of(&self.allocator, &self.gate, random, |_| {});
    }

    /// The same of the pool, which sleeps whole; streams may be captured into it meanwhile.
    pub(crate) fn step_sleep_of_pool(&self, random: &mut Random) {
        let Some(pool) = &self.pool else { return };
        let has_slept = |is_asleep: bool| {
            // Other memory may be behind the pool's addresses now.
            self.owners.lock().clear();
            self.progress.pool_slept.fetch_add(u64::from(is_asleep), Ordering::Relaxed);
        };
        self.step_sleep_of(pool, &self.pool_gate, random, has_slept);
    }

    /// `has_changed` is told whether everything is asleep, before anybody may use it.
    fn step_sleep_of(&self, allocator: &Subject<D>, gate: &Gate, random: &mut Random, has_changed: impl FnOnce(bool)) {
        if gate.is_asleep() {
            match self.wake(allocator, random) {
                Ok(true) => {
                    has_changed(false);
                    gate.open(false);
                }
                // What was freed meanwhile is not mapped again, so that a later wake may find enough.
                Ok(false) | Err(AllocError::OutOfMemory(_)) => {}
                Err(error) => self.expect_injected(&error),
            }
        } else if gate.close() {
            if let Err(error) = Self::sleep(allocator, random) {
                self.expect_injected(&error);
            }
            let is_asleep = allocator.stats().asleep_bytes > 0;
            let marked = allocator.asleep().live_bytes;
            assert!(is_asleep || marked == 0, "{marked} bytes are live and asleep, in no page that is");
            self.progress.slept.fetch_add(u64::from(is_asleep), Ordering::Relaxed);
            has_changed(is_asleep);
            gate.open(is_asleep);
        }
    }

    fn sleep(allocator: &Subject<D>, random: &mut Random) -> Result<(), AllocError> {
        let backup = if random.below(2) == 0 { Backup::Pinned } else { Backup::Pageable };
        let steps = random.below(8);
        let mut falling = allocator.begin_sleep(backup).map_err(of_sleep)?;
        if steps == 1 {
            falling.unmap().map_err(of_sleep)?;
        }
        if steps > 1 {
            falling.finish().map_err(of_sleep)?;
        }
        Ok(())
    }

    /// Returns whether everything is awake.
    fn wake(&self, allocator: &Subject<D>, random: &mut Random) -> Result<bool, AllocError> {
        let steps = random.below(8);
        let mut waking = allocator.begin_wake(Duration::ZERO).map_err(of_sleep)?;
        if steps == 1 {
            waking.copy().map_err(of_sleep)?;
        }
        if steps <= 1 {
            return Ok(false);
        }
        let woken = waking.finish(random.below(2) == 0).map_err(of_sleep)?;
        self.progress.woken.fetch_add(u64::from(woken.mapped_bytes > 0), Ordering::Relaxed);
        Ok(true)
    }
}
