//! The memory that a recorded allocator held at a moment, and where: the recording's state at its end, taken back event by event.
//!
//! - I1  pieces of memory do not overlap, and neither do blocks.

use std::collections::BTreeMap;

/// Memory of a recorded allocator at one moment: pieces that the device gave, and blocks in them. What is no block is free.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    /// By address.
    held: BTreeMap<u64, Piece>,
    /// By address.
    blocks: BTreeMap<u64, Block>,
    /// Memory that the device had free, in bytes.
    pub device_free_bytes: u64,
}

/// A piece of memory that the device gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub bytes: u64,
    pub stream: u64,
    /// Whether only a private pool may use it.
    pub private: bool,
    /// Whether it is part of a segment that grows, so that a block may reach over its end.
    pub grows: bool,
}

/// A block that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub bytes: u64,
    /// Whether the program has freed it, and work of other streams may still use it.
    pub waits: bool,
}

/// Free memory between blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreePiece {
    pub addr: u64,
    pub bytes: u64,
    pub stream: u64,
    pub private: bool,
}

impl Layout {
    /// Adds a piece of memory.
    pub fn hold(&mut self, addr: u64, piece: Piece) {
        if piece.bytes > 0 {
            self.held.insert(addr, piece);
        }
    }

    /// Takes memory away, wherever pieces have it.
    pub fn drop_range(&mut self, addr: u64, bytes: u64) {
        let end = addr.saturating_add(bytes);
        let touched: Vec<(u64, Piece)> = self
            .held
            .range(..end)
            .rev()
            .take_while(|(at, piece)| at.saturating_add(piece.bytes) > addr)
            .map(|(at, piece)| (*at, *piece))
            .collect();
        for (at, piece) in touched {
            self.held.remove(&at);
            let until = at.saturating_add(piece.bytes);
            self.hold(at, Piece { bytes: addr.saturating_sub(at), ..piece });
            if until > end {
                self.hold(end, Piece { bytes: until - end, ..piece });
            }
        }
    }

    /// Adds a block, or changes the one that is there: its size stays.
    pub fn block(&mut self, addr: u64, bytes: u64, waits: bool) {
        self.blocks.entry(addr).or_insert(Block { bytes, waits }).waits = waits;
    }

    /// Takes a block away.
    pub fn drop_block(&mut self, addr: u64) {
        self.blocks.remove(&addr);
    }

    /// Returns the size of all pieces, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.held.values().fold(0, |sum, piece| sum.saturating_add(piece.bytes))
    }

    /// Returns the size of the blocks, with rounding, of those that wait or of the others, in bytes.
    pub fn block_bytes(&self, waits: bool) -> u64 {
        let of_kind = self.blocks.values().filter(|block| block.waits == waits);
        of_kind.fold(0, |sum, block| sum.saturating_add(block.bytes))
    }

    /// Returns the free memory between blocks, in the order of addresses.
    pub fn free(&self) -> Vec<FreePiece> {
        let mut free: Vec<FreePiece> = Vec::new();
        let mut grew_until = None;
        let mut blocks = self.blocks.iter().peekable();
        // Where the last block ends: in a segment that grows, that may be in a later piece.
        let mut taken_until = 0;
        for (&start, piece) in &self.held {
            let end = start.saturating_add(piece.bytes);
            let mut at = start.max(taken_until);
            while let Some((&addr, block)) = blocks.next_if(|(addr, _)| **addr < end) {
                if addr >= start {
                    Self::push(&mut free, at, addr, piece, grew_until == Some(at));
                    taken_until = addr.saturating_add(block.bytes);
                    at = at.max(taken_until);
                }
            }
            Self::push(&mut free, at, end, piece, grew_until == Some(at));
            grew_until = piece.grows.then_some(end);
        }
        free
    }

    /// Adds the free memory from `at` to `end`, to the piece before if both are of one segment that grows.
    fn push(free: &mut Vec<FreePiece>, at: u64, end: u64, piece: &Piece, grew: bool) {
        if end <= at {
            return;
        }
        let bytes = end - at;
        match free.last_mut() {
            Some(last)
                if grew
                    && piece.grows
                    && (last.addr + last.bytes, last.stream, last.private) == (at, piece.stream, piece.private) =>
            {
                last.bytes += bytes;
            }
            _ => free.push(FreePiece { addr: at, bytes, stream: piece.stream, private: piece.private }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: u64, grows: bool) -> Piece {
        Piece { bytes, stream: 7, private: false, grows }
    }

    fn free(layout: &Layout) -> Vec<(u64, u64)> {
        layout.free().iter().map(|free| (free.addr, free.bytes)).collect()
    }

    #[test]
    fn what_is_no_block_is_free() {
        let mut layout = Layout::default();
        layout.hold(100, piece(100, false));
        layout.hold(200, piece(100, false));
        assert_eq!(free(&layout), [(100, 100), (200, 100)]);
        layout.block(120, 30, false);
        layout.block(200, 100, true);
        assert_eq!(free(&layout), [(100, 20), (150, 50)]);
        assert_eq!((layout.block_bytes(false), layout.block_bytes(true)), (30, 100));
        layout.block(200, 1, false);
        assert_eq!(layout.block_bytes(false), 130, "a block keeps its size");
        layout.drop_block(120);
        assert_eq!(free(&layout), [(100, 100)]);
    }

    #[test]
    fn memory_is_taken_from_pieces_of_any_size() {
        let mut layout = Layout::default();
        layout.hold(100, piece(100, true));
        layout.drop_range(120, 30);
        assert_eq!(free(&layout), [(100, 20), (150, 50)]);
        layout.hold(120, piece(30, true));
        assert_eq!(free(&layout), [(100, 100)], "pieces of one segment belong together");
        // A block over the end of a piece.
        layout.block(110, 60, false);
        assert_eq!(free(&layout), [(100, 10), (170, 30)]);
        layout.drop_range(0, u64::MAX);
        assert_eq!(free(&layout), []);
    }
}
