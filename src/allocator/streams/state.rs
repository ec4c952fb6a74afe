//! The state of one stream: its regions, its pending blocks, its counts.

use super::super::kind::RegionKind;
use super::extras::{BlockAt, Extras};
use super::last::LastBlock;
use super::live_mark::LiveMark;
use super::pending::{Pending, PendingBlocks};
use super::readings::ClockLock;
use super::region::{Region, RegionId, Regions};
use crate::driver::StreamIdentity;
use crate::heap::{Block, BlockState, GRANULE};
use crate::stream::{Reach, StreamClock, StreamIndex, StreamSet};
use crate::sync::{Arc, AtomicBool, AtomicU64, CachePadded, HotMutex, HotMutexGuard, Ordering};
use crate::units::{DeviceAddr, StreamId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::slice;

/// Counts of one stream, under its lock.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Tally {
    /// Number of allocations.
    pub allocs: u64,
    /// Number of frees.
    pub frees: u64,
    /// Bytes requested by the allocations that were freed.
    pub freed_bytes: u64,
    /// Number of allocations in each power-of-two range of block sizes, from one granule up.
    pub by_size: [u64; SIZE_RANGES],
}

/// Number of power-of-two size ranges in the statistics: from one granule to 2^40 bytes and more.
pub const SIZE_RANGES: usize = 32;

/// The size range that a block of `size` bytes is counted in.
#[inline]
pub fn size_range(size: u64) -> usize {
    ((size / GRANULE).max(1).ilog2() as usize).min(SIZE_RANGES - 1)
}

/// Claimed bytes of a region, whose memory somebody else may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The region.
    pub region: RegionId,
    /// Offsets in it.
    pub range: Range<u64>,
}

/// The state that a stream's lock protects.
///
/// In this order, what an allocation and a free need lies in few lines of the processor's caches. With many streams in turn, none
/// of them is there.
#[derive(Debug)]
#[repr(C)]
pub struct StreamState {
    /// Requested bytes of live blocks in all regions.
    pub live_bytes: u64,
    /// The last block that was handed out.
    last: LastBlock,
    /// Between which live bytes the peak over all streams is not exceeded.
    pub mark: LiveMark,
    /// The open epoch of the stream, less `epoch_base`.
    pub epoch: u32,
    /// Whether anything was freed in the open epoch.
    pub dirty: bool,
    /// Operation counts.
    pub tally: Tally,
    /// Bytes of other streams' blocks that were freed and had to wait for this stream, while it was not kept.
    pub awaited_bytes: u64,
    /// What [`used_bytes`](Self::used_bytes) were when the last event was recorded.
    pub fenced_bytes: u64,
    /// The epoch that a block's 32-bit epoch 0 stands for.
    pub epoch_base: u64,
    /// Bytes of live blocks that are asleep, or about to be.
    pub asleep_bytes: u64,
    /// Number of the next ticket.
    pub next_ticket: u64,
    /// The stream's regions, added on first use.
    pub regions: Regions,
    /// Blocks that wait for other streams.
    pub pending: PendingBlocks,
    /// Extras of the blocks that their heaps mark as shared: live ones, and pinned ones that were freed.
    pub extras: BTreeMap<BlockAt, Extras>,
    /// Claimed bytes of exposed blocks that were freed, whose memory has to go back to the driver.
    pub exposed: Vec<Exposed>,
    /// Bytes of the blocks that were freed and that a pin holds.
    pub open_elsewhere_bytes: u64,
    /// Number of cross-stream reuses since its last growth.
    pub reuses: u32,
}

impl StreamState {
    /// The region with this number, if there is one.
    #[inline]
    pub fn region(&mut self, id: RegionId) -> Option<&mut Region> {
        self.regions.get_mut(id)
    }

    /// Bytes that were freed after the stream used them.
    pub fn used_bytes(&self) -> u64 {
        self.tally.freed_bytes + self.awaited_bytes
    }

    /// The open epoch.
    pub fn open_epoch(&self) -> u64 {
        self.epoch_base + u64::from(self.epoch)
    }

