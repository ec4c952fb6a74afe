//! Garbage collection: above `garbage_collection_threshold`, segments that were free for long are given back.
//!
//! The age of a free block is the number of searches of its pool since it became free. In PyTorch, and so here, ages
//! are counted and blocks collected only where a `per_process_memory_fraction` is set.

use super::blocks::BlockId;
use super::kind::PoolKind;
use super::release::Waited;
use super::{CachingAllocator, CachingError};
use gapless::driver::Driver;

impl<D: Driver> CachingAllocator<D> {
    /// Frees large segments of at least the average age until the reserved bytes are back at the threshold
    /// (`garbage_collect_cached_blocks`).
    pub(super) fn collect_garbage(&mut self) -> Result<(), CachingError> {
        let (Some(threshold), Some(allowed)) = (self.settings.garbage_collection_threshold, self.allowed_bytes()?)
        else {
            return Ok(());
        };
        let threshold = part(allowed, threshold);
        let Some(target) = self.figures.reserved_bytes.checked_sub(threshold).filter(|&target| target > 0) else {
            return Ok(());
        };
        let whole = |block: &BlockId| self.blocks.is_whole_segment(*block);
        let mut old: Vec<(u64, BlockId)> =
            self.releasable(PoolKind::Large).into_iter().filter(whole).map(|block| (self.age(block), block)).collect();
        let mut total_age: u64 = old.iter().map(|(age, _)| age).sum();
        let mut collected = 0;
        let mut waited = Waited::No;
        while collected < target && !old.is_empty() {
            #[allow(clippy::cast_precision_loss, reason = "an average of ages far below 2^52")]
            let average = total_age as f64 / old.len() as f64;
            #[allow(clippy::cast_precision_loss, reason = "an age is far below 2^52")]
            let (gone, kept): (Vec<_>, Vec<_>) = old.into_iter().partition(|&(age, _)| age as f64 >= average);
            for &(age, block) in &gone {
                collected += self.blocks.bytes(block);
                total_age -= age;
                self.destroy_segment(block, &mut waited)?;
            }
            old = kept;
            if gone.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn age(&self, block: BlockId) -> u64 {
        self.large.searches - self.blocks.free_since(block)
    }
}

/// Returns `part` of `bytes`, rounded down.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "PyTorch computes it in the same way; a part between 0 and 1 stays in range"
)]
pub(super) fn part(bytes: u64, part: f64) -> u64 {
    (bytes as f64 * part) as u64
}
