//! Cached memory is given back to the driver: all of it, or oversize blocks alone.

use super::blocks::{BlockId, State};
use super::kind::PoolKind;
use super::{CachingAllocator, CachingError};
use gapless::driver::Driver;
use gapless::units::StreamId;

impl<D: Driver> CachingAllocator<D> {
    /// Frees every segment without live blocks, and unmaps what expandable segments have no use for
    /// (`release_cached_blocks`).
    pub(super) fn release_cached(&mut self) -> Result<(), CachingError> {
        let mut waited = Waited::No;
        for kind in [PoolKind::Large, PoolKind::Small] {
            for block in self.releasable(kind) {
                if self.settings.expandable_segments {
                    self.unmap_block(block)?;
                } else if self.blocks.is_whole_segment(block) {
                    self.destroy_segment(block, &mut waited)?;
                }
            }
        }
        Ok(())
    }

    /// Frees the smallest oversize block of `stream` that is large enough for `size` bytes, or else oversize blocks, the
    /// largest first, until they are as many bytes (`release_available_cached_blocks`). Returns `false` if they are not,
    /// or if there is no limit from which on a block is oversize.
    pub(super) fn release_oversize(
        &mut self,
        size: u64,
        kind: PoolKind,
        stream: StreamId,
    ) -> Result<bool, CachingError> {
        let Some(limit) = self.settings.max_split_bytes.filter(|_| !self.settings.expandable_segments) else {
            return Ok(false);
        };
        let wanted = size.max(limit);
        let mut waited = Waited::No;
        if let Some((_, block)) = self.pool_of(kind).best_fit(stream, wanted) {
            self.destroy_segment(block, &mut waited)?;
            return Ok(true);
        }
        let mut released = 0;
        let largest: Vec<_> = self.pool_of(kind).fits(stream, limit).collect();
        for &(bytes, block) in largest.iter().rev() {
            if released >= wanted {
                break;
            }
            self.destroy_segment(block, &mut waited)?;
            released += bytes;
        }
        Ok(released >= wanted)
    }

    /// Frees a segment that is one free block.
    pub(super) fn destroy_segment(&mut self, block: BlockId, waited: &mut Waited) -> Result<(), CachingError> {
        if *waited == Waited::No {
            self.waits.for_device()?;
            *waited = Waited::Yes;
        }
        self.take_free(block);
        self.segments.destroy(self.blocks.addr(block))?;
        self.figures.reserved_bytes -= self.blocks.bytes(block);
        self.blocks.remove(block);
        Ok(())
    }

    /// Takes the memory from the whole handles of a free block (`unmap_block`), and gives the segment's addresses back if
    /// nothing is mapped in it any more.
    fn unmap_block(&mut self, block: BlockId) -> Result<(), CachingError> {
        let (offset, bytes) = self.expandable.whole_handles(self.blocks.addr(block), self.blocks.bytes(block));
        if bytes == 0 {
            return Ok(());
        }
        let (kind, stream) = (self.blocks.kind(block), self.blocks.stream(block));
        self.waits.for_stream(stream)?;
        self.take_free(block);
        let middle = if offset == 0 { block } else { self.split_free(block, offset) };
        if self.blocks.bytes(middle) > bytes {
            let after = self.blocks.split(middle, bytes);
            self.put_free(after);
        }
        let addr = self.blocks.addr(middle);
        self.expandable.unmap(addr, bytes)?;
        self.figures.reserved_bytes -= bytes;
        self.blocks.set_state(middle, State::Unmapped);
        for neighbour in self.blocks.like_neighbours(middle).into_iter().flatten() {
            let addr = self.blocks.addr(neighbour);
            self.pool(kind).remove_unmapped(stream, addr, neighbour);
            self.blocks.merge(middle, neighbour);
        }
        let addr = self.blocks.addr(middle);
        if self.blocks.is_whole_segment(middle) {
            self.blocks.remove(middle);
            self.expandable.destroy(addr)?;
        } else {
            self.pool(kind).insert_unmapped(stream, addr, middle);
        }
        Ok(())
    }

    /// Puts the first `bytes` bytes of a block, which is in no pool, into its pool. Returns the rest.
    fn split_free(&mut self, block: BlockId, bytes: u64) -> BlockId {
        let rest = self.blocks.split(block, bytes);
        self.put_free(block);
        rest
    }
}

/// Whether the host has waited for the device since memory was last used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    No,
    Yes,
}
