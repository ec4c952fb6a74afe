//! Trimming: every completely free chunk can go back to the driver, also beside live blocks.

use super::super::error::AllocError;
use super::super::streams::directory::{Owner, Place};
use super::SlowPath;
use super::plan::Source;
use crate::driver::{Driver, DriverError};
use crate::pages::PageRange;
use crate::physical::{Chunk, ChunkId};
use crate::segment::Segment;
use std::cmp::Reverse;

/// The result of [`Allocator::trim`](crate::Allocator::trim).
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
        let before = self.mapper.chunks().held_bytes();
        if before > keep_bytes {
            self.settle_failures()?;
        }
        self.trim_idle(keep_bytes);
        self.trim_free(keep_bytes)?;
        let more_has_to_go = self.mapper.chunks().held_bytes() > keep_bytes && self.rules().may_unmap();
        if more_has_to_go && self.progress().wait_for_all_pending()? {
            self.trim_free(keep_bytes)?;
        }
        let held_bytes = self.mapper.chunks().held_bytes();
        Ok(Trimmed { released_bytes: before - held_bytes, held_bytes })
    }

    pub fn trim_idle(&mut self, keep_bytes: u64) {
        while self.mapper.chunks().held_bytes() > keep_bytes {
            let Some(chunk) = self.mapper.chunks().largest_idle() else { break };
            let before = self.mapper.chunks().held_bytes();
            self.release_idle(chunk);
            if self.mapper.chunks().held_bytes() == before {
                break;
            }
        }
    }

    /// Releases completely free chunks of the regions until at most `keep_bytes` are held. Idle chunks stay.
    pub fn trim_free(&mut self, keep_bytes: u64) -> Result<(), DriverError> {
        self.settle_pending()?;
        if self.wait_for_device()? {
            self.settle_pending()?;
        }
        if !self.rules().may_unmap() {
            return Ok(());
        }
        let candidates = self.mapped_chunks();
        let mut candidates = candidates.as_slice();
        while !candidates.is_empty() && self.mapper.chunks().held_bytes() > keep_bytes {
            let (claimed, looked_at) = self.claim_some(candidates, keep_bytes);
            candidates = &candidates[looked_at..];
            self.give_back_all(&claimed)?;
        }
        Ok(())
    }

    /// Releases claimed chunks. One that cannot be waited for stays.
    ///
    /// # Errors
    /// The driver's; the rest stays then, too.
    fn give_back_all(&mut self, claimed: &[Source]) -> Result<(), DriverError> {
        for (number, source) in claimed.iter().enumerate() {
            let result = self.give_back(source);
            self.unclaim(source);
            if let Err(error) = result {
                for source in &claimed[number + 1..] {
                    self.unclaim(source);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// The chunks that are mapped in regions, the largest first; those of one region together.
    fn mapped_chunks(&self) -> Vec<Source> {
        let owners: Vec<Option<Owner>> = self.mapper.segments().iter().map(|segment| self.owner_of(segment)).collect();
        let candidate = |(chunk, facts): (ChunkId, &Chunk)| {
            let at = facts.active?;
            let owner = owners[at.segment as usize]?;
            let pages = PageRange::new(at.page, facts.pages);
            let Owner { stream, region } = owner;
            (!self.mapper.chunks().is_barred(chunk)).then_some(Source { chunk, stream, region, pages, epoch: 0 })
        };
        let mut found: Vec<Source> = self.mapper.chunks().iter().filter_map(candidate).collect();
        found.sort_unstable_by_key(|it| (Reverse(it.pages.len()), it.place()));
        found
    }

    /// The region over a segment; none for that of a growable range.
    pub fn owner_of(&self, segment: &Segment) -> Option<Owner> {
        match self.shared.directory.find(segment.base) {
            Place::Region(owner, _) => Some(owner),
            Place::Unused | Place::Foreign => None,
        }
    }

    /// Claims those of the first candidates that are completely free, as long as more than `keep_bytes` would be held without
    /// them. Looks at no more than [`BATCH`] of one region, since its stream waits meanwhile. Returns how many it looked at.
    fn claim_some(&self, candidates: &[Source], keep_bytes: u64) -> (Vec<Source>, usize) {
        let Some(first) = candidates.first() else { return (Vec::new(), 0) };
        let in_region = |it: &&Source| (it.stream, it.region) == (first.stream, first.region);
        let of_region = candidates.iter().take(BATCH).take_while(in_region);
        let mut held = self.mapper.chunks().held_bytes();
        let mut state = self.shared.streams.get(first.stream).lock();
        let (mut claimed, mut looked_at) = (Vec::new(), 0);
        for candidate in of_region {
            if held <= keep_bytes {
                break;
            }
            looked_at += 1;
            if let Some(source) = candidate.claim(&mut state) {
                held -= source.pages.len().bytes(self.page_bytes());
                claimed.push(source);
            }
        }
        (claimed, looked_at)
    }
}

/// Most chunks that are looked at and claimed while their stream's state is locked.
const BATCH: usize = 32;

#[cfg(test)]
mod tests {
    use crate::allocator::Allocator;
    use crate::driver::{DriverCall, ModelConfig, ModelDriver, WorkDriver};
    use crate::physical::ChunkPolicy;
    use crate::testing::{busy, steps_of};
    use crate::units::StreamId;
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    fn allocator(pages: u64) -> Allocator<ModelDriver> {
        let config = ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() };
        let builder = Allocator::builder(Arc::new(ModelDriver::new(config)));
        builder.chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap()
    }

    /// Steps in the heap for each of `chunks`, to release them out of one free block.
    fn steps_of_trim(chunks: u64) -> u64 {
        let allocator = allocator(chunks);
        let block = allocator.alloc_raw(chunks * PAGE, MAIN).unwrap();
        allocator.free(block).unwrap();
        let steps = steps_of(|| assert_eq!(allocator.trim(0).unwrap().released_bytes, chunks * PAGE));
        allocator.check();
        steps / chunks
    }

    /// Steps in the heap for each of `chunks`, to gather them out of one free block and from between live ones.
    fn steps_of_growth(chunks: u64) -> u64 {
        let allocator = allocator(3 * chunks);
        let blocks: Vec<_> = (0..chunks).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
        let block = allocator.alloc_raw(chunks * PAGE, MAIN).unwrap();
        let last = allocator.alloc_raw(chunks * PAGE, MAIN).unwrap();
        allocator.free(block).unwrap();
        blocks.iter().step_by(2).for_each(|block| allocator.free(*block).unwrap());
        let steps = steps_of(|| {
            allocator.alloc_raw((chunks + chunks / 2) * PAGE, MAIN).unwrap();
        });
        allocator.check();
        allocator.free(last).unwrap();
        steps / chunks
    }

    /// Idle chunks go until no more is held than is to be kept, and no further.
    #[test]
    fn a_trim_keeps_what_it_is_told_to() {
        let allocator = allocator(4);
        let mut range = allocator.reserve_range(4 * PAGE).unwrap();
        range.grow(4 * PAGE, MAIN).unwrap();
        drop(range);
        for (keep, released) in [(4, 0), (2, 2), (1, 1)] {
            let trimmed = allocator.trim(keep * PAGE).unwrap();
            assert_eq!((trimmed.released_bytes, trimmed.held_bytes), (released * PAGE, keep * PAGE));
            allocator.check();
        }
    }

    /// Of 64 free pages a trim takes those that it is to release, 32 at a time. The others can be allocated meanwhile.
    #[test]
    fn a_trim_takes_no_more_at_a_time_than_it_has_to() {
        for (keep, taken) in [(0, 32), (24, 32), (60, 4), (63, 1)] {
            let driver = busy(&Arc::default());
            let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
            let allocator = builder.build().unwrap();
            let block = allocator.alloc_raw(64 * PAGE, MAIN).unwrap();
            allocator.free(block).unwrap();
            // What others could allocate at once when the first chunk is unmapped.
            let (others, cached_bytes) = (allocator.clone(), Arc::new(OnceLock::new()));
            let noted = Arc::clone(&cached_bytes);
            driver.meanwhile(move |call| {
                if call == Some(DriverCall::Unmap) {
                    noted.get_or_init(|| others.stats().cached_bytes);
                }
                Ok(())
            });
            assert_eq!(allocator.trim(keep * PAGE).unwrap().held_bytes, keep * PAGE);
            assert_eq!(cached_bytes.get(), Some(&((64 - taken) * PAGE)), "{keep} pages are kept");
            allocator.check();
        }
    }

    /// Blocks that were freed while other streams still used them, one of them two after each other, are waited for where they
    /// have to go, and only there.
    #[test]
    fn a_trim_waits_for_blocks_that_other_streams_use() {
        let allocator = allocator(8);
        let driver = allocator.driver();
        let streams = [(); 2].map(|()| {
            let stream = driver.create_stream().unwrap();
            allocator.keep_stream(stream).unwrap();
            stream
        });
        let blocks = [2, 3, 1].map(|pages| allocator.alloc_raw(pages * PAGE, MAIN).unwrap());
        for (block, users) in blocks.iter().zip([&streams[..], &streams[1..], &[]]) {
            for user in users {
                driver.delay(*user, Duration::from_millis(10)).unwrap();
                allocator.record_stream(*block, *user).unwrap();
            }
        }
        blocks.iter().for_each(|block| allocator.free(*block).unwrap());
        assert_eq!(allocator.trim(5 * PAGE).unwrap().held_bytes, 5 * PAGE);
        assert_eq!(allocator.stats().pending_bytes, 5 * PAGE);
        assert_eq!(allocator.trim(0).unwrap().held_bytes, 0);
        assert_eq!(allocator.stats().pending_bytes, 0);
        allocator.check();
    }

    #[test]
    fn the_cost_of_a_chunk_does_not_grow_with_their_number() {
        for steps in [steps_of_trim, steps_of_growth] {
            let (few, many) = (steps(64), steps(2048));
            assert!(few > 0 && many <= few + few / 2, "{few} steps a chunk of 64, {many} of 2048");
        }
    }
}
