//! A sleep in steps, so that several allocators fall asleep together.

use super::super::error::{AllocError, SleepError};
use super::super::slow_path::{Excluded, FellAsleep, SlowPath};
use super::super::stores::Backup;
use super::super::{Allocator, Inner};
use super::{Slept, bytes_of};
use crate::driver::Driver;
use crate::segment::listeners::MapListeners;
use crate::stream::StreamIndex;
use crate::sync::MutexGuard;
use std::fmt;

/// An allocator that falls asleep: what a backup is to have is copied, and the memory is there still. From
/// [`Allocator::begin_sleep`].
///
/// Dropped before [`finish`](Self::finish), everything is awake again with its bytes, also what was to be discarded, and whether it
/// was unmapped or not. So several allocators fall asleep all together, or none of them: begin with each, then unmap each, then
/// finish each.
///
/// Until then, other calls that put to sleep or wake, or that look at a backup, wait for this one.
#[must_use = "what is not finished stays awake"]
pub struct FallingAsleep<'a, D: Driver> {
    inner: &'a Inner<D>,
    backup: Backup,
    held_before: u64,
    /// Chunks that could not be unmapped, and stay awake.
    excluded: Excluded,
    /// The allocator's own stream, unless there is nothing to sleep.
    lane: Option<StreamIndex>,
    /// Whether it is without mappings. The chunks are held still.
    is_unmapped: bool,
    slept: Slept,
    _alone: MutexGuard<'a, ()>,
}

impl<D: Driver> fmt::Debug for FallingAsleep<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallingAsleep")
            .field("backup", &self.backup)
            .field("is_unmapped", &self.is_unmapped)
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Allocator<D> {
    /// The first step of a [`sleep`](Self::sleep): copies what it is to keep to the host, once nothing uses it any more.
    ///
    /// # Errors
    /// As `sleep`. Everything is awake.
    pub fn begin_sleep(&self, backup: Backup) -> Result<FallingAsleep<'_, D>, SleepError> {
        MapListeners::expect_outside()?;
        let inner = &*self.inner;
        let mut falling = FallingAsleep {
            inner,
            backup,
            held_before: 0,
            excluded: Excluded::new(),
            lane: None,
            is_unmapped: false,
            slept: Slept::default(),
            _alone: inner.sleeping.lock(),
        };
        falling.held_before = inner.door.held_bytes();
        falling.mark_and_copy()?;
        Ok(falling)
    }
}

impl<D: Driver> FallingAsleep<'_, D> {
    /// Unmaps the memory, which the allocator holds until the end. Copies anew where something turns out to be in use, and leaves
    /// that awake.
    ///
    /// # Errors
    /// As [`Allocator::sleep`]. Everything is awake; only what the driver refuses to map again is asleep.
    pub fn unmap(&mut self) -> Result<(), SleepError> {
        while let Some(lane) = self.lane.filter(|_| !self.is_unmapped) {
            // Awake unless all of it is unmapped.
            self.lane = None;
            match self.inner.door.enter(&self.inner.shared, |path| path.unmap_falling(lane))? {
                FellAsleep::All => (self.lane, self.is_unmapped) = (Some(lane), true),
                FellAsleep::Not(chunks) => {
                    self.excluded.extend(chunks);
                    self.mark_and_copy()?;
                }
            }
        }
        Ok(())
    }

    /// Gives the memory back to the driver, once it is [unmapped](Self::unmap).
    ///
    /// # Errors
    /// As `unmap`. Once that was called, only [`AllocError::Forked`] and the error with which the device was lost.
    pub fn finish(mut self) -> Result<Slept, SleepError> {
        self.unmap()?;
        let is_unmapped = self.lane.take().is_some();
        let release = |path: &mut SlowPath<'_, D>| {
            let asleep_bytes = if is_unmapped { path.release_unmapped() } else { 0 };
            path.trim_idle(0);
            Ok::<_, AllocError>((asleep_bytes, path.awake_beside_regions()))
        };
        let (asleep_bytes, beside) = self.inner.door.enter(&self.inner.shared, release)?;
        self.slept.asleep_bytes = asleep_bytes;
        self.slept.left_awake += beside;
        self.slept.released_bytes = self.held_before.saturating_sub(self.inner.door.held_bytes());
        Ok(self.slept)
    }

    fn mark_and_copy(&mut self) -> Result<(), SleepError> {
        let fall = |path: &mut SlowPath<'_, D>| {
            let lane = path.lane()?;
            Ok::<_, AllocError>((lane, path.fall_asleep(lane, self.backup, &self.excluded)?))
        };
        let (lane, (left_awake, marked)) = self.inner.door.enter(&self.inner.shared, fall)?;
        self.slept = Slept { left_awake, ..Slept::default() };
        let Some(marked) = marked else { return Ok(()) };
        self.slept.live_bytes = marked.live_bytes;
        self.slept.copied_bytes = if self.backup == Backup::Discard { 0 } else { bytes_of(&marked.spans) };
        self.lane = Some(lane);
        self.inner.copy_out(lane, self.backup, &marked)
    }
}

impl<D: Driver> Drop for FallingAsleep<'_, D> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            // Refused only where nothing can be done any more, or on a thread that is inside: then the next call does it.
            let _ = self.inner.door.enter(&self.inner.shared, |path| {
                path.end_fall(lane);
                Ok::<_, AllocError>(())
            });
        }
    }
}
