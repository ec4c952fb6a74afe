//! A wake in steps, so that several allocators wake together.

use super::super::error::{AllocError, SleepError};
use super::super::slow_path::ToWake;
use super::super::{Allocator, Inner};
use super::{FIRST_PAUSE, LONGEST_PAUSE, Woken};
use crate::driver::Driver;
use crate::segment::listeners::MapListeners;
use crate::stream::StreamIndex;
use crate::sync::MutexGuard;
use std::fmt;
use std::time::{Duration, Instant};

/// An allocator that wakes: it has its memory, and not its bytes. From [`Allocator::begin_wake`].
///
/// Dropped before [`finish`](Self::finish), everything is asleep as before. So several allocators wake all together, or none of
/// them: begin with each, then copy for each, then finish each.
///
/// Until then, other calls that put to sleep or wake, or that look at a backup, wait for this one.
#[must_use = "what is not finished stays asleep"]
pub struct Waking<'a, D: Driver> {
    inner: &'a Inner<D>,
    /// What was mapped, and the allocator's own stream. `None` where nothing is asleep.
    mapped: Option<(StreamIndex, ToWake)>,
    is_copied: bool,
    _alone: MutexGuard<'a, ()>,
}

impl<D: Driver> fmt::Debug for Waking<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waking").field("is_copied", &self.is_copied).finish_non_exhaustive()
    }
}

impl<D: Driver> Allocator<D> {
    /// The first step of a [`wake`](Self::wake): maps memory at all that is asleep, once there is enough, for as long as the caller
    /// waits.
    ///
    /// # Errors
    /// As `wake`. Everything is asleep as before.
    pub fn begin_wake(&self, wait: Duration) -> Result<Waking<'_, D>, SleepError> {
        MapListeners::expect_outside()?;
        let inner = &*self.inner;
        let alone = inner.sleeping.lock();
        let mapped = inner.map_asleep(wait)?;
        Ok(Waking { inner, mapped, is_copied: false, _alone: alone })
    }
}

impl<D: Driver> Waking<'_, D> {
    /// Copies the bytes back, and waits for that.
    ///
    /// # Errors
    /// The driver's. Dropped then, everything is asleep as before.
    pub fn copy(&mut self) -> Result<(), SleepError> {
        if let (Some((lane, to_wake)), false) = (&self.mapped, self.is_copied) {
            self.inner.copy_in(*lane, to_wake)?;
            self.is_copied = true;
        }
        Ok(())
    }

    /// Ends the sleep, once the bytes are [copied](Self::copy). `retain` is as in [`Wake`](super::Wake).
    ///
    /// # Errors
    /// As `copy`. Once that was called, only [`AllocError::Forked`] and the error with which the device was lost.
    pub fn finish(mut self, retain: bool) -> Result<Woken, SleepError> {
        self.copy()?;
        let Some((_, to_wake)) = self.mapped.take() else { return Ok(Woken::default()) };
        self.inner.door.enter(&self.inner.shared, |path| {
            path.get_up(retain);
            Ok::<_, AllocError>(())
        })?;
        let copied_bytes = to_wake.copies.iter().map(|(_, span)| span.bytes).sum();
        Ok(Woken { mapped_bytes: to_wake.bytes, copied_bytes })
    }
}

impl<D: Driver> Drop for Waking<'_, D> {
    fn drop(&mut self) {
        if let Some((lane, _)) = self.mapped.take() {
            // What the driver refuses now is done by the next call.
            let _ = self.inner.door.enter(&self.inner.shared, |path| path.sleep_on(lane));
        }
    }
}

impl<D: Driver> Inner<D> {
    fn map_asleep(&self, wait: Duration) -> Result<Option<(StreamIndex, ToWake)>, AllocError> {
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let mapped = self.door.enter(&self.shared, |path| {
                let lane = path.lane()?;
                Ok(path.map_asleep(lane)?.map(|to_wake| (lane, to_wake)))
            });
            let left = wait.saturating_sub(began.elapsed());
            match mapped {
                Err(AllocError::OutOfMemory(_)) if left > Duration::ZERO => std::thread::sleep(pause.min(left)),
                result => return result,
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}
