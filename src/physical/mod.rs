//! Physical memory: the chunks that the allocator holds, and the budget that limits them.
//!
//! - I1  `held_pages` is the sum of the chunks' pages; a chunk is listed as idle exactly when it is neither mapped nor
//!   withheld.
//! - I2  what is counted of chunks and views is what there is.
//! - I3  the budget allows every chunk at the time it is created; after the budget is lowered, trimming reaches it.
//!
//! Threads: not synchronized; the owner holds a lock. Nothing here calls the driver or interprets addresses: views are
//! only stored and compared.

mod idle;
mod policy;

pub use idle::IdleTaken;
pub use policy::{ChunkPolicy, ChunkSizes, Headroom, Wanted};

use crate::driver::ChunkHandle;
use crate::pages::{PageCount, PageIndex};
use idle::IdleChunks;
use std::collections::{BTreeMap, HashSet};

/// Number of a chunk in its pool. Reused after the chunk is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u32);

/// Where a chunk is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewAt {
    /// Number of the segment.
    pub segment: u32,
    /// The mapping's first page in the segment.
    pub page: PageIndex,
}

/// The owner of a chunk that does not belong to the heaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LentTo {
    /// A growable range.
    Range,
    /// A registered block.
    RegisteredBlock,
}

/// One allocation of physical memory. It is always mapped as a whole, at any number of places. At most one of these
/// views is *active*: the one through which the chunk's bytes are allocated. The others are stale views, kept because
/// the program's next iteration may use them again.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The driver's handle for the memory.
    pub handle: ChunkHandle,
    /// Number of pages in the chunk.
    pub pages: PageCount,
    /// The view through which the chunk's bytes are allocated.
    pub active: Option<ViewAt>,
    /// The stale views.
    pub stale: Vec<ViewAt>,
    /// The owner of the chunk, where that is not the heaps.
    pub lent_out: Option<LentTo>,
    /// Whether nobody may take it, although it is not mapped.
    withheld: bool,
    /// Its place in the list of idle chunks of its size.
    idle_at: Option<u32>,
}

impl Chunk {
    /// Removes a stale view from the list: cheapest for the one that became stale last. Returns whether it was there.
    fn remove_stale(&mut self, view: ViewAt) -> bool {
        let at = self.stale.iter().rposition(|stale| *stale == view);
        at.map(|at| self.stale.remove(at)).is_some()
    }

    /// Adds a stale view to the list. Returns by how many entries that made it longer in memory.
    fn push_stale(&mut self, view: ViewAt) -> usize {
        let before = self.stale.capacity();
        self.stale.push(view);
        self.stale.capacity() - before
    }
}

/// The chunks of one allocator, and its budget.
#[derive(Debug)]
pub struct ChunkPool {
    chunks: Vec<Option<Chunk>>,
    vacant: Vec<u32>,
    /// Number of chunks of each size.
    by_pages: BTreeMap<PageCount, usize>,
    idle: IdleChunks,
    page_bytes: u64,
    held_pages: PageCount,
    peak_held_pages: PageCount,
    created_pages: PageCount,
    created_chunks: u64,
    peak_len: usize,
    range_pages: PageCount,
    registered_pages: PageCount,
    withheld_pages: PageCount,
    budget_pages: PageCount,
    /// Number of views, active and stale.
    views: usize,
    /// Number of those that are stale.
    stale_views: usize,
    /// Number of entries that the chunks' lists of stale views have memory for.
    stale_capacity: usize,
    barred: HashSet<ChunkId>,
}

impl ChunkPool {
    /// Creates an empty pool with a budget of `budget_bytes`, rounded down to whole pages of `page_bytes`.
    pub fn new(page_bytes: u64, budget_bytes: u64) -> Self {
        Self {
            chunks: Vec::new(),
            vacant: Vec::new(),
            by_pages: BTreeMap::new(),
            idle: IdleChunks::new(),
            page_bytes,
            held_pages: PageCount::ZERO,
            peak_held_pages: PageCount::ZERO,
            created_pages: PageCount::ZERO,
            created_chunks: 0,
            peak_len: 0,
            range_pages: PageCount::ZERO,
            registered_pages: PageCount::ZERO,
            withheld_pages: PageCount::ZERO,
            budget_pages: PageCount::within(budget_bytes, page_bytes),
            views: 0,
            stale_views: 0,
            stale_capacity: 0,
            barred: HashSet::new(),
        }
    }

    /// Returns the size of a page in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Returns the budget in pages.
    pub fn budget_pages(&self) -> PageCount {
        self.budget_pages
    }

