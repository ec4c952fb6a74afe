//! The check of what is asleep.

use super::super::super::stores::{Store, StoreId};
use super::super::super::streams::extras::{BlockAt, Extras};
use super::super::super::streams::state::StreamState;
use super::whole::WholeChunk;
use super::{Batch, Batches, Phase, Place, Sleeper};
use crate::heap::BlockState;
use crate::pages::{PageIndex, PageRange};
use crate::physical::ViewAt;
use crate::segment::{Segment, View, ViewState};
use crate::stream::StreamIndex;
use std::collections::{HashMap, HashSet};

/// The pages of all batches, for the check of the blocks.
#[derive(Debug)]
pub struct AsleepPages {
    pages: HashSet<(usize, PageIndex)>,
    /// Those of them that have no memory.
    without_memory: HashSet<(usize, PageIndex)>,
}

impl AsleepPages {
    /// Whether pages of a segment are all asleep, about to be, or about to wake.
    pub fn contain(&self, segment: usize, pages: PageRange) -> bool {
        (pages.start.0..pages.end.0).all(|page| self.pages.contains(&(segment, PageIndex(page))))
    }

    /// Whether nothing is to be mapped at a place now.
    pub fn is_without_memory(&self, at: ViewAt) -> bool {
        self.without_memory.contains(&(at.segment as usize, at.page))
    }

    /// Whether each of these pages has memory, or is one of those.
    pub fn excuse(&self, number: usize, segment: &Segment, pages: PageRange) -> bool {
        let page = |page: u64| PageRange { start: PageIndex(page), end: PageIndex(page + 1) };
        (pages.start.0..pages.end.0).all(|at| segment.table.all_active(page(at)) || self.contain(number, page(at)))
    }
}

impl Batches {
    /// Asserts A1, as far as pages are concerned, A3, A4, B2 and B3. Returns the pages.
    ///
    /// # Panics
    /// Panics if one does not hold.
    pub fn check(&self, segments: &[Segment]) -> AsleepPages {
        let (mut pages, mut without_memory) = (HashSet::new(), HashSet::new());
        for batch in &self.batches {
            for run in &batch.runs {
                let Segment { table, page_bytes, .. } = &segments[run.segment];
                let holds = match batch.phase {
                    Phase::Unmapped | Phase::Asleep => table.none_active(run.pages),
                    Phase::InUse | Phase::Waking => table.all_active(run.pages),
                    // A chunk in which nothing was but a block that waited for a stream may have moved since.
                    Phase::Falling => {
                        let parts = batch.blocks.iter().filter_map(|part| part.within(run, *page_bytes));
                        parts
                            .map(|part| PageRange::around(&part.range(), *page_bytes))
                            .all(|pages| table.all_active(pages))
                    }
                };
                assert!(holds, "sleep A1: pages {:?} of a batch that is {:?}", run.pages, batch.phase);
            }
            for run in batch.places() {
                for page in (run.pages.start.0..run.pages.end.0).map(PageIndex) {
                    assert!(pages.insert((run.segment, page)), "sleep A1: {page:?} is asleep twice");
                    if matches!(batch.phase, Phase::Unmapped | Phase::Asleep) {
                        without_memory.insert((run.segment, page));
                    }
                }
            }
            check_chunks(batch, segments);
        }
        self.check_places(segments);
        AsleepPages { pages, without_memory }
    }

