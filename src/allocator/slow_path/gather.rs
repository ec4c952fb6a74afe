//! Chunks for growable ranges, registered blocks and what wakes whole: idle ones, new ones, and free ones of the regions once the
//! budget or the device has no more.

use super::super::error::AllocError;
use super::super::request::Request;
use super::SlowPath;
use super::plan::{Source, States, claim_free, free_chunks};
use crate::driver::{Driver, DriverError, DriverErrorKind};
use crate::pages::PageCount;
use crate::physical::{ChunkId, IdleTaken};
use crate::segment::ViewState;
use crate::stream::StreamIndex;
use std::collections::HashSet;

impl<D: Driver> SlowPath<'_, D> {
    /// Finds chunks of exactly `pages` pages in all: idle ones, then new ones; where the budget or the device has no more,
    /// free ones of the regions that fit, then new ones in the place of free ones that do not.
    pub fn gather(&mut self, pages: PageCount, requested: u64, user: StreamIndex) -> Result<Vec<ChunkId>, AllocError> {
        let (mut chunks, mut left) = (Vec::new(), pages);
        let mut taken = IdleTaken::default();
        let mut looked = false;
        loop {
            let refused = self.take_and_create(&mut left, &mut chunks, &mut taken)?;
            if left == PageCount::ZERO {
                return Ok(chunks);
            }
            if !self.finds_more(left, &chunks, &mut looked)? {
                let request = Request::new(requested, pages.bytes(self.page_bytes()), 1);
                return Err(self.out_of_memory(&request, user, refused.as_ref()));
            }
        }
    }

    /// An idle chunk of exactly `pages` pages that is not in `taken`, or a new one. Else the driver's answer, where it was asked.
    pub fn chunk_of(
        &mut self,
        pages: PageCount,
        taken: &IdleTaken,
    ) -> Result<Result<ChunkId, Option<DriverError>>, DriverError> {
        let idle = self.mapper.chunks().idle_up_to(pages, taken).filter(|(_, size)| *size == pages);
        if let Some((idle, _)) = idle {
            return Ok(Ok(idle));
        }
        if self.mapper.chunks().headroom_pages() < pages {
            return Ok(Err(None));
        }
        match self.create(pages) {
            Ok(chunk) => Ok(Ok(chunk)),
            Err(error) if error.kind == DriverErrorKind::OutOfMemory => Ok(Err(Some(error))),
            Err(error) => Err(error),
        }
    }

    /// Looks for memory beside what is idle and what may be created, for `left` pages more than `chunks` have. Returns false when
    /// there is none. `looked` says whether the device has been asked.
    pub fn finds_more(&mut self, left: PageCount, chunks: &[ChunkId], looked: &mut bool) -> Result<bool, AllocError> {
        Ok(self.settle_pending()?
            || (!std::mem::replace(looked, true) && self.finds_more_on_device())
            || self.make_idle(left)?
            || self.release_some(left, chunks)?
            || self.progress().wait_for_pending()?
            || self.wait_for_device()?
            || self.settle_failures()?)
    }

    /// Whether the device, where that is the budget, allows more to be created than when it was last asked.
    pub fn finds_more_on_device(&mut self) -> bool {
        let before = self.mapper.chunks().headroom_pages();
        self.shared.follows_device() && self.look_at_device().is_some_and(|now| now > before)
    }

    /// Takes idle chunks and creates new ones, for up to `left` pages. Returns the driver's answer when it had no more.
    fn take_and_create(
        &mut self,
        left: &mut PageCount,
        chunks: &mut Vec<ChunkId>,
        taken: &mut IdleTaken,
    ) -> Result<Option<DriverError>, DriverError> {
        // Each idle chunk is the largest that fits: none is left that is larger and still fits.
        let mut largest = *left;
        while *left > PageCount::ZERO {
            let chunk = match self.mapper.chunks().idle_up_to(largest.min(*left), taken) {
                Some((idle, pages)) => {
                    largest = pages;
                    idle
                }
                None => {
                    let headroom = self.mapper.chunks().headroom();
                    if headroom.pages == PageCount::ZERO {
                        break;
                    }
                    match self.create(self.mapper.sizes().for_range(headroom, *left)) {
                        Ok(chunk) => chunk,
                        Err(error) if error.kind == DriverErrorKind::OutOfMemory => return Ok(Some(error)),
                        Err(error) => return Err(error),
                    }
                }
            };
            let pages = self.mapper.chunks().get(chunk).pages;
            // A new chunk is idle, too, and behind all that are taken: no other of its size is left.
            taken.take(pages);
            *left -= pages;
            chunks.push(chunk);
        }
        Ok(None)
    }

    /// Makes free chunks of the regions idle, of up to `left` pages in all. Returns false when there is none left to try.
    fn make_idle(&mut self, left: PageCount) -> Result<bool, DriverError> {
        let claimed = self.claim_up_to(left);
        let mut outcome = Ok(());
        for source in &claimed {
            if outcome.is_ok() {
                outcome = self.take_out(source);
            }
            self.unclaim(source);
        }
        outcome.map(|()| !claimed.is_empty())
    }

    /// Claims free chunks of up to `left` pages in all, largest first. That there is none is said only of all streams at one
    /// moment.
    fn claim_up_to(&self, left: PageCount) -> Vec<Source> {
        if !self.rules().may_unmap() {
            return Vec::new();
        }
        let claimed = self.claim_up_to_in(&mut self.states(), left);
        if !claimed.is_empty() {
            return claimed;
        }
        self.claim_up_to_in(&mut States::together(&self.shared.streams), left)
    }

    fn claim_up_to_in(&self, states: &mut States<'_, D>, mut left: PageCount) -> Vec<Source> {
        let mut sources = free_chunks(&self.mapper, states).list;
        sources.sort_by_key(|source| std::cmp::Reverse(source.pages.len()));
        sources.retain(|source| {
            let take = source.pages.len() <= left;
            if take {
                left -= source.pages.len();
            }
            take
        });
        claim_free(states, sources)
    }

    /// Makes a claimed free chunk idle, or bars it when a stream that used it cannot be waited for, or a listener refuses.
    fn take_out(&mut self, source: &Source) -> Result<(), DriverError> {
        let progress = self.progress();
        let mut passed = progress.wait_until_passed(source.stream, source.epoch)?;
        for at in self.mapper.chunks().get(source.chunk).stale.clone() {
            if let ViewState::Stale(fence) = self.mapper.view(at).state {
                passed = passed && progress.wait_until_passed(fence.stream, fence.epoch)?;
            }
        }
        if !passed {
            self.mapper.bar(source.chunk);
            return Ok(());
        }
        for at in self.mapper.views_of(source.chunk).into_iter().rev() {
            if !self.unmap_unless_refused(at)? {
                self.mapper.bar(source.chunk);
                break;
            }
        }
        Ok(())
    }

    /// Releases idle chunks that are too large, and free ones, so that `left` pages may be created. Those that are `taken` are
    /// idle, too, and stay. Returns false when none went.
    pub fn release_some(&mut self, left: PageCount, taken: &[ChunkId]) -> Result<bool, DriverError> {
        let held = self.mapper.chunks().held_pages();
        let keep = held.min(self.mapper.chunks().budget_pages()).saturating_sub(left);
        let taken: HashSet<ChunkId> = taken.iter().copied().collect();
        let too_large: Vec<ChunkId> = self.mapper.chunks().idle().filter(|chunk| !taken.contains(chunk)).collect();
        for chunk in too_large {
            if self.mapper.chunks().held_pages() > keep {
                self.release_idle(chunk);
            }
        }
        self.trim_free(keep.bytes(self.page_bytes()))?;
        Ok(self.mapper.chunks().held_pages() < held)
    }
}
