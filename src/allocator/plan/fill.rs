//! Finding chunks for the pages of a placement: idle ones, new ones, free ones from elsewhere, in the order that keeps
//! both driver calls and pinned memory low.

use super::super::region::RegionKind;
use super::{Backing, Fill, Survey};
use crate::physical::ChunkId;
use crate::units::MIB;
use std::collections::BTreeMap;

/// Finds chunks for ranges of pages.
pub(super) struct Filler<'a> {
    survey: &'a Survey<'a>,
    /// Usable sources by what it takes to wait for them, then by pages; the next to take last.
    by_class: [BTreeMap<u32, Vec<usize>>; CLASSES],
    idle_used: Vec<ChunkId>,
    created: u64,
    released: u64,
    /// Sources that the placement takes.
    pub(super) taken: Vec<usize>,
    /// Of those, the ones that go back to the driver.
    pub(super) release: Vec<usize>,
}

/// Most pages that a region of small blocks grows by at a time.
const SMALL_AHEAD_PAGES: u32 = 4;
/// A chunk is at most this part of the request that it is created for,
const PARTS_OF_A_REQUEST: u64 = 4;
/// or this large.
const UNDIVIDED_BYTES: u64 = 104 * MIB;
/// Kinds of sources: nothing to wait for; a wait on the device.
const CLASSES: usize = 2;

impl<'a> Filler<'a> {
    pub(super) fn new(survey: &'a Survey<'a>, used: &[bool]) -> Self {
        let mut by_class: [BTreeMap<u32, Vec<usize>>; CLASSES] = Default::default();
        for (number, source) in survey.sources.iter().enumerate() {
            if !used[number] {
                let free_to_take =
                    source.stream == survey.request.stream || source.epoch <= survey.passed[source.stream.0 as usize];
                by_class[usize::from(!free_to_take)].entry(source.pages).or_default().push(number);
            }
        }
        Self {
            survey,
            by_class,
            idle_used: Vec::new(),
            created: 0,
            released: 0,
            taken: Vec::new(),
            release: Vec::new(),
        }
    }

    /// Fills `pages` pages from `page` on, and at most `spare` more behind them. Returns the page after the last.
    pub(super) fn fill(&mut self, mut page: u64, mut pages: u64, spare: u64, fill: &mut Vec<Fill>) -> Option<u64> {
        while pages > 0 {
            let (backing, got) = self.next(pages, spare)?;
            fill.push(Fill { page, pages: got, backing });
            page += u64::from(got);
            pages = pages.saturating_sub(u64::from(got));
        }
        Some(page)
    }

    fn next(&mut self, pages: u64, spare: u64) -> Option<(Backing, u32)> {
        self.idle(pages)
            .or_else(|| self.create_from_released(pages))
            .or_else(|| self.create(pages, spare, self.survey.allowance.soft_pages))
            .or_else(|| self.harvest(pages))
            .or_else(|| self.create_beyond_slack(pages, spare))
            .or_else(|| self.harvest_larger(pages, spare))
            .or_else(|| self.recreate(pages, Waiting::Allow))
    }

    fn idle(&mut self, pages: u64) -> Option<(Backing, u32)> {
        let pool = &self.survey.mapper.pool;
        let chunk = pool.idle_up_to(pages).find(|chunk| !self.idle_used.contains(chunk))?;
        self.idle_used.push(chunk);
        Some((Backing::Idle(chunk), pool.get(chunk).pages))
    }

    fn create(&mut self, pages: u64, spare: u64, allowed: u64) -> Option<(Backing, u32)> {
        let left = allowed.saturating_sub(self.created);
        if left == 0 {
            return None;
        }
        let room = self.survey.allowance.hard_pages.saturating_sub(self.created);
        let chunk = self.survey.mapper.sizes.next_chunk_pages(room);
        let request = &self.survey.request;
        let got = match request.kind {
            // Small blocks come in numbers: where there is room, map a little ahead of them.
            RegionKind::Small => {
                let ahead = (chunk / 8).clamp(1, SMALL_AHEAD_PAGES);
                ahead.min(clamp_pages((pages + spare).min(left)))
            }
            // A large block in several chunks pins less of them when a small one takes a part of its place.
            RegionKind::Large => {
                let part =
                    (request.size / PARTS_OF_A_REQUEST).max(UNDIVIDED_BYTES) / self.survey.mapper.pool.page_bytes();
                chunk.min(clamp_pages(part.max(1))).min(clamp_pages(pages.min(left)))
            }
        };
        self.created += u64::from(got);
        Some((Backing::Create, got))
    }