    /// Opens the next epoch: what is freed from now on is stamped with it. The stream's clock follows. `limit` is the
    /// epoch at which blocks are renumbered.
    pub fn open_next_epoch(&mut self, limit: u32) {
        if self.epoch >= limit {
            self.renumber();
        }
        self.epoch += 1;
        self.dirty = false;
    }

    /// Restarts the 32-bit epochs of the blocks, once in 2^32 seals. What was freed before the last seal counts as freed
    /// right before it: later than it was, which is safe.
    fn renumber(&mut self) {
        let by = self.epoch - 1;
        self.epoch = 1;
        self.epoch_base += u64::from(by);
        self.regions.renumber(by);
    }

    /// Allocates a free block of `size` bytes in one region; `waste` of them were not requested.
    #[inline]
    pub fn take(&mut self, region: RegionId, size: u64, waste: u16, alignment: u64) -> Option<DeviceAddr> {
        let addr = self.region(region)?.take(size, waste, alignment)?;
        self.count_alloc(size, waste);
        Some(addr)
    }

    /// As [`take`](Self::take), in any region of `kind`: the first in the order of their numbers.
    #[inline]
    pub fn take_any(&mut self, kind: RegionKind, size: u64, waste: u16, alignment: u64) -> Option<DeviceAddr> {
        if self.last.is_free() {
            if alignment == GRANULE
                && let Some(addr) = self.last.take_again(size, waste)
            {
                self.count_alloc(size, waste);
                return Some(addr);
            }
            self.free_in_heap();
        }
        let taken = self.regions.first_mut(kind).and_then(|region| region.take(size, waste, alignment));
        match taken {
            Some(addr) => {
                self.count_alloc(size, waste);
                self.last = LastBlock::taken(addr, size, waste, RegionId::first(kind));
                if alignment != GRANULE {
                    self.last.forget();
                }
            }
            None if self.regions.has_further() => return self.take_further(kind, size, waste, alignment),
            None => {}
        }
        taken
    }

    /// As [`take_any`](Self::take_any), in the further regions.
    #[inline(never)]
    fn take_further(&mut self, kind: RegionKind, size: u64, waste: u16, alignment: u64) -> Option<DeviceAddr> {
        let mut after = None;
        loop {
            let region = self.regions.with_room(kind, size, after)?;
            let taken = self.take(region, size, waste, alignment);
            if taken.is_some() {
                return taken;
            }
            // Large enough, but not at a multiple of the alignment.
            after = Some(region);
        }
    }

    /// Lets a block, which the heap has as pending, be free once its fences have passed: at once if there are none.
    pub fn free_when_passed(&mut self, block: Pending) {
        if block.fences.is_empty() {
            self.settle(&block);
            self.dirty = true;
        } else {
            self.pending.push(block);
        }
    }

    /// Frees a block, which the heap has as pending, whose fences have passed. One that is exposed is claimed, until its memory is
    /// gone.
    pub fn settle(&mut self, block: &Pending) {
        let epoch = self.epoch;
        let heap = &mut self.region(block.region).expect("a pending block has a region").heap;
        if block.exposed {
            let size = heap.block(block.offset).expect("a pending block is in the table").size;
            let range = block.offset..block.offset + size;
            heap.claim_parts(block.offset, slice::from_ref(&range));
            self.exposed.push(Exposed { region: block.region, range });
        } else {
            heap.settle(block.offset, epoch);
        }
    }

    /// Makes claimed bytes of an exposed block free or unmapped.
    pub fn end_claim(&mut self, region: RegionId, range: Range<u64>, to: BlockState) {
        if range.is_empty() {
            return;
        }
        let epoch = self.epoch;
        let heap = &mut self.region(region).expect("an exposed block has a region").heap;
        let first = heap.block_around(range.start).expect("the bytes lie in the heap").offset;
        heap.set(first, range.start, range.end - range.start, to, epoch);
        self.dirty |= to == BlockState::Free;
    }

