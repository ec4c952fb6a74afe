//! One pool: an allocator of its own, and who uses it.

use super::kind::{Declared, PoolKind};
use crate::driver::DeviceDriver;
use gapless::{Allocator, DeviceAddr};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The name of a pool, as PyTorch gives it.
pub type PoolId = (u64, u64);

/// One pool.
pub struct Pool<D: DeviceDriver> {
    pub(crate) id: PoolId,
    pub(crate) allocator: Allocator<D>,
    pub(super) kind: PoolKind,
    tag: Mutex<Option<String>>,
    /// Changed with `books` locked.
    pub(super) users: AtomicU32,
    pub(super) condemned: AtomicBool,
    /// Whether requests outside the pool may be served from it when nothing else is left.
    pub(super) lends: AtomicBool,
}

impl<D: DeviceDriver> Pool<D> {
    pub(super) fn new(id: PoolId, allocator: Allocator<D>, declared: Declared) -> Self {
        let (users, condemned, lends) = (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Self { id, allocator, kind: declared.kind, tag: Mutex::new(declared.tag), users, condemned, lends }
    }

    /// Its name.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Its kind.
    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Its tag.
    pub fn tag(&self) -> Option<String> {
        self.tag.lock().clone()
    }

    /// Gives it another tag, or none.
    pub(super) fn set_tag(&self, tag: Option<String>) {
        *self.tag.lock() = tag;
    }

    /// Whether it has this tag.
    pub(super) fn is_of(&self, tag: &str) -> bool {
        self.tag.lock().as_deref() == Some(tag)
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

    /// Whether it never had memory.
    pub(super) fn is_unused(&self) -> bool {
        self.allocator.stats().created_bytes == 0
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