    /// The budget has room but slack has not: what is free is made to fit, if that needs no waiting, before more is held.
    fn create_beyond_slack(&mut self, pages: u64, spare: u64) -> Option<(Backing, u32)> {
        if self.survey.allowance.hard_pages <= self.created {
            return None;
        }
        self.harvest_larger(pages, spare)
            .or_else(|| self.recreate(pages, Waiting::Avoid))
            .or_else(|| self.create(pages, 0, self.survey.allowance.hard_pages))
    }

    /// While there is room, the largest chunks, since a move costs the same for any size. Once there is none, the
    /// smallest: the large ones are cut up instead, so that they cannot be pinned by small blocks later.
    fn harvest(&mut self, pages: u64) -> Option<(Backing, u32)> {
        let top = clamp_pages(pages);
        let tight = self.survey.allowance.hard_pages <= self.created;
        for class in 0..CLASSES {
            let of_class = &self.by_class[class];
            let found = if tight { of_class.range(..=top).next() } else { of_class.range(..=top).next_back() };
            let Some((&size, of_size)) = found else { continue };
            let next = *of_size.last().expect("empty lists are removed");
            if tight && size > self.smallest() && self.survey.can_go_back(&self.survey.sources[next]) {
                self.give_back(class, size);
                return self.create_from_released(pages);
            }
            return Some(self.take(class, size));
        }
        None
    }

    fn harvest_larger(&mut self, pages: u64, spare: u64) -> Option<(Backing, u32)> {
        let top = clamp_pages(pages + spare);
        let (class, size) =
            (0..CLASSES).find_map(|class| self.by_class[class].range(..=top).next().map(|(size, _)| (class, *size)))?;
        Some(self.take(class, size))
    }

    fn take(&mut self, class: usize, size: u32) -> (Backing, u32) {
        let source = self.pop(class, size);
        (Backing::Harvest(source), size)
    }

    /// Takes the source that comes last: from the largest free block, whose loss is felt least, and from its end.
    fn pop(&mut self, class: usize, size: u32) -> usize {
        let of_size = self.by_class[class].get_mut(&size).expect("just found");
        let source = of_size.pop().expect("empty lists are removed");
        if of_size.is_empty() {
            self.by_class[class].remove(&size);
        }
        self.taken.push(source);
        source
    }

    /// Gives the smallest free chunk that covers the shortage, or the largest there is, back to the driver, so that what
    /// is needed can be created in its place.
    fn recreate(&mut self, pages: u64, waiting: Waiting) -> Option<(Backing, u32)> {
        if waiting == Waiting::Allow && !self.survey.allowance.recreate {
            return None;
        }
        let short = clamp_pages(pages);
        let (class, size) = (0..CLASSES)
            .find_map(|class| self.by_class[class].range(short..).next().map(|(size, _)| (class, *size)))
            .or_else(|| {
                (0..CLASSES).find_map(|class| self.by_class[class].keys().next_back().map(|size| (class, *size)))
            })?;
        let next = *self.by_class[class][&size].last().expect("empty lists are removed");
        if waiting == Waiting::Avoid && !self.survey.can_go_back(&self.survey.sources[next]) {
            return None;
        }
        self.give_back(class, size);
        self.create_from_released(pages)
    }

    fn give_back(&mut self, class: usize, size: u32) {
        let source = self.pop(class, size);
        self.release.push(source);
        self.released += u64::from(size);
    }

    fn create_from_released(&mut self, pages: u64) -> Option<(Backing, u32)> {
        if self.released == 0 {
            return None;
        }
        let got = self.smallest().min(clamp_pages(pages.min(self.released)));
        self.released -= u64::from(got);
        Some((Backing::Create, got))
    }

    /// Pages of the chunks that are made when there is no room left.
    fn smallest(&self) -> u32 {
        self.survey.mapper.sizes.next_chunk_pages(0)
    }
}

/// Whether the host may wait for a stream to get memory back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Avoid,
    Allow,
}

fn clamp_pages(pages: u64) -> u32 {
    u32::try_from(pages).unwrap_or(u32::MAX)
}