    /// Bytes of blocks that were freed and are not free yet.
    pub fn pending_bytes(&self) -> u64 {
        let waiting: u64 = self.regions.iter().map(|(_, region)| region.heap.pending_bytes()).sum();
        waiting + self.exposed.iter().map(|it| it.range.end - it.range.start).sum::<u64>()
    }

    /// Notes how large a live block is that [`take`](Self::take) has not made.
    pub fn note_size(&mut self, region: RegionId, offset: u64) {
        let Some(region) = self.region(region) else { return };
        if let Some(block) = region.heap.block(offset) {
            region.bounds.note(offset, block.size - u64::from(block.waste));
        }
    }

    /// Counts an allocation of `size` bytes, `waste` of which were not requested.
    #[inline]
    pub fn count_alloc(&mut self, size: u64, waste: u16) {
        self.live_bytes += size - u64::from(waste);
        self.tally.allocs += 1;
        self.tally.by_size[size_range(size)] += 1;
    }

    /// Frees the block at `addr`, if it is the last one that was handed out; the heap learns of it later. Else the heap knows all,
    /// and is about to change.
    #[inline]
    pub fn free_last(&mut self, addr: DeviceAddr) -> bool {
        match self.last.free(addr) {
            Some(bytes) => {
                self.count_freed(bytes);
                true
            }
            None => {
                self.settle_last();
                false
            }
        }
    }

    /// Whether the last block was freed, and its heap has it as live.
    #[cfg(test)]
    pub fn is_last_free(&self) -> bool {
        self.last.is_free()
    }

    /// Frees the last block in its heap, if it was freed, and forgets it.
    #[inline]
    fn settle_last(&mut self) {
        if self.last.is_free() {
            self.free_in_heap();
        }
        self.last.forget();
    }

    #[inline(never)]
    fn free_in_heap(&mut self) {
        let last = std::mem::replace(&mut self.last, LastBlock::NONE);
        let (epoch, (region, addr)) = (self.epoch, last.place());
        let region = self.region(region).expect("the last block has a region");
        let freed = region.heap.free(addr.0 - region.base.0, epoch);
        assert!(freed.is_ok(), "last I1: the heap has {freed:?} where the last block is");
    }

    /// Counts the free of a block.
    #[inline]
    pub fn count_free(&mut self, block: &Block) {
        self.count_freed(block.size - u64::from(block.waste));
    }

    /// Counts the free of a block of which so many bytes were requested.
    #[inline]
    fn count_freed(&mut self, bytes: u64) {
        self.live_bytes -= bytes;
        self.tally.frees += 1;
        self.tally.freed_bytes += bytes;
        self.dirty = true;
    }
}

/// A stream that the allocator has seen. When its owner has destroyed it, another one takes its place, with its regions.
#[derive(Debug)]
pub struct Stream {
    /// Its number in the allocator.
    pub index: StreamIndex,
    /// Its epochs.
    pub clock: ClockLock,
    handle: AtomicU64,
    key: AtomicU64,
    number: AtomicU64,
    /// The stream was being captured when the driver was asked last; asked again when it is handed in.
    captured: AtomicBool,
    state: CachePadded<HotMutex<StreamState>>,
}

impl Stream {
    /// A stream without regions.
    pub fn new(
        index: StreamIndex,
        handle: StreamId,
        identity: &StreamIdentity,
        reach: Reach,
        changed: &Arc<StreamSet>,
    ) -> Self {
        Self {
            index,
            clock: ClockLock::new(StreamClock::new(handle, reach), index, Arc::clone(changed)),
            handle: AtomicU64::new(handle.0),
            key: AtomicU64::new(identity.key.0),
            number: AtomicU64::new(identity.number),
            captured: AtomicBool::new(false),
            state: CachePadded::new(HotMutex::new(StreamState {
                regions: Regions::default(),
                epoch: 1,
                epoch_base: 0,
                dirty: false,
                awaited_bytes: 0,
                fenced_bytes: 0,
                pending: PendingBlocks::default(),
                extras: BTreeMap::new(),
                asleep_bytes: 0,
                exposed: Vec::new(),
                open_elsewhere_bytes: 0,
                next_ticket: 0,
                live_bytes: 0,
                last: LastBlock::NONE,
                mark: LiveMark::default(),
                reuses: 0,
                tally: Tally { allocs: 0, frees: 0, freed_bytes: 0, by_size: [0; SIZE_RANGES] },
            })),
        }
    }

