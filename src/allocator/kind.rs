//! The kinds of regions: for small blocks and for large ones.

use crate::heap::SMALL_BESIDE_LARGE;

/// Blocks below this many bytes are placed in a region of their own, so that they do not pin the pages of large ones.
pub const SMALL_BELOW: u64 = 64 << 10;

/// From here on blocks lie beside large ones, and apart from them if they are small (`Heap::alloc`).
const _: () = assert!(SMALL_BELOW == SMALL_BESIDE_LARGE.start);

/// The kind of blocks that a region is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RegionKind {
    /// Blocks below [`SMALL_BELOW`] bytes.
    Small,
    /// All others.
    Large,
}

impl RegionKind {
    /// Every kind, in declaration order: `kind as usize` is its place here.
    pub const ALL: [Self; 2] = [Self::Small, Self::Large];

    /// The kind of region for blocks of `size` bytes.
    #[inline]
    #[must_use]
    pub fn of(size: u64) -> Self {
        if size < SMALL_BELOW { Self::Small } else { Self::Large }
    }

    /// Returns this kind, then all others.
    pub(crate) fn then_others(self) -> impl Iterator<Item = Self> + Clone {
        let others = Self::ALL.into_iter().filter(move |kind| *kind != self);
        std::iter::once(self).chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_number_as_its_place() {
        for (place, kind) in RegionKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
            let order: Vec<RegionKind> = kind.then_others().collect();
            assert_eq!((order.len(), order[0]), (RegionKind::ALL.len(), kind));
            assert!(RegionKind::ALL.iter().all(|other| order.contains(other)));
        }
    }

    #[test]
    fn blocks_below_64_kib_are_small() {
        let kinds = [1, 512, (64 << 10) - 1, 64 << 10, 1 << 40].map(RegionKind::of);
        assert_eq!(
            kinds,
            [RegionKind::Small, RegionKind::Small, RegionKind::Small, RegionKind::Large, RegionKind::Large]
        );
    }
}
