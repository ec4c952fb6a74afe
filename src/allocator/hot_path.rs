//! The hot path: allocations from cached memory, frees, and streams to record. It takes the lock of one stream, and where that
//! passes its limit of the peak, a second lock or two. It makes no driver call; what cannot be served so goes through the door of
//! the slow path.

use super::Inner;
use super::error::{AddressFacts, AllocAgainError, AllocError, FreeError, facts_of};
use super::kind::RegionKind;
use super::reports::LiveAllocation;
use super::request::{Request, Rounded};
use super::slow_path::Wanted;
use super::streams::directory::{Owner, Place};
use super::streams::extras::Extras;
use super::streams::peak::Visit;
use super::streams::state::{Stream, StreamState};
use crate::driver::Driver;
use crate::heap::{Block, GRANULE, NotLive};
use crate::stream::{Fence, Reach};
use crate::sync::Ordering;
use crate::units::{DeviceAddr, StreamId};

impl<D: Driver> Inner<D> {
    /// Allocates `bytes` at a multiple of `alignment`, a power of two and at least a granule.
    #[inline]
    pub(super) fn alloc(&self, bytes: u64, alignment: u64, stream: StreamId) -> Result<DeviceAddr, AllocError> {
        let rounded = Rounded::new(bytes).filter(|rounded| rounded.size <= self.shared.geometry.slot_bytes);
        let Some(Rounded { size, waste }) = rounded else { return Err(self.too_large(bytes, alignment)) };
        let stream = self.shared.streams.find_or_add(stream)?;
        match self.take(stream, size, waste, alignment) {
            Some(addr) => Ok(addr),
            None => self.door.alloc(&self.shared, stream, Request::new(bytes, size, alignment)),
        }
    }

    /// Takes a free block of `size` bytes in the stream's regions; `waste` of them were not requested.
    #[inline]
    fn take(&self, stream: &Stream, size: u64, waste: u16, alignment: u64) -> Option<DeviceAddr> {
        let streams = &self.shared.streams;
        let mut state = stream.lock_hot();
        let taken = state.take_any(RegionKind::of(size), size, waste, alignment);
        let visit = match state.mark.is_passed(state.live_bytes) {
            true => streams.peak.note(stream.index, &mut state, |index| streams.get(index)),
            false => Visit::Needless,
        };
        drop(state);
        if visit == Visit::Due {
            streams.peak.visit(|index| streams.get(index), stream.index);
        }
        taken
    }

    /// Serves a request from what is cached for a stream that is kept; `None` where that takes more.
    #[inline]
    pub(super) fn alloc_cached(&self, bytes: u64, alignment: u64, stream: StreamId) -> Option<DeviceAddr> {
        let Rounded { size, waste } = Rounded::new(bytes)?;
        let stream = self.shared.streams.find_kept(stream)?;
        self.take(stream, size, waste, alignment)
    }

    #[cold]
    fn too_large(&self, requested: u64, alignment: u64) -> AllocError {
        AllocError::TooLarge { requested, alignment, region_bytes: self.shared.geometry.slot_bytes }
    }

    /// Frees the live allocation at `addr`.
    #[inline]
    pub(super) fn free(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        let Place::Region(owner, offset) = self.shared.directory.find(addr) else {
            return Err(self.refuse(addr));
        };
        let mut state = self.shared.streams.get(owner.stream).lock_hot();
        if state.free_last(addr) {
            self.note_free(owner, &mut state);
            return Ok(());
        }
        let epoch = state.epoch;
        let freed = match state.region(owner.region) {
            Some(region) => region.heap.free(offset, epoch),
            None => Err(NotLive::NoBlock),
        };
        match freed {
            Ok(block) => {
                self.count_free(owner, &mut state, &block);
                Ok(())
            }
            Err(NotLive::Shared) => {
                drop(state);
                self.free_shared(addr, owner, offset)
            }
            Err(_) => {
                drop(state);
                Err(self.refuse(addr))
            }
        }
    }

    /// Counts the free of a block.
    #[inline]
    fn count_free(&self, owner: Owner, state: &mut StreamState, block: &Block) {
        state.count_free(block);
        self.note_free(owner, state);
    }

