//! Sleep and wake: live blocks keep their addresses and give up their memory, and get memory again.
//!
//! Pages with a live byte are put to *sleep*: live blocks in them stay live, and are marked; their free bytes are claimed, so that
//! nobody can take them. What is free beside them goes back to the driver at once.
//!
//! ```text
//!           mark.rs            copy out            unmap.rs             release_unmapped
//! awake ──────────────▶ falling ─────────▶ falling ──────────▶ unmapped ─────────────────▶ asleep
//!   ▲                      │                  │                    │                         │ ▲
//!   ├── undo.rs: end_fall ◀┴──────────────────┴────────────────────┘                  wake.rs│ │ sleep_on
//!   │                                                                                        ▼ │
//!   └───────────────────────────────── get_up ◀────────────────────────── copy in ◀────────waking
//! ```
//!
//! What is unmapped has its chunks still, withheld from everybody else, so that several allocators fall asleep together or not at
//! all: they go back to the driver once each is unmapped.
//!
//! A sleep that fails leaves everything awake at once. Where the driver does not say whether the copies are over, or nothing could
//! be ordered behind the uses of what was freed while it was marked, some of it is *in use*: the backup stays, and so do the pages
//! in which something was freed, with those bytes claimed; what is live in the batch is recorded on the stream of the copies. That
//! ends with `end_uses`: before the next sleep or wake, in a trim, and when a request runs short. A batch that wakes stays as it
//! is, with its memory, until the next call.
//!
//! Each arrow is one entry of the slow path, but for the copies: nobody waits for those but the caller. Between the entries,
//! what is claimed and marked belongs to the [`Batch`], which the mapper has.
//!
//! An allocator that keeps its mappings sleeps by chunks, as `whole.rs` says.
//!
//! - A1  a page that is asleep or unmapped has no active view, and every byte in it is of a block that is marked, or claimed. Of a
//!   batch that wakes, each page has one; of one that falls asleep, those with a marked block.
//! - A2  the marked blocks are those of the batches that have not been freed, but for what is in use.
//! - A3  a batch with a backup has a place in it for each of its blocks, or for each of its chunks; of a block that has a retained
//!   backup, as `backups.rs` says, in that.
//! - A4  a chunk that sleeps whole has its active view and its stale ones on record. While it is asleep, nothing is placed at
//!   any of them; once it wakes, one chunk of its size is mapped at all of them, and the same of them is active.
//!
//! Freeing a block that is asleep makes its bytes claimed: they are free once the page has memory again, or with the page, which is
//! not mapped again where nothing else is in it. A chunk with a pinned block stays awake, and so may a part of a block beside it.

mod backups;
mod check;
mod mark;
mod pages;
mod undo;
mod unmap;
mod wake;
mod whole;

pub use mark::{Excluded, LeftAwake, Marked};
pub use unmap::FellAsleep;
pub use wake::ToWake;

use super::super::error::AllocError;
use super::super::stores::{Medium, Store, StoreId};
use super::super::streams::directory::Owner;
use super::super::streams::extras::BlockAt;
use super::SlowPath;
use crate::driver::{Driver, DriverResult, MemoryDriver, StreamDriver};
use crate::pages::{PageCount, PageIndex, PageRange};
use crate::physical::ChunkId;
use crate::segment::ViewState;
use crate::stream::StreamIndex;
use crate::units::{DeviceAddr, StreamId};
use backups::Retained;
use std::ops::Range;
use whole::WholeChunk;

/// What is asleep, falls asleep or wakes.
#[derive(Debug, Default)]
pub struct Batches {
    batches: Vec<Batch>,
    /// Backups of what has woken.
    retained: Retained,
    /// The stream for copies, from the first sleep on.
    lane: Option<StreamId>,
    /// Stores whose memory the driver refused to take back.
    left_over: Vec<Store>,
}

/// What was put to sleep by one call.
#[derive(Debug)]
pub struct Batch {
    /// How far it is.
    pub phase: Phase,
    /// Its pages, in the order of regions and addresses.
    pub runs: Vec<Run>,
    /// What is live in them, in the same order.
    pub blocks: Vec<Sleeper>,
    /// The chunks that the pages were of, in the same order, where these sleep whole. None while they are mapped.
    pub chunks: Vec<WholeChunk>,
    /// The chunks that were unmapped, and go back to the driver next.
    pub withheld: Vec<Unmapped>,
    /// The bytes of its blocks or chunks, but for those in retained backups, unless they are discarded.
    pub backup: Option<Store>,
}