    /// Asserts A2, B1 and the other half of A4, of one stream.
    ///
    /// # Panics
    /// Panics if it does not hold.
    pub fn check_marks(&self, stream: StreamIndex, state: &StreamState) {
        let mut listed: HashMap<BlockAt, u64> = HashMap::new();
        let marked = self.batches.iter().filter(|batch| batch.phase != Phase::InUse).flat_map(|batch| &batch.blocks);
        for part in marked.filter(|part| part.owner.stream == stream) {
            *listed.entry((part.owner.region, part.block)).or_default() += part.bytes;
        }
        for (at, extras) in state.extras.iter().filter(|(_, extras)| !extras.asleep.is_empty()) {
            assert_eq!(listed.get(at), Some(&extras.asleep_bytes()), "sleep A2: the bytes of {at:?} that are asleep");
        }
        let asleep: u64 = state.extras.values().map(Extras::asleep_bytes).sum();
        assert_eq!(state.asleep_bytes, asleep, "sleep A2: the bytes of the stream that are asleep");
        let on_record: HashSet<BlockAt> =
            self.retained.parts.iter().filter(|part| part.owner.stream == stream).map(Sleeper::at).collect();
        for (at, extras) in state.extras.iter().filter(|(_, extras)| extras.has_backup) {
            assert!(extras.asleep.is_empty(), "invariant 12: {at:?} is asleep with a backup of before");
            assert!(on_record.contains(at), "invariant 12: the retained backup of {at:?} is gone");
        }
        let stale = self.batches.iter().flat_map(|batch| &batch.chunks).flat_map(WholeChunk::stale);
        for Place { run, .. } in stale.filter(|place| place.run.owner.stream == stream) {
            let region = state.regions.get(run.owner.region).expect("a chunk that sleeps was mapped in regions");
            let around = region.heap.block_around(run.pages.start.offset(region.page_bytes));
            let is_claimed = around.is_some_and(|block| block.state == BlockState::Claimed);
            assert!(is_claimed, "invariant 13: something may be placed at {run:?}, where a chunk is to wake");
        }
    }

    /// Asserts A3, B2 and B3.
    fn check_places(&self, segments: &[Segment]) {
        let sizes: HashMap<StoreId, u64> = self.stores().map(|store| (store.id, store.bytes)).collect();
        let mut places: Vec<(StoreId, u64, u64)> = Vec::new();
        for batch in &self.batches {
            let own = batch.backup.as_ref().map(|store| store.id);
            let of_chunk = |chunk: &WholeChunk| {
                let run = chunk.active();
                Some((own?, chunk.place, run.pages.len().bytes(segments[run.segment].page_bytes)))
            };
            let of_block = |part: &Sleeper| Some((part.retained_in.or(own)?, part.place, part.bytes));
            match batch.chunks.is_empty() {
                true => places.extend(batch.blocks.iter().filter_map(of_block)),
                false => places.extend(batch.chunks.iter().filter_map(of_chunk)),
            }
        }
        let of_part =
            |part: &Sleeper| (part.retained_in.expect("the store of what is on record"), part.place, part.bytes);
        places.extend(self.retained.parts.iter().map(of_part));
        places.sort_unstable();
        let mut last = None;
        for (store, place, bytes) in places {
            let end = last.filter(|(before, _)| *before == store).map_or(0, |(_, end)| end);
            assert!(place >= end, "invariant 12: two parts have one place in a backup");
            assert!(
                Some(place + bytes) <= sizes.get(&store).copied(),
                "invariant 12: bytes without a place in a backup"
            );
            last = Some((store, place + bytes));
        }
        let asleep = self.batches.iter().flat_map(|batch| &batch.blocks);
        let used: HashSet<StoreId> = asleep.chain(&self.retained.parts).filter_map(|part| part.retained_in).collect();
        let is_used = |store: &Store| used.contains(&store.id);
        assert!(self.retained.stores.iter().all(is_used), "invariant 12: a store is retained for nothing");
    }
}

