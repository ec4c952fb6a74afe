//! Chunk policy: how large new chunks are.
//!
//! Driver time is per chunk, so chunks should be large; only a completely free chunk can be remapped, so they should be
//! small. What a large chunk can waste matters only as far as memory is short: the size follows the headroom, which is what
//! the budget still allows.
//!
//! All sizes of new chunks, and all constants behind them, are decided here.

use crate::heap::SMALL_BESIDE_LARGE;
use crate::pages::PageCount;
use crate::units::{GIB, MIB};

/// How large new chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChunkPolicy {
    /// Large while memory is plentiful, single pages as the budget gets close. Beyond 2 MiB, or 8 MiB for blocks below 64 KiB,
    /// a chunk has only pages that the block which it is created for covers whole; a block that takes a part of its place
    /// later pins it.
    Auto,
    /// Always this many bytes, at least one, rounded up to whole pages; the last chunk of a growth may be smaller. A live byte
    /// pins its whole chunk: a request is served whenever chunks without a live byte and the rest of the budget cover its pages.
    Fixed(u64),
}

/// [`ChunkPolicy`] for a page size.
#[derive(Clone, Copy, Debug)]
pub struct ChunkSizes {
    policy: ChunkPolicy,
    page_bytes: u64,
    /// The smallest chunks.
    least: PageCount,
    /// The largest, of those whose size the headroom decides.
    largest: PageCount,
}

/// How much more may be created.
#[derive(Clone, Copy, Debug)]
pub struct Headroom {
    /// The part of the budget that is left.
    pub pages: PageCount,
    /// The budget.
    pub budget_pages: PageCount,
}

/// The pages that a chunk for a block is wanted for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Their number.
    pub pages: PageCount,
    /// How many of them, from the first on, the block covers whole. If there are none, the first is shared with other blocks.
    pub covered: PageCount,
    /// How many pages without a mapping follow.
    pub spare: PageCount,
}

/// Bytes of the smallest chunks that `Auto` makes, however small pages are. More is mapped than asked for where there is
/// room.
const SMALLEST_AUTO: u64 = 2 * MIB;

/// Blocks that are smaller than a chunk lie apart from larger ones.
const _: () = assert!(SMALLEST_AUTO == SMALL_BESIDE_LARGE.end);
/// Bytes of the largest.
const LARGEST_AUTO: u64 = 128 * MIB;
/// Headroom at and below which `Auto` makes its smallest chunks: this,
const TIGHT_HEADROOM: u64 = 12 * GIB;
/// or this part of the budget, if that is more. Above, a chunk has `(headroom / that) ^ 3` times the bytes of the smallest.
const TIGHT_PART_OF_BUDGET: u64 = 8;
/// A chunk for a large block has at most this part of the block's bytes, so that a block which takes a part of its place
/// later pins less of it,
const PARTS_OF_A_LARGE_BLOCK: u64 = 16;
/// or this many bytes, if that is more; and more again, in proportion, where the headroom is above `ROOMY` times the tight one.
const UNDIVIDED_BYTES: u64 = 10 * MIB;
/// See `UNDIVIDED_BYTES`.
const ROOMY: f64 = 1.5;
/// Once there is no headroom left, free chunks above this part of a block are cut up for it.
const PARTS_WITHOUT_HEADROOM: u64 = 512;
/// A chunk for blocks below the smallest size that are each to lie within one has room for so many of them.
const WHOLE_BLOCKS_IN_A_CHUNK: u64 = 4;
/// Most bytes that a region of small blocks grows by at a time,
const SMALL_AHEAD: u64 = 8 * MIB;
/// and the part of a chunk of its own size that it grows by below that.
const SMALL_AHEAD_PART: u64 = 8;

impl ChunkSizes {
    /// Sizes under `policy` in pages of `page_bytes`.
    pub fn new(policy: ChunkPolicy, page_bytes: u64) -> Self {
        let least = match policy {
            ChunkPolicy::Fixed(bytes) => PageCount::covering(bytes, page_bytes).max(PageCount::ONE),
            ChunkPolicy::Auto => PageCount::covering(SMALLEST_AUTO, page_bytes),
        };
        Self { policy, page_bytes, least, largest: PageCount::within(LARGEST_AUTO, page_bytes).max(least) }
    }

    /// Returns the size of a chunk for small blocks. Small blocks come in numbers: while there is headroom, a little is mapped
    /// ahead of them.
    pub fn for_small_blocks(&self, headroom: Headroom, wanted: Wanted) -> PageCount {
        let ahead = PageCount(self.by_headroom(headroom).0 / SMALL_AHEAD_PART);
        let least = match self.policy {
            ChunkPolicy::Fixed(_) => PageCount::ONE,
            ChunkPolicy::Auto => self.least,
        };
        ahead.clamp(least, self.pages_within(SMALL_AHEAD).max(least)).min(wanted.pages + wanted.spare)
    }

