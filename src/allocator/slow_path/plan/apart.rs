//! A placement in one new chunk, apart from all others: a page on either side stays without a mapping. So free memory of
//! two chunks never becomes one free block, and what is placed in it later lies in one chunk as well.

use super::rooms::{Piece, PieceKind, Room};
use super::{Backing, Fill, Plan, Survey};
use crate::pages::{PageCount, PageIndex, PageRange};

impl Survey<'_> {
    /// The lowest placement of the kind. `None` where the chunk may not be created, or where there are no addresses for it.
    pub fn plan_apart(&self) -> Option<Plan> {
        let page_bytes = self.page_bytes();
        let request = &self.goal.request;
        let whole = self.mapper.sizes().for_whole_block(request.size);
        let pages = [whole, PageCount::covering(request.size, page_bytes)];
        let pages = pages.into_iter().find(|pages| *pages <= self.goal.allowance.hard_pages)?;
        let bytes = pages.bytes(page_bytes);
        let rooms = self.rooms();
        let empty = |room: &Room| room.pieces.clone().into_iter().filter(|piece| piece.kind == PieceKind::Empty);
        let start = rooms.iter().flat_map(empty).find_map(|piece| self.start_apart(&piece, bytes))?;
        let pages = PageRange::new(PageIndex::of(start, page_bytes), pages);
        let claim = start..start + bytes;
        let (before, reuse, unmap, release) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let fill = vec![Fill { pages, backing: Backing::Create }];
        let segment = self.target.segment;
        Some(Plan { goal: self.goal, segment, start, claim, before, reuse, unmap, release, fill })
    }

    /// Where a chunk of `bytes` starts in a piece without a mapping, with a page on either side where the region goes on.
    fn start_apart(&self, piece: &Piece, bytes: u64) -> Option<u64> {
        let page_bytes = self.page_bytes();
        let extent = self.mapper.segment(self.target.segment).pages.bytes(page_bytes);
        let start = if piece.start == 0 { 0 } else { piece.start + page_bytes };
        let end = if piece.end == extent { extent } else { piece.end - page_bytes };
        let start = self.align(start)?.next_multiple_of(page_bytes);
        (start.checked_add(bytes)? <= end).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{ModelConfig, ModelDriver};
    use crate::units::{GIB, MIB, StreamId};

    /// The addresses of a block that went back serve again, as far as a page stays empty on either side.
    #[test]
    fn a_block_apart_is_placed_between_others() {
        let config = ModelConfig { capacity_bytes: 64 * GIB, ..ModelConfig::default() };
        let builder = Allocator::builder(std::sync::Arc::new(ModelDriver::new(config)));
        let allocator = builder.chunk_policy(ChunkPolicy::Fixed(2 * MIB)).whole_blocks().build().unwrap();
        let alloc = |bytes| allocator.alloc_raw(bytes, StreamId::DEFAULT).unwrap();
        let blocks = [(); 3].map(|()| alloc(8 * MIB));
        allocator.free(blocks[1]).unwrap();
        allocator.trim(0).unwrap();
        assert_eq!(alloc(10 * MIB), blocks[2].offset(10 * MIB));
        assert_eq!(alloc(8 * MIB), blocks[1]);
        allocator.check();
    }
}
