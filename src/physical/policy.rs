//! Chunk policy: how large new chunks are.
//!
//! Driver time is per chunk, so chunks should be large; only a completely free chunk can be remapped, so they should be
//! small. What a large chunk can waste matters only as far as memory is short: the size follows the room that is left.

use crate::units::MIB;

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

/// Room left at and below which `Auto` makes single pages; above, the size grows with the square of the room, so that
/// filling a device of any size takes at most about `2 * ROOM_FOR_SINGLE_PAGES / page` chunks.
const ROOM_FOR_SINGLE_PAGES: u64 = 7 << 30;
/// Largest chunk that `Auto` makes.
const LARGEST_AUTO: u64 = 256 * MIB;

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
                let room = u128::from(room_pages) * u128::from(self.page_bytes);
                let single = u128::from(ROOM_FOR_SINGLE_PAGES);
                let pages = room * room / (single * single);
                let most = (LARGEST_AUTO / self.page_bytes).max(1);
                u64::try_from(pages).unwrap_or(u64::MAX).clamp(1, most)
            }
        };
        u32::try_from(pages).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;

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
        assert_eq!(sizes.next_chunk_pages(7 * GIB / page), 1);
        assert_eq!(u64::from(sizes.next_chunk_pages(u64::MAX / page)), LARGEST_AUTO / page);
    }

    #[test]
    fn fixed_is_in_whole_pages() {
        assert_eq!(ChunkSizes::new(ChunkPolicy::Fixed(3 * MIB), 2 * MIB).next_chunk_pages(100), 2);
        assert_eq!(ChunkSizes::new(ChunkPolicy::Fixed(0), 2 * MIB).next_chunk_pages(100), 1);
    }
}
