//! The part of the stress test that sleeps and wakes: one thread does, while the others allocate and free.

use super::shared::Shared;
use crate::device::Device;
use crate::errors::of_sleep;
use gapless::allocator::{AllocError, Backup};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<D: Device> Shared<'_, D> {
    /// Sleeps, as soon as nobody uses a block, or wakes. One thread calls this.
    pub(crate) fn step_sleep(&self) {
        if self.gate.is_asleep() {
            match self.allocator.wake(Duration::ZERO).map_err(of_sleep) {
                Ok(woken) => {
                    self.progress.woken.fetch_add(u64::from(woken.mapped_bytes > 0), Ordering::Relaxed);
                    self.gate.open(false);
                }
                // What was freed meanwhile is not mapped again, so that a later wake may find enough.
                Err(AllocError::OutOfMemory(_)) => {}
                Err(error) => self.expect_injected(&error),
            }
        } else if self.gate.close() {
            let turn = self.progress.slept.load(Ordering::Relaxed);
            let backup = if turn.is_multiple_of(2) { Backup::Pinned } else { Backup::Pageable };
            if let Err(error) = self.allocator.sleep(backup).map_err(of_sleep) {
                self.expect_injected(&error);
            }
            let is_asleep = self.allocator.stats().asleep_bytes > 0;
            let marked = self.allocator.asleep().live_bytes;
            assert!(is_asleep || marked == 0, "{marked} bytes are live and asleep, in no page that is");
            self.progress.slept.fetch_add(u64::from(is_asleep), Ordering::Relaxed);
            self.gate.open(is_asleep);
        }
    }
}
