//! Holdings: figures of an allocator's chunks and mappings at one moment. Whoever leaves the slow path publishes them, so that
//! statistics need not wait for those inside.
//!
//! Cost: constant, but for the completely free chunks, which are counted on demand.

use super::super::mapper::Mapper;

/// The memory of the device that an allocator holds at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Holdings {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of all chunks.
    pub held_bytes: u64,
    /// Highest `held_bytes`.
    pub peak_held_bytes: u64,
    /// Bytes of all chunks created so far.
    pub created_bytes: u64,
    /// Their number.
    pub created_chunks: u64,
    /// Bytes of chunks that nothing maps.
    pub idle_bytes: u64,
    /// Bytes of exposed chunks that the driver refused to take back.
    pub unreleased_bytes: u64,
    /// Bytes of chunks of growable ranges.
    pub range_bytes: u64,
    /// Bytes of chunks of registered blocks.
    pub registered_bytes: u64,
    /// Bytes that the budget still allows, in whole pages.
    pub headroom_bytes: u64,
    /// Bytes of completely free chunks in the streams' regions, when they were counted last.
    pub free_chunk_bytes: u64,
    /// Bytes of chunks that are completely free but for blocks that wait for streams, when they were counted last.
    pub waiting_chunk_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Highest `chunks`.
    pub peak_chunks: u64,
    /// Number of mappings, stale ones included.
    pub mappings: u64,
    /// Number of chunks that were remapped.
    pub remapped_chunks: u64,
    /// Number of those that were still mapped where they moved to.
    pub reused_views: u64,
    /// Number of driver sequences that could not be undone.
    pub poisoned: u64,
    /// Bytes of host memory behind chunks and page tables.
    pub metadata_bytes: u64,
    /// Bytes of pages that are asleep.
    pub asleep_bytes: u64,
    /// Bytes of the host's memory with what is asleep.
    pub backup_bytes: u64,
    /// Bytes of files with what is asleep.
    pub file_bytes: u64,
}

impl Holdings {
    /// Returns the memory that is held now. Completely free chunks, and those that wait for streams, are not counted.
    pub fn new(mapper: &Mapper) -> Self {
        let (chunks, counts) = (mapper.chunks(), mapper.counts());
        let page_bytes = chunks.page_bytes();
        Self {
            page_bytes,
            held_bytes: chunks.held_bytes(),
            peak_held_bytes: chunks.peak_held_bytes(),
            created_bytes: chunks.created_bytes(),
            created_chunks: chunks.created_chunks(),
            idle_bytes: chunks.idle_bytes(),
            unreleased_bytes: mapper.unreleased_pages().bytes(page_bytes),
            range_bytes: chunks.range_bytes(),
            registered_bytes: chunks.registered_bytes(),
            headroom_bytes: chunks.headroom_pages().bytes(page_bytes),
            free_chunk_bytes: 0,
            waiting_chunk_bytes: 0,
            chunks: chunks.len() as u64,
            peak_chunks: chunks.peak_len() as u64,
            mappings: mapper.mappings() as u64,
            remapped_chunks: counts.remapped_chunks,
            reused_views: counts.reused_views,
            poisoned: counts.poisoned,
            metadata_bytes: mapper.metadata_bytes(),
            asleep_bytes: mapper.asleep().pages().bytes(page_bytes),
            backup_bytes: mapper.asleep().backup_bytes(),
            file_bytes: mapper.asleep().file_bytes(),
        }
    }

    /// Makes them those of now, but for the completely free chunks.
    pub fn update(&mut self, mapper: &Mapper) {
        let Self { free_chunk_bytes, waiting_chunk_bytes, .. } = *self;
        *self = Self { free_chunk_bytes, waiting_chunk_bytes, ..Self::new(mapper) };
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::ModelDriver;
    use crate::units::StreamId;
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;

    /// Statistics do not wait for whoever is in the slow path: they have what was counted last.
    #[test]
    fn free_chunks_stay_counted() {
        let builder = Allocator::builder(Arc::new(ModelDriver::default())).chunk_policy(ChunkPolicy::Fixed(PAGE));
        let allocator = builder.build().unwrap();
        let blocks = [(); 3].map(|()| allocator.alloc_raw(PAGE, StreamId::DEFAULT).unwrap());
        blocks[1..].iter().for_each(|block| allocator.free(*block).unwrap());
        assert_eq!(allocator.stats().free_chunk_bytes, 2 * PAGE);
        // Through the slow path, which counts them no more.
        drop(allocator.reserve_range(PAGE).unwrap());
        let _inside = allocator.inner.door.mapper.lock();
        assert_eq!(allocator.stats().free_chunk_bytes, 2 * PAGE);
    }
}
