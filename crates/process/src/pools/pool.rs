//! One pool: an allocator of its own, and who uses it.

use crate::driver::DeviceDriver;
use gapless::{Allocator, DeviceAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The name of a pool, as PyTorch gives it.
pub type PoolId = (u64, u64);

/// One pool.
pub struct Pool<D: DeviceDriver> {
    pub(crate) id: PoolId,
    pub(crate) allocator: Allocator<D>,
    /// Changed with `books` locked.
    pub(super) users: AtomicU32,
    pub(super) condemned: AtomicBool,
    /// Whether requests outside the pool may be served from it when nothing else is left.
    pub(super) lends: AtomicBool,
}

impl<D: DeviceDriver> Pool<D> {
    pub(super) fn new(id: PoolId, allocator: Allocator<D>) -> Self {
        let (users, condemned, lends) = (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Self { id, allocator, users, condemned, lends }
    }

    /// Its name.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Its allocator. What is allocated from it directly is in no sum, recording or history of the device.
    pub fn allocator(&self) -> &Allocator<D> {
        &self.allocator
    }

    pub(super) fn held(&self) -> u64 {
        self.allocator.reserved_bytes()
    }

    /// Says whether requests outside the pool may be served from it when nothing else is left.
    pub fn set_lends(&self, lends: bool) {
        self.lends.store(lends, Ordering::Relaxed);
    }

    pub(super) fn is_condemned(&self) -> bool {
        self.condemned.load(Ordering::Acquire)
    }

    /// Whether nobody uses the pool.
    pub(super) fn is_done(&self) -> bool {
        // Most of the time the sum of the bytes shows it; allocations of 0 bytes are none.
        self.users.load(Ordering::Acquire) == 0 && self.allocator.live_bytes() == 0 && self.allocator.live().is_empty()
    }
}

/// The pool whose addresses include `addr`.
pub(super) fn owner<D: DeviceDriver>(list: &[Arc<Pool<D>>], addr: DeviceAddr) -> Option<&Arc<Pool<D>>> {
    list.iter().find(|pool| pool.allocator.contains(addr))
}
