//! Rooms: runs of addresses of a region that no live block cuts up, in pieces by what is mapped there.

use super::Survey;
use crate::heap::BlockState;
use crate::pages::{PageCount, PageRange};
use crate::segment::ViewState;
use crate::units::round_up;

/// A run of free and unmapped blocks with at least one unmapped, in pieces in address order.
#[derive(Clone, Debug, Default)]
pub struct Room {
    pub pieces: Vec<Piece>,
}

/// A part of a room of one kind. Offsets in the region, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub start: u64,
    pub end: u64,
    pub kind: PieceKind,
}

/// The kind of a piece of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// A free block: mapped and unused.
    Free,
    /// Pages without a mapping.
    Empty,
    /// A stale view whose chunk is completely free: the survey's source of this number.
    Reusable(usize),
    /// A stale view whose chunk is in use elsewhere, and whose last use has completed.
    Busy,
}

/// The start of the cheapest placement found so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// The cost of the mappings to make there.
    pub cost: u64,
    /// Offset in the region.
    pub start: u64,
}

/// Cost of an empty page; the others are relative to it.
const EMPTY_PAGE: u64 = 1000;
/// Cost of a page in a reusable view: next to nothing, but no placement takes more of them than it needs.
const REUSABLE_PAGE: u64 = 1;
/// Cost of a page behind a stale view that has to be unmapped.
const BUSY_PAGE: u64 = 8000;

impl Survey<'_> {
    /// The rooms of the region: runs of its unmapped blocks and of the free ones beside them. Of those that are smaller than the
    /// request, the last one may be among them.
    pub fn rooms(&self) -> Vec<Room> {
        let mut rooms: Vec<Room> = Vec::new();
        for run in self.target.adequate_runs(self.goal.request.size) {
            let mut room = Room::default();
            for block in run {
                let (start, end) = (block.offset, block.offset + block.size);
                match block.state {
                    BlockState::Hole => self.cut_unmapped(start, end, &mut room, &mut rooms),
                    _ => room.pieces.push(Piece { start, end, kind: PieceKind::Free }),
                }
            }
            if !room.pieces.is_empty() {
                rooms.push(room);
            }
        }
        rooms
    }

    /// Cuts an unmapped block into pieces of `room`. A stale view that can be neither used nor removed ends the room.
    fn cut_unmapped(&self, start: u64, end: u64, room: &mut Room, rooms: &mut Vec<Room>) {
        let page_bytes = self.page_bytes();
        let mut at = start;
        let empty = |start, end| Piece { start, end, kind: PieceKind::Empty };
        for view in self.table().views_in(PageRange::inside(&(start..end), page_bytes)) {
            let view_bytes = view.pages.bytes(page_bytes);
            if view_bytes.start > at {
                room.pieces.push(empty(at, view_bytes.start));
            }
            at = view_bytes.end;
            let kind = match (self.sources.of_chunk(view.chunk), view.state) {
                (Some(source), _) => PieceKind::Reusable(source),
                (None, ViewState::Stale(fence)) if self.can_unmap(fence) => PieceKind::Busy,
                _ => {
                    if !room.pieces.is_empty() {
                        rooms.push(std::mem::take(room));
                    }
                    continue;
                }
            };
            room.pieces.push(Piece { start: view_bytes.start, end: view_bytes.end, kind });
        }
        if at < end {
            room.pieces.push(empty(at, end));
        }
    }

    /// The cheapest placement in a room, the lowest of several.
    pub fn cheapest(&self, room: &Room) -> Option<Candidate> {
        let pieces = &room.pieces;
        let size = self.goal.request.size;
        let (room_start, room_end) = (pieces.first()?.start, pieces.last()?.end);
        if room_end - room_start < size {
            return None;
        }
        let page_bytes = self.page_bytes();
        let mut sums = Vec::with_capacity(pieces.len() + 1);
        sums.push(0u64);
        for piece in pieces {
            sums.push(sums[sums.len() - 1] + piece.cost(piece.start, piece.end, page_bytes));
        }
        // The pieces that a placement begins and ends in. Starts are looked at in two ascending orders, so they only move on.
        let cost = |(first, last): &mut (usize, usize), start: u64| {
            let end = start + size;
            *first += pieces[*first..].iter().take_while(|piece| piece.end <= start).count();
            *last += pieces[*last + 1..].iter().take_while(|piece| piece.start < end).count();
            let (first, last) = (*first, *last);
            if first == last {
                return pieces[first].cost(start, end, page_bytes);
            }
            pieces[first].cost(start, pieces[first].end, page_bytes)
                + (sums[last] - sums[first + 1])
                + pieces[last].cost(pieces[last].start, end, page_bytes)
        };
        let mut best: Option<Candidate> = None;
        let mut consider = |within: &mut (usize, usize), start: Option<u64>| {
            let Some(start) = start.and_then(|start| self.align(start)) else { return };
            if start >= room_start && start.checked_add(size).is_some_and(|end| end <= room_end) {
                let found = Candidate { cost: cost(within, start), start };
                if best.is_none_or(|best| found < best) {
                    best = Some(found);
                }
            }
        };
        let (mut from_starts, mut from_ends) = ((0, 0), (0, 0));
        for piece in pieces {
            consider(&mut from_starts, Some(piece.start));
            if piece.kind != PieceKind::Empty {
                consider(&mut from_ends, piece.end.checked_sub(size));
            }
        }
        best
    }

    /// The first aligned offset at or after `start`.
    pub fn align(&self, start: u64) -> Option<u64> {
        let base = self.target.base.0;
        Some(round_up(base + start, self.goal.request.alignment)? - base)
    }
}

impl Piece {
    /// Cost of the part `[start, end)` of the piece.
    fn cost(&self, start: u64, end: u64, page_bytes: u64) -> u64 {
        match self.kind {
            PieceKind::Free => 0,
            PieceKind::Empty => PageRange::around(&(start..end), page_bytes).len().0 * EMPTY_PAGE,
            PieceKind::Reusable(_) => PageCount::within(self.end - self.start, page_bytes).0 * REUSABLE_PAGE,
            PieceKind::Busy => PageCount::within(self.end - self.start, page_bytes).0 * BUSY_PAGE,
        }
    }
}
