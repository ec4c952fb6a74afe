//! Marking what is to sleep.
//!
//! Cost: O(chunks), and O(blocks) in them. A stream is locked for a chunk at a time: what is allocated, freed or pinned between
//! two of them is in chunks that are not marked yet, or is not pinned, since it was marked before. So each chunk counts as it is
//! when it is looked at, and a block over several of them is marked part by part.

use super::super::super::error::AllocError;
use super::super::super::stores::{Backup, Store, StoreId};
use super::super::super::streams::directory::Owner;
use super::super::super::streams::region::Region;
use super::super::super::streams::state::StreamState;
use super::super::SlowPath;
use super::{Batch, Copies, Run, Sleeper, Span};
use crate::driver::Driver;
use crate::heap::{Block, BlockState};
use crate::pages::{PageIndex, PageRange};
use crate::physical::ChunkId;
use crate::segment::{View, ViewState};
use crate::stream::StreamIndex;
use crate::units::DeviceAddr;
use std::collections::HashSet;
use std::ops::Range;

/// Chunks that stay awake, since they could not be unmapped.
pub type Excluded = HashSet<ChunkId>;

/// Bytes of chunks that stayed awake, by the cause: all that the allocator holds after a sleep, but for what it has been asked for
/// since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LeftAwake {
    /// A block in them is pinned: another process has it open, for example.
    pub pinned_bytes: u64,
    /// Work that cannot be waited for may use them, a map listener refused to see them unmapped, a mapping of them is stuck, or the
    /// driver did not take them back.
    pub refused_bytes: u64,
    /// They are of [growable ranges](crate::allocator::VirtualRange).
    pub range_bytes: u64,
    /// They are [registered blocks](crate::allocator::RegisteredBlock).
    pub registered_bytes: u64,
}

impl LeftAwake {
    /// All of them.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.pinned_bytes + self.refused_bytes + self.range_bytes + self.registered_bytes
    }
}

impl std::ops::AddAssign for LeftAwake {
    fn add_assign(&mut self, other: Self) {
        self.pinned_bytes += other.pinned_bytes;
        self.refused_bytes += other.refused_bytes;
        self.range_bytes += other.range_bytes;
        self.registered_bytes += other.registered_bytes;
    }
}

/// What was marked.
#[derive(Debug)]
pub struct Marked {
    /// Bytes of live blocks, rounding included.
    pub live_bytes: u64,
    /// What a backup has to have. Some of it goes to stores that were retained.
    pub spans: Vec<Span>,
    /// These stores.
    pub retained: Vec<Store>,
}

/// Blocks of a page of two MiB that is full of the smallest.
const MOST_BLOCKS: usize = 4096;

/// Why a chunk stays awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    Pinned,
    Refused,
}

/// The active views of a region.
struct Candidates {
    owner: Owner,
    segment: usize,
    base: DeviceAddr,
    page_bytes: u64,
    /// In the order of their addresses, each with what is known from the start to keep it awake.
    views: Vec<(View, Option<Stays>)>,
}

