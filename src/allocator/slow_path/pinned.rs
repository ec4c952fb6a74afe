//! The chunks under a pinned block.

use super::super::streams::directory::Owner;
use super::SlowPath;
use crate::driver::{ChunkHandle, Driver};
use crate::pages::PageRange;
use crate::units::DeviceAddr;

/// A chunk under a block, of which the block has a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedChunk {
    /// The driver's handle.
    pub handle: ChunkHandle,
    /// Where the chunk is mapped; the block begins behind it or before it.
    pub addr: DeviceAddr,
    /// Bytes of the chunk.
    pub bytes: u64,
}

impl<D: Driver> SlowPath<'_, D> {
    /// The chunks under a block that is pinned, in address order.
    pub fn chunks_under(&self, owner: Owner, offset: u64, bytes: u64) -> Vec<PinnedChunk> {
        let page_bytes = self.page_bytes();
        let (segment, base) = {
            let mut state = self.shared.streams.get(owner.stream).lock();
            let region = state.region(owner.region).expect("a pinned block has a region");
            (region.segment, region.base)
        };
        let pages = PageRange::around(&(offset..offset + bytes), page_bytes);
        let views = self.mapper.segment(segment).table.views_in(pages);
        views
            .map(|view| PinnedChunk {
                handle: self.mapper.chunks().get(view.chunk).handle,
                addr: base.offset(view.pages.start.offset(page_bytes)),
                bytes: view.pages.len().bytes(page_bytes),
            })
            .collect()
    }
}
