//! The two kinds of regions: for small blocks and for large ones.

/// Blocks below this many bytes are placed in a region of their own, so that they do not pin the pages of large ones.
pub const SMALL_BELOW: u64 = 64 << 10;

/// The kind of blocks that a region is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionKind {
    /// Blocks below [`SMALL_BELOW`] bytes.
    Small,
    /// All others.
    Large,
}

impl RegionKind {
    /// The kind of region for blocks of `size` bytes.
    #[inline]
    pub const fn of(size: u64) -> Self {
        if size < SMALL_BELOW { Self::Small } else { Self::Large }
    }

    /// The other kind.
    pub const fn other(self) -> Self {
        match self {
            Self::Small => Self::Large,
            Self::Large => Self::Small,
        }
    }
}