    /// Notes for the peak that fewer bytes are live.
    #[inline]
    fn note_free(&self, owner: Owner, state: &mut StreamState) {
        if state.mark.is_left(state.live_bytes) {
            let streams = &self.shared.streams;
            let _ = streams.peak.note(owner.stream, state, |index| streams.get(index));
        }
    }

    /// Frees a block that other streams use, or that is or was pinned: it becomes pending on all of them, and until the last
    /// pin is gone.
    #[cold]
    fn free_shared(&self, addr: DeviceAddr, owner: Owner, offset: u64) -> Result<(), FreeError> {
        let streams = &self.shared.streams;
        let stream = streams.get(owner.stream);
        let users_of = |extras: &Extras| extras.sharers.users_beside(owner.stream);
        let users = stream.lock().extras.get(&(owner.region, offset)).map(users_of);
        // Nobody else's any more, since it has woken, or freed by another thread.
        let Some(users) = users else { return self.free(addr) };
        // Whatever these streams have queued by now lies before the end of their open epochs.
        let fences: Vec<Fence> =
            users.iter().map(|user| Fence { stream: *user, epoch: streams.get(*user).clock.lock().open() }).collect();
        let mut state = stream.lock();
        let freed = state.region(owner.region).map(|region| region.heap.free_later(offset));
        let Some(Ok(block)) = freed else {
            drop(state);
            return Err(self.refuse(addr));
        };
        self.count_free(owner, &mut state, &block);
        state.let_go(owner.stream, (owner.region, offset), fences);
        streams.note_pending(stream.index, &state);
        drop(state);
        // Seal early, so that the events complete as soon as they can; what fails here is tried again when needed.
        for user in users {
            let stream = streams.get(user);
            let mut clock = stream.clock.lock();
            if clock.reach() == Reach::Given {
                stream.lock().awaited_bytes += block.size;
            }
            if clock.sealed() == 0 {
                let _ = streams.progress(None).seal(stream, &mut clock);
            }
        }
        Ok(())
    }

    /// Records that `stream` also uses the allocation at `addr`.
    pub(super) fn record_stream(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), FreeError> {
        let Place::Region(owner, offset) = self.shared.directory.find(addr) else {
            return Err(self.refuse(addr));
        };
        let user = self.shared.streams.find_or_add(stream)?.index;
        let mut state = self.shared.streams.get(owner.stream).lock();
        // Its own stream is no other one: a block that nobody else uses stays reusable as soon as it is freed.
        let at_home = user == owner.stream && !state.extras.contains_key(&(owner.region, offset));
        let found = state.region(owner.region).map(|region| match at_home {
            true => region.heap.expect_live(offset),
            false => region.heap.share(offset),
        });
        if !matches!(found, Some(Ok(()))) {
            drop(state);
            return Err(self.refuse(addr));
        }
        if at_home {
            return Ok(());
        }
        let extras = state.extras.entry((owner.region, offset));
        extras.or_insert_with(|| Extras::new(owner.stream)).sharers.record(user);
        Ok(())
    }

    /// Allocates `bytes` at an address that was handed out before.
    pub(super) fn alloc_again(&self, addr: DeviceAddr, bytes: u64) -> Result<(), AllocAgainError> {
        let not_free = |facts| AllocAgainError::NotFree { addr, bytes, facts };
        let (owner, offset) = match self.shared.directory.find(addr) {
            Place::Region(owner, offset) => (owner, offset),
            Place::Unused => return Err(not_free(AddressFacts::NeverAllocated)),
            Place::Foreign => return Err(not_free(AddressFacts::Foreign)),
        };
        let fits = |size: &u64| offset.is_multiple_of(GRANULE) && *size <= self.shared.geometry.slot_bytes - offset;
        let size = Rounded::new(bytes).map(|rounded| rounded.size).filter(fits);
        let size = size.ok_or_else(|| not_free(AddressFacts::NeverAllocated))?;
        let request = Request::new(bytes, size, GRANULE);
        self.door.enter(&self.shared, |path| path.alloc_again(Wanted { owner, offset, addr }, request))
    }

    /// Whether an address lies in an arena.
    #[inline]
    pub(super) fn contains(&self, addr: DeviceAddr) -> bool {
        self.shared.directory.contains(addr)
    }

