//! The free blocks of one stream in one pool, in the order of PyTorch's `std::set`: by bytes, then by address.
//!
//! A replay spends most of its time here. Blocks are in bins of sizes that differ by at most 1/32 (the two-level segregated fit of
//! Masmano et al., 2004), most of which hold a few, and those of a bin are in order. So the first block of the first bin that has a
//! large enough one is exactly what the set would give.
//!
//! - I1  a block is in the bin of its size, and a bin is marked exactly when it has a block.
//! - I2  a bin is a list while it has at most [`FEW`] blocks, and a tree while it has more than [`FEW`] / 2.
//!
//! Cost: O(1) while the bins have few blocks, O(log n) beyond.

use super::blocks::BlockId;
use gapless::units::DeviceAddr;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Size, address and number of a free block, in this order.
type Free = (u64, DeviceAddr, BlockId);

/// Returns where a block is in a list, or where it belongs.
fn place_of(few: &[Free], free: &Free) -> Result<usize, usize> {
    // As one number, size and address are compared in one step.
    let key = |free: &Free| Reverse(u128::from(free.0) << u64::BITS | u128::from(free.1.0));
    few.binary_search_by_key(&key(free), key)
}

/// The blocks. Bins are made up to that of the largest block so far.
#[derive(Default)]
pub(super) struct FreeBlocks {
    bins: Vec<Bin>,
    /// One bit for each bin that has a block.
    marks: [u64; BINS.div_ceil(64)],
}

enum Bin {
    /// The first block in order is the last one, since it is the one that is taken most.
    Few(Vec<Free>),
    Many(BTreeSet<Free>),
}

impl FreeBlocks {
    /// Adds a block. Returns whether it is new.
    pub(super) fn insert(&mut self, bytes: u64, addr: DeviceAddr, block: BlockId) -> bool {
        let bin = bin_of(bytes);
        if bin >= self.bins.len() {
            self.bins.resize_with(bin + 1, Bin::default);
        }
        self.marks[bin / 64] |= 1 << (bin % 64);
        self.bins[bin].insert((bytes, addr, block))
    }

    /// Removes a block. Returns whether it was there.
    pub(super) fn remove(&mut self, bytes: u64, addr: DeviceAddr, block: BlockId) -> bool {
        let number = bin_of(bytes);
        let Some(bin) = self.bins.get_mut(number) else { return false };
        let was_there = bin.remove((bytes, addr, block));
        if bin.is_empty() {
            self.marks[number / 64] &= !(1 << (number % 64));
        }
        was_there
    }

    /// Returns the smallest block with at least `bytes` bytes: its size, and its number.
    pub(super) fn best_fit(&self, bytes: u64) -> Option<(u64, BlockId)> {
        let own = bin_of(bytes);
        let own_fit = self.bins.get(own).and_then(|bin| bin.first_from(bytes));
        let fit = own_fit.or_else(|| self.bins[self.next_bin(own + 1)?].first_from(0));
        fit.map(|(bytes, _, block)| (bytes, block))
    }

    /// Returns the blocks with at least `bytes` bytes, the smallest first.
    pub(super) fn fits(&self, bytes: u64) -> impl Iterator<Item = (u64, BlockId)> {
        let bins = std::iter::successors(self.next_bin(bin_of(bytes)), |bin| self.next_bin(bin + 1));
        bins.flat_map(move |bin| self.bins[bin].from(bytes)).map(|(bytes, _, block)| (bytes, block))
    }

    /// Checks I1 and I2.
    #[cfg(test)]
    fn check(&self) {
        for (number, bin) in self.bins.iter().enumerate() {
            let in_bin = |free: &Free| bin_of(free.0) == number;
            let (all_in_bin, len, has_right_form) = match bin {
                Bin::Few(few) => (few.iter().all(in_bin), few.len(), few.len() <= FEW),
                Bin::Many(many) => (many.iter().all(in_bin), many.len(), many.len() > FEW / 2),
            };
            let is_marked = self.marks[number / 64] & (1 << (number % 64)) != 0;
            assert!(all_in_bin && is_marked == (len > 0) && has_right_form, "bin {number} has {len} blocks");
        }
    }

    /// Returns the first bin from `bin` on that has a block.
    fn next_bin(&self, bin: usize) -> Option<usize> {
        let first = *self.marks.get(bin / 64)? & (u64::MAX << (bin % 64));
        let rest = self.marks[bin / 64 + 1..].iter().copied();
        let (word, marks) = (bin / 64..).zip(std::iter::once(first).chain(rest)).find(|(_, marks)| *marks != 0)?;
        Some(word * 64 + marks.trailing_zeros() as usize)
    }
}