impl<D: Driver> SlowPath<'_, D> {
    /// Marks everything that can sleep, as a batch that falls asleep, and orders `lane` behind all that uses it. Returns what
    /// stays awake, and what is live in the batch; `None` where nothing can sleep.
    ///
    /// # Errors
    /// [`AllocError::CannotWait`] during a capture. Nothing is marked.
    pub fn fall_asleep(
        &mut self,
        lane: StreamIndex,
        backup: Backup,
        excluded: &Excluded,
    ) -> Result<(LeftAwake, Option<Marked>), AllocError> {
        self.expect_no_capture()?;
        self.end_earlier(lane)?;
        self.sleep_on(lane)?;
        // What comes next may begin where a block did that was freed asleep.
        self.shed_empty_pages();
        self.trim_idle(0);
        self.settle_pending()?;
        let mut left = LeftAwake::default();
        let mut batch = Batch::falling();
        for number in 0..self.mapper.segments().len() {
            if let Some(candidates) = self.candidates(number, excluded) {
                let stream = self.shared.streams.get(candidates.owner.stream);
                for candidate in &candidates.views {
                    // More memory, which takes long where there is much already, is not asked for while others wait.
                    batch.runs.reserve(1);
                    batch.blocks.reserve(MOST_BLOCKS);
                    stream.piece(|state| candidates.mark(*candidate, state, &mut batch, &mut left));
                }
            }
        }
        if batch.runs.is_empty() {
            return Ok((left, None));
        }
        batch.blocks.shrink_to_fit();
        self.replace_retained(&mut batch, backup);
        let spans = match self.sleeps_whole() {
            true => self.spans_of_chunks(&batch.runs),
            false => Span::joined(batch.blocks.iter().map(Sleeper::span)),
        };
        let live_bytes = batch.blocks.iter().map(|block| block.bytes).sum();
        let retained: HashSet<StoreId> = batch.blocks.iter().filter_map(|block| block.retained_in).collect();
        let retained = self.mapper.asleep().stores().filter(|store| retained.contains(&store.id)).cloned().collect();
        let marked = Marked { live_bytes, spans, retained };
        self.mapper.asleep_mut().batches_mut().push(batch);
        self.drop_unused_backups();
        // Behind what was queued before a block was marked, by whoever had it pinned until then for example.
        if let Err(error) = self.order_behind_users(lane) {
            self.stay_awake_in_use(lane, Copies::NotBegun);
            return Err(error);
        }
        Ok((left, Some(marked)))
    }

    /// What stays awake beside the chunks of the regions.
    pub fn awake_beside_regions(&self) -> LeftAwake {
        let chunks = self.mapper.chunks();
        LeftAwake {
            pinned_bytes: 0,
            refused_bytes: chunks.idle_bytes() + chunks.withheld_bytes(),
            range_bytes: chunks.range_bytes(),
            registered_bytes: chunks.registered_bytes(),
        }
    }

    /// Refuses while a stream is being captured.
    pub fn expect_no_capture(&self) -> Result<(), AllocError> {
        let progress = self.progress();
        let captured = self.shared.streams.iter().find(|stream| progress.is_captured_now(stream));
        captured.map_or(Ok(()), |stream| Err(AllocError::CannotWait { stream: stream.id() }))
    }

    /// Orders later work on `lane` behind all that uses the memory.
    pub fn order_behind_users(&self, lane: StreamIndex) -> Result<(), AllocError> {
        if !self.rules().knows_all_work() {
            return self.wait_for_replays(lane);
        }
        self.order_behind_all(lane)
    }

    /// Orders later work on `lane` behind all that is queued on any stream.
    fn order_behind_all(&self, lane: StreamIndex) -> Result<(), AllocError> {
        let progress = self.progress();
        for stream in self.shared.streams.iter().filter(|stream| stream.index != lane) {
            let open = stream.clock.lock().open();
            if !progress.order_behind(lane, stream.index, open)? {
                // Nothing can be ordered behind what cannot be named; the wait for the device covers the other streams as well.
                return match progress.synchronize()? {
                    true => Ok(()),
                    false => Err(AllocError::CannotWait { stream: stream.id() }),
                };
            }
        }
        Ok(())
    }

    /// The views of a segment that may sleep, if a region is over it.
    fn candidates(&self, number: usize, excluded: &Excluded) -> Option<Candidates> {
        let segment = self.mapper.segment(number);
        let owner = self.owner_of(segment)?;
        let all = PageRange { start: PageIndex(0), end: segment.table.top() };
        let is_stuck =
            |chunk| self.mapper.chunks().get(chunk).stale.iter().any(|at| self.mapper.view(*at).state.is_stuck());
        let stays = |view: &View| (excluded.contains(&view.chunk) || is_stuck(view.chunk)).then_some(Stays::Refused);
        let active = segment.table.views_in(all).filter(|view| view.state == ViewState::Active);
        let views = active.map(|view| (*view, stays(view))).collect();
        Some(Candidates { owner, segment: number, base: segment.base, page_bytes: segment.page_bytes, views })
    }
}