    /// Changes the budget to `bytes`, rounded down to whole pages. Chunks above it stay until the owner removes them.
    pub fn set_budget(&mut self, bytes: u64) {
        self.budget_pages = PageCount::within(bytes, self.page_bytes);
    }

    /// Returns the number of pages in all chunks.
    pub fn held_pages(&self) -> PageCount {
        self.held_pages
    }

    /// Returns the size of all chunks in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.held_pages.bytes(self.page_bytes)
    }

    /// Returns the peak of [`held_bytes`](Self::held_bytes) since the last [`reset_peak`](Self::reset_peak).
    pub fn peak_held_bytes(&self) -> u64 {
        self.peak_held_pages.bytes(self.page_bytes)
    }

    /// Returns the size of all chunks that were ever added, in bytes.
    pub fn created_bytes(&self) -> u64 {
        self.created_pages.bytes(self.page_bytes)
    }

    /// Returns the number of chunks that were ever added.
    pub fn created_chunks(&self) -> u64 {
        self.created_chunks
    }

    /// Returns the peak of [`len`](Self::len) since the last [`reset_peak`](Self::reset_peak).
    pub fn peak_len(&self) -> usize {
        self.peak_len
    }

    /// Resets the peaks to the current values.
    pub fn reset_peak(&mut self) {
        self.peak_held_pages = self.held_pages;
        self.peak_len = self.len();
    }

    /// Returns the size of the chunks that are not mapped, in bytes.
    pub fn idle_bytes(&self) -> u64 {
        self.idle.pages().bytes(self.page_bytes)
    }

    /// Returns the size of the chunks that belong to growable ranges, in bytes.
    pub fn range_bytes(&self) -> u64 {
        self.range_pages.bytes(self.page_bytes)
    }

    /// Bytes of chunks of registered blocks.
    pub fn registered_bytes(&self) -> u64 {
        self.registered_pages.bytes(self.page_bytes)
    }

    /// Returns the size of the chunks that are withheld, in bytes.
    pub fn withheld_bytes(&self) -> u64 {
        self.withheld_pages.bytes(self.page_bytes)
    }

    /// Returns the number of views, active and stale.
    pub fn views(&self) -> usize {
        self.views
    }

    /// Returns the number of stale views.
    pub fn stale_views(&self) -> usize {
        self.stale_views
    }

    /// Returns the number of pages that may be created within the budget.
    pub fn headroom_pages(&self) -> PageCount {
        self.budget_pages.saturating_sub(self.held_pages)
    }

    /// Returns the same beside the budget.
    pub fn headroom(&self) -> Headroom {
        Headroom { pages: self.headroom_pages(), budget_pages: self.budget_pages }
    }

    /// Returns the number of chunks.
    #[allow(clippy::len_without_is_empty, reason = "a count among others, not a collection's length")]
    pub fn len(&self) -> usize {
        self.chunks.len() - self.vacant.len()
    }

    /// Returns the size of the largest chunks that have `pages` pages or fewer, free or not.
    pub fn largest_up_to(&self, pages: PageCount) -> Option<PageCount> {
        self.by_pages.range(..=pages).next_back().map(|(size, _)| *size)
    }

    /// Returns a bound that every [`ChunkId`] of the pool is below.
    pub fn id_bound(&self) -> usize {
        self.chunks.len()
    }

    /// Adds a chunk that was just created. It is idle.
    pub fn add(&mut self, handle: ChunkHandle, pages: PageCount) -> ChunkId {
        let (active, stale, lent_out, withheld, idle_at) = (None, Vec::new(), None, false, None);
        let chunk = Chunk { handle, pages, active, stale, lent_out, withheld, idle_at };
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
        *self.by_pages.entry(pages).or_default() += 1;
        self.held_pages += pages;
        self.peak_held_pages = self.peak_held_pages.max(self.held_pages);
        self.created_pages += pages;
        self.created_chunks += 1;
        self.peak_len = self.peak_len.max(self.len());
        self.set_idle(id, true);
        id
    }

    /// Removes an idle chunk, before its memory is released to the driver.
    ///
    /// # Panics
    /// Panics if the chunk is not in the pool.
    pub fn remove(&mut self, id: ChunkId) -> Chunk {
        self.set_idle(id, false);
        let chunk = self.chunks[id.0 as usize].take().expect("the chunk is in this pool");
        debug_assert!(chunk.active.is_none() && chunk.stale.is_empty() && chunk.lent_out.is_none());
        self.vacant.push(id.0);
        self.stale_capacity -= chunk.stale.capacity();
        self.held_pages -= chunk.pages;
        let of_size = self.by_pages.get_mut(&chunk.pages).expect("I2: it was counted");
        *of_size -= 1;
        if *of_size == 0 {
            self.by_pages.remove(&chunk.pages);
        }
        chunk
    }

    /// Returns the chunk.
    ///
    /// # Panics
    /// Panics if the chunk is not in the pool.
    pub fn get(&self, id: ChunkId) -> &Chunk {
        self.chunks[id.0 as usize].as_ref().expect("the chunk is in this pool")
    }

    fn get_mut(&mut self, id: ChunkId) -> &mut Chunk {
        self.chunks[id.0 as usize].as_mut().expect("the chunk is in this pool")
    }

    /// Makes `view`, a new or a stale one, the active view. The previous active view becomes stale.
    pub fn activate(&mut self, id: ChunkId, view: ViewAt) {
        if self.is_idle(id) {
            self.set_idle(id, false);
        }
        let chunk = self.get_mut(id);
        let was_stale = chunk.remove_stale(view);
        let before = chunk.active.replace(view);
        let grown = before.map(|before| chunk.push_stale(before));
        self.stale_views = self.stale_views + usize::from(grown.is_some()) - usize::from(was_stale);
        self.stale_capacity += grown.unwrap_or(0);
        self.views += usize::from(!was_stale);
    }

    /// Makes the active view a stale one: the chunk's bytes are allocated nowhere.
    pub fn deactivate(&mut self, id: ChunkId) {
        let chunk = self.get_mut(id);
        let Some(before) = chunk.active.take() else { return };
        let grown = chunk.push_stale(before);
        self.stale_capacity += grown;
        self.stale_views += 1;
    }

    /// Adds a new stale view.
    pub fn add_stale(&mut self, id: ChunkId, view: ViewAt) {
        if self.is_idle(id) {
            self.set_idle(id, false);
        }
        let grown = self.get_mut(id).push_stale(view);
        self.stale_capacity += grown;
        self.stale_views += 1;
        self.views += 1;
    }

    /// Removes `view`, which has been unmapped. The chunk becomes idle if that was its last view.
    pub fn drop_view(&mut self, id: ChunkId, view: ViewAt) {
        let chunk = self.get_mut(id);
        if chunk.active == Some(view) {
            chunk.active = None;
            self.views -= 1;
        } else if chunk.remove_stale(view) {
            self.views -= 1;
            self.stale_views -= 1;
        }
        if self.is_idle(id) {
            self.set_idle(id, true);
        }
    }

    /// Keeps an idle chunk from everybody until [`end_withholding`](Self::end_withholding).
    pub fn withhold(&mut self, id: ChunkId) {
        self.set_idle(id, false);
        self.get_mut(id).withheld = true;
        self.withheld_pages += self.get(id).pages;
    }

    /// Makes a chunk idle again that was withheld.
    pub fn end_withholding(&mut self, id: ChunkId) {
        self.get_mut(id).withheld = false;
        self.withheld_pages -= self.get(id).pages;
        self.set_idle(id, true);
    }

    /// Excludes a chunk that cannot be moved now until [`lift_bars`](Self::lift_bars).
    pub fn bar(&mut self, id: ChunkId) {
        self.barred.insert(id);
    }

    /// Returns `true` if the chunk is excluded from the current search.
    pub fn is_barred(&self, id: ChunkId) -> bool {
        self.barred.contains(&id)
    }

    /// Returns `true` if a chunk is excluded from the current search.
    pub fn has_bars(&self) -> bool {
        !self.barred.is_empty()
    }

    /// Ends the exclusion of all chunks, at the end of a search.
    pub fn lift_bars(&mut self) {
        self.barred.clear();
    }

    /// Records whom the chunk belongs to instead of the heaps.
    pub fn set_lent_out(&mut self, id: ChunkId, lent_out: Option<LentTo>) {
        let chunk = self.get_mut(id);
        let (before, pages) = (std::mem::replace(&mut chunk.lent_out, lent_out), chunk.pages);
        if let Some(sum) = self.lent_pages(before) {
            *sum -= pages;
        }
        if let Some(sum) = self.lent_pages(lent_out) {
            *sum += pages;
        }
    }

    fn lent_pages(&mut self, lent_out: Option<LentTo>) -> Option<&mut PageCount> {
        lent_out.map(|to| match to {
            LentTo::Range => &mut self.range_pages,
            LentTo::RegisteredBlock => &mut self.registered_pages,
        })
    }

    /// Returns `true` if the chunk is in the pool, not mapped, and not withheld.
    pub fn has_idle(&self, id: ChunkId) -> bool {
        self.chunks.get(id.0 as usize).and_then(Option::as_ref).is_some_and(|chunk| chunk.idle_at.is_some())
    }

    fn is_idle(&self, id: ChunkId) -> bool {
        let chunk = self.get(id);
        chunk.active.is_none() && chunk.stale.is_empty() && !chunk.withheld
    }

    /// Lists a chunk that is no longer mapped as idle, or removes one from the list that is.
    fn set_idle(&mut self, id: ChunkId, idle: bool) {
        let pages = self.get(id).pages;
        if idle {
            self.get_mut(id).idle_at = Some(self.idle.add(id, pages));
            return;
        }
        let at = self.get_mut(id).idle_at.take().expect("I1: an idle chunk is listed");
        if let Some(moved) = self.idle.remove(at, pages) {
            self.get_mut(moved).idle_at = Some(at);
        }
    }

    /// Returns the largest idle chunk of at most `pages` pages that is not taken, and its pages.
    pub fn idle_up_to(&self, pages: PageCount, taken: &IdleTaken) -> Option<(ChunkId, PageCount)> {
        self.idle.up_to(pages, taken)
    }

    /// Returns the idle chunks of each number of pages, in ascending order.
    pub fn idle_by_pages(&self) -> impl Iterator<Item = (PageCount, &[ChunkId])> {
        self.idle.by_pages()
    }

    /// Returns the largest idle chunk.
    pub fn largest_idle(&self) -> Option<ChunkId> {
        self.idle.largest()
    }

    /// Returns all idle chunks, smallest first.
    pub fn idle(&self) -> impl Iterator<Item = ChunkId> {
        self.idle_by_pages().flat_map(|(_, ids)| ids).copied()
    }

    /// Returns all chunks in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        self.chunks.iter().enumerate().filter_map(|(id, chunk)| {
            chunk.as_ref().map(|chunk| (ChunkId(u32::try_from(id).expect("ids are 32 bits")), chunk))
        })
    }

    /// Returns the host memory that the pool uses, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        (self.chunks.capacity() * size_of::<Option<Chunk>>() + self.stale_capacity * size_of::<ViewAt>()) as u64
    }

    /// Asserts I1 and I2.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub fn check(&self) {
        let pages: PageCount = self.iter().map(|(_, chunk)| chunk.pages).sum();
        assert_eq!(pages, self.held_pages, "I1: pages held");
        let idle: PageCount = self.idle().map(|id| self.get(id).pages).sum();
        assert_eq!(idle, self.idle.pages(), "I1: idle pages");
        let mut by_pages: BTreeMap<PageCount, usize> = BTreeMap::new();
        self.iter().for_each(|(_, chunk)| *by_pages.entry(chunk.pages).or_default() += 1);
        assert_eq!(by_pages, self.by_pages, "I2: chunks by size");
        let lent_to = |to| -> PageCount {
            self.iter().filter(|(_, chunk)| chunk.lent_out == Some(to)).map(|(_, chunk)| chunk.pages).sum()
        };
        assert_eq!(lent_to(LentTo::Range), self.range_pages, "I2: pages of growable ranges");
        assert_eq!(lent_to(LentTo::RegisteredBlock), self.registered_pages, "I2: pages of registered blocks");
        let withheld: PageCount = self.iter().filter(|(_, chunk)| chunk.withheld).map(|(_, chunk)| chunk.pages).sum();
        assert_eq!(withheld, self.withheld_pages, "I2: pages withheld");
        let stale: usize = self.iter().map(|(_, chunk)| chunk.stale.len()).sum();
        let active = self.iter().filter(|(_, chunk)| chunk.active.is_some()).count();
        assert_eq!((active + stale, stale), (self.views, self.stale_views), "I2: views, and stale ones");
        let capacity: usize = self.iter().map(|(_, chunk)| chunk.stale.capacity()).sum();
        assert_eq!(capacity, self.stale_capacity, "I2: memory of lists of stale views");
        for (id, chunk) in self.iter() {
            let listed = chunk.idle_at.is_some_and(|at| self.idle.at(at, chunk.pages) == Some(id));
            assert_eq!(listed, self.is_idle(id), "I1: chunk {id:?} is listed wrongly");
            assert!(
                chunk.active.is_none_or(|active| !chunk.stale.contains(&active)),
                "I1: the active view of {id:?} is also stale"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Break, assert_noticed};

    #[test]
    fn a_chunk_is_idle_without_views() {
        let mut pool = ChunkPool::new(1 << 21, 10 << 21);
        let id = pool.add(ChunkHandle(1), PageCount(4));
        assert_eq!(
            (pool.held_pages(), pool.headroom_pages(), pool.idle_bytes()),
            (PageCount(4), PageCount(6), 4 << 21)
        );
        let (here, there) = (ViewAt { segment: 0, page: PageIndex(0) }, ViewAt { segment: 1, page: PageIndex(9) });
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
        let mut taken = IdleTaken::default();
        assert_eq!(pool.idle_up_to(PageCount(3), &taken), None);
        assert_eq!(pool.idle_up_to(PageCount(4), &taken), Some((id, PageCount(4))));
        taken.take(PageCount(4));
        assert_eq!(pool.idle_up_to(PageCount(4), &taken), None);
        assert!(pool.has_idle(id) && pool.largest_idle() == Some(id));
        pool.withhold(id);
        assert!(!pool.has_idle(id) && (pool.idle_bytes(), pool.withheld_bytes()) == (0, 4 << 21));
        pool.check();
        pool.end_withholding(id);
        pool.check();
        pool.remove(id);
        assert!(!pool.has_idle(id));
        pool.check();
        assert_eq!(pool.len(), 0);
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<ChunkPool>] = &[
            ("I1: pages held", |pool| pool.held_pages += PageCount(1)),
            ("I1: idle pages", |pool| _ = pool.idle.add(ChunkId(0), PageCount(1))),
            ("I1: chunk ChunkId(1) is listed wrongly", |pool| pool.chunks[1].as_mut().unwrap().idle_at = None),
            ("I1: the active view of ChunkId(0) is also stale", |pool| {
                let chunk = pool.chunks[0].as_mut().unwrap();
                chunk.stale[0] = chunk.active.unwrap();
            }),
            ("I2: chunks by size", |pool| _ = pool.by_pages.insert(PageCount(4), 2)),
            ("I2: pages of growable ranges", |pool| pool.range_pages += PageCount(1)),
            ("I2: pages of registered blocks", |pool| pool.registered_pages += PageCount(1)),
            ("I2: pages withheld", |pool| pool.withheld_pages += PageCount(1)),
            ("I2: views, and stale ones", |pool| pool.views += 1),
            ("I2: views, and stale ones", |pool| pool.stale_views += 1),
            ("I2: memory of lists of stale views", |pool| pool.stale_capacity += 1),
        ];
        // One chunk that is mapped twice, and one that is idle.
        let pool = || {
            let mut pool = ChunkPool::new(1 << 21, 10 << 21);
            let mapped = pool.add(ChunkHandle(1), PageCount(4));
            pool.add(ChunkHandle(2), PageCount(1));
            for segment in 0..2 {
                pool.activate(mapped, ViewAt { segment, page: PageIndex(0) });
            }
            pool
        };
        assert_noticed(pool, ChunkPool::check, breaks);
    }

    /// Chunks, and where they are mapped besides.
    #[test]
    fn the_memory_of_a_pool_is_that_of_its_lists() {
        let mut pool = ChunkPool::new(1 << 21, 1000 << 21);
        assert_eq!(pool.metadata_bytes(), 0);
        let ids: Vec<_> = (0..100).map(|number| pool.add(ChunkHandle(number), PageCount::ONE)).collect();
        let chunks = pool.metadata_bytes();
        let of_chunks = 100 * size_of::<Option<Chunk>>() as u64;
        assert!((of_chunks..=2 * of_chunks).contains(&chunks), "{chunks} bytes, at least {of_chunks}");
        for id in &ids {
            (0..9).for_each(|page| pool.add_stale(*id, ViewAt { segment: 0, page: PageIndex(page) }));
        }
        let views = pool.metadata_bytes() - chunks;
        let of_views = 900 * size_of::<ViewAt>() as u64;
        assert!((of_views..=2 * of_views).contains(&views), "{views} bytes, at least {of_views}");
        pool.check();
    }

    #[test]
    fn chunks_are_barred_until_the_bars_are_lifted() {
        let mut pool = ChunkPool::new(1 << 21, 10 << 21);
        let [one, other] = [1, 2].map(|number| pool.add(ChunkHandle(number), PageCount::ONE));
        assert!(!pool.has_bars());
        pool.bar(one);
        assert!(pool.has_bars() && pool.is_barred(one) && !pool.is_barred(other));
        pool.lift_bars();
        assert!(!pool.has_bars() && !pool.is_barred(one));
    }
}
