//! Handles: tokens that look like pointers and are looked up, never followed.
//!
//! - I1  a token names one allocator for ever: slots are not used again, so that a stale handle is detected.
//! - I2  the tokens of two copies of this library in one process differ: they are counted from a number of the copy.
//!
//! Threads: any. Cost: a shared lock and an index.

use crate::instance::Instance;
use crate::status::{Answer, Failure, GAPLESS_ERROR_IN_USE, GAPLESS_ERROR_INVALID_HANDLE};
use parking_lot::RwLock;
use std::sync::Arc;

/// An allocator of one device. Opaque.
pub struct gapless_allocator {
    _opaque: (),
}

struct Slot {
    instance: Option<Arc<Instance>>,
    permanent: bool,
}

static SLOTS: RwLock<Vec<Slot>> = RwLock::new(Vec::new());

/// Whether a handle can be destroyed by its holder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// `gapless_destroy` destroys it.
    Owned,
    /// It lives as long as the process.
    Permanent,
}

/// Makes a handle for `instance`.
pub(crate) fn register(instance: Arc<Instance>, lifetime: Lifetime) -> *mut gapless_allocator {
    let mut slots = SLOTS.write();
    slots.push(Slot { instance: Some(instance), permanent: lifetime == Lifetime::Permanent });
    std::ptr::without_provenance_mut(first_token().wrapping_add(STEP * (slots.len() - 1)))
}

/// The allocator behind a handle.
pub(crate) fn find(handle: *const gapless_allocator) -> Answer<Arc<Instance>> {
    let index = index_of(handle)?;
    SLOTS.read().get(index).and_then(|slot| slot.instance.clone()).ok_or_else(|| stale(handle))
}

/// Takes an allocator out of the registry: no other call is using it, and none will.
pub(crate) fn remove(handle: *const gapless_allocator) -> Answer<Instance> {
    let index = index_of(handle)?;
    let mut slots = SLOTS.write();
    let slot = slots.get_mut(index).ok_or_else(|| stale(handle))?;
    if slot.permanent {
        return Err(Failure::new(
            GAPLESS_ERROR_IN_USE,
            "this is the process-wide allocator of a device: it lives as long as the process",
        ));
    }
    let instance = slot.instance.take().ok_or_else(|| stale(handle))?;
    Arc::try_unwrap(instance).map_err(|instance| {
        slot.instance = Some(instance);
        Failure::new(GAPLESS_ERROR_IN_USE, "another thread is inside a call on this allocator; nothing was done")
    })
}

fn index_of(handle: *const gapless_allocator) -> Answer<usize> {
    if handle.is_null() {
        return Err(Failure::new(GAPLESS_ERROR_INVALID_HANDLE, "the allocator handle is null"));
    }
    match handle.addr().wrapping_sub(first_token()) {
        distance if distance.is_multiple_of(STEP) => Ok(distance / STEP),
        _ => Err(Failure::new(
            GAPLESS_ERROR_INVALID_HANDLE,
            format!("{handle:p} is not an allocator handle: use what gapless_create wrote"),
        )),
    }
}

fn stale(handle: *const gapless_allocator) -> Failure {
    Failure::new(
        GAPLESS_ERROR_INVALID_HANDLE,
        format!("{handle:p} is not the handle of a live allocator: it was destroyed, or never created"),
    )
}

/// The first token of this copy of the library: where the copy lies in memory, spread over all addresses, so that the tokens
/// of several copies are far apart. Odd, and so never null.
fn first_token() -> usize {
    (&raw const SLOTS).addr().wrapping_mul(SPREAD) | 1
}

/// 2^64 divided by the golden ratio.
const SPREAD: usize = 0x9e37_79b9_7f4a_7c15;
const STEP: usize = 16;
