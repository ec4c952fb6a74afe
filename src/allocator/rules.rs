//! Rules: what an allocator may do with memory that it has mapped, and how it places blocks. They are asked by what is about to
//! be done, not by the setting that they come from.

use super::kind::RegionKind;

/// The rules of one allocator, for life. The default lets it do everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    keeps_mappings: bool,
    whole_blocks: bool,
}

impl Rules {
    /// The same, for memory that is used by work which the allocator does not see, such as replays of captured graphs: what is
    /// mapped behind blocks stays, or sleeps whole, and stays with its stream.
    #[must_use]
    pub fn keeping_mappings(self) -> Self {
        Self { keeps_mappings: true, ..self }
    }

    /// The same, with each large block within one chunk, as long as chunks may be created.
    #[must_use]
    pub fn with_whole_blocks(self) -> Self {
        Self { whole_blocks: true, ..self }
    }

    /// Whether single views may be unmapped and chunks released before the allocator ends.
    pub fn may_unmap(self) -> bool {
        !self.keeps_mappings
    }

    /// Whether free memory may go to another stream than that of its region: as a block, as a chunk, or with the region.
    pub fn may_change_streams(self) -> bool {
        !self.keeps_mappings
    }

    /// Whether the allocator sees all work that uses its memory.
    pub fn knows_all_work(self) -> bool {
        !self.keeps_mappings
    }

    /// Whether a block of a kind that no free block serves is placed in a chunk of its own first.
    pub fn places_apart(self, kind: RegionKind) -> bool {
        self.whole_blocks && kind == RegionKind::Large
    }
}
