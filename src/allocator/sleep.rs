//! Sleep and wake: an allocator gives its memory back and gets it again, at the same addresses.

use super::error::AllocError;
use super::reports::Asleep;
use super::slow_path::{Excluded, FellAsleep, LeftAwake, SlowPath, Span, Store, ToWake};
use super::{Allocator, Inner};
use crate::driver::{Driver, DriverError, MemoryDriver, StreamDriver};
use crate::segment::listeners::MapListeners;
use crate::stream::StreamIndex;
use std::time::{Duration, Instant};

/// What becomes of the bytes of what sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backup {
    /// They are lost: what wakes has undefined content, as newly allocated memory.
    Discard,
    /// They are copied to pinned memory of the host, and back when they wake.
    Pinned,
}

/// The result of [`Allocator::sleep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Slept {
    /// Bytes of the pages that this call put to sleep: what a wake needs for them.
    pub asleep_bytes: u64,
    /// Bytes of the live allocations in them, rounding included.
    pub live_bytes: u64,
    /// Bytes copied to the host.
    pub copied_bytes: u64,
    /// Bytes released to the driver, free memory included.
    pub released_bytes: u64,
    /// What stayed awake.
    pub left_awake: LeftAwake,
}

/// The result of [`Allocator::wake`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Woken {
    /// Bytes of the pages that have memory again.
    pub mapped_bytes: u64,
    /// Bytes copied from the host.
    pub copied_bytes: u64,
}

/// The pause before a wake that found too little memory is tried again; it doubles each time,
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

impl<D: Driver> Allocator<D> {
    /// Gives all memory back to the driver. Live allocations keep their addresses; their memory comes back with
    /// [`wake`](Self::wake). What is asleep already stays so.
    ///
    /// No work that uses the memory may be queued from the call on until the wake: on a device, such work is an error that ends the
    /// context. What was queued before is waited for, by the device; the host waits once, until the bytes are copied. Frees,
    /// [`record_stream`](Self::record_stream) and new allocations go on meanwhile: new ones get memory of their own. An allocation
    /// that is freed while it is asleep is not mapped again, unless mappings are kept.
    ///
    /// An allocator that [keeps its mappings](super::Builder::keep_mappings) sleeps by chunks: a backup has all their bytes, freed
    /// ones included, and a wake maps each at all its addresses again, since graphs use both. It waits for the device, and so for
    /// replays, and needs as many bytes to wake as it held.
    ///
    /// Stays awake: what is pinned, growable ranges and registered blocks ([`Slept::left_awake`] counts what regions have).
    ///
    /// # Errors
    /// [`AllocError::CannotWait`] during a capture, [`AllocError::Forked`], [`AllocError::InListener`], and those of the
    /// driver, for example where the host has no memory for a backup. Everything is awake then; only if the driver in addition
    /// refuses to map again what it has unmapped, that is asleep ([`Stats::asleep_bytes`](super::Stats)) until the next wake.
    pub fn sleep(&self, backup: Backup) -> Result<Slept, AllocError> {
        self.inner.sleep(backup)
    }

    /// What is asleep. Waits for no call that is under way on another thread, and reports the pages as they were before it.
    pub fn asleep(&self) -> Asleep {
        self.inner.door.asleep(&self.inner.shared)
    }

    /// Gives memory to everything that is asleep, and its bytes, unless they were discarded. All of it, or none.
    ///
    /// Succeeds whenever the budget that is left and completely free chunks, together, cover the pages asleep, and the device has
    /// them. Where they do not, tries again until `wait` is over: another process may be about to give memory back.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] with the report on a request of so many bytes, [`AllocError::CannotWait`] during a capture,
    /// [`AllocError::Forked`], [`AllocError::InListener`], and those of the driver. Everything is asleep as before.
    pub fn wake(&self, wait: Duration) -> Result<Woken, AllocError> {
        self.inner.wake(wait)
    }
}

