//! The part of the stress test that sleeps and wakes: one thread does, while the others allocate and free.

use super::shared::{Random, Shared};
use crate::device::Device;
use crate::errors::of_sleep;
use gapless::allocator::{AllocError, Backup};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<D: Device> Shared<'_, D> {
    /// Sleeps, as soon as nobody uses a block, or wakes; now and then in part, so that all is as before. One thread calls this.
    pub(crate) fn step_sleep(&self, random: &mut Random) {
        if self.gate.is_asleep() {
            match self.wake(random) {
                Ok(true) => self.gate.open(false),
                // What was freed meanwhile is not mapped again, so that a later wake may find enough.
                Ok(false) | Err(AllocError::OutOfMemory(_)) => {}
                Err(error) => self.expect_injected(&error),
            }
        } else if self.gate.close() {
            if let Err(error) = self.sleep(random) {
                self.expect_injected(&error);
            }
            let is_asleep = self.allocator.stats().asleep_bytes > 0;
            let marked = self.allocator.asleep().live_bytes;
            assert!(is_asleep || marked == 0, "{marked} bytes are live and asleep, in no page that is");
            self.progress.slept.fetch_add(u64::from(is_asleep), Ordering::Relaxed);
            self.gate.open(is_asleep);
        }
    }

    fn sleep(&self, random: &mut Random) -> Result<(), AllocError> {
        let backup = if random.below(2) == 0 { Backup::Pinned } else { Backup::Pageable };
        let steps = random.below(8);
        let mut falling = self.allocator.begin_sleep(backup).map_err(of_sleep)?;
        if steps == 1 {
            falling.unmap().map_err(of_sleep)?;
        }
        if steps > 1 {
            falling.finish().map_err(of_sleep)?;
        }
        Ok(())
    }

    /// Returns whether everything is awake.
    fn wake(&self, random: &mut Random) -> Result<bool, AllocError> {
        let steps = random.below(8);
        let mut waking = self.allocator.begin_wake(Duration::ZERO).map_err(of_sleep)?;
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
