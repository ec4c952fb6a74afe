//! The chunks that anybody may take, by their number of pages.
//!
//! Taking one out moves the last one of its size into its place, so that both are O(log sizes).

use super::ChunkId;
use crate::pages::PageCount;
use std::collections::BTreeMap;

/// Which idle chunks are taken while they stay in the pool: of each size, so many from the first one on. Chunks that become
/// idle meanwhile come behind them; none of those that are taken may leave the pool.
#[derive(Debug, Default)]
pub struct IdleTaken(BTreeMap<PageCount, usize>);

impl IdleTaken {
    /// Takes the first chunk of that size which is not taken.
    pub fn take(&mut self, pages: PageCount) {
        *self.0.entry(pages).or_default() += 1;
    }

    fn of_size(&self, pages: PageCount) -> usize {
        self.0.get(&pages).copied().unwrap_or(0)
    }
}

/// The idle chunks of a pool.
#[derive(Debug)]
pub struct IdleChunks {
    by_pages: BTreeMap<PageCount, Vec<ChunkId>>,
    pages: PageCount,
}

impl IdleChunks {
    pub fn new() -> Self {
        Self { by_pages: BTreeMap::new(), pages: PageCount::ZERO }
    }

    /// Adds a chunk of so many pages. Returns its place among those of its size.
    pub fn add(&mut self, id: ChunkId, pages: PageCount) -> u32 {
        let of_size = self.by_pages.entry(pages).or_default();
        let at = u32::try_from(of_size.len()).expect("fewer than 2^32 chunks");
        of_size.push(id);
        self.pages += pages;
        at
    }

    /// Removes the chunk at a place among those of its size. Returns the one that has its place from then on, if there is one.
    pub fn remove(&mut self, at: u32, pages: PageCount) -> Option<ChunkId> {
        let of_size = self.by_pages.get_mut(&pages).expect("I1: an idle chunk is listed");
        of_size.swap_remove(at as usize);
        let moved = of_size.get(at as usize).copied();
        if of_size.is_empty() {
            self.by_pages.remove(&pages);
        }
        self.pages -= pages;
        moved
    }

    /// Pages of all of them.
    pub fn pages(&self) -> PageCount {
        self.pages
    }

    /// The chunk at a place among those of its size.
    pub fn at(&self, at: u32, pages: PageCount) -> Option<ChunkId> {
        self.by_pages.get(&pages)?.get(at as usize).copied()
    }

    /// The largest chunk of at most `pages` pages that is not taken, and its pages.
    pub fn up_to(&self, pages: PageCount, taken: &IdleTaken) -> Option<(ChunkId, PageCount)> {
        let first = |(size, ids): (&PageCount, &Vec<ChunkId>)| {
            #[cfg(test)]
            crate::testing::step();
            Some((*ids.get(taken.of_size(*size))?, *size))
        };
        self.by_pages.range(..=pages).rev().find_map(first)
    }

    /// The largest chunk.
    pub fn largest(&self) -> Option<ChunkId> {
        self.by_pages.values().next_back()?.last().copied()
    }

    /// The chunks of each number of pages, in ascending order.
    pub fn by_pages(&self) -> impl Iterator<Item = (PageCount, &[ChunkId])> {
        self.by_pages.iter().map(|(pages, ids)| (*pages, ids.as_slice()))
    }
}
