//! From asleep to awake: memory for all asleep pages, or for none.
//!
//! Pages that one block covers get chunks as large as a new block of its size would; those that several blocks share, or that are
//! partly free, get the smallest. So a sleep undoes what larger chunks had pinned. What sleeps whole gets chunks of the same sizes.

use super::super::super::error::AllocError;
use super::super::super::request::Request;
use super::super::super::stores::{Store, StoreId};
use super::super::super::streams::directory::Owner;
use super::super::SlowPath;
use super::whole::WholeChunk;
use super::{Batch, Phase, Place, Run, Sleeper, Span};
use crate::driver::{Driver, DriverError, DriverErrorKind};
use crate::pages::{PageCount, PageIndex, PageRange};
use crate::physical::{ChunkId, IdleTaken, Wanted};
use crate::segment::{View, ViewState};
use crate::stream::StreamIndex;

/// What is mapped again, and waits for its bytes.
#[derive(Debug)]
pub struct ToWake {
    /// What to copy, each with the store that has it.
    pub copies: Vec<(StoreId, Span)>,
    /// The stores.
    pub stores: Vec<Store>,
    /// Bytes of the pages.
    pub bytes: u64,
}

/// Asleep pages that are alike.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    run: Run,
    /// Bytes of the one block that covers the pages; `None` for pages that are shared.
    covered_by: Option<u64>,
}

