//! Marking what is to sleep.

use super::super::super::error::AllocError;
use super::super::super::streams::directory::Owner;
use super::super::super::streams::region::Region;
use super::super::super::streams::state::StreamState;
use super::super::SlowPath;
use super::{Batch, Phase, Run, Sleeper};
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

/// Bytes of chunks with live memory that stayed awake, by the cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LeftAwake {
    /// A block in them is pinned: another process has it open, for example.
    pub pinned_bytes: u64,
    /// Work that cannot be waited for may use them, a map listener refused to see them unmapped, or a mapping of them is stuck.
    pub refused_bytes: u64,
    /// The allocator keeps its mappings.
    pub kept_bytes: u64,
}

/// Why a chunk stays awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    Pinned,
    Refused,
}

/// The views of a region that may sleep, in the order of their addresses, and what keeps each awake.
struct Candidates {
    owner: Owner,
    segment: usize,
    base: DeviceAddr,
    page_bytes: u64,
    views: Vec<View>,
    stays: Vec<Option<Stays>>,
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
        excluded: &Excluded,
    ) -> Result<(LeftAwake, Option<Vec<Sleeper>>), AllocError> {
        self.expect_no_capture()?;
        self.end_fall(lane)?;
        self.sleep_on(lane)?;
        // What comes next may begin where a block did that was freed asleep.
        self.shed_empty_pages();
        self.trim_idle(0);
        let mut left = LeftAwake::default();
        if !self.rules().may_unmap() {
            left.kept_bytes = self.mapper.chunks().held_bytes();
            return Ok((left, None));
        }
        self.progress().settle_pending()?;
        let mut batch = Batch { phase: Phase::Falling, runs: Vec::new(), blocks: Vec::new(), backup: None };
        for number in 0..self.mapper.segments().len() {
            if let Some(mut candidates) = self.candidates(number, excluded) {
                let stream = self.shared.streams.get(candidates.owner.stream);
                candidates.mark(&mut stream.lock(), &mut batch, &mut left);
            }
        }
        if batch.runs.is_empty() {
            return Ok((left, None));
        }
        let blocks = batch.blocks.clone();
        self.mapper.asleep_mut().batches_mut().push(batch);
        // Behind what was queued before a block was marked, by whoever had it pinned until then for example.
        if let Err(error) = self.order_behind_all(lane) {
            self.stay_awake();
            return Err(error);
        }
        Ok((left, Some(blocks)))
    }

    /// Refuses while a stream is being captured.
    pub fn expect_no_capture(&self) -> Result<(), AllocError> {
        let progress = self.progress();
        let captured = self.shared.streams.iter().find(|stream| progress.is_captured_now(stream));
        captured.map_or(Ok(()), |stream| Err(AllocError::CannotWait { stream: stream.id() }))
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
        let active = segment.table.views_in(all).filter(|view| view.state == ViewState::Active);
        let views: Vec<View> = active.copied().collect();
        let is_stuck =
            |chunk| self.mapper.chunks().get(chunk).stale.iter().any(|at| self.mapper.view(*at).state.is_stuck());
        let stays = |view: &View| (excluded.contains(&view.chunk) || is_stuck(view.chunk)).then_some(Stays::Refused);
        let stays = views.iter().map(stays).collect();
        let (base, page_bytes) = (segment.base, segment.page_bytes);
        Some(Candidates { owner, segment: number, base, page_bytes, views, stays })
    }
}

impl Candidates {
    /// Marks those that can sleep, and adds them to the batch.
    fn mark(&mut self, state: &mut StreamState, batch: &mut Batch, left: &mut LeftAwake) {
        let Some(region) = state.regions.get(self.owner.region) else { return };
        let used: Vec<Block> = region.heap.blocks().filter(|block| is_used(block.state)).collect();
        for block in &used {
            if let Some(cause) = cause(state, self.owner, block) {
                for number in self.views_of(block) {
                    self.stays[number].get_or_insert(cause);
                }
            }
        }
        for (view, stays) in self.views.iter().zip(&self.stays) {
            let pages = view.pages.bytes(self.page_bytes);
            let bytes = pages.end - pages.start;
            match stays {
                Some(Stays::Pinned) => left.pinned_bytes += bytes,
                Some(Stays::Refused) => left.refused_bytes += bytes,
                None => {
                    claim_free(state, self.owner, &pages);
                    self.add_run(batch, view.pages);
                }
            }
        }
        for block in used.iter().filter(|block| block.state == BlockState::Live) {
            let first = batch.blocks.len();
            self.add_parts(block, &mut batch.blocks);
            for part in &batch.blocks[first..] {
                state.put_to_sleep(self.owner, block.offset, part.range());
            }
        }
    }

    /// Adds the parts of a live block in views that sleep.
    fn add_parts(&self, block: &Block, sleepers: &mut Vec<Sleeper>) {
        let mut follows = false;
        for number in self.views_of(block) {
            if self.stays[number].is_some() {
                follows = false;
                continue;
            }
            let pages = self.views[number].pages.bytes(self.page_bytes);
            let (start, end) = (block.offset.max(pages.start), (block.offset + block.size).min(pages.end));
            match sleepers.last_mut() {
                Some(last) if follows && last.offset + last.bytes == start => last.bytes += end - start,
                last => {
                    let place = last.map_or(0, |last| last.place + last.bytes);
                    let (addr, bytes) = (self.base.offset(start), end - start);
                    sleepers.push(Sleeper {
                        owner: self.owner,
                        block: block.offset,
                        addr,
                        offset: start,
                        bytes,
                        place,
                    });
                }
            }
            follows = true;
        }
    }

    /// The numbers of the views that a block lies in.
    fn views_of(&self, block: &Block) -> Range<usize> {
        let pages = PageRange::around(&(block.offset..block.offset + block.size), self.page_bytes);
        let first = self.views.partition_point(|view| view.pages.end <= pages.start);
        let end = self.views.partition_point(|view| view.pages.start < pages.end);
        first..end.max(first)
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
    let first = region.heap.block_around(range.start);
    let from = first.map_or(range.start, |block| block.offset);
    let touching = region.heap.blocks_from(from).take_while(|block| block.offset < range.end);
    touching.filter(|block| block.state == state).collect()
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, Backup};
    use crate::driver::{DriverCall, WorkDriver};
    use crate::testing::busy;
    use std::sync::Arc;
    use std::time::Duration;

    /// Work is queued on a pinned block, and the pin goes, once the own stream is ordered behind that of the block: it stays awake.
    #[test]
    fn what_is_unpinned_behind_the_order_stays_awake() {
        let driver = busy(&Arc::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let stream = driver.create_stream().unwrap();
        allocator.keep_stream(stream).unwrap();
        let [pinned, other] = [3, 5].map(|mib| allocator.alloc(mib << 20, stream).unwrap());
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
}
