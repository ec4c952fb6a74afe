//! The two pools of a stream.

use super::rounding::{LARGE_SEGMENT_BYTES, SMALL_BYTES, SMALL_SEGMENT_BYTES};

/// Which requests a pool serves: small or large ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolKind {
    Small,
    Large,
}

impl PoolKind {
    /// Returns the pool for blocks of `size` bytes.
    pub(super) const fn of(size: u64) -> Self {
        if size <= SMALL_BYTES { Self::Small } else { Self::Large }
    }

    /// Returns the size of the handles that an expandable segment of this pool consists of.
    pub(super) const fn handle_bytes(self) -> u64 {
        match self {
            Self::Small => SMALL_SEGMENT_BYTES,
            Self::Large => LARGE_SEGMENT_BYTES,
        }
    }
}