impl Candidates {
    /// Marks what is in a view, if it can sleep, and adds it to the batch. `stays` is what keeps it awake in any case.
    fn mark(
        &self,
        (view, stays): (View, Option<Stays>),
        state: &mut StreamState,
        batch: &mut Batch,
        left: &mut LeftAwake,
    ) {
        let range = view.pages.bytes(self.page_bytes);
        let Some(region) = state.regions.get(self.owner.region) else { return };
        let used = blocks_where(region, &range, is_used);
        match stays.or_else(|| used.iter().find_map(|block| cause(state, self.owner, block))) {
            Some(Stays::Pinned) => left.pinned_bytes += range.end - range.start,
            Some(Stays::Refused) => left.refused_bytes += range.end - range.start,
            None => {
                claim_free(state, self.owner, &range);
                self.add_run(batch, view.pages);
                for block in used.iter().filter(|block| block.state == BlockState::Live) {
                    let part = block.offset.max(range.start)..(block.offset + block.size).min(range.end);
                    state.put_to_sleep(self.owner, block.offset, part.clone());
                    self.add_part(batch, block.offset, part);
                }
            }
        }
    }

    /// Adds a part of a live block to the batch.
    fn add_part(&self, batch: &mut Batch, block: u64, part: Range<u64>) {
        let bytes = part.end - part.start;
        match batch.blocks.last_mut() {
            Some(last) if (last.owner, last.block) == (self.owner, block) && last.offset + last.bytes == part.start => {
                last.bytes += bytes;
            }
            _ => {
                let (owner, addr, offset) = (self.owner, self.base.offset(part.start), part.start);
                batch.blocks.push(Sleeper { owner, block, addr, offset, bytes, place: 0, retained_in: None });
            }
        }
    }

    /// Adds pages to the batch.
    fn add_run(&self, batch: &mut Batch, pages: PageRange) {
        match batch.runs.last_mut() {
            Some(last) if last.owner == self.owner && last.pages.end == pages.start => last.pages.end = pages.end,
            _ => batch.runs.push(Run { owner: self.owner, segment: self.segment, pages }),
        }
    }
}

/// Whether bytes of a block are in use, or waited for.
fn is_used(state: BlockState) -> bool {
    matches!(state, BlockState::Live | BlockState::Pending | BlockState::Claimed)
}

/// Why a block keeps its chunks awake. One that waits for streams does not: those are waited for.
fn cause(state: &StreamState, owner: Owner, block: &Block) -> Option<Stays> {
    let extras = state.extras.get(&(owner.region, block.offset));
    match block.state {
        BlockState::Live | BlockState::Pending if extras.is_some_and(|extras| extras.pins > 0) => Some(Stays::Pinned),
        // Out of use.
        BlockState::Claimed => Some(Stays::Refused),
        _ => None,
    }
}

/// Claims the free bytes of a range of a region.
pub fn claim_free(state: &mut StreamState, owner: Owner, range: &Range<u64>) {
    let Some(region) = state.region(owner.region) else { return };
    for block in blocks_in(region, range, BlockState::Free) {
        let (start, end) = (block.offset.max(range.start), (block.offset + block.size).min(range.end));
        region.heap.set(block.offset, start, end - start, BlockState::Claimed, 0);
    }
}

/// The blocks in a state that a range of a region touches.
pub fn blocks_in(region: &Region, range: &Range<u64>, state: BlockState) -> Vec<Block> {
    blocks_where(region, range, |other| other == state)
}

/// The blocks that a range of a region touches, of those states that `is_it` says.
fn blocks_where(region: &Region, range: &Range<u64>, is_it: impl Fn(BlockState) -> bool) -> Vec<Block> {
    let first = region.heap.block_around(range.start);
    let from = first.map_or(range.start, |block| block.offset);
    let touching = region.heap.blocks_from(from).take_while(|block| block.offset < range.end);
    touching.filter(|block| is_it(block.state)).collect()
}

#[cfg(test)]
mod tests {
    use crate::allocator::error::{AllocError, SleepError};
    use crate::allocator::{Allocator, Backup};
    use crate::driver::{DriverCall, DriverError, DriverErrorKind, WorkDriver};
    use crate::testing::busy;
    use crate::units::StreamId;
    use std::sync::Arc;
    use std::time::Duration;

