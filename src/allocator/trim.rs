//! Giving memory back to the driver: every completely free chunk, also beside live blocks.

use super::Inner;
use super::mapper::Mapper;
use super::plan::{Source, free_chunks};
use super::{AllocError, Allocator};
use crate::driver::{Driver, DriverError};
use crate::heap::BlockState;
use crate::segment::ViewState;

/// What [`Allocator::trim`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Trimmed {
    /// Bytes that went back to the driver.
    pub released_bytes: u64,
    /// Bytes still held.
    pub held_bytes: u64,
}

impl<D: Driver> Allocator<D> {
    /// Gives free memory back to the driver until at most `keep_bytes` are held: chunks that nothing maps first, then
    /// every completely free chunk, the largest first. Waits for the streams that used it; not for the device.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; what went back before stays given back. [`AllocError::Forked`].
    pub fn trim(&self, keep_bytes: u64) -> Result<Trimmed, AllocError> {
        if self.inner.is_forked() {
            return Err(AllocError::Forked { built_in: self.inner.process });
        }
        self.inner.trim(keep_bytes)
    }
}

impl<D: Driver> Inner<D> {
    pub(super) fn trim(&self, keep_bytes: u64) -> Result<Trimmed, AllocError> {
        let mut mapper = self.mapper.lock();
        let before = mapper.pool.held_bytes();
        let result = self.trim_locked(&mut mapper, keep_bytes);
        let held_bytes = mapper.pool.held_bytes();
        result.map(|()| Trimmed { released_bytes: before - held_bytes, held_bytes })
    }

    fn trim_locked(&self, mapper: &mut Mapper, keep_bytes: u64) -> Result<(), AllocError> {
        if mapper.pool.held_bytes() > keep_bytes {
            self.settle_left_behind(mapper)?;
        }
        while mapper.pool.held_bytes() > keep_bytes {
            let Some(chunk) = mapper.pool.idle().last() else { break };
            let before = mapper.pool.held_bytes();
            self.release_idle(mapper, chunk);
            if mapper.pool.held_bytes() == before {
                break;
            }
        }
        Ok(self.trim_free(mapper, keep_bytes)?)
    }

    /// Gives completely free chunks of the heaps back until no more than `keep_bytes` are held. Idle chunks stay.
    pub(super) fn trim_free(&self, mapper: &mut Mapper, keep_bytes: u64) -> Result<(), DriverError> {
        self.settle_pending()?;
        let claimed = self.claim_free(mapper, keep_bytes);
        for (number, source) in claimed.iter().enumerate() {
            let result = self.give_back(mapper, source);
            self.unclaim(mapper, source);
            // A chunk that cannot be waited for stays; the others go all the same.
            if let Err(error) = result {
                for source in &claimed[number + 1..] {
                    self.unclaim(mapper, source);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Claims free chunks, largest first, until no more than `keep_bytes` would be held.
    fn claim_free(&self, mapper: &Mapper, keep_bytes: u64) -> Vec<Source> {
        let page_bytes = self.geometry.page_bytes;
        let mut states = self.lock_all();
        let mut sources = free_chunks(mapper, &states);
        sources.sort_by_key(|source| std::cmp::Reverse(source.pages));
        let mut held = mapper.pool.held_bytes();
        sources.retain(|source| {
            let take = held > keep_bytes;
            if take {
                held -= u64::from(source.pages) * page_bytes;
            }
            take
        });
        super::plan::claim_sources(&mut states, &sources);
        sources
    }

    /// Ends the claim on a chunk: free where it is still mapped, else a hole.
    pub(super) fn unclaim(&self, mapper: &Mapper, source: &Source) {
        let mut state = self.streams.get(source.stream).lock();
        let region = state.region(source.region).expect("sources come from regions");
        let (start, len) = (source.page * region.page_bytes, u64::from(source.pages) * region.page_bytes);
        let view = mapper.segments[region.segment].table.view(source.page);
        let mapped = view.is_some_and(|view| view.state == ViewState::Active);
        region.heap.set(start, start, len, if mapped { BlockState::Free } else { BlockState::Hole }, 0);
    }
}
