//! Physical memory: every chunk the allocator holds, and how much it may hold.
//!
//! - I1  `held_pages` is the sum of the chunks' pages; a chunk is listed as idle exactly when nothing maps it.
//! - I2  `held_bytes <= budget` whenever a chunk is about to be created (a budget lowered later is met by trimming).
//!
//! Threads: none; the owner locks. Nothing here calls the driver or knows an address: views are opaque to it.

mod policy;

pub use policy::{ChunkPolicy, ChunkSizes};

use crate::driver::ChunkHandle;
use std::collections::BTreeMap;

/// A chunk's place in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u32);

/// Where a chunk is mapped: a segment, and the first page of the mapping there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewAt {
    /// Number of the segment.
    pub segment: u32,
    /// First page in it.
    pub page: u64,
}

/// One physical handle: some pages, always mapped whole, at any number of places of which at most one is *active*: the
/// one that its bytes are handed out through. The others are stale views, kept because the next turn of the work may
/// want them again.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The driver's handle.
    pub handle: ChunkHandle,
    /// Pages.
    pub pages: u32,
    /// The view that blocks live in.
    pub active: Option<ViewAt>,
    /// The other views.
    pub stale: Vec<ViewAt>,
    /// Held by a caller of the lower layer, outside the heaps.
    pub lent_out: bool,
}

/// All chunks of one allocator.
#[derive(Debug)]
pub struct ChunkPool {
    chunks: Vec<Option<Chunk>>,
    vacant: Vec<u32>,
    idle: BTreeMap<u32, Vec<ChunkId>>,
    page_bytes: u64,
    held_pages: u64,
    peak_held_pages: u64,
    idle_pages: u64,
    budget_pages: u64,
    barred: Vec<ChunkId>,
}

