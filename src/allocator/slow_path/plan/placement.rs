//! A placement worked out: which stale views become active again, which are unmapped, and what is mapped.

use super::fill::Filler;
use super::rooms::{PieceKind, Room};
use super::{Plan, Reuse, Survey};
use crate::pages::{PageCount, PageIndex, PageRange};
use crate::segment::ViewState;
use std::ops::Range;

impl Survey<'_> {
    /// Works out a placement that starts at `start` in `room`. `None` when the chunks do not suffice.
    pub fn place(&self, room: &Room, start: u64) -> Option<Plan> {
        let page_bytes = self.page_bytes();
        let end = start.checked_add(self.goal.request.size)?;
        if start < room.pieces.first()?.start || end > room.pieces.last()?.end {
            return None;
        }
        let mut used = self.underneath(start..end);
        let (mut reuse, mut unmap) = (Vec::new(), Vec::new());
        let mut unmapped: Vec<PageRange> = Vec::new();
        let mut claim = start..end;
        for piece in room.pieces.iter().filter(|piece| piece.start < end && piece.end > start) {
            match piece.kind {
                PieceKind::Free => continue,
                PieceKind::Reusable(source) if !used[source] => {
                    used[source] = true;
                    let page = PageIndex::of(piece.start, page_bytes);
                    reuse.push(Reuse { page, source: self.sources.list[source] });
                    claim.start = claim.start.min(piece.start);
                    claim.end = claim.end.max(piece.end);
                    continue;
                }
                PieceKind::Reusable(_) | PieceKind::Busy => {
                    let view = self.table().view(PageIndex::of(piece.start, page_bytes)).expect("a piece of a view");
                    let ViewState::Stale(fence) = view.state else { return None };
                    if !self.can_unmap(fence) {
                        return None;
                    }
                    unmap.push(view.pages.start);
                }
                PieceKind::Empty => {}
            }
            let pages = PageRange::around(&(piece.start.max(start)..piece.end.min(end)), page_bytes);
            claim.start = claim.start.min(pages.start.offset(page_bytes));
            match unmapped.last_mut() {
                Some(last) if last.end == pages.start => last.end = pages.end,
                _ => unmapped.push(pages),
            }
        }
        let mut filler = Filler::new(self, &(start..end), &used);
        for (number, pages) in unmapped.iter().enumerate() {
            // Behind the last pages a larger chunk may reach into empty ones.
            let is_last = number + 1 == unmapped.len() && pages.end.offset(page_bytes) >= end;
            let spare = if is_last { self.empty_pages_from(room, pages.end) } else { PageCount::ZERO };
            let filled = filler.fill(*pages, spare)?;
            claim.end = claim.end.max(filled.offset(page_bytes));
        }
        let (fill, release) = filler.finish();
        let (goal, segment, before) = (self.goal, self.target.segment, Vec::new());
        Some(Plan { goal, segment, start, claim, before, reuse, unmap, release, fill })
    }

    /// Marks the sources that lie under a placement itself: they must not be taken from there.
    fn underneath(&self, placement: Range<u64>) -> Vec<bool> {
        let page_bytes = self.page_bytes();
        let is_under = |source: &super::Source| {
            let bytes = source.pages.bytes(page_bytes);
            (source.stream, source.region) == (self.goal.stream, self.goal.region)
                && bytes.start < placement.end
                && bytes.end > placement.start
        };
        self.sources.list.iter().map(is_under).collect()
    }

    /// Number of pages without a mapping in a room from `page` on.
    fn empty_pages_from(&self, room: &Room, page: PageIndex) -> PageCount {
        let offset = page.offset(self.page_bytes());
        let at =
            |piece: &&super::rooms::Piece| piece.kind == PieceKind::Empty && (piece.start..piece.end).contains(&offset);
        let pages = |piece: &super::rooms::Piece| PageRange::inside(&(offset..piece.end), self.page_bytes()).len();
        room.pieces.iter().find(at).map_or(PageCount::ZERO, pages)
    }
}