    /// The live allocation that `addr` lies in.
    pub(super) fn live_around(&self, addr: DeviceAddr) -> Option<LiveAllocation> {
        match self.shared.directory.find(addr) {
            Place::Region(owner, offset) => self.shared.streams.live_around(owner, offset),
            Place::Unused | Place::Foreign => None,
        }
    }

    /// Checks that a live allocation starts at `addr`.
    pub(super) fn expect_live(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        if let Place::Region(owner, offset) = self.shared.directory.find(addr) {
            let mut state = self.shared.streams.get(owner.stream).lock();
            if state.region(owner.region).is_some_and(|region| region.heap.expect_live(offset).is_ok()) {
                return Ok(());
            }
        }
        Err(self.refuse(addr))
    }

    /// The error for an address at which no live allocation starts, with what is known about it.
    #[cold]
    pub(super) fn refuse(&self, addr: DeviceAddr) -> FreeError {
        self.shared.counters.refused_frees.fetch_add(1, Ordering::Relaxed);
        let facts = match self.shared.directory.find(addr) {
            Place::Foreign => AddressFacts::Foreign,
            Place::Unused => AddressFacts::NeverAllocated,
            Place::Region(owner, offset) => {
                let mut state = self.shared.streams.get(owner.stream).lock();
                state
                    .region(owner.region)
                    .and_then(|region| {
                        let block = region.heap.block_around(offset)?;
                        let start = region.base.offset(block.offset);
                        Some(facts_of(block.state, start, block.size, block.offset == offset))
                    })
                    .unwrap_or(AddressFacts::NeverAllocated)
            }
        };
        FreeError::NotAllocated { addr, facts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::driver::{ModelConfig, ModelDriver, WorkDriver};
    use crate::units::MIB;
    use std::sync::Arc;

    const MAIN: StreamId = StreamId::DEFAULT;

    /// The requested bytes count as live, without those that rounding adds.
    #[test]
    fn a_cached_block_counts_as_what_was_asked_for() {
        let allocator = Allocator::builder(Arc::new(ModelDriver::default())).build().unwrap();
        let first = allocator.alloc_raw(100, MAIN).unwrap();
        allocator.keep_stream(MAIN).unwrap();
        let mut live = 100;
        for bytes in [0, 1, 100, 512, 513, 60_000] {
            let block = allocator.alloc_raw_cached(bytes, 1, MAIN).unwrap();
            live += bytes;
            assert_eq!((allocator.live_bytes(), allocator.live_around(block).unwrap().bytes), (live, bytes));
        }
        allocator.free(first).unwrap();
        assert_eq!(allocator.live_bytes(), live - 100);
        allocator.check();
    }

    /// A free that is put off for the next request changes no address and no figure: beside the allocator is another one, whose
    /// stream is locked after each operation, which settles it.
    #[test]
    fn a_free_that_is_put_off_changes_nothing() {
        let [allocator, settled] = [(); 2].map(|()| {
            let config = ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() };
            Allocator::builder(Arc::new(ModelDriver::new(config))).region_bytes(16 * MIB).build().unwrap()
        });
        let mut random = 1_u64;
        let mut below = move |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        let sizes = [500, 512, 4096, 5000, 70_000, 300_000, 3 * MIB];
        let mut live: Vec<DeviceAddr> = Vec::new();
        let mut again = 0;
        for _ in 0..4000 {
            if live.len() > 20 || (below(2) == 0 && !live.is_empty()) {
                // Mostly the last one.
                let index =
                    if below(3) > 0 { live.len() - 1 } else { usize::try_from(below(live.len() as u64)).unwrap() };
                let block = live.remove(index);
                [&allocator, &settled].into_iter().for_each(|it| it.free(block).unwrap());
                again += u64::from(allocator.inner.shared.streams.find(MAIN).unwrap().lock_hot().is_last_free());
                if below(8) == 0 {
                    let refused = [&allocator, &settled].map(|it| it.free(block).unwrap_err());
                    assert_eq!(refused[0].to_string(), refused[1].to_string());
                }
            } else {
                let bytes = sizes[usize::try_from(below(7)).unwrap()];
                let alignment = if below(6) == 0 { 16 << 10 } else { 1 };
                let [block, other] =
                    [&allocator, &settled].map(|it| it.alloc_raw_aligned(bytes, alignment, MAIN).unwrap());
                assert_eq!(block, other, "{bytes} bytes");
                live.push(block);
            }
            drop(settled.inner.shared.streams.find(MAIN).unwrap().lock());
        }
        assert!(again > 500, "{again} frees were put off");
        assert_eq!(allocator.stats(), settled.stats());
        assert_eq!(allocator.snapshot().regions, settled.snapshot().regions);
        allocator.check();
    }

    /// A sum for the peak is made of counts alone, whether one other stream has changed or many.
    #[test]
    fn the_meter_of_the_peak_leaves_frees_put_off() {
        let allocator = Allocator::builder(Arc::new(ModelDriver::default())).build().unwrap();
        let streams = [(); 4].map(|()| allocator.driver().create_stream().unwrap());
        let alloc = |bytes: u64, stream: StreamId| allocator.alloc_raw(bytes, stream).unwrap();
        let is_put_off =
            |stream: &StreamId| allocator.inner.shared.streams.find(*stream).unwrap().lock_hot().is_last_free();
        for stream in streams {
            allocator.free(alloc(32 * MIB, stream)).unwrap();
        }
        allocator.reset_peaks();
        for stream in streams.into_iter().chain(streams) {
            allocator.free(alloc(MIB, stream)).unwrap();
        }
        assert!(streams.iter().all(is_put_off), "each has taken its turn at the peak");
        for count in 2..=4 {
            let blocks: Vec<_> = streams[..count].iter().map(|stream| alloc(MIB, *stream)).collect();
            blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
            let higher = 5 * count as u64 * MIB;
            allocator.free(alloc(higher, streams[0])).unwrap();
            assert_eq!(allocator.inner.shared.streams.peak.peak(), higher);
            assert!(streams[1..count].iter().all(is_put_off), "{count} streams");
        }
        allocator.check();
    }

    /// A block whose free was put off is free for everybody who looks.
    #[test]
    fn a_free_that_is_put_off_is_seen() {
        let allocator = Allocator::builder(Arc::new(ModelDriver::default())).build().unwrap();
        let free_one = || {
            let block = allocator.alloc_raw(MIB, MAIN).unwrap();
            allocator.free(block).unwrap();
            assert!(allocator.inner.shared.streams.find(MAIN).unwrap().lock_hot().is_last_free());
            block
        };
        // From cached memory.
        allocator.free(allocator.alloc_raw(MIB, MAIN).unwrap()).unwrap();
        free_one();
        let stats = allocator.stats();
        assert_eq!((stats.live_block_bytes, stats.cached_bytes), (0, stats.reserved_bytes));
        let block = free_one();
        allocator.record_stream(block, StreamId::DEFAULT).unwrap_err();
        let block = free_one();
        assert!(allocator.pin(block).is_err() && allocator.live().is_empty());
        free_one();
        assert_eq!(allocator.trim(0).unwrap().held_bytes, 0);
        allocator.check();
    }

    /// No block was ever handed out that reaches beyond a region, whatever lies before its end.
    #[test]
    fn a_block_beyond_the_end_of_a_region_was_never_there() {
        let region_bytes = 64 * MIB;
        let allocator =
            Allocator::builder(Arc::new(ModelDriver::default())).region_bytes(region_bytes).build().unwrap();
        let blocks = [(); 3].map(|()| allocator.alloc_raw(2 * MIB, MAIN).unwrap());
        allocator.free(blocks[1]).unwrap();
        let facts = |bytes| match allocator.alloc_again(blocks[1], bytes) {
            Err(AllocAgainError::NotFree { facts, .. }) => facts,
            other => panic!("{other:?}"),
        };
        let last = AddressFacts::Inside { start: blocks[2], bytes: 2 * MIB };
        assert_eq!(facts(region_bytes - 2 * MIB), last);
        assert_eq!(facts(region_bytes - 2 * MIB + 1), AddressFacts::NeverAllocated);
        allocator.alloc_again(blocks[1], 2 * MIB).unwrap();
    }
}
