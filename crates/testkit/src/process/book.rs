//! The allocations that callers hold of one device of a process, and what its figures must be by that.

use super::device::{Layers, Simulates};
use gapless::driver::{EventHandle, StreamDriver};
use gapless::units::{DeviceAddr, StreamId};
use gapless_process::{BlockUse, Device, NO_POOL, PoolId};
use std::collections::{BTreeMap, BTreeSet};

/// Where callers expect an allocation to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the pool of that name.
    Pool(PoolId),
    /// In no pool, or in one that lends to other requests.
    Main,
    /// In a pool that ends once its deferred frees are done, if that is not yet so: else as in `Main`.
    Ending(PoolId),
}

/// A stream of a device, by the device's number.
pub(super) type OfDevice = (usize, StreamId);

/// A live allocation, as its owner knows it.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub addr: DeviceAddr,
    pub bytes: u64,
    pub pool: PoolId,
    /// The streams of its own device that may use it.
    pub own: Vec<StreamId>,
    /// The streams of the other device that may use it.
    pub foreign: Vec<OfDevice>,
    /// A recording of a stream of the other device failed: it may have been recorded or not.
    pub unsure: bool,
    pub last_user: OfDevice,
    /// The seed of its content.
    pub seed: u64,
    /// Distinguishes it from all other blocks of both devices: a later one has a higher number.
    pub serial: u64,
}

/// The free of an allocation that streams of the other device could still use: it is deferred until they are done.
#[derive(Debug)]
struct Deferred {
    bytes: u64,
    pool: PoolId,
    /// The ends of what was queued on these streams when it was freed.
    ends: Vec<(usize, EventHandle)>,
}

/// The allocations that callers hold of one device.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub live: BTreeMap<DeviceAddr, Block>,
    deferred: BTreeMap<DeviceAddr, Deferred>,
    /// The number of users of each pool.
    pub users: BTreeMap<PoolId, u32>,
    /// The open pools, the last opened last.
    pub open: Vec<PoolId>,
    /// The budget, if one was set.
    pub budget: Option<u64>,
    /// The most that may be held: the budget, or what was allowed before it was lowered.
    ceiling: u64,
    pub allocs: u64,
    pub frees: u64,
    pub allocated_bytes: u64,
    pub out_of_memory: u64,
    /// Bytes that could not be given back to the driver when an injected failure occurred.
    pub lost_bytes: u64,
}

impl Book {
    /// Of a device that nothing was allocated on, with a budget if one is set.
    pub fn new(budget: Option<u64>) -> Self {
        Self { budget, ..Self::default() }
    }

    /// Where a request for a pool is served.
    pub fn place_of(&self, pool: PoolId) -> Place {
        if self.lasting_pools().contains(&pool) {
            Place::Pool(pool)
        } else if self.pools().contains(&pool) {
            Place::Ending(pool)
        } else {
            Place::Main
        }
    }

    /// The pools that there are: those with a user, those that are open, and those with a block that is not free.
    pub fn pools(&self) -> BTreeSet<PoolId> {
        let held = self.deferred.values().map(|held| held.pool).filter(|pool| *pool != NO_POOL);
        self.lasting_pools().into_iter().chain(held).collect()
    }

    /// Those of them that are there until a call ends them.
    fn lasting_pools(&self) -> BTreeSet<PoolId> {
        let used = self.users.iter().filter(|(_, users)| **users > 0).map(|(pool, _)| *pool);
        let live = self.live.values().map(|block| block.pool).filter(|pool| *pool != NO_POOL);
        used.chain(self.open.iter().copied()).chain(live).collect()
    }

    /// Whether no block was freed that waits for a stream of the other device.
    pub fn defers_nothing(&self) -> bool {
        self.deferred.is_empty()
    }

    /// Takes in a new allocation. A deferred free of its address is done meanwhile.
    ///
    /// # Panics
    /// Notes a block that could not be cleared, which nobody got.
    pub fn note_allocated_and_freed(&mut self, bytes: u64) {
        self.allocs += 1;
        self.frees += 1;
        self.allocated_bytes += bytes;
    }

    /// Panics if it is over a live one.
    pub fn add<M: Simulates>(&mut self, block: Block, drivers: &[std::sync::Arc<Layers<M>>; 2]) {
        let end = block.addr.0 + block.bytes.max(1);
        if let Some((_, before)) = self.live.range(..DeviceAddr(end)).next_back() {
            let before_end = before.addr.0 + before.bytes.max(1);
            assert!(before_end <= block.addr.0, "{block:?} was allocated over {before:?}");
        }
        self.allocs += 1;
        self.allocated_bytes += block.bytes;
        let over: Vec<_> = self.deferred.range(block.addr..DeviceAddr(end)).map(|(addr, _)| *addr).collect();
        over.into_iter().for_each(|addr| self.settle(addr, drivers));
        self.live.insert(block.addr, block);
    }

