//! Bounds for the live blocks of a region, by windows of its addresses: what the search for the largest ones (`largest.rs`) goes
//! by, and lowers.

use super::super::kind::{RegionKind, SMALL_BELOW};
use crate::heap::{Block, BlockState, GRANULE};
use std::ops::Range;

/// Blocks of the smallest size that a window has room for.
const BLOCKS: u64 = 1024;

/// How large the live blocks of a region may be.
#[derive(Debug)]
pub struct LiveBounds {
    /// log2 of the bytes of a window.
    window_shift: u32,
    /// One more than the most bytes requested for a live block that starts in the window; 0 where there is none.
    pub(super) of_windows: Vec<u64>,
}

impl LiveBounds {
    /// Bounds for a region of this kind, without live blocks. A window is as large as a thousand of the smallest blocks of that
    /// kind: few words for a large region, so that they stay in the processor's caches, and few blocks in each.
    pub fn new(kind: RegionKind) -> Self {
        let least = match kind {
            RegionKind::Small => GRANULE,
            RegionKind::Large => SMALL_BELOW,
        };
        Self { window_shift: (BLOCKS * least).ilog2(), of_windows: Vec::new() }
    }

    /// The window that an offset lies in.
    #[inline]
    fn window(&self, offset: u64) -> usize {
        (offset >> self.window_shift) as usize
    }

    /// The offsets of a window.
    pub(super) fn offsets(&self, window: usize) -> Range<u64> {
        let window = window as u64;
        window << self.window_shift..(window + 1) << self.window_shift
    }

    /// Notes a live block of `bytes` requested bytes.
    #[inline]
    pub fn note(&mut self, offset: u64, bytes: u64) {
        match self.of_windows.get(self.window(offset)) {
            Some(bound) if bytes < *bound => {}
            _ => self.raise(offset, bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn raise(&mut self, offset: u64, bytes: u64) {
        let window = self.window(offset);
        if self.of_windows.len() <= window {
            self.of_windows.resize(window + 1, 0);
        }
        self.of_windows[window] = bytes + 1;
    }

    /// Bytes of host memory behind the bounds.
    pub fn metadata_bytes(&self) -> u64 {
        (self.of_windows.capacity() * size_of::<u64>()) as u64
    }

    /// Asserts I1 of these blocks.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub fn check(&self, blocks: impl Iterator<Item = Block>) {
        for block in blocks.filter(|block| block.state == BlockState::Live) {
            let bound = self.of_windows.get(self.window(block.offset)).copied().unwrap_or(0);
            assert!(requested(&block) < bound, "largest I1: the live block at {:#x}", block.offset);
        }
    }
}

/// Bytes of a block that were requested.
pub(super) fn requested(block: &Block) -> u64 {
    block.size - u64::from(block.waste)
}
