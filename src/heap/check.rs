//! The invariants of a heap.

use super::starts::stretch_of;
use super::{BlockState, GRANULE, Heap};

impl Heap {
    /// Asserts I1 to I6.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check(&self) {
        self.table.check();
        self.free.check();
        let (mut at, mut prev_size, mut count) = (0, 0, 0);
        let (mut free, mut free_bytes, mut unmapped, mut live) = (0, 0, 0, (0, 0, 0));
        let mut pending = (0, 0);
        let mut previous = None;
        for block in self.blocks() {
            assert_eq!(block.offset, at, "I1: a gap before {at:#x}");
            assert_eq!(block.prev_size, prev_size, "I1: the way back from {at:#x}");
            assert!(block.size > 0 && block.size.is_multiple_of(GRANULE), "I1: {} bytes at {at:#x}", block.size);
            let mergeable = matches!(block.state, BlockState::Free | BlockState::Hole);
            assert!(!mergeable || previous != Some(block.state), "I2: two {:?} neighbours at {at:#x}", block.state);
            match block.state {
                BlockState::Free => {
                    free += 1;
                    free_bytes += block.size;
                }
                BlockState::Hole => {
                    unmapped += 1;
                    assert_eq!(self.unmapped.get(&at), Some(&block.size), "I3: the unmapped block at {at:#x}");
                }
                BlockState::Live => {
                    live.0 += 1;
                    live.1 += block.size;
                    live.2 += block.size - u64::from(block.waste);
                }
                BlockState::Pending => {
                    pending.0 += 1;
                    pending.1 += block.size;
                }
                BlockState::Claimed => {}
            }
            let in_use = matches!(block.state, BlockState::Live | BlockState::Pending);
            assert!(in_use || !block.shared, "I5: a shared {:?} block at {at:#x}", block.state);
            previous = Some(block.state);
            prev_size = block.size;
            at += block.size;
            count += 1;
            assert!(in_use || block.waste == 0, "I5: waste in a {:?} block at {:#x}", block.state, block.offset);
        }
        assert_eq!(at, self.extent, "I1: the blocks end early");
        assert_eq!(count, self.table.len(), "I1: blocks outside the tiling");
        assert_eq!((free, free_bytes), (self.free.len(), self.free.bytes()), "I3: free blocks");
        assert_eq!(unmapped, self.unmapped.len(), "I3: unmapped blocks");
        assert_eq!(live, (self.live_count, self.live_block_bytes, self.live_bytes), "I4: live bytes");
        assert_eq!(pending, (self.pending_count, self.pending_bytes), "I4: pending bytes");
        let mut stretches: Vec<usize> = self.blocks().map(|block| stretch_of(block.offset)).collect();
        stretches.dedup();
        self.starts.check(stretches.into_iter());
    }
}