    /// Notes a free. Until the work that `ends` are the ends of is over, the memory may be nobody's.
    pub fn free(&mut self, block: &Block, ends: Vec<(usize, EventHandle)>) {
        self.live.remove(&block.addr).expect("a live block");
        self.deferred.insert(block.addr, Deferred { bytes: block.bytes, pool: block.pool, ends });
    }

    /// A block that was freed is free now: no stream of the other device may use it any more.
    fn settle<M: Simulates>(&mut self, addr: DeviceAddr, drivers: &[std::sync::Arc<Layers<M>>; 2]) {
        let held = self.deferred.remove(&addr).expect("a deferred free");
        for (device, end) in held.ends {
            // Past the witness: what the test asks is not what the process knows.
            let simulated = drivers[device].inner().inner();
            let over = simulated.event_query(end).expect("an event of the device");
            assert!(over, "{addr} is free while a stream of device {device} uses it");
            simulated.event_destroy(end).expect("an event of the device");
        }
        self.frees += 1;
    }

    /// Checks everything that must hold of the device now.
    ///
    /// # Panics
    /// Panics if a check fails.
    pub fn check<M: Simulates>(&mut self, device: &Device<Layers<M>>, drivers: &[std::sync::Arc<Layers<M>>; 2]) {
        device.each_allocator(None, |_, allocator| allocator.check());
        let is_live = |addr: &DeviceAddr, bytes: u64| {
            device.live_around(*addr).is_some_and(|(_, live)| live.addr == *addr && live.bytes == bytes)
        };
        let over = self.deferred.iter().filter(|(addr, held)| !is_live(addr, held.bytes)).map(|(addr, _)| *addr);
        over.collect::<Vec<_>>().into_iter().for_each(|addr| self.settle(addr, drivers));
        self.check_blocks(device);
        self.check_figures(device);
        self.check_budget(device);
    }

