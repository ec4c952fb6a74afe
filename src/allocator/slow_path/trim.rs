//! Trimming: every completely free chunk can go back to the driver, also beside live blocks.

use super::super::error::AllocError;
use super::SlowPath;
use super::plan::{Source, claim_sources, free_chunks};
use crate::driver::{Driver, DriverError};

/// What [`Allocator::trim`](crate::Allocator::trim) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Trimmed {
    /// Bytes released to the driver.
    pub released_bytes: u64,
    /// Bytes still held.
    pub held_bytes: u64,
}

impl<D: Driver> SlowPath<'_, D> {
    /// Releases free memory until at most `keep_bytes` are held: idle chunks first, then every completely free one.
    pub fn trim(&mut self, keep_bytes: u64) -> Result<Trimmed, AllocError> {
        let before = self.mapper.pool.held_bytes();
        if before > keep_bytes {
            self.settle_left_behind()?;
        }
        self.trim_idle(keep_bytes);
        self.trim_free(keep_bytes)?;
        let held_bytes = self.mapper.pool.held_bytes();
        Ok(Trimmed { released_bytes: before - held_bytes, held_bytes })
    }

    fn trim_idle(&mut self, keep_bytes: u64) {
        while self.mapper.pool.held_bytes() > keep_bytes {
            let Some(chunk) = self.mapper.pool.idle().last() else { break };
            let before = self.mapper.pool.held_bytes();
            self.release_idle(chunk);
            if self.mapper.pool.held_bytes() == before {
                break;
            }
        }
    }

    /// Releases completely free chunks of the regions until at most `keep_bytes` are held. Idle chunks stay.
    pub fn trim_free(&mut self, keep_bytes: u64) -> Result<(), DriverError> {
        self.progress().settle_pending()?;
        if self.wait_for_device()? {
            self.progress().settle_pending()?;
        }
        let claimed = self.claim_free(keep_bytes);
        for (number, source) in claimed.iter().enumerate() {
            let result = self.give_back(source);
            self.unclaim(source);
            // A chunk that cannot be waited for stays; the others go all the same.
            if let Err(error) = result {
                for source in &claimed[number + 1..] {
                    self.unclaim(source);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Claims free chunks, largest first, until at most `keep_bytes` would be held without them.
    fn claim_free(&self, keep_bytes: u64) -> Vec<Source> {
        if self.shared.geometry.keeps_mappings {
            return Vec::new();
        }
        let mut states = self.shared.streams.lock_all();
        let mut sources = free_chunks(&self.mapper, &states, None);
        sources.sort_by_key(|source| std::cmp::Reverse(source.pages.len()));
        let mut held = self.mapper.pool.held_bytes();
        sources.retain(|source| {
            let take = held > keep_bytes;
            if take {
                held -= source.pages.len().bytes(self.page_bytes());
            }
            take
        });
        claim_sources(&mut states, sources.iter());
        sources
    }
}
