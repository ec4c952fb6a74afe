//! The check of what is asleep.

use super::super::super::streams::extras::BlockAt;
use super::super::super::streams::state::StreamState;
use super::{Asleep, Batch, Phase};
use crate::pages::{PageIndex, PageRange};
use crate::segment::Segment;
use crate::stream::StreamIndex;
use std::collections::{HashMap, HashSet};

/// The pages of all batches, for the check of the blocks.
#[derive(Debug)]
pub struct AsleepPages {
    pages: HashSet<(usize, PageIndex)>,
}

impl AsleepPages {
    /// Whether pages of a segment are all asleep, about to be, or about to wake.
    pub fn contain(&self, segment: usize, pages: PageRange) -> bool {
        (pages.start.0..pages.end.0).all(|page| self.pages.contains(&(segment, PageIndex(page))))
    }

    /// Whether each of these pages has memory, or is one of those.
    pub fn excuse(&self, number: usize, segment: &Segment, pages: PageRange) -> bool {
        let page = |page: u64| PageRange { start: PageIndex(page), end: PageIndex(page + 1) };
        (pages.start.0..pages.end.0).all(|at| segment.table.all_active(page(at)) || self.contain(number, page(at)))
    }
}

impl Asleep {
    /// Asserts A1, as far as pages are concerned, A2 and A3. Returns the pages.
    ///
    /// # Panics
    /// Panics if one does not hold.
    pub fn check(&self, segments: &[Segment]) -> AsleepPages {
        let mut pages = HashSet::new();
        for batch in &self.batches {
            for run in &batch.runs {
                let table = &segments[run.segment].table;
                let holds = match batch.phase {
                    Phase::Asleep => table.none_active(run.pages),
                    Phase::Falling | Phase::Waking => table.all_active(run.pages),
                };
                assert!(holds, "sleep A1: pages {:?} of a batch that is {:?}", run.pages, batch.phase);
                for page in run.pages.start.0..run.pages.end.0 {
                    assert!(pages.insert((run.segment, PageIndex(page))), "sleep A1: page {page} is asleep twice");
                }
            }
            check_places(batch);
        }
        AsleepPages { pages }
    }

    /// Asserts the other half of A2, of one stream.
    ///
    /// # Panics
    /// Panics if it does not hold.
    pub fn check_marks(&self, stream: StreamIndex, state: &StreamState) {
        let mut listed: HashMap<BlockAt, u64> = HashMap::new();
        for part in self.batches.iter().flat_map(|batch| &batch.blocks).filter(|part| part.owner.stream == stream) {
            *listed.entry((part.owner.region, part.block)).or_default() += part.bytes;
        }
        for (at, extras) in state.extras.iter().filter(|(_, extras)| !extras.asleep.is_empty()) {
            let bytes = extras.asleep.iter().map(|part| part.end - part.start).sum();
            assert_eq!(listed.get(at), Some(&bytes), "sleep A2: the bytes of {at:?} that are asleep");
        }
    }
}

/// Asserts A3.
fn check_places(batch: &Batch) {
    let mut end = 0;
    for block in &batch.blocks {
        assert!(block.place >= end, "sleep A3: two blocks have one place in the backup");
        end = block.place + block.bytes;
    }
}
