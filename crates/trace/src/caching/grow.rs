//! Growth: new segments, and memory mapped in expandable ones.

use super::blocks::{BlockId, State};
use super::kind::PoolKind;
use super::rounding::segment_bytes;
use super::{CachingAllocator, CachingError};
use gapless::driver::Driver;
use gapless::units::StreamId;

impl<D: Driver> CachingAllocator<D> {
    /// Makes a block of at least `size` bytes from new memory, or returns `None` if there is none (`alloc_block`).
    /// The block is free and in no pool.
    pub(super) fn grow(
        &mut self,
        size: u64,
        kind: PoolKind,
        stream: StreamId,
    ) -> Result<Option<BlockId>, CachingError> {
        let Some(bytes) = segment_bytes(size) else { return Ok(None) };
        if let Some(allowed) = self.allowed_bytes()?
            && self.figures.reserved_bytes.saturating_add(bytes) > allowed
        {
            return Ok(None);
        }
        self.waits.note(stream)?;
        if self.settings.expandable_segments {
            return self.grow_expandable(size, kind, stream);
        }
        let Some(addr) = self.segments.create(bytes)? else { return Ok(None) };
        self.figures.reserve(bytes);
        Ok(Some(self.blocks.insert(addr, bytes, stream, kind, State::Free)))
    }

    /// Maps memory so that free and new memory together are a block of at least `size` bytes
    /// (`try_allocate_expandable_block`). What was mapped before memory ran out stays, as a free block.
    fn grow_expandable(
        &mut self,
        size: u64,
        kind: PoolKind,
        stream: StreamId,
    ) -> Result<Option<BlockId>, CachingError> {
        let Some(mut block) = self.find_expandable(size, kind, stream)? else { return Ok(None) };
        if !self.blocks.is_free(block) && !self.map_block(block, size)? {
            return Ok(None);
        }
        while self.blocks.bytes(block) < size {
            let next = self.blocks.next(block).expect("addresses for the request follow the block");
            let missing = size - self.blocks.bytes(block);
            if !self.map_block(next, missing)? {
                return Ok(None);
            }
            block = next;
        }
        self.take_free(block);
        Ok(Some(block))
    }

    /// Returns the first block at the lowest address from which free and unmapped blocks cover `size` bytes, or else a
    /// new segment (`find_expandable_block`).
    fn find_expandable(
        &mut self,
        size: u64,
        kind: PoolKind,
        stream: StreamId,
    ) -> Result<Option<BlockId>, CachingError> {
        let blocks = &self.blocks;
        let has_room = |first: BlockId| {
            let run = std::iter::successors(Some(first), |&block| blocks.next(block));
            let mut room = 0u64;
            for block in run.take_while(|&block| !blocks.is_live(block)) {
                room += blocks.bytes(block);
                if room >= size {
                    return true;
                }
            }
            false
        };
        let candidate =
            |unmapped| blocks.previous(unmapped).filter(|&block| !blocks.is_live(block)).unwrap_or(unmapped);
        let found = self.pool_of(kind).unmapped(stream).map(candidate).find(|&first| has_room(first));
        if found.is_some() {
            return Ok(found);
        }
        let Some((addr, bytes)) = self.expandable.create(kind.handle_bytes())? else { return Ok(None) };
        let block = self.blocks.insert(addr, bytes, stream, kind, State::Unmapped);
        self.pool(kind).insert_unmapped(stream, addr, block);
        Ok(if bytes >= size { Some(block) } else { None })
    }

    /// Maps the first `bytes` bytes of an unmapped block, or all of it if it is smaller, and merges it with its free
    /// neighbours. Returns `false` if the device is out of memory.
    fn map_block(&mut self, block: BlockId, bytes: u64) -> Result<bool, CachingError> {
        let (addr, size) = (self.blocks.addr(block), self.blocks.bytes(block));
        let Some(mapped) = self.expandable.map(addr, bytes.min(size))? else { return Ok(false) };
        let (kind, stream) = (self.blocks.kind(block), self.blocks.stream(block));
        self.pool(kind).remove_unmapped(stream, addr, block);
        if mapped < size {
            let rest = self.blocks.split(block, mapped);
            let addr = self.blocks.addr(rest);
            self.pool(kind).insert_unmapped(stream, addr, rest);
        }
        self.blocks.set_state(block, State::Free);
        self.figures.reserve(mapped);
        self.merge_free(block);
        Ok(true)
    }
}