    /// Returns the size of a chunk for a block of `block_bytes`.
    ///
    /// The pages at its ends, which other blocks use as well, are chunks of their own with `Auto`: a block that stays pins
    /// nothing beyond the pages that it uses, as long as no other takes the place of a larger one.
    pub fn for_large_block(&self, headroom: Headroom, block_bytes: u64, wanted: Wanted) -> PageCount {
        match self.policy {
            ChunkPolicy::Fixed(_) => self.by_headroom(headroom).min(wanted.pages),
            ChunkPolicy::Auto => {
                let undivided = times(UNDIVIDED_BYTES, (self.times_tight(headroom) / ROOMY).max(1.0));
                let part = self.pages_within((block_bytes / PARTS_OF_A_LARGE_BLOCK).max(undivided));
                let size = self.by_headroom(headroom).min(part).min(wanted.covered);
                size.max(self.least.min(wanted.pages + wanted.spare))
            }
        }
    }

    /// Returns the size of a chunk for a block that is to lie within it. Blocks that do not fill the smallest chunk come in
    /// numbers: a few of them share one.
    pub fn for_whole_block(&self, block_bytes: u64) -> PageCount {
        let bytes = match self.policy {
            ChunkPolicy::Auto if block_bytes < SMALLEST_AUTO => block_bytes * WHOLE_BLOCKS_IN_A_CHUNK,
            ChunkPolicy::Auto | ChunkPolicy::Fixed(_) => block_bytes,
        };
        PageCount::covering(bytes, self.page_bytes).max(self.least)
    }

    /// Returns the size of the chunks for pages that several blocks share, or that are partly free: the smallest, since a live byte
    /// keeps all of one from being moved.
    pub fn for_shared_pages(&self) -> PageCount {
        self.least
    }

    /// Returns the size of a chunk for a growable range: at most the headroom, and at most `pages`.
    pub fn for_range(&self, headroom: Headroom, pages: PageCount) -> PageCount {
        self.by_headroom(headroom).min(pages).min(headroom.pages)
    }

    /// Returns the largest size of an idle chunk that is used. As a new one, it has no pages beside those that the block
    /// covers whole, or is one of the smallest.
    pub fn for_idle(&self, wanted: Wanted) -> PageCount {
        match self.policy {
            ChunkPolicy::Fixed(_) => wanted.pages,
            ChunkPolicy::Auto => wanted.covered.max(self.least).min(wanted.pages),
        }
    }

    /// Returns the size of the chunks that are created for a block of `block_bytes` once there is no headroom left, in the
    /// place of larger ones. What such a chunk can pin of a huge block is little beside it, and a huge block in small chunks
    /// would take all mappings that the driver has. The pages at its ends are small chunks all the same, since they are other
    /// blocks' too: `covered` is how many pages from here on are not.
    pub fn without_headroom(&self, block_bytes: u64, covered: PageCount) -> PageCount {
        match self.policy {
            ChunkPolicy::Fixed(_) => self.least,
            ChunkPolicy::Auto => self.pages_within(block_bytes / PARTS_WITHOUT_HEADROOM).min(covered).max(self.least),
        }
    }

    fn by_headroom(&self, headroom: Headroom) -> PageCount {
        match self.policy {
            ChunkPolicy::Fixed(_) => self.least,
            ChunkPolicy::Auto => {
                let bytes = times(SMALLEST_AUTO, self.times_tight(headroom).powi(3));
                self.pages_within(bytes).clamp(self.least, self.largest)
            }
        }
    }

    /// The headroom as a multiple of the tight one.
    #[allow(clippy::cast_precision_loss, reason = "a ratio; a few pages more or less do not matter")]
    fn times_tight(&self, headroom: Headroom) -> f64 {
        let tight = (headroom.budget_pages.bytes(self.page_bytes) / TIGHT_PART_OF_BUDGET).max(TIGHT_HEADROOM);
        headroom.pages.bytes(self.page_bytes) as f64 / tight as f64
    }