    /// Work is queued on a pinned block, and the pin goes, once the own stream is ordered behind that of the block: it stays awake.
    #[test]
    fn what_is_unpinned_behind_the_order_stays_awake() {
        let driver = busy(&Arc::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let stream = driver.create_stream().unwrap();
        allocator.keep_stream(stream).unwrap();
        let [pinned, other] = [3, 5].map(|mib| allocator.alloc_raw(mib << 20, stream).unwrap());
        driver.inner().hold(stream);
        driver.fill(stream, other, 1, 1).unwrap();
        let mut pin = Some(allocator.pin(pinned).unwrap());
        let device = Arc::clone(&driver);
        driver.meanwhile(move |call| {
            if call == Some(DriverCall::StreamWait)
                && let Some(pin) = pin.take()
            {
                device.fill(stream, pinned, 1, 2)?;
                drop(pin);
            }
            Ok(())
        });
        let slept = allocator.sleep(Backup::Pinned).unwrap();
        assert!(slept.left_awake.pinned_bytes >= 3 << 20 && slept.asleep_bytes > 0, "{slept:?}");
        allocator.check();
        driver.inner().resume(stream);
        allocator.wake(Duration::ZERO).unwrap();
        for block in [pinned, other] {
            driver.verify(stream, block, 1, 1).unwrap();
            allocator.free(block).unwrap();
        }
        allocator.close().unwrap();
    }

    /// Chunks that the driver does not take back stay awake, and are in the result.
    #[test]
    fn what_the_driver_does_not_take_back_is_counted() {
        let driver = busy(&Arc::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let block = allocator.alloc_raw(4 << 20, StreamId::DEFAULT).unwrap();
        driver.meanwhile(|call| match call {
            Some(call @ DriverCall::Release) => {
                Err(DriverError::new(call, DriverErrorKind::Other, "refused by the test"))
            }
            _ => Ok(()),
        });
        let slept = allocator.sleep(Backup::Discard).unwrap();
        driver.meanwhile(|_| Ok(()));
        let held = allocator.reserved_bytes();
        assert_eq!((slept.left_awake.refused_bytes, slept.asleep_bytes, slept.released_bytes), (held, held, 0));
        assert!(held >= 4 << 20);
        allocator.check();
        // They go with the next one.
        let slept = allocator.sleep(Backup::Discard).unwrap();
        assert_eq!((slept.left_awake.total_bytes(), slept.released_bytes), (0, held));
        allocator.wake(Duration::ZERO).unwrap();
        allocator.free(block).unwrap();
        allocator.close().unwrap();
    }

    /// A block that another stream uses is freed once it is marked, and the driver refuses to order anything behind that stream:
    /// nobody gets its memory until the other stream is done with it.
    #[test]
    fn what_is_freed_before_a_refused_order_waits_for_its_users() {
        let driver = busy(&Arc::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let [home, other] = [(); 2].map(|()| driver.create_stream().unwrap());
        [home, other].iter().for_each(|stream| allocator.keep_stream(*stream).unwrap());
        let [used, beside] = [3, 5].map(|mib| allocator.alloc_raw(mib << 20, home).unwrap());
        for (stream, block) in [(home, beside), (other, used)] {
            driver.inner().hold(stream);
            driver.fill(stream, block, 1, 1).unwrap();
        }
        allocator.record_stream(used, other).unwrap();
        let others = allocator.clone();
        let mut to_free = Some(used);
        driver.meanwhile(move |call| match (call, to_free.take()) {
            // Of its own stream.
            (Some(DriverCall::StreamWait), Some(block)) => {
                others.free(block).unwrap();
                Ok(())
            }
            (Some(DriverCall::StreamWait), None) => {
                Err(DriverError::new(DriverCall::StreamWait, DriverErrorKind::Other, "refused by the test"))
            }
            (_, block) => {
                to_free = block;
                Ok(())
            }
        });
        let refused = allocator.sleep(Backup::Pinned).unwrap_err();
        assert!(
            matches!(&refused, SleepError::Alloc(AllocError::Driver(error)) if error.call == DriverCall::StreamWait),
            "{refused}"
        );
        driver.meanwhile(|_| Ok(()));
        allocator.check();
        let early = allocator.alloc_raw(3 << 20, home).unwrap();
        assert_ne!(early, used, "the other stream uses it");
        [home, other].iter().for_each(|stream| driver.inner().resume(*stream));
        // The next call finishes what this one could not.
        assert_eq!(allocator.wake(Duration::ZERO).unwrap().mapped_bytes, 0);
        allocator.check();
        assert_eq!(allocator.alloc_raw(3 << 20, home).unwrap(), used);
        [early, used, beside].iter().for_each(|block| allocator.free(*block).unwrap());
        allocator.close().unwrap();
    }
}
