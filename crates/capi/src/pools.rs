//! Pools: memory of captured graphs and of PyTorch's `MemPool`, kept apart from all other memory.
//!
//! A captured graph uses its addresses at every replay. What was allocated during the capture, freed or not, must
//! therefore neither be handed to others nor go back to the driver until the pool is released. So a pool is an allocator
//! of its own on the same device, and the main allocator's budget shrinks by what pools hold.
//!
//! - I1  `owner` maps exactly the live allocations of the pools.
//! - I2  a pool that was released is closed once nothing in it is live.
//!
//! A request belongs to an open pool if the thread that opened the pool makes it, or if its stream is being captured
//! (PyTorch's backward threads allocate on such a stream for the capturing thread). PyTorch passes a C++ filter that says
//! the same; it is not called.
//!
//! Threads: any; one lock. Cost: an atomic load while there are no pools.

use crate::config::Settings;
use crate::instance::{Instance, Request};
use gapless::allocator::{AllocError, FreeError};
use gapless::driver::cuda::CudaDriver;
use gapless::driver::{MemoryDriver, StreamDriver};
use gapless::{Allocator, DeviceAddr, StreamId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

/// The name of a pool, as PyTorch gives it.
pub(crate) type PoolId = (u64, u64);

/// The pools of one device.
#[derive(Debug)]
pub(crate) struct Pools {
    settings: Settings,
    /// Number of pools; 0 most of the time.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pools: HashMap<PoolId, Pool>,
    owner: HashMap<DeviceAddr, PoolId>,
    /// Open pools, the last opened last.
    open: Vec<(PoolId, ThreadId)>,
    /// The device's budget: what the main allocator may hold when there are no pools.
    whole_budget: u64,
}

#[derive(Debug)]
struct Pool {
    allocator: Allocator<CudaDriver>,
    live: u64,
    users: u32,
}

impl Pools {
    pub fn new(settings: Settings) -> Self {
        Self { settings, count: AtomicUsize::new(0), state: Mutex::default() }
    }

    fn none(&self) -> bool {
        // Relaxed: a thread that must see a pool has synchronised with the one that opened it.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Opens a pool for the calling thread; makes it if it is new.
    pub fn begin(&self, main: &Instance, id: PoolId) -> crate::status::Answer<()> {
        let mut state = self.state.lock();
        if state.pools.is_empty() {
            state.whole_budget = main.allocator.budget();
        }
        if let Some(pool) = state.pools.get_mut(&id) {
            pool.users += 1;
        } else {
            let mut settings = self.settings.clone();
            // At least a page, or no allocator can be built. Every request is held to the headroom that there is by then.
            let page = main.allocator.driver().granularity();
            settings.budget = Some(crate::config::Budget::Bytes(state.whole_budget.max(page)));
            let allocator = settings.build_on(main.allocator.driver().clone())?;
            state.pools.insert(id, Pool { allocator, live: 0, users: 1 });
            self.count.store(state.pools.len(), Ordering::Relaxed);
        }
        state.open.push((id, std::thread::current().id()));
        Ok(())
    }

    /// Closes a pool to new requests.
    pub fn end(&self, main: &Instance, id: PoolId) {
        let mut state = self.state.lock();
        if let Some(at) = state.open.iter().rposition(|(open, _)| *open == id) {
            state.open.remove(at);
        }
        state.share_budget(main);
    }

    /// Removes one user of a pool. After the last one, the pool ends with its last allocation.
    pub fn release(&self, main: &Instance, id: PoolId) {
        let mut state = self.state.lock();
        let Some(pool) = state.pools.get_mut(&id) else { return };
        pool.users = pool.users.saturating_sub(1);
        self.close_if_done(&mut state, main, id);
    }

    /// Allocates from the open pool that the request belongs to; `None` if it belongs to none.
    pub fn alloc(&self, main: &Instance, request: &Request) -> Option<Result<DeviceAddr, AllocError>> {
        if self.none() {
            return None;
        }
        let mut state = self.state.lock();
        let here = std::thread::current().id();
        let mine = state.open.iter().rev().find(|(_, thread)| *thread == here);
        let id = match (mine, state.open.last()) {
            (Some((id, _)), _) => *id,
            (None, Some((id, _))) if main.allocator.driver().is_capturing(request.stream) => *id,
            _ => return None,
        };
        let whole_budget = state.whole_budget;
        let state = &mut *state;
        let others: u64 = state.pools.iter().filter(|(other, _)| **other != id).map(|(_, pool)| pool.held()).sum();
        let pool = state.pools.get_mut(&id)?;
        let headroom = |main: &Instance| whole_budget.saturating_sub(others + main.allocator.reserved_bytes());
        let outcome = pool.alloc_within(headroom(main), request).or_else(|error| match error {
            AllocError::OutOfMemory(_) => {
                // The request is worth more than what the main allocator holds free. If the trim fails, so does the retry.
                let _ = main.allocator.trim(0);
                pool.alloc_within(headroom(main), request)
            }
            other => Err(other),
        });
        if let Ok(addr) = &outcome {
            pool.live += 1;
            state.owner.insert(*addr, id);
        }
        Some(outcome)
    }

    /// Frees an allocation of a pool; `None` if it belongs to none.
    pub fn free(&self, main: &Instance, addr: DeviceAddr) -> Option<Result<(), FreeError>> {
        if self.none() {
            return None;
        }
        let mut state = self.state.lock();
        let id = state.owner.remove(&addr)?;
        let pool = state.pools.get_mut(&id)?;
        let outcome = pool.allocator.free(addr);
        pool.live -= 1;
        self.close_if_done(&mut state, main, id);
        Some(outcome)
    }

    /// Records a stream for an allocation of a pool; `None` if it belongs to none.
    pub fn record_stream(&self, addr: DeviceAddr, stream: StreamId) -> Option<Result<(), FreeError>> {
        if self.none() {
            return None;
        }
        let state = self.state.lock();
        let id = state.owner.get(&addr)?;
        Some(state.pools.get(id)?.allocator.record_stream(addr, stream))
    }

    /// The pools with their allocators.
    pub fn allocators(&self) -> Vec<(PoolId, Allocator<CudaDriver>)> {
        if self.none() {
            return Vec::new();
        }
        self.state.lock().pools.iter().map(|(id, pool)| (*id, pool.allocator.clone())).collect()
    }

    /// Changes the budget of the device: of the main allocator and all pools together.
    pub fn set_budget(&self, main: &Instance, bytes: u64) -> crate::status::Answer<()> {
        let mut state = self.state.lock();
        if state.pools.is_empty() {
            return Ok(main.allocator.set_budget(bytes)?);
        }
        state.whole_budget = bytes;
        state.share_budget(main);
        Ok(())
    }

    fn close_if_done(&self, state: &mut State, main: &Instance, id: PoolId) {
        let done = state.pools.get(&id).is_some_and(|pool| pool.users == 0 && pool.live == 0);
        if done && let Some(pool) = state.pools.remove(&id) {
            // Waits for the streams that used it. Nobody is there to be told what the driver refuses.
            let _ = pool.allocator.close();
            self.count.store(state.pools.len(), Ordering::Relaxed);
            state.share_budget(main);
        }
    }
}

impl State {
    /// Lets the main allocator hold what pools do not.
    fn share_budget(&self, main: &Instance) {
        let held: u64 = self.pools.values().map(Pool::held).sum();
        // Memory that cannot be returned now counts against the next request.
        let _ = main.allocator.set_budget(self.whole_budget.saturating_sub(held));
    }
}

impl Pool {
    fn held(&self) -> u64 {
        self.allocator.reserved_bytes()
    }

    fn alloc_within(&self, headroom: u64, request: &Request) -> Result<DeviceAddr, AllocError> {
        // At least what it holds: a lower budget would return memory that a graph still uses.
        self.allocator.set_budget(headroom.max(self.held()))?;
        request.serve(&self.allocator)
    }
}