impl ChunkPool {
    /// An empty pool that may hold `budget_bytes`, in whole pages.
    pub fn new(page_bytes: u64, budget_bytes: u64) -> Self {
        Self {
            chunks: Vec::new(),
            vacant: Vec::new(),
            idle: BTreeMap::new(),
            page_bytes,
            held_pages: 0,
            peak_held_pages: 0,
            idle_pages: 0,
            budget_pages: budget_bytes / page_bytes,
            barred: Vec::new(),
        }
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Pages that may be held.
    pub fn budget_pages(&self) -> u64 {
        self.budget_pages
    }

    /// Changes the budget. What is held above it stays until it is given back.
    pub fn set_budget(&mut self, bytes: u64) {
        self.budget_pages = bytes / self.page_bytes;
    }

    /// Pages held.
    pub fn held_pages(&self) -> u64 {
        self.held_pages
    }

    /// Bytes held.
    pub fn held_bytes(&self) -> u64 {
        self.held_pages * self.page_bytes
    }

    /// Most bytes ever held.
    pub fn peak_held_bytes(&self) -> u64 {
        self.peak_held_pages * self.page_bytes
    }

    /// Makes the present the peak.
    pub fn reset_peak(&mut self) {
        self.peak_held_pages = self.held_pages;
    }

    /// Bytes of chunks that nothing maps.
    pub fn idle_bytes(&self) -> u64 {
        self.idle_pages * self.page_bytes
    }

    /// Bytes of chunks that callers of the lower layer have. O(chunks).
    pub fn lent_out_bytes(&self) -> u64 {
        let pages = self.iter().filter(|(_, chunk)| chunk.lent_out).map(|(_, chunk)| u64::from(chunk.pages));
        pages.sum::<u64>() * self.page_bytes
    }

    /// Pages that the budget still allows.
    pub fn headroom_pages(&self) -> u64 {
        self.budget_pages.saturating_sub(self.held_pages)
    }

    /// Number of chunks.
    #[allow(clippy::len_without_is_empty, reason = "a count among others, not a collection's length")]
    pub fn len(&self) -> usize {
        self.chunks.len() - self.vacant.len()
    }

    /// One more than the highest number that a chunk has.
    pub fn id_bound(&self) -> usize {
        self.chunks.len()
    }

    /// Takes in a chunk just created; it is idle.
    pub fn add(&mut self, handle: ChunkHandle, pages: u32) -> ChunkId {
        let chunk = Chunk { handle, pages, active: None, stale: Vec::new(), lent_out: false };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.chunks[id as usize] = Some(chunk);
                ChunkId(id)
            }
            None => {
                self.chunks.push(Some(chunk));
                ChunkId(u32::try_from(self.chunks.len() - 1).expect("fewer than 2^32 chunks"))
            }
        };
        self.held_pages += u64::from(pages);
        self.peak_held_pages = self.peak_held_pages.max(self.held_pages);
        self.set_idle(id, true);
        id
    }

    /// Forgets an idle chunk, before its handle goes back to the driver.
    pub fn remove(&mut self, id: ChunkId) -> Chunk {
        self.set_idle(id, false);
        let chunk = self.chunks[id.0 as usize].take().expect("a chunk id comes from this pool");
        debug_assert!(chunk.active.is_none() && chunk.stale.is_empty());
        self.vacant.push(id.0);
        self.held_pages -= u64::from(chunk.pages);
        chunk
    }

    /// The chunk.
    pub fn get(&self, id: ChunkId) -> &Chunk {
        self.chunks[id.0 as usize].as_ref().expect("a chunk id comes from this pool")
    }

    fn get_mut(&mut self, id: ChunkId) -> &mut Chunk {
        self.chunks[id.0 as usize].as_mut().expect("a chunk id comes from this pool")
    }

    /// Makes `view` the active one; the one that was becomes stale. `view` may be new or one of the stale ones.
    pub fn activate(&mut self, id: ChunkId, view: ViewAt) {
        if self.is_idle(id) {
            self.set_idle(id, false);
        }
        let chunk = self.get_mut(id);
        chunk.stale.retain(|stale| *stale != view);
        if let Some(before) = chunk.active.replace(view) {
            chunk.stale.push(before);
        }
    }

    /// Notes a further view that is not active.
    pub fn add_stale(&mut self, id: ChunkId, view: ViewAt) {
        if self.is_idle(id) {
            self.set_idle(id, false);
        }
        self.get_mut(id).stale.push(view);
    }

    /// Forgets `view`, which has been unmapped. The chunk is idle when it was the last one.
    pub fn drop_view(&mut self, id: ChunkId, view: ViewAt) {
        let chunk = self.get_mut(id);
        if chunk.active == Some(view) {
            chunk.active = None;
        } else {
            chunk.stale.retain(|stale| *stale != view);
        }
        if self.is_idle(id) {
            self.set_idle(id, true);
        }
    }

    /// Notes that the chunk cannot be moved now: it is passed over until [`lift_bars`](Self::lift_bars).
    pub fn bar(&mut self, id: ChunkId) {
        self.barred.push(id);
    }

    /// Whether the chunk was found not to be movable in this search.
    pub fn is_barred(&self, id: ChunkId) -> bool {
        self.barred.contains(&id)
    }

    /// The end of a search: what could not be moved is worth another try.
    pub fn lift_bars(&mut self) {
        self.barred.clear();
    }

    /// Lends the chunk to a caller of the lower layer, or takes it back.
    pub fn set_lent_out(&mut self, id: ChunkId, lent_out: bool) {
        self.get_mut(id).lent_out = lent_out;
    }

    fn is_idle(&self, id: ChunkId) -> bool {
        let chunk = self.get(id);
        chunk.active.is_none() && chunk.stale.is_empty()
    }

    fn set_idle(&mut self, id: ChunkId, idle: bool) {
        let pages = self.get(id).pages;
        let of_size = self.idle.entry(pages).or_default();
        if idle {
            of_size.push(id);
            self.idle_pages += u64::from(pages);
        } else {
            of_size.retain(|other| *other != id);
            self.idle_pages -= u64::from(pages);
        }
        if self.idle[&pages].is_empty() {
            self.idle.remove(&pages);
        }
    }

    /// Idle chunks of at most `pages`, largest first.
    pub fn idle_up_to(&self, pages: u64) -> impl Iterator<Item = ChunkId> {
        let top = u32::try_from(pages).unwrap_or(u32::MAX);
        self.idle.range(..=top).rev().flat_map(|(_, ids)| ids.iter().copied())
    }

    /// All idle chunks.
    pub fn idle(&self) -> impl Iterator<Item = ChunkId> {
        self.idle.values().flatten().copied()
    }

    /// All chunks.
    pub fn iter(&self) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        self.chunks.iter().enumerate().filter_map(|(id, chunk)| {
            chunk.as_ref().map(|chunk| (ChunkId(u32::try_from(id).expect("ids are 32 bits")), chunk))
        })
    }

    /// Bytes of host memory behind the pool.
    pub fn metadata_bytes(&self) -> u64 {
        let views: usize = self.iter().map(|(_, chunk)| chunk.stale.capacity() * size_of::<ViewAt>()).sum();
        (self.chunks.capacity() * size_of::<Option<Chunk>>() + views) as u64
    }

    /// Asserts I1.
    ///
    /// # Panics
    /// When it does not hold.
    pub fn check(&self) {
        let pages: u64 = self.iter().map(|(_, chunk)| u64::from(chunk.pages)).sum();
        assert_eq!(pages, self.held_pages, "I1: pages held");
        let idle: u64 = self.idle().map(|id| u64::from(self.get(id).pages)).sum();
        assert_eq!(idle, self.idle_pages, "I1: idle pages");
        for (id, chunk) in self.iter() {
            let listed = self.idle.get(&chunk.pages).is_some_and(|ids| ids.contains(&id));
            assert_eq!(listed, self.is_idle(id), "I1: chunk {id:?} is listed wrongly");
            assert!(chunk.active.is_none_or(|active| !chunk.stale.contains(&active)), "I1: {id:?} twice in a place");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_idle_without_views() {
        let mut pool = ChunkPool::new(1 << 21, 10 << 21);
        let id = pool.add(ChunkHandle(1), 4);
        assert_eq!((pool.held_pages(), pool.headroom_pages(), pool.idle_bytes()), (4, 6, 4 << 21));
        let (here, there) = (ViewAt { segment: 0, page: 0 }, ViewAt { segment: 1, page: 9 });
        pool.activate(id, here);
        pool.activate(id, there);
        pool.check();
        assert_eq!(pool.get(id).stale, [here]);
        pool.activate(id, here);
        assert_eq!((pool.get(id).active, pool.idle_bytes()), (Some(here), 0));
        pool.drop_view(id, here);
        pool.check();
        assert_eq!(pool.idle_bytes(), 0, "a stale view still maps it");
        pool.drop_view(id, there);
        pool.check();
        assert_eq!(pool.idle_up_to(3).count(), 0);
        assert_eq!(pool.idle_up_to(4).collect::<Vec<_>>(), [id]);
        pool.remove(id);
        pool.check();
        assert_eq!(pool.len(), 0);
    }
}