/// A chunk that is to be unmapped, or was.
#[derive(Clone, Debug)]
pub struct Unmapped {
    /// The chunk.
    pub chunk: ChunkId,
    /// Where it is to be mapped again, the active view first: the only one, unless it sleeps whole.
    pub places: Vec<Place>,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Marked, and mapped still. The own stream is ordered behind all that uses it, once it is no longer being marked.
    Falling,
    /// Awake, but for pages with bytes that were freed while they were marked: claimed, and mapped still. The bytes, the blocks and
    /// the backup may be in use.
    InUse,
    /// Without mappings: the chunks are withheld, and can be mapped again.
    Unmapped,
    /// Without memory.
    Asleep,
    /// Mapped again, and without its bytes.
    Waking,
}

/// Whether bytes of a batch that falls asleep may be on their way to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    NotBegun,
    MayBeUnderWay,
}

/// Adjacent pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The region.
    pub owner: Owner,
    /// The number of its segment.
    pub segment: usize,
    /// The pages.
    pub pages: PageRange,
}

/// A place where a chunk was mapped, and is to be mapped again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its pages.
    pub run: Run,
    /// The state of the view.
    pub state: ViewState,
}

/// Adjacent bytes on the device, and their place in a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first address.
    pub addr: DeviceAddr,
    /// Number of bytes.
    pub bytes: u64,
    /// The place of the first byte.
    pub place: u64,
    /// The store that the place is in, where that is not the backup of the batch.
    pub retained_in: Option<StoreId>,
}

/// A part of a block that is asleep: all of it, unless a chunk under it stayed awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleeper {
    /// The region that it is in.
    pub owner: Owner,
    /// Offset of the block there, in bytes.
    pub block: u64,
    /// Address of the part.
    pub addr: DeviceAddr,
    /// Offset of the part in the region.
    pub offset: u64,
    /// Its bytes, rounding included.
    pub bytes: u64,
    /// The place of its bytes in the backup, unless chunks sleep whole.
    pub place: u64,
    /// The store that the place is in, where that is not the backup of the batch.
    pub retained_in: Option<StoreId>,
}

impl Phase {
    /// Whether what is live in it is without its bytes.
    fn is_asleep(self) -> bool {
        matches!(self, Self::Unmapped | Self::Asleep | Self::Waking)
    }
}

impl Run {
    /// Its pages one by one: a stream is locked for a page at a time, since one may have thousands of blocks.
    fn by_page(self) -> impl Iterator<Item = Self> {
        let pages = (self.pages.start.0..self.pages.end.0).map(PageIndex);
        pages.map(move |page| Self { pages: PageRange::new(page, PageCount::ONE), ..self })
    }
}

impl Batch {
    /// One that falls asleep, in which nothing is yet.
    pub fn falling() -> Self {
        let (runs, blocks, chunks, withheld) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { phase: Phase::Falling, runs, blocks, chunks, withheld, backup: None }
    }

    /// Number of its pages.
    pub fn pages(&self) -> PageCount {
        self.runs.iter().map(|run| run.pages.len()).sum()
    }

    /// The places in which nothing but what sleeps may be mapped.
    pub fn places(&self) -> impl Iterator<Item = Run> {
        self.runs.iter().copied().chain(self.chunks.iter().flat_map(|chunk| chunk.stale()).map(|place| place.run))
    }

    /// The store with the bytes of a span, if they are not discarded.
    pub fn store_of(&self, span: &Span) -> Option<StoreId> {
        span.retained_in.or(self.backup.as_ref().map(|store| store.id))
    }
}

impl Span {
    /// Spans that follow each other in a region and in the backup become one.
    pub fn joined(spans: impl Iterator<Item = (Owner, Self)>) -> Vec<Self> {
        let mut joined: Vec<(Owner, Self)> = Vec::new();
        for (owner, span) in spans {
            match joined.last_mut() {
                Some((of, last)) if *of == owner && last.is_followed_by(span) => last.bytes += span.bytes,
                _ => joined.push((owner, span)),
            }
        }
        joined.into_iter().map(|(_, span)| span).collect()
    }

