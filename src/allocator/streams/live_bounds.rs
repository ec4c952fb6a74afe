//! Bounds for the live blocks of a region, by windows of its addresses: what the search for the largest ones (`largest.rs`) goes
//! by, and lowers.

use crate::heap::{Block, BlockState, GRANULE};

/// Bytes of a window: at most a thousand blocks, which are looked at while their stream's state is locked.
pub(super) const WINDOW: u64 = 1024 * GRANULE;

/// How large the live blocks of a region may be.
#[derive(Debug, Default)]
pub struct LiveBounds {
    /// One more than the most bytes requested for a live block that starts in the window; 0 where there is none.
    pub(super) of_windows: Vec<u64>,
}

impl LiveBounds {
    /// Notes a live block of `bytes` requested bytes.
    #[inline]
    pub fn note(&mut self, offset: u64, bytes: u64) {
        match self.of_windows.get((offset / WINDOW) as usize) {
            Some(bound) if bytes < *bound => {}
            _ => self.raise(offset, bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn raise(&mut self, offset: u64, bytes: u64) {
        let window = (offset / WINDOW) as usize;
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
            let bound = self.of_windows.get((block.offset / WINDOW) as usize).copied().unwrap_or(0);
            assert!(requested(&block) < bound, "largest I1: the live block at {:#x}", block.offset);
        }
    }
}

/// Bytes of a block that were requested.
pub(super) fn requested(block: &Block) -> u64 {
    block.size - u64::from(block.waste)
}
