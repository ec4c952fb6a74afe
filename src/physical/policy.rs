//! Chunk policy: how large new chunks are.
//!
//! Driver time is per chunk, so chunks should be large; only a completely free chunk can be remapped, so they should be
//! small. What a large chunk can waste matters only as far as memory is short: the size follows the headroom, which is what
//! the budget still allows.
//!
//! All sizes of new chunks, and all constants behind them, are decided here.

use crate::pages::PageCount;
use crate::units::{GIB, MIB};

/// How large new chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChunkPolicy {
    /// Large while memory is plentiful, single pages as the budget gets close.
    Auto,
    /// Always this many bytes, rounded up to whole pages; the last chunk of a growth may be smaller.
    Fixed(u64),
}

/// [`ChunkPolicy`] for a page size.
#[derive(Clone, Copy, Debug)]
pub struct ChunkSizes {
    policy: ChunkPolicy,
    page_bytes: u64,
}

/// Headroom at and below which `Auto` makes single pages. Above, a chunk has `(headroom / this) ^ 2.5` pages: filling a
/// device of any size takes at most about `1.7 * this / page` chunks, most of them for the last of its memory.
const HEADROOM_FOR_SINGLE_PAGES: u64 = 10 * GIB;
/// Bytes of the largest chunk that `Auto` makes.
const LARGEST_AUTO: u64 = 512 * MIB;
/// A chunk for a large block has at most this part of the block's bytes, so that a small block which takes a part of its
/// place later pins less of it,
const PARTS_OF_A_LARGE_BLOCK: u64 = 4;
/// or this many bytes, if that is more.
const UNDIVIDED_BYTES: u64 = 104 * MIB;
/// Most pages that a region of small blocks grows by at a time,
const SMALL_AHEAD: PageCount = PageCount(4);
/// and the part of a chunk of its own size that it grows by below that.
const SMALL_AHEAD_PART: u64 = 8;

impl ChunkSizes {
    /// Sizes under `policy` in pages of `page_bytes`.
    pub fn new(policy: ChunkPolicy, page_bytes: u64) -> Self {
        Self { policy, page_bytes }
    }

    /// Returns the size of a chunk for small blocks, with this headroom: at most `pages`. Small blocks come in numbers: while
    /// there is headroom, a little is mapped ahead of them.
    pub fn for_small_blocks(&self, headroom: PageCount, pages: PageCount) -> PageCount {
        let ahead = PageCount(self.by_headroom(headroom).0 / SMALL_AHEAD_PART);
        ahead.clamp(PageCount::ONE, SMALL_AHEAD).min(pages)
    }

    /// Returns the size of a chunk for a block of `block_bytes`, with this headroom: at most `pages`.
    pub fn for_large_block(&self, headroom: PageCount, block_bytes: u64, pages: PageCount) -> PageCount {
        let part = (block_bytes / PARTS_OF_A_LARGE_BLOCK).max(UNDIVIDED_BYTES);
        let part = PageCount::within(part, self.page_bytes).max(PageCount::ONE);
        self.by_headroom(headroom).min(part).min(pages)
    }

    /// Returns the size of a chunk for a raw range, with this headroom: at most that, and at most `pages`.
    pub fn for_range(&self, headroom: PageCount, pages: PageCount) -> PageCount {
        self.by_headroom(headroom).min(pages).min(headroom)
    }

    /// Returns the size of the chunks that are created once there is no headroom left, in the place of others.
    pub fn smallest(&self) -> PageCount {
        self.by_headroom(PageCount::ZERO)
    }

    fn by_headroom(&self, headroom: PageCount) -> PageCount {
        match self.policy {
            ChunkPolicy::Fixed(bytes) => PageCount::covering(bytes, self.page_bytes).max(PageCount::ONE),
            ChunkPolicy::Auto => {
                let largest = PageCount::within(LARGEST_AUTO, self.page_bytes).max(PageCount::ONE);
                #[allow(clippy::cast_precision_loss, reason = "a ratio; a few pages more or less do not matter")]
                let ratio = headroom.0 as f64 * self.page_bytes as f64 / HEADROOM_FOR_SINGLE_PAGES as f64;
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped; `as` saturates")]
                let pages = PageCount((ratio * ratio * ratio.sqrt()) as u64);
                pages.clamp(PageCount::ONE, largest)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_shrinks_with_the_headroom() {
        let page = 2 * MIB;
        let sizes = ChunkSizes::new(ChunkPolicy::Auto, page);
        let mut last = PageCount(u64::MAX);
        for gib in (0..=200).rev() {
            let pages = sizes.by_headroom(PageCount(gib * GIB / page));
            assert!(pages <= last && pages >= PageCount::ONE);
            last = pages;
        }
        assert_eq!(sizes.by_headroom(PageCount(10 * GIB / page)), PageCount::ONE);
        assert_eq!(sizes.by_headroom(PageCount(u64::MAX / page)), PageCount(LARGEST_AUTO / page));
    }

    #[test]
    fn fixed_is_in_whole_pages() {
        assert_eq!(ChunkSizes::new(ChunkPolicy::Fixed(3 * MIB), 2 * MIB).by_headroom(PageCount(100)), PageCount(2));
        assert_eq!(ChunkSizes::new(ChunkPolicy::Fixed(0), 2 * MIB).by_headroom(PageCount(100)), PageCount(1));
    }
}