    fn is_followed_by(self, next: Self) -> bool {
        let place = (next.place, next.retained_in);
        self.addr.offset(self.bytes) == next.addr && (self.place + self.bytes, self.retained_in) == place
    }
}

impl Batches {
    /// The batches, in the order in which they were put to sleep.
    pub fn batches(&self) -> &[Batch] {
        &self.batches
    }

    /// The batches, to be changed.
    pub fn batches_mut(&mut self) -> &mut Vec<Batch> {
        &mut self.batches
    }

    /// Number of pages that are asleep.
    pub fn pages(&self) -> PageCount {
        let asleep = self.batches.iter().filter(|batch| batch.phase == Phase::Asleep);
        asleep.map(Batch::pages).sum()
    }

    /// The stores with what is asleep, or has woken and is retained.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        self.batches.iter().filter_map(|batch| batch.backup.as_ref()).chain(&self.retained.stores)
    }

    /// Bytes of the host's memory in these stores.
    pub fn backup_bytes(&self) -> u64 {
        self.stores().map(Store::memory_bytes).sum()
    }

    /// Bytes of files in these stores.
    pub fn file_bytes(&self) -> u64 {
        self.stores().map(|store| store.bytes - store.memory_bytes()).sum()
    }

    /// Whether a page is asleep, falls asleep or wakes.
    pub fn holds(&self, segment: usize, page: PageIndex) -> bool {
        let is_there = |run: Run| run.segment == segment && run.pages.start <= page && page < run.pages.end;
        self.batches.iter().flat_map(Batch::places).any(is_there)
    }

    /// Notes a store whose memory the driver refused to take back.
    fn leave_over(&mut self, store: Store) {
        self.left_over.push(store);
    }

    /// All stores, which are given back at the end.
    pub fn take_stores(&mut self) -> Vec<Store> {
        let of_batches = self.batches.iter_mut().filter_map(|batch| batch.backup.take());
        of_batches.chain(std::mem::take(&mut self.retained.stores)).chain(self.left_over.drain(..)).collect()
    }
}

impl Sleeper {
    /// Its offsets in the region.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }

    /// The part of it in a run, if there is one.
    fn within(&self, run: &Run, page_bytes: u64) -> Option<Self> {
        let range = run.pages.bytes(page_bytes);
        let (start, end) = (self.offset.max(range.start), (self.offset + self.bytes).min(range.end));
        if self.owner != run.owner || start >= end {
            return None;
        }
        let by = start - self.offset;
        Some(Self { addr: self.addr.offset(by), offset: start, bytes: end - start, place: self.place + by, ..*self })
    }

    /// The block that it is of.
    pub fn at(&self) -> BlockAt {
        (self.owner.region, self.block)
    }

    /// Its bytes, and the region that they are in.
    pub fn span(&self) -> (Owner, Span) {
        let Self { addr, bytes, place, retained_in, .. } = *self;
        (self.owner, Span { addr, bytes, place, retained_in })
    }
}

impl<D: Driver> SlowPath<'_, D> {
    /// The allocator's own stream, on which it copies: created at its first use, and unknown to everybody else.
    pub fn lane(&mut self) -> Result<StreamIndex, AllocError> {
        let stream = match self.mapper.asleep().lane {
            Some(stream) => stream,
            None => self.driver().create_copy_stream()?,
        };
        self.mapper.asleep_mut().lane = Some(stream);
        self.shared.streams.keep(stream)?;
        Ok(self.shared.streams.find_or_add(stream)?.index)
    }

    /// Gives the host's memory and the allocator's own stream back, at the end. Returns the first failure.
    pub fn end_sleep(&mut self) -> DriverResult<()> {
        let mut first = Ok(());
        for store in self.mapper.asleep_mut().take_stores() {
            first = first.and(self.free_store(&store));
            self.shared.host_budget.give_back(store.memory_bytes());
        }
        first = first.and(self.shared.ring.give_back(self.driver(), &self.shared.host_budget));
        if let Some(lane) = self.mapper.asleep_mut().lane.take() {
            first = first.and(self.driver().destroy_copy_stream(lane));
        }
        first
    }

    /// Gives back what the driver has of a store. The rest goes with its last clone.
    fn free_store(&self, store: &Store) -> DriverResult<()> {
        match &store.medium {
            Medium::Pinned(memory) => self.driver().host_free(*memory),
            Medium::Unpinned(_) => Ok(()),
        }
    }
}
