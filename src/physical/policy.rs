//! Chunk policy: how large new chunks are.
//!
//! Driver time is per chunk, so chunks should be large; only a completely free chunk can be remapped, so they should be
//! small. What a large chunk can waste matters only as far as memory is short: the size follows the room that is left.

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

/// Room left at and below which `Auto` makes single pages. Above, a chunk has `(room / this) ^ 2.5` pages: filling a
/// device of any size takes at most about `1.7 * this / page` chunks, most of them for the last of its memory.
const ROOM_FOR_SINGLE_PAGES: u64 = 10 * GIB;
/// Largest chunk that `Auto` makes.
const LARGEST_AUTO: u64 = 512 * MIB;

impl ChunkSizes {
    /// Sizes under `policy` in pages of `page_bytes`.
    pub fn new(policy: ChunkPolicy, page_bytes: u64) -> Self {
        Self { policy, page_bytes }
    }

    /// The policy.
    pub fn policy(&self) -> ChunkPolicy {
        self.policy
    }

    /// Pages of the next chunk while `room_pages` may still be created.
    pub fn next_chunk_pages(&self, room_pages: u64) -> u32 {
        let pages = match self.policy {
            ChunkPolicy::Fixed(bytes) => bytes.div_ceil(self.page_bytes).max(1),
            ChunkPolicy::Auto => {
                let most = (LARGEST_AUTO / self.page_bytes).max(1);
                #[allow(clippy::cast_precision_loss, reason = "a ratio; a few pages more or less do not matter")]
                let ratio = room_pages as f64 * self.page_bytes as f64 / ROOM_FOR_SINGLE_PAGES as f64;
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped; `as` saturates")]
                let pages = (ratio * ratio * ratio.sqrt()) as u64;
                pages.clamp(1, most)
            }
        };
        u32::try_from(pages).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_shrinks_with_the_room() {
        let page = 2 * MIB;
        let sizes = ChunkSizes::new(ChunkPolicy::Auto, page);
        let mut last = u32::MAX;
        for gib in (0..=200).rev() {
            let pages = sizes.next_chunk_pages(gib * GIB / page);
            assert!(pages <= last && pages >= 1);
            last = pages;
        }
        assert_eq!(sizes.next_chunk_pages(10 * GIB / page), 1);
        assert_eq!(u64::from(sizes.next_chunk_pages(u64::MAX / page)), LARGEST_AUTO / page);
    }

    #[test]
    fn fixed_is_in_whole_pages() {
        assert_eq!(ChunkSizes::new(ChunkPolicy::Fixed(3 * MIB), 2 * MIB).next_chunk_pages(100), 2);
        assert_eq!(ChunkSizes::new(ChunkPolicy::Fixed(0), 2 * MIB).next_chunk_pages(100), 1);
    }
}