impl<D: Driver> Inner<D> {
    fn sleep(&self, backup: Backup) -> Result<Slept, AllocError> {
        MapListeners::expect_outside()?;
        let _alone = self.sleeping.lock();
        let before = self.door.held_bytes();
        let mut excluded = Excluded::new();
        loop {
            let fall = |path: &mut SlowPath<'_, D>| {
                let lane = path.lane()?;
                Ok((lane, path.fall_asleep(lane, &excluded)?))
            };
            let (lane, (left_awake, marked)) = self.door.enter(&self.shared, fall)?;
            let mut slept = Slept { left_awake, ..Slept::default() };
            if let Some(marked) = marked {
                slept.live_bytes = marked.live_bytes;
                let store = match self.copy_out(lane, backup, &marked.spans) {
                    Ok(store) => store,
                    Err((error, store)) => {
                        self.door.enter(&self.shared, |path| path.abandon_fall(lane, store))?;
                        return Err(error.into());
                    }
                };
                slept.copied_bytes = if store.is_some() { bytes_of(&marked.spans) } else { 0 };
                match self.door.enter(&self.shared, |path| path.unmap_falling(lane, store))? {
                    FellAsleep::Not(chunks) => {
                        excluded.extend(chunks);
                        continue;
                    }
                    FellAsleep::All { bytes } => slept.asleep_bytes = bytes,
                }
            }
            slept.released_bytes = before.saturating_sub(self.door.held_bytes());
            return Ok(slept);
        }
    }

    fn wake(&self, wait: Duration) -> Result<Woken, AllocError> {
        MapListeners::expect_outside()?;
        let _alone = self.sleeping.lock();
        let Some((lane, to_wake)) = self.map_asleep(wait)? else { return Ok(Woken::default()) };
        let copied = to_wake.copies.iter().map(|(_, spans)| bytes_of(spans)).sum();
        if let Err(error) = self.copy_in(lane, &to_wake) {
            self.door.enter(&self.shared, |path| path.sleep_on(lane))?;
            return Err(error.into());
        }
        self.door.enter(&self.shared, |path| {
            path.get_up();
            Ok(())
        })?;
        Ok(Woken { mapped_bytes: to_wake.bytes, copied_bytes: copied })
    }

    /// Maps memory at what is asleep, once there is enough, for as long as the caller waits.
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

    /// Waits for what `lane` is ordered behind, and copies `spans` to the host, if they are not discarded.
    ///
    /// # Errors
    /// The driver's, with the memory that copies may still write to.
    fn copy_out(
        &self,
        lane: StreamIndex,
        backup: Backup,
        spans: &[Span],
    ) -> Result<Option<Store>, (DriverError, Option<Store>)> {
        let bytes = bytes_of(spans);
        let driver = &self.shared.streams.driver;
        let store = match backup {
            Backup::Pinned if bytes > 0 => {
                let memory = driver.host_alloc(bytes).map_err(|error| (error, None))?;
                Some(Store { memory, bytes })
            }
            Backup::Pinned | Backup::Discard => None,
        };
        let queued = store.map_or(Ok(()), |store| {
            let stream = self.shared.streams.get(lane).id();
            spans.iter().try_for_each(|span| driver.copy_out(stream, store.memory, span.place, span.addr, span.bytes))
        });
        match queued.and_then(|()| self.wait_for(lane)) {
            Ok(()) => Ok(store),
            Err(error) => Err((error, store)),
        }
    }

    /// Copies everything back, and waits for the copies.
    fn copy_in(&self, lane: StreamIndex, to_wake: &ToWake) -> Result<(), DriverError> {
        let stream = self.shared.streams.get(lane).id();
        for (store, spans) in &to_wake.copies {
            for span in spans {
                self.shared.streams.driver.copy_in(stream, span.addr, *store, span.place, span.bytes)?;
            }
        }
        self.wait_for(lane)
    }

    /// Blocks the host until `lane` has done what is queued on it.
    fn wait_for(&self, lane: StreamIndex) -> Result<(), DriverError> {
        self.shared.streams.progress(Some(lane)).wait_for_own()
    }
}

fn bytes_of(spans: &[Span]) -> u64 {
    spans.iter().map(|span| span.bytes).sum()
}