    /// The caller's handle. Of a stream that is over, what it was.
    pub fn id(&self) -> StreamId {
        StreamId(self.handle.load(Ordering::Relaxed))
    }

    /// Returns the key that the stream is filed under.
    pub fn key(&self) -> StreamId {
        StreamId(self.key.load(Ordering::Relaxed))
    }

    /// Whether this is the stream with that number of the driver.
    pub fn has_number(&self, number: u64) -> bool {
        self.number.load(Ordering::Acquire) == number
    }

    /// Whether the stream was being captured when the driver was asked last.
    #[inline]
    pub fn seemed_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    /// Notes whether the stream is being captured.
    pub fn note_capture(&self, captured: bool) {
        self.captured.store(captured, Ordering::Relaxed);
    }

    /// Makes this the entry of another stream; its clock has to be renewed as well.
    pub fn rename(&self, handle: StreamId, identity: &StreamIdentity) {
        self.handle.store(handle.0, Ordering::Relaxed);
        self.key.store(identity.key.0, Ordering::Relaxed);
        self.captured.store(false, Ordering::Relaxed);
        self.number.store(identity.number, Ordering::Release);
    }

    /// The numbers of its regions.
    pub fn region_ids(&self) -> Vec<RegionId> {
        self.lock().regions.iter().map(|(id, _)| id).collect()
    }

    /// Locks the state. Never held during a driver call.
    #[inline]
    #[cfg_attr(not(test), allow(clippy::useless_conversion, reason = "tests watch what is done under the lock"))]
    pub fn lock(&self) -> StateGuard<'_> {
        let mut state = self.state.lock();
        state.settle_last();
        state.into()
    }

    /// As [`lock`](Self::lock), for the hot path and who looks at counts alone: a block may be free that the heap has as live.
    #[inline]
    #[cfg_attr(not(test), allow(clippy::useless_conversion, reason = "tests watch what is done under the lock"))]
    pub fn lock_hot(&self) -> StateGuard<'_> {
        self.state.lock().into()
    }

    /// As [`lock_hot`](Self::lock_hot), if nobody has locked it.
    #[cfg_attr(not(test), allow(clippy::useless_conversion, reason = "tests watch what is done under the lock"))]
    pub fn try_lock_hot(&self) -> Option<StateGuard<'_>> {
        self.state.try_lock().map(Into::into)
    }

    /// Locks the state for a piece of the work. Whoever waits may have it next, also if this thread wants it again at once.
    pub fn piece<T>(&self, piece: impl FnOnce(&mut StreamState) -> T) -> T {
        let mut state = self.lock();
        let result = piece(&mut state);
        #[cfg(not(test))]
        crate::sync::unlock_fairly(state);
        result
    }
}

/// A locked state.
#[cfg(not(test))]
pub type StateGuard<'a> = HotMutexGuard<'a, StreamState>;

/// A locked state. Tests see how much is done while it is locked.
#[cfg(test)]
pub type StateGuard<'a> = crate::testing::Watched<HotMutexGuard<'a, StreamState>>;

/// The locked states of all streams, in the order of their numbers.
pub type AllStates<'a> = Vec<StateGuard<'a>>;

/// Sum of the requested live bytes of all streams.
pub fn live_bytes(states: &AllStates<'_>) -> u64 {
    states.iter().map(|state| state.live_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_ranges_are_powers_of_two() {
        for (granules, range) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (1023, 9), (1024, 10)] {
            assert_eq!(size_range(granules * GRANULE), range, "{granules} granules");
        }
        assert_eq!(size_range(u64::MAX), SIZE_RANGES - 1);
    }
}