    fn pages_within(&self, bytes: u64) -> PageCount {
        PageCount::within(bytes, self.page_bytes)
    }
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates"
)]
fn times(bytes: u64, factor: f64) -> u64 {
    (bytes as f64 * factor) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::KIB;

    fn headroom(left: u64, budget: u64, page: u64) -> Headroom {
        Headroom { pages: PageCount(left / page), budget_pages: PageCount(budget / page) }
    }

    #[test]
    fn auto_shrinks_with_the_headroom() {
        let page = 2 * MIB;
        let sizes = ChunkSizes::new(ChunkPolicy::Auto, page);
        for budget in [8, 24, 80, 141, 1024] {
            let mut last = PageCount(u64::MAX);
            for gib in (0..=budget).rev() {
                let pages = sizes.by_headroom(headroom(gib * GIB, budget * GIB, page));
                assert!(pages <= last && pages >= PageCount::ONE);
                assert!(pages == PageCount::ONE || gib > 12.max(budget / 8), "{gib} of {budget} GiB");
                last = pages;
            }
            assert_eq!(last, PageCount::ONE);
        }
        assert_eq!(sizes.by_headroom(headroom(1 << 60, GIB, page)), PageCount(LARGEST_AUTO / page));
    }

    #[test]
    fn auto_makes_chunks_of_two_mib_of_smaller_pages() {
        let page = 64 << 10;
        let sizes = ChunkSizes::new(ChunkPolicy::Auto, page);
        let wanted = |pages, covered, spare| Wanted {
            pages: PageCount(pages),
            covered: PageCount(covered),
            spare: PageCount(spare),
        };
        let tight = headroom(GIB, 8 * GIB, page);
        assert_eq!(sizes.without_headroom(GIB, PageCount(1000)), PageCount(32));
        assert_eq!(sizes.for_large_block(tight, 10 * MIB, wanted(160, 160, 0)), PageCount(32));
        assert_eq!(sizes.for_large_block(tight, 64 << 10, wanted(1, 1, 100)), PageCount(32));
        assert_eq!(sizes.for_large_block(tight, 64 << 10, wanted(1, 1, 5)), PageCount(6));
        assert_eq!(sizes.for_small_blocks(tight, wanted(1, 1, 100)), PageCount(32));
        assert_eq!(sizes.for_small_blocks(tight, wanted(1, 1, 0)), PageCount(1));
    }

    #[test]
    fn pages_that_a_block_shares_are_chunks_of_their_own() {
        let page = 2 * MIB;
        let sizes = ChunkSizes::new(ChunkPolicy::Auto, page);
        let plenty = headroom(24 * GIB, 80 * GIB, page);
        let size = |covered| {
            let wanted = Wanted { pages: PageCount(51), covered: PageCount(covered), spare: PageCount(1000) };
            sizes.for_large_block(plenty, 100 * MIB, wanted)
        };
        assert_eq!([0, 1, 3, 5, 50].map(size), [1, 1, 3, 5, 6].map(PageCount));
    }

    #[test]
    fn a_huge_block_is_not_made_of_small_chunks() {
        let sizes = |policy| ChunkSizes::new(policy, 2 * MIB);
        let all = PageCount(512 * 1024);
        let of = |block| sizes(ChunkPolicy::Auto).without_headroom(block, all);
        assert_eq!((of(MIB), of(GIB), of(1024 * GIB)), (PageCount(1), PageCount(1), PageCount(1024)));
        assert_eq!(sizes(ChunkPolicy::Fixed(6 * MIB)).without_headroom(1024 * GIB, all), PageCount(3));
    }

    #[test]
    fn the_ends_of_a_huge_block_are_small_chunks() {
        let sizes = ChunkSizes::new(ChunkPolicy::Auto, 2 * MIB);
        let covered = [0, 1, 5, 2000].map(PageCount);
        let new = covered.map(|covered| sizes.without_headroom(1024 * GIB, covered));
        assert_eq!(new, [1, 1, 5, 1024].map(PageCount));
        let idle =
            covered.map(|covered| sizes.for_idle(Wanted { pages: PageCount(2001), covered, spare: PageCount(9) }));
        assert_eq!(idle, [1, 1, 5, 2000].map(PageCount));
    }

    #[test]
    fn fixed_is_in_whole_pages() {
        let size = |bytes| ChunkSizes::new(ChunkPolicy::Fixed(bytes), 2 * MIB).by_headroom(headroom(GIB, GIB, 2 * MIB));
        assert_eq!((size(3 * MIB), size(0)), (PageCount(2), PageCount(1)));
    }

    /// Blocks below the smallest chunk share one with room for four of them; larger ones have a chunk each.
    #[test]
    fn a_chunk_for_whole_blocks_has_room_for_a_few_small_ones() {
        let page = 64 * KIB;
        let size = |policy, bytes| ChunkSizes::new(policy, page).for_whole_block(bytes).bytes(page);
        for (bytes, expected) in [
            (512, 2 * MIB),
            (512 * KIB, 2 * MIB),
            (MIB, 4 * MIB),
            (2 * MIB - page, 8 * MIB - 4 * page),
            (2 * MIB, 2 * MIB),
            (5 * MIB + 1, 5 * MIB + page),
        ] {
            assert_eq!(size(ChunkPolicy::Auto, bytes), expected, "{bytes} bytes");
        }
        for (bytes, expected) in [(512, 256 * KIB), (256 * KIB, 256 * KIB), (MIB, MIB), (2 * MIB, 2 * MIB)] {
            assert_eq!(size(ChunkPolicy::Fixed(256 * KIB), bytes), expected, "{bytes} bytes");
        }
    }
}
