//! A sleep in steps, so that several allocators fall asleep together.

use super::super::error::AllocError;
use super::super::slow_path::{Excluded, FellAsleep, SlowPath};
use super::super::stores::{Backup, Store};
use super::super::{Allocator, Inner};
use super::{Slept, bytes_of};
use crate::driver::Driver;
use crate::segment::listeners::MapListeners;
use crate::stream::StreamIndex;
use crate::sync::MutexGuard;

/// An allocator that falls asleep: what a backup is to have is copied, and the memory is there still. From
/// [`Allocator::begin_sleep`].
///
/// Dropped before [`finish`](Self::finish), everything is awake again with its bytes, also what was to be discarded, and whether it
/// was unmapped or not. So several allocators fall asleep all together, or none of them: begin with each, then unmap each, then
/// finish each.
///
/// Until then, other calls that put to sleep or wake, or that look at a backup, wait for this one.
#[must_use = "what is not finished stays awake"]
#[derive(Debug)]
pub struct FallingAsleep<'a, D: Driver> {
    inner: &'a Inner<D>,
    backup: Backup,
    held_before: u64,
    /// Chunks that could not be unmapped, and stay awake.
    excluded: Excluded,
    /// `None` where there is nothing to sleep.
    fall: Option<Fall>,
    slept: Slept,
    _alone: MutexGuard<'a, ()>,
}

/// How far it is.
#[derive(Debug)]
enum Fall {
    /// Marked, and copied to the host.
    Copied {
        /// The allocator's own stream.
        lane: StreamIndex,
        /// The new memory of the host with the bytes.
        store: Option<Store>,
    },
    /// Without mappings. The chunks are held still.
    Unmapped {
        /// The allocator's own stream.
        lane: StreamIndex,
    },
}

impl<D: Driver> Allocator<D> {
    /// The first step of a [`sleep`](Self::sleep): copies what it is to keep to the host, once nothing uses it any more.
    ///
    /// # Errors
    /// As `sleep`. Everything is awake.
    pub fn begin_sleep(&self, backup: Backup) -> Result<FallingAsleep<'_, D>, AllocError> {
        MapListeners::expect_outside()?;
        let inner = &*self.inner;
        let mut falling = FallingAsleep {
            inner,
            backup,
            held_before: 0,
            excluded: Excluded::new(),
            fall: None,
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
    pub fn unmap(&mut self) -> Result<(), AllocError> {
        loop {
            // Whatever the outcome, the slow path has the backup.
            let (lane, store) = match self.fall.take() {
                Some(Fall::Copied { lane, store }) => (lane, store),
                other => {
                    self.fall = other;
                    return Ok(());
                }
            };
            match self.inner.door.enter(&self.inner.shared, |path| path.unmap_falling(lane, store))? {
                FellAsleep::All => self.fall = Some(Fall::Unmapped { lane }),
                FellAsleep::Not(chunks) => {
                    self.excluded.extend(chunks);
                    self.mark_and_copy()?;
                }
            }
        }
    }

    /// Gives the memory back to the driver, once it is [unmapped](Self::unmap).
    ///
    /// # Errors
    /// As `unmap`. Once that was called, only [`AllocError::Forked`] and the error with which the device was lost.
    pub fn finish(mut self) -> Result<Slept, AllocError> {
        self.unmap()?;
        if self.fall.take().is_some() {
            let release = |path: &mut SlowPath<'_, D>| Ok(path.release_unmapped());
            self.slept.asleep_bytes = self.inner.door.enter(&self.inner.shared, release)?;
        }
        self.slept.released_bytes = self.held_before.saturating_sub(self.inner.door.held_bytes());
        Ok(self.slept)
    }

    fn mark_and_copy(&mut self) -> Result<(), AllocError> {
        let fall = |path: &mut SlowPath<'_, D>| {
            let lane = path.lane()?;
            Ok((lane, path.fall_asleep(lane, self.backup, &self.excluded)?))
        };
        let (lane, (left_awake, marked)) = self.inner.door.enter(&self.inner.shared, fall)?;
        self.slept = Slept { left_awake, ..Slept::default() };
        let Some(marked) = marked else { return Ok(()) };
        self.slept.live_bytes = marked.live_bytes;
        self.slept.copied_bytes = if self.backup == Backup::Discard { 0 } else { bytes_of(&marked.spans) };
        let (store, copied) = match self.inner.copy_out(lane, self.backup, &marked) {
            Ok(store) => (store, Ok(())),
            Err((error, store)) => (store, Err(error)),
        };
        self.fall = Some(Fall::Copied { lane, store });
        copied
    }
}

impl<D: Driver> Drop for FallingAsleep<'_, D> {
    fn drop(&mut self) {
        let Some(fall) = self.fall.take() else { return };
        // What the driver refuses now is done by the next call.
        let _ = self.inner.door.enter(&self.inner.shared, |path| match fall {
            Fall::Copied { lane, store } => path.abandon_fall(lane, store),
            Fall::Unmapped { lane } => path.end_fall(lane),
        });
    }
}