    fn check_blocks<M: Simulates>(&self, device: &Device<Layers<M>>) {
        let mut live: Vec<_> = self.live.values().map(|block| (block.addr, block.bytes, block.pool)).collect();
        let mut listed: Vec<_> =
            device.live_blocks(None).iter().map(|block| (block.addr, block.requested_bytes, block.pool)).collect();
        live.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, live, "the live blocks are those that were allocated");
        let waiting = device.blocks(None).into_iter().filter(|block| block.state == BlockUse::Waiting);
        let waiting: BTreeSet<DeviceAddr> = waiting.map(|block| block.addr).collect();
        assert!(
            self.deferred.keys().all(|addr| waiting.contains(addr)),
            "a block whose free is deferred waits: {waiting:?}"
        );
        let witness = device.allocator().driver().inner();
        let mut parts = Vec::new();
        let held = self.deferred.iter().map(|(addr, held)| (*addr, held.bytes));
        for (addr, bytes) in self.live.values().map(|block| (block.addr, block.bytes)).chain(held) {
            let backing = witness.backing(addr, bytes.max(1));
            let backing = backing.unwrap_or_else(|| panic!("{bytes} bytes at {addr} are not fully mapped with access"));
            parts.extend(backing.into_iter().map(|(chunk, part)| (chunk, part.start, part.end)));
        }
        parts.sort_unstable();
        for pair in parts.windows(2) {
            assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?} are parts of two blocks");
        }
    }

    fn check_figures<M: Simulates>(&self, device: &Device<Layers<M>>) {
        let listed: BTreeSet<PoolId> = device.pools().all().iter().map(|pool| pool.id()).collect();
        assert_eq!(listed, self.pools(), "the pools that there are");
        for (pool, users) in &self.users {
            assert_eq!(device.pools().users(*pool), *users, "the users of {pool:?}");
        }
        let sum_of = |pool: Option<PoolId>| {
            let is_in = |its: PoolId| pool.is_none_or(|pool| pool == its);
            let live = self.live.values().map(|block| (block.bytes, block.pool));
            let held = self.deferred.values().map(|held| (held.bytes, held.pool));
            let all = live.chain(held).filter(|(_, pool)| is_in(*pool));
            all.fold((0, 0), |(bytes, number), (more, _)| (bytes + more, number + 1))
        };
        let figures = device.figures(None).expect("the figures of all");
        assert_eq!((figures.live_bytes, figures.live_allocations), sum_of(None), "live bytes and allocations");
        assert_eq!((figures.allocs, figures.frees), (self.allocs, self.frees), "allocations and frees");
        assert_eq!(figures.allocated_bytes, self.allocated_bytes, "bytes allocated");
        assert_eq!(figures.freed_bytes, self.allocated_bytes - figures.live_bytes, "bytes freed");
        assert_eq!(figures.failed_allocs, self.out_of_memory, "requests that ran out of memory");
        assert!(figures.live_bytes <= figures.peak_live_bytes, "{figures:?}");
        assert!(figures.reserved_bytes <= figures.peak_reserved_bytes, "{figures:?}");
        let mut in_pools = 0;
        for pool in &listed {
            let its = device.figures(Some(*pool)).expect("a pool that there is");
            assert_eq!((its.live_bytes, its.live_allocations), sum_of(Some(*pool)), "those of {pool:?}");
            in_pools += its.live_bytes;
        }
        let memory = device.memory_use();
        assert_eq!((memory.live, memory.live_in_pools), (figures.live_bytes, in_pools), "{memory:?}");
        let usage = device.allocator().driver().inner().inner().inner().usage();
        assert_eq!(memory.reserved + self.lost_bytes, usage.bytes, "bytes held and bytes on the device");
    }

    fn check_budget<M: Simulates>(&mut self, device: &Device<Layers<M>>) {
        let memory = device.memory_use();
        assert_eq!(memory.set_budget, self.budget, "the budget changed without a call");
        let Some(whole) = self.budget else {
            self.ceiling = memory.reserved;
            return;
        };
        let condemned = memory.reserved - device.figures(None).expect("the figures of all").reserved_bytes;
        let mut sum = condemned;
        device.each_allocator(None, |_, allocator| sum += allocator.budget());
        self.ceiling = self.ceiling.max(whole);
        assert!(sum <= self.ceiling, "budgets of {sum} bytes were given out of {whole}");
        assert!(memory.reserved <= self.ceiling, "more is held than was ever allowed: {memory:?}");
        self.ceiling = whole.max(sum).max(memory.reserved);
    }

    /// Checks what must hold after a trim that did not fail.
    ///
    /// # Panics
    /// Panics if it does not.
    pub fn check_trimmed<M: Simulates>(&self, device: &Device<Layers<M>>) {
        assert!(self.defers_nothing(), "a trim waits for streams of other devices");
        if self.open.is_empty() {
            let memory = device.memory_use();
            let held = device.figures(None).expect("the figures of all").reserved_bytes;
            assert_eq!(memory.reserved, held, "a trim closes pools that were released");
        }
        if let (Some(whole), true) = (self.budget, self.pools().is_empty()) {
            assert_eq!(device.allocator().budget(), whole, "the budget is back when the last pool is gone");
        }
    }

    /// Returns the number of pages that a request must be able to have, where chunks are single pages: in the device's own memory,
    /// or in a pool.
    pub fn promised_pages<M: Simulates>(&self, device: &Device<Layers<M>>, place: Place, page_bytes: u64) -> u64 {
        let (witness, memory) = (device.allocator().driver().inner(), device.memory_use());
        let figures = device.figures(None).expect("the figures of all");
        let main_holds = device.allocator().reserved_bytes();
        // Pools that were released are closed for it, unless one is open that may serve a capture.
        let condemned = if self.open.is_empty() { 0 } else { memory.reserved - figures.reserved_bytes };
        let in_pools = figures.reserved_bytes - main_holds + condemned;
        let of_main = self.live.values().filter(|block| block.pool == NO_POOL);
        let used = of_main.flat_map(|block| witness.backing(block.addr, block.bytes.max(1)).into_iter().flatten());
        let used: BTreeSet<_> = used.map(|(chunk, _)| chunk).collect();
        let simulated = witness.inner().inner();
        let total = gapless::driver::MemoryDriver::memory_info(simulated).map_or(0, |info| info.total);
        let whole = self.budget.unwrap_or(total).min(total - self.lost_bytes);
        // A trim for a pool waits neither for streams nor for deferred frees.
        let waits = device.allocator().stats().pending_bytes > 0 || !self.defers_nothing();
        if place != Place::Main && (waits || matches!(place, Place::Ending(_))) {
            return 0;
        }
        (whole / page_bytes).saturating_sub(in_pools.div_ceil(page_bytes) + used.len() as u64)
    }
}