impl<D: Driver> SlowPath<'_, D> {
    /// Maps memory at all asleep pages. `None` where nothing is asleep.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`], [`AllocError::CannotWait`] during a capture, and the driver's. Everything is asleep as before.
    pub fn map_asleep(&mut self, lane: StreamIndex) -> Result<Option<ToWake>, AllocError> {
        self.end_earlier(lane)?;
        self.shed_empty_pages();
        if self.is_waking() {
            return Ok(Some(self.to_wake()));
        }
        let batches = self.mapper.asleep().batches();
        let runs: Vec<Run> = batches.iter().flat_map(|batch| batch.runs.iter().copied()).collect();
        if runs.is_empty() {
            return Ok(None);
        }
        let all: Vec<Run> = batches.iter().flat_map(Batch::places).collect();
        self.expect_no_capture()?;
        loop {
            for run in &all {
                self.clear_stale(run.segment, run.pages)?;
            }
            let places = match self.sleeps_whole() {
                true => self.memory_for_chunks(lane)?,
                false => {
                    let stretches: Vec<Stretch> = runs.iter().flat_map(|run| self.stretches(run)).collect();
                    self.memory_for(&stretches, lane)?
                }
            };
            match self.map_places(&places, lane) {
                Ok(()) => break,
                Err(error) => self.make_room_after(error, places.len())?,
            }
        }
        self.set_phases(Phase::Waking);
        Ok(Some(self.to_wake()))
    }

    /// Whether something was mapped again, and did not get its bytes.
    fn is_waking(&self) -> bool {
        self.mapper.asleep().batches().iter().any(|batch| batch.phase == Phase::Waking)
    }

    fn set_phases(&mut self, phase: Phase) {
        self.mapper.asleep_mut().batches_mut().iter_mut().for_each(|batch| batch.phase = phase);
    }

    /// What is mapped again.
    fn to_wake(&self) -> ToWake {
        let batches = self.mapper.asleep().batches();
        let of_batch = |batch| self.spans_of(batch).into_iter().filter_map(|span| Some((batch.store_of(&span)?, span)));
        let copies = batches.iter().flat_map(of_batch).collect();
        let pages: PageCount = batches.iter().flat_map(|batch| &batch.runs).map(|run| run.pages.len()).sum();
        let stores = self.mapper.asleep().stores().cloned().collect();
        ToWake { copies, stores, bytes: pages.bytes(self.page_bytes()) }
    }

    /// What the backup of a batch has.
    fn spans_of(&self, batch: &Batch) -> Vec<Span> {
        Span::joined(self.spans_with_owners(batch))
    }

    /// The same, part by part, each with the region that it is in.
    pub fn spans_with_owners(&self, batch: &Batch) -> impl Iterator<Item = (Owner, Span)> {
        let (blocks, chunks): (&[Sleeper], &[WholeChunk]) = match self.sleeps_whole() {
            true => (&[], &batch.chunks),
            false => (&batch.blocks, &[]),
        };
        blocks.iter().map(Sleeper::span).chain(chunks.iter().map(|chunk| self.span_of_chunk(chunk)))
    }

    /// Cuts a run into pages that one block covers, and others.
    fn stretches(&self, run: &Run) -> Vec<Stretch> {
        let page_bytes = self.page_bytes();
        let (mut stretches, mut at) = (Vec::new(), run.pages.start);
        let mut add = |at: &mut PageIndex, end: PageIndex, covered_by| {
            if *at < end {
                let pages = PageRange { start: *at, end };
                stretches.push(Stretch { run: Run { pages, ..*run }, covered_by });
                *at = end;
            }
        };
        for block in self.live_in(run) {
            let inside = PageRange::inside(&(block.offset..block.offset + block.size), page_bytes);
            let (start, end) = (inside.start.max(at), inside.end.min(run.pages.end));
            if start < end {
                add(&mut at, start, None);
                add(&mut at, end, Some(block.size));
            }
        }
        add(&mut at, run.pages.end, None);
        stretches
    }

    /// Idle chunks for all stretches, one behind the other: such as are idle, new ones, and what [`finds_more`](Self::finds_more)
    /// finds.
    fn memory_for(&mut self, stretches: &[Stretch], lane: StreamIndex) -> Result<Vec<(Place, ChunkId)>, AllocError> {
        let total: PageCount = stretches.iter().map(|stretch| stretch.run.pages.len()).sum();
        let mut places: Vec<(Place, ChunkId)> = Vec::new();
        let (mut taken, mut looked, mut left) = (IdleTaken::default(), false, total);
        for stretch in stretches {
            let mut pages = stretch.run.pages;
            while pages.start < pages.end {
                let chunk = match self.chunk_for(stretch, pages.len(), &taken)? {
                    Ok(chunk) => chunk,
                    Err(refused) => {
                        let chunks: Vec<ChunkId> = places.iter().map(|(_, chunk)| *chunk).collect();
                        if self.finds_more(left, &chunks, &mut looked)? {
                            continue;
                        }
                        let request = Request::new(total.bytes(self.page_bytes()), total.bytes(self.page_bytes()), 1);
                        return Err(self.shortage(&request, lane, refused.as_ref()));
                    }
                };
                let size = self.mapper.chunks().get(chunk).pages;
                taken.take(size);
                left -= size;
                let here = PageRange::new(pages.start, size);
                places.push((Place { run: Run { pages: here, ..stretch.run }, state: ViewState::Active }, chunk));
                pages.start = here.end;
            }
        }
        Ok(places)
    }

    /// An idle chunk for the first of `pages` pages of a stretch, or a new one. Else the driver's answer, where it was asked.
    fn chunk_for(
        &mut self,
        stretch: &Stretch,
        pages: PageCount,
        taken: &IdleTaken,
    ) -> Result<Result<ChunkId, Option<DriverError>>, DriverError> {
        let wanted = Wanted { pages, covered: pages, spare: PageCount::ZERO };
        let sizes = *self.mapper.sizes();
        let largest = match stretch.covered_by {
            Some(_) => sizes.for_idle(wanted),
            None => sizes.for_shared_pages().min(pages),
        };
        if let Some((idle, _)) = self.mapper.chunks().idle_up_to(largest, taken) {
            return Ok(Ok(idle));
        }
        let headroom = self.mapper.chunks().headroom();
        if headroom.pages == PageCount::ZERO {
            return Ok(Err(None));
        }
        let size = match stretch.covered_by {
            Some(bytes) => sizes.for_large_block(headroom, bytes, wanted),
            None => largest,
        };
        match self.create(size.min(pages).min(headroom.pages)) {
            Ok(chunk) => Ok(Ok(chunk)),
            Err(error) if error.kind == DriverErrorKind::OutOfMemory => Ok(Err(Some(error))),
            Err(error) => Err(error),
        }
    }

    /// Takes the memory away again that was mapped to wake, once the copies that were queued are over, and gives it back.
    ///
    /// # Errors
    /// The driver's: everything goes on waking.
    pub fn sleep_on(&mut self, lane: StreamIndex) -> Result<(), AllocError> {
        if !self.is_waking() {
            return Ok(());
        }
        self.shared.streams.progress(Some(lane)).wait_for_own()?;
        let batches = self.mapper.asleep().batches().iter();
        let runs: Vec<Run> = batches.flat_map(|batch| batch.runs.iter().copied()).collect();
        for run in &runs {
            let views: Vec<View> = self.mapper.segment(run.segment).table.views_in(run.pages).copied().collect();
            for view in views.iter().filter(|view| view.state == ViewState::Active) {
                self.take_down(view.chunk, lane);
                if self.mapper.chunks().has_idle(view.chunk) {
                    self.release_idle(view.chunk);
                }
            }
        }
        self.set_phases(Phase::Asleep);
        self.shed_empty_pages();
        Ok(())
    }

    /// Ends all batches, which have their memory and their bytes again. `retains` says what becomes of their backups.
    pub fn get_up(&mut self, retains: bool) {
        for mut batch in std::mem::take(self.mapper.asleep_mut().batches_mut()) {
            if retains {
                self.retain_backup(&batch);
            }
            batch.blocks.iter().for_each(|sleeper| self.wake_up(sleeper));
            // Until then, what is freed is claimed.
            for run in &batch.runs {
                self.unclaim_mapped(run);
            }
            self.unclaim_stale_places(&batch.chunks);
            self.take_over_backup(&mut batch);
        }
        self.drop_unused_backups();
    }
}