impl Default for Bin {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Bin {
    fn insert(&mut self, free: Free) -> bool {
        match self {
            Self::Few(few) => {
                let Err(place) = place_of(few, &free) else { return false };
                if few.len() < FEW {
                    few.insert(place, free);
                } else {
                    *self = Self::Many(few.drain(..).chain([free]).collect());
                }
                true
            }
            Self::Many(many) => many.insert(free),
        }
    }

    fn remove(&mut self, free: Free) -> bool {
        match self {
            Self::Few(few) => {
                let Ok(place) = place_of(few, &free) else { return false };
                few.remove(place);
                true
            }
            Self::Many(many) => {
                let was_there = many.remove(&free);
                if many.len() <= FEW / 2 {
                    *self = Self::Few(std::mem::take(many).into_iter().rev().collect());
                }
                was_there
            }
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Few(few) if few.is_empty())
    }

    /// Returns the blocks with at least `bytes` bytes in order.
    fn from(&self, bytes: u64) -> impl Iterator<Item = Free> {
        let first = (bytes, DeviceAddr(0), BlockId::FIRST);
        let (few, many) = match self {
            Self::Few(few) => (Some(few[..few.partition_point(|free| *free >= first)].iter().rev()), None),
            Self::Many(many) => (None, Some(many.range(first..))),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten()).copied()
    }

    fn first_from(&self, bytes: u64) -> Option<Free> {
        match self {
            Self::Few(few) => few.iter().rfind(|free| free.0 >= bytes).copied(),
            Self::Many(many) => many.range((bytes, DeviceAddr(0), BlockId::FIRST)..).next().copied(),
        }
    }
}

/// Returns the bin of a size: below 64 granules every number of them has its own.
const fn bin_of(bytes: u64) -> usize {
    let granules = bytes / GRANULE;
    let width = (granules | SUB_BINS).ilog2() - SUB_BINS.ilog2();
    (width as usize) * SUB_BINS as usize + (granules >> width) as usize
}

/// PyTorch rounds sizes to multiples of this many bytes.
const GRANULE: u64 = 512;
/// Bins for each doubling.
const SUB_BINS: u64 = 32;
const BINS: usize = bin_of(u64::MAX) + 1;
/// Most blocks of a bin that is a list.
const FEW: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_follow_the_order_of_sizes() {
        let sizes = (0..u64::BITS).flat_map(|bits| [1, 3, 5, 31, 63].map(|odd: u64| odd.saturating_mul(1 << bits)));
        let mut sizes: Vec<u64> = sizes.chain(0..9_000).chain([u64::MAX]).collect();
        sizes.sort_unstable();
        assert!(sizes.windows(2).all(|pair| bin_of(pair[0]) <= bin_of(pair[1])));
        assert_eq!([0, 511, 512, 63 * 512, 64 * 512, 65 * 512, 66 * 512].map(bin_of), [0, 0, 1, 63, 64, 64, 65]);
    }

    /// Against one ordered set, with sizes that share bins, and with more blocks in one than a list has.
    #[test]
    fn blocks_are_in_order() {
        let (mut random, mut spilled, mut back) = (5_u64, 0, 0);
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut found, mut expected) = (FreeBlocks::default(), BTreeSet::new());
        for step in 0..60_000_u32 {
            // Ever more blocks, and then ever fewer.
            let grows = (step / 10_000) % 2 == 0;
            let bytes = GRANULE * [1, 40, 5_000 + draw(300), 1 << draw(30)][draw(4) as usize];
            let many = found.bins.iter().filter(|bin| matches!(bin, Bin::Many(_))).count();
            if draw(5) < if grows { 4 } else { 1 } {
                let free = (bytes, DeviceAddr(GRANULE * draw(4_000)), BlockId::FIRST);
                assert_eq!(found.insert(free.0, free.1, free.2), expected.insert(free));
            } else if let Some(&free) = expected.range((bytes, DeviceAddr(0), BlockId::FIRST)..).next() {
                assert!(expected.remove(&free) && found.remove(free.0, free.1, free.2));
                assert!(!found.remove(free.0, free.1, free.2));
            }
            let now = found.bins.iter().filter(|bin| matches!(bin, Bin::Many(_))).count();
            (spilled, back) = (spilled + usize::from(now > many), back + usize::from(now < many));
            let bytes = bytes - draw(3).min(1) * 512;
            let from = expected.range((bytes, DeviceAddr(0), BlockId::FIRST)..).map(|free| (free.0, free.2));
            assert_eq!(found.best_fit(bytes), from.clone().next());
            if step % 97 == 0 {
                found.check();
                assert!(found.fits(bytes).eq(from));
                assert!(found.fits(0).eq(expected.iter().map(|free| (free.0, free.2))));
            }
        }
        assert!(spilled > 3 && back > 3, "{spilled}, {back}");
    }
}
