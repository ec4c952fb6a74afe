//! Handles: tokens that look like pointers and are looked up, never followed.
//!
//! - I1  a token names one allocator for ever: slots are not used again, so that a stale handle is detected.
//! - I2  the tokens of two copies of this library in one process differ: they are counted from a number of the copy.
//!
//! Threads: any. Cost: a shared lock and an index.

use crate::status::{Answer, Failure, GAPLESS_ERROR_IN_USE, GAPLESS_ERROR_INVALID_HANDLE};
use gapless::allocator::{Snapshot, Stats};
use gapless::driver::cuda::CudaDriver;
use gapless_process::{Device, Recorded};
use parking_lot::RwLock;
use std::ops::Deref;
use std::sync::Arc;

/// An allocator of one device. Opaque.
pub struct gapless_allocator {
    _opaque: (),
}

/// The object that a handle names.
#[derive(Clone)]
pub(crate) enum Holder {
    /// An allocator that `gapless_create` made and `gapless_destroy` destroys.
    Own(Arc<Recorded<CudaDriver>>),
    /// A device of the process, which lives as long as that.
    Device(&'static Device<CudaDriver>),
}

impl Holder {
    /// Statistics, pools included.
    pub fn stats(&self) -> Stats {
        match self {
            Self::Own(own) => own.allocator().stats(),
            Self::Device(device) => device.stats(),
        }
    }

    /// Every region, block and chunk, pools included.
    pub fn snapshot(&self) -> Snapshot {
        match self {
            Self::Own(own) => own.allocator().snapshot(),
            Self::Device(device) => device.snapshot(),
        }
    }

    /// Resets the peaks, pools included.
    pub fn reset_peaks(&self) {
        match self {
            Self::Own(own) => own.allocator().reset_peaks(),
            Self::Device(device) => device.reset_peaks(),
        }
    }

    pub fn own(allocator: Recorded<CudaDriver>) -> Self {
        Self::Own(Arc::new(allocator))
    }
}

impl Deref for Holder {
    type Target = Recorded<CudaDriver>;

    fn deref(&self) -> &Recorded<CudaDriver> {
        match self {
            Self::Own(own) => own,
            Self::Device(device) => device.main(),
        }
    }
}

/// The object of each handle; `None` once it was destroyed.
static SLOTS: RwLock<Vec<Option<Holder>>> = RwLock::new(Vec::new());

/// Makes a handle.
pub(crate) fn register(holder: Holder) -> *mut gapless_allocator {
    let mut slots = SLOTS.write();
    slots.push(Some(holder));
    std::ptr::without_provenance_mut(first_token().wrapping_add(STEP * (slots.len() - 1)))
}

/// The allocator behind a handle.
pub(crate) fn find(handle: *const gapless_allocator) -> Answer<Holder> {
    let index = index_of(handle)?;
    SLOTS.read().get(index).cloned().flatten().ok_or_else(|| stale(handle))
}

/// Takes an allocator out of the registry: no other call is using it, and none will.
pub(crate) fn remove(handle: *const gapless_allocator) -> Answer<Recorded<CudaDriver>> {
    let index = index_of(handle)?;
    let mut slots = SLOTS.write();
    let slot = slots.get_mut(index).ok_or_else(|| stale(handle))?;
    match slot.take().ok_or_else(|| stale(handle))? {
        Holder::Own(own) => Arc::try_unwrap(own).map_err(|own| {
            *slot = Some(Holder::Own(own));
            Failure::new(GAPLESS_ERROR_IN_USE, "another thread is inside a call on this allocator; nothing was done")
        }),
        device @ Holder::Device(_) => {
            *slot = Some(device);
            Err(Failure::new(
                GAPLESS_ERROR_IN_USE,
                "this is the process-wide allocator of a device: it lives as long as the process",
            ))
        }
    }
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
