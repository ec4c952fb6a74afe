//! Exposed memory: what was freed after somebody had been given it to keep. It goes back to the driver, and is not used again.
//!
//! Its bytes are claimed from the moment on at which no work uses them any more, so that nobody gets them meanwhile.

use super::super::streams::state::Exposed;
use super::SlowPath;
use super::plan::Source;
use crate::driver::Driver;
use crate::heap::BlockState;
use crate::pages::PageRange;
use crate::physical::ChunkId;
use crate::segment::{View, ViewState};
use crate::stream::StreamIndex;
use std::ops::Range;

impl<D: Driver> SlowPath<'_, D> {
    /// Gives the chunks back that lie wholly under exposed blocks which nothing uses any more. What such a block has of other
    /// chunks is free. What the driver refuses is tried again the next time, and nobody gets it until then. Returns whether less
    /// is held now.
    pub fn release_exposed(&mut self) -> bool {
        if !self.rules().may_unmap() {
            return false;
        }
        let before = self.mapper.chunks().held_pages();
        self.release_unreleased();
        let streams: Vec<StreamIndex> = self.shared.streams.with_exposed().map(|stream| stream.index).collect();
        for stream in streams {
            let freed = self.shared.streams.get(stream).lock().exposed.clone();
            for exposed in freed {
                self.take_chunks_within(stream, &exposed);
                self.end_exposure(stream, &exposed);
            }
        }
        self.mapper.chunks().held_pages() < before
    }

    /// Takes away the chunks that lie wholly in a range, unless something keeps one from being unmapped now.
    fn take_chunks_within(&mut self, stream: StreamIndex, exposed: &Exposed) {
        let region = exposed.region;
        let parts = self.parts_of(stream, exposed);
        for Part { chunk, pages, .. } in parts.into_iter().filter(|part| part.is_inside) {
            // Nothing uses it in its place any more.
            let _ = self.give_back(&Source { chunk, stream, region, pages, epoch: 0 });
            if self.mapper.chunks().has_idle(chunk) {
                self.withhold(chunk);
            }
        }
    }

    /// Frees what is left of an exposed range in chunks that are not under it alone, and makes its addresses unmapped where the
    /// chunk is gone. The rest stays claimed.
    fn end_exposure(&self, stream: StreamIndex, exposed: &Exposed) {
        let parts = self.parts_of(stream, exposed);
        let stream = self.shared.streams.get(stream);
        let mut state = stream.lock();
        state.exposed.retain(|other| other != exposed);
        let mut at = exposed.range.start;
        for Part { bytes, is_inside, .. } in parts {
            state.end_claim(exposed.region, at..bytes.start, BlockState::Hole);
            at = bytes.end;
            match is_inside {
                true => state.exposed.push(Exposed { region: exposed.region, range: bytes }),
                false => state.end_claim(exposed.region, bytes, BlockState::Free),
            }
        }
        state.end_claim(exposed.region, at..exposed.range.end, BlockState::Hole);
        self.shared.streams.note_pending(stream.index, &state);
    }

    /// What an exposed range has of chunks, in address order.
    fn parts_of(&self, stream: StreamIndex, exposed: &Exposed) -> Vec<Part> {
        let page_bytes = self.page_bytes();
        let segment = {
            let state = self.shared.streams.get(stream).lock();
            state.regions.get(exposed.region).expect("an exposed block has a region").segment
        };
        let range = &exposed.range;
        let inside = PageRange::inside(range, page_bytes);
        let views = self.mapper.segment(segment).table.views_in(PageRange::around(range, page_bytes));
        let active = views.filter(|view| view.state == ViewState::Active);
        let part = |view: &View| {
            let bytes = view.pages.bytes(page_bytes);
            let bytes = bytes.start.max(range.start)..bytes.end.min(range.end);
            Part { chunk: view.chunk, pages: view.pages, bytes, is_inside: inside.contains(view.pages) }
        };
        active.map(part).collect()
    }

    /// Keeps a chunk that the driver did not take back from everybody.
    fn withhold(&mut self, chunk: ChunkId) {
        self.mapper.withhold(chunk);
        self.mapper.unreleased_mut().push(chunk);
    }

    /// Gives chunks back that the driver did not take back before.
    fn release_unreleased(&mut self) {
        for chunk in std::mem::take(self.mapper.unreleased_mut()) {
            self.mapper.end_withholding(chunk);
            self.release_idle(chunk);
            if self.mapper.chunks().has_idle(chunk) {
                self.withhold(chunk);
            }
        }
    }
}

/// What an exposed range has of a chunk.
struct Part {
    chunk: ChunkId,
    pages: PageRange,
    /// The bytes of the range that lie in it.
    bytes: Range<u64>,
    /// Whether all of it is in the range.
    is_inside: bool,
}
