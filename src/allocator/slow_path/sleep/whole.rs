//! Allocators that keep their mappings, such as pools of captured graphs: their chunks sleep whole.
//!
//! Replays use memory that was freed and addresses that are stale, and the allocator sees neither. So a backup has all bytes of a
//! chunk, and a wake maps one new chunk of that size wherever the chunk was mapped: its active view and all stale ones. No page is
//! given up meanwhile: what is freed asleep is free memory after the wake, with its bytes. Nothing else is placed at the stale
//! views, whose addresses are claimed.
//!
//! Who uses the memory cannot be named: the host waits for the device before the copies.

use super::super::super::error::AllocError;
use super::super::super::request::Request;
use super::super::super::streams::directory::Owner;
use super::super::SlowPath;
use super::{Place, Run, Span, Unmapped};
use crate::driver::Driver;
use crate::heap::BlockState;
use crate::pages::PageCount;
use crate::physical::{ChunkId, IdleTaken, ViewAt};
use crate::stream::StreamIndex;
use crate::units::StreamId;

/// A chunk that sleeps whole.
#[derive(Clone, Debug)]
pub struct WholeChunk {
    /// Where it was mapped: the active view, and then the stale ones.
    pub places: Vec<Place>,
    /// The place of its bytes in the backup.
    pub place: u64,
}

impl WholeChunk {
    /// Where its bytes are allocated.
    pub fn active(&self) -> Run {
        self.places[0].run
    }

    /// The places of its stale views.
    pub fn stale(&self) -> impl Iterator<Item = &Place> {
        self.places[1..].iter()
    }
}

impl<D: Driver> SlowPath<'_, D> {
    /// Whether chunks sleep whole here.
    pub fn sleeps_whole(&self) -> bool {
        !self.rules().may_unmap()
    }

    /// Blocks the host until the device has done all that is queued.
    ///
    /// # Errors
    /// [`AllocError::CannotWait`] during a capture, and the driver's.
    pub fn wait_for_replays(&self, lane: StreamIndex) -> Result<(), AllocError> {
        if self.progress().synchronize()? {
            return Ok(());
        }
        // A stream is being captured that this allocator has never seen.
        let of_blocks = self.shared.streams.iter().find(|stream| stream.index != lane);
        Err(AllocError::CannotWait { stream: of_blocks.map_or(StreamId::DEFAULT, |stream| stream.id()) })
    }

    /// The bytes of the chunks of `runs`, one behind the other.
    pub fn spans_of_chunks(&self, runs: &[Run]) -> Vec<Span> {
        let mut place = 0;
        let span = |run: &Run| {
            let span = self.span_at(run, place);
            place += span.bytes;
            span
        };
        runs.iter().map(span).collect()
    }

    /// What is known of chunks that sleep whole. Their bytes are in the backup one behind the other.
    pub fn whole_chunks(&self, falling: &[Unmapped]) -> Vec<WholeChunk> {
        let mut end = 0;
        let whole = |Unmapped { places, .. }: &Unmapped| {
            let place = end;
            end += places[0].run.pages.len().bytes(self.page_bytes());
            WholeChunk { places: places.clone(), place }
        };
        falling.iter().map(whole).collect()
    }

    /// The bytes of a chunk that is asleep, and the region that they are in.
    pub fn span_of_chunk(&self, chunk: &WholeChunk) -> (Owner, Span) {
        (chunk.active().owner, self.span_at(&chunk.active(), chunk.place))
    }

    fn span_at(&self, run: &Run, place: u64) -> Span {
        let addr = self.mapper.segment(run.segment).address(run.pages.start);
        Span { addr, bytes: run.pages.len().bytes(self.page_bytes()), place, retained_in: None }
    }

    /// Claims the addresses of the stale views of chunks that are asleep.
    pub fn claim_stale_places(&self, chunks: &[WholeChunk]) {
        self.set_stale_places(chunks, BlockState::Claimed);
    }

    /// Ends the claim on them: they count as unmapped, as those of all stale views.
    pub fn unclaim_stale_places(&self, chunks: &[WholeChunk]) {
        self.set_stale_places(chunks, BlockState::Hole);
    }

    fn set_stale_places(&self, chunks: &[WholeChunk], to: BlockState) {
        for Place { run, .. } in chunks.iter().flat_map(WholeChunk::stale) {
            self.shared.streams.get(run.owner.stream).piece(|state| {
                let region = state.region(run.owner.region).expect("a chunk that sleeps was mapped in regions alone");
                let start = run.pages.start.offset(region.page_bytes);
                let first = region.heap.block_around(start).expect("the view lies in the heap").offset;
                region.set_pages(first, run.pages, to);
            });
        }
    }

    /// Idle chunks for all that sleeps whole, each of the size of the one that it replaces, with the places to map it at.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`], and the driver's.
    pub fn memory_for_chunks(&mut self, lane: StreamIndex) -> Result<Vec<(Place, ChunkId)>, AllocError> {
        let batches = self.mapper.asleep().batches().iter();
        let asleep: Vec<WholeChunk> = batches.flat_map(|batch| batch.chunks.iter().cloned()).collect();
        let total: PageCount = asleep.iter().map(|chunk| chunk.active().pages.len()).sum();
        let (mut found, mut places) = (Vec::new(), Vec::new());
        let (mut taken, mut looked, mut left) = (IdleTaken::default(), false, total);
        for chunk in &asleep {
            let size = chunk.active().pages.len();
            let id = loop {
                match self.chunk_of(size, &taken)? {
                    Ok(id) => break id,
                    Err(refused) if !self.finds_more(left, &found, &mut looked)? => {
                        let bytes = total.bytes(self.page_bytes());
                        return Err(self.shortage(&Request::new(bytes, bytes, 1), lane, refused.as_ref()));
                    }
                    Err(_) => {}
                }
            };
            taken.take(size);
            left -= size;
            found.push(id);
            places.extend(chunk.places.iter().map(|place| (*place, id)));
        }
        // Access is given to adjacent mappings together.
        places.sort_unstable_by_key(|(place, _): &(Place, ChunkId)| (place.run.segment, place.run.pages.start));
        Ok(places)
    }

    /// The places of all views of a chunk, the active one first. `None` where one is in no region.
    pub fn places_of(&self, chunk: ChunkId) -> Option<Vec<Place>> {
        let place = |at: ViewAt| {
            let segment = self.mapper.segment(at.segment as usize);
            let view = self.mapper.view(at);
            let run = Run { owner: self.owner_of(segment)?, segment: at.segment as usize, pages: view.pages };
            Some(Place { run, state: view.state })
        };
        self.mapper.views_of(chunk).into_iter().map(place).collect()
    }
}
