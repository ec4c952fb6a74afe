//! Chunk policy: how large new chunks are.
//!
//! Driver time is per chunk, so chunks should be large; only a completely free chunk can be remapped, so they should be
//! small. What a large chunk can waste matters only as far as memory is short: the size follows the headroom, which is what
//! the budget still allows.
//!
//! All sizes of new chunks, and all constants behind them, are decided here.

use crate::units::{GIB, MIB};

/// How large new chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
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
const SMALL_AHEAD_PAGES: u32 = 4;
/// and the part of a chunk of its own size that it grows by below that.
const SMALL_AHEAD_PART: u32 = 8;

impl ChunkSizes {
    /// Sizes under `policy` in pages of `page_bytes`.
    pub fn new(policy: ChunkPolicy, page_bytes: u64) -> Self {
        Self { policy, page_bytes }
    }

    /// Pages of a chunk for small blocks, with a headroom of `headroom_pages`: at most `pages`. Small blocks come in numbers:
    /// while there is headroom, a little is mapped ahead of them.
    pub fn for_small_blocks(&self, headroom_pages: u64, pages: u64) -> u32 {
        let ahead = (self.by_headroom(headroom_pages) / SMALL_AHEAD_PART).clamp(1, SMALL_AHEAD_PAGES);
        ahead.min(clamp_pages(pages))
    }

    /// Pages of a chunk for a block of `block_bytes`, with a headroom of `headroom_pages`: at most `pages`.
    pub fn for_large_block(&self, headroom_pages: u64, block_bytes: u64, pages: u64) -> u32 {
        let part = (block_bytes / PARTS_OF_A_LARGE_BLOCK).max(UNDIVIDED_BYTES) / self.page_bytes;
        self.by_headroom(headroom_pages).min(clamp_pages(part.max(1))).min(clamp_pages(pages))
    }

    /// Pages of a chunk for a raw range, with a headroom of `headroom_pages`: at most that, and at most `pages`.
    pub fn for_range(&self, headroom_pages: u64, pages: u64) -> u32 {
        self.by_headroom(headroom_pages).min(clamp_pages(pages.min(headroom_pages)))
    }

    /// Pages of the chunks that are created once there is no headroom left, in the place of others.
    pub fn smallest(&self) -> u32 {
        self.by_headroom(0)
    }

    fn by_headroom(&self, headroom_pages: u64) -> u32 {
        let pages = match self.policy {
            ChunkPolicy::Fixed(bytes) => bytes.div_ceil(self.page_bytes).max(1),
            ChunkPolicy::Auto => {
                let most = (LARGEST_AUTO / self.page_bytes).max(1);
                #[allow(clippy::cast_precision_loss, reason = "a ratio; a few pages more or less do not matter")]
                let ratio = headroom_pages as f64 * self.page_bytes as f64 / HEADROOM_FOR_SINGLE_PAGES as f64;
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped; `as` saturates")]
                let pages = (ratio * ratio * ratio.sqrt()) as u64;
                pages.clamp(1, most)
            }
        };
        clamp_pages(pages)
    }
}

fn clamp_pages(pages: u64) -> u32 {
    u32::try_from(pages).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_shrinks_with_the_headroom() {
        let page = 2 * MIB;
        let sizes = ChunkSizes::new(ChunkPolicy::Auto, page);
        let mut last = u32::MAX;
        for gib in (0..=200).rev() {
            let pages = sizes.by_headroom(gib * GIB / page);
            assert!(pages <= last && pages >= 1);
            last = pages;
        }
        assert_eq!(sizes.by_headroom(10 * GIB / page), 1);
        assert_eq!(u64::from(sizes.by_headroom(u64::MAX / page)), LARGEST_AUTO / page);
    }

    #[test]
    fn fixed_is_in_whole_pages() {
        assert_eq!(ChunkSizes::new(ChunkPolicy::Fixed(3 * MIB), 2 * MIB).by_headroom(100), 2);
        assert_eq!(ChunkSizes::new(ChunkPolicy::Fixed(0), 2 * MIB).by_headroom(100), 1);
    }
}