/// Asserts A4, but for what is placed where nothing may be: that is claimed.
fn check_chunks(batch: &Batch, segments: &[Segment]) {
    for chunk in &batch.chunks {
        let mut views = chunk.places.iter().map(|place| {
            let view = segments[place.run.segment].table.view(place.run.pages.start);
            (place, view.filter(|_| batch.phase == Phase::Waking))
        });
        let (_, first) = views.next().expect("the active view");
        assert_eq!(chunk.places[0].state, ViewState::Active, "invariant 13: the active view of a chunk that sleeps");
        for (place, view) in views {
            assert_ne!(place.state, ViewState::Active, "invariant 13: two active views of a chunk that sleeps");
            assert_eq!(place.run.pages.len(), chunk.active().pages.len(), "invariant 13: a chunk was mapped whole");
            let of_chunk = |view: Option<&View>| view.map(|view| view.chunk);
            assert_eq!(of_chunk(view), of_chunk(first), "invariant 13: a chunk wakes at all of its places");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::backups::Retained;
    use super::*;
    use crate::allocator::{Allocator, Backup, ChunkPolicy, Wake};
    use crate::driver::{ModelConfig, ModelDriver};
    use crate::testing::{Break, assert_noticed};
    use crate::units::StreamId;
    use std::mem::ManuallyDrop;
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    /// An allocator that a test breaks, and that is therefore never closed.
    type Broken = ManuallyDrop<Allocator<ModelDriver>>;

    /// An allocator that keeps its mappings, asleep: one of its chunks had moved.
    fn allocator() -> Broken {
        let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 8 * PAGE, ..ModelConfig::default() }));
        let builder = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).slack(1.0).keep_mappings();
        let allocator = builder.build().unwrap();
        let blocks = [(); 3].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
        allocator.free(blocks[0]).unwrap();
        allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
        allocator.sleep(Backup::Pinned).unwrap();
        ManuallyDrop::new(allocator)
    }

    /// Changes what is known of the chunk that had moved.
    fn with_moved(allocator: &Broken, change: impl FnOnce(&mut WholeChunk)) {
        let mut mapper = allocator.inner.door.mapper.lock();
        let chunks = mapper.asleep_mut().batches_mut().iter_mut().flat_map(|batch| &mut batch.chunks);
        change(chunks.into_iter().find(|chunk| chunk.places.len() > 1).unwrap());
    }

    /// An allocator with a block whose backup is retained.
    fn retaining() -> Broken {
        let allocator = Allocator::builder(Arc::new(ModelDriver::default())).build().unwrap();
        allocator.alloc_raw(PAGE, MAIN).unwrap();
        allocator.sleep(Backup::Pinned).unwrap();
        allocator.wake(Wake { retain: true, ..Wake::default() }).unwrap();
        ManuallyDrop::new(allocator)
    }

    /// Changes what is retained.
    fn with_retained(allocator: &Broken, change: impl FnOnce(&mut Retained)) {
        change(&mut allocator.inner.door.mapper.lock().asleep_mut().retained);
    }

    #[test]
    fn check_names_what_is_broken_of_retained_backups() {
        let breaks: &[Break<Broken>] = &[
            ("invariant 12: two parts", |allocator| {
                with_retained(allocator, |retained| retained.parts.push(retained.parts[0]));
            }),
            ("invariant 12: bytes without a place", |allocator| {
                with_retained(allocator, |retained| retained.stores[0].bytes -= 1);
            }),
            ("invariant 12: a store is retained for nothing", |allocator| {
                with_retained(allocator, |retained| retained.parts.clear());
            }),
            ("invariant 12: the retained backup of", |allocator| {
                with_retained(allocator, |retained| *retained = Retained::default());
            }),
            ("is asleep with a backup of before", |allocator| {
                allocator.sleep(Backup::Pinned).unwrap();
                let part = allocator.inner.door.mapper.lock().asleep().batches[0].blocks[0];
                assert!(allocator.inner.shared.streams.get(part.owner.stream).lock().retain_backup(part.at()));
            }),
        ];
        assert_noticed(retaining, |allocator| allocator.check(), breaks);
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<Broken>] = &[
            ("invariant 10: the mapping at", |allocator| {
                // One of its places is forgotten.
                with_moved(allocator, |chunk| chunk.places.truncate(1));
            }),
            ("invariant 13: the active view of a chunk", |allocator| {
                with_moved(allocator, |chunk| chunk.places[0].state = chunk.places[1].state);
            }),
            ("invariant 13: two active views of a chunk", |allocator| {
                with_moved(allocator, |chunk| chunk.places[1].state = ViewState::Active);
            }),
            ("invariant 13: something may be placed at", |allocator| {
                let mut place = None;
                with_moved(allocator, |chunk| place = Some(chunk.places[1].run));
                let run = place.unwrap();
                let mut state = allocator.inner.shared.streams.get(run.owner.stream).lock();
                let region = state.region(run.owner.region).unwrap();
                let first = region.heap.block_around(run.pages.start.offset(PAGE)).unwrap().offset;
                region.set_pages(first, run.pages, BlockState::Hole);
            }),
            ("invariant 12: two parts", |allocator| with_moved(allocator, |chunk| chunk.place -= 1)),
            ("sleep A2: the bytes of the stream", |allocator| {
                allocator.inner.shared.streams.find(MAIN).unwrap().lock().asleep_bytes += 1;
            }),
        ];
        assert_noticed(allocator, |allocator| allocator.check(), breaks);
    }
}
