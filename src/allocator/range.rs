//! The lower layer on its own: a range of addresses that grows and shrinks at its end, without a heap on top. For callers
//! that bring an allocator of their own, or arrays whose address must not change.

use super::error::{AllocError, RangeError};
use super::slow_path::GrowableRange;
use super::{Allocator, Inner};
use crate::driver::Driver;
use crate::sync::Arc;
use crate::units::{DeviceAddr, StreamId};
use std::fmt;

/// A reserved range of addresses, mapped from its start up to [`mapped_bytes`](Self::mapped_bytes). Its chunks count against
/// the allocator's budget.
///
/// Dropping it waits for the streams it was used with, and returns its chunks to the allocator. Where that fails, the next
/// request that runs short of memory tries again (for a range or a block), and so do a trim and, at the latest, the end of
/// the allocator.
pub struct VirtualRange<D: Driver> {
    inner: Arc<Inner<D>>,
    range: GrowableRange,
}

impl<D: Driver> fmt::Debug for VirtualRange<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualRange")
            .field("addr", &self.addr())
            .field("address_bytes", &self.address_bytes())
            .field("mapped_bytes", &self.mapped_bytes())
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Allocator<D> {
    /// Reserves `bytes` of addresses, rounded up to whole pages. Nothing is mapped yet.
    ///
    /// # Errors
    /// [`AllocError::Driver`] when the driver has no such range. [`AllocError::Forked`].
    pub fn reserve_range(&self, bytes: u64) -> Result<VirtualRange<D>, AllocError> {
        let range = self.inner.door.enter(&self.inner.shared, |path| path.reserve_range(bytes))?;
        Ok(VirtualRange { inner: Arc::clone(&self.inner), range })
    }
}

impl<D: Driver> VirtualRange<D> {
    /// The first address. Never changes.
    #[must_use]
    pub fn addr(&self) -> DeviceAddr {
        self.range.addr
    }

    /// Bytes of addresses.
    #[must_use]
    pub fn address_bytes(&self) -> u64 {
        self.range.pages.bytes(self.inner.shared.geometry.page_bytes)
    }

    /// Bytes that may be used, from the start.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.range.mapped.bytes(self.inner.shared.geometry.page_bytes)
    }

    /// Maps at least `bytes` more at the end, in whole pages, for work on `stream`. Once the budget is used up it takes free
    /// memory of the allocator, for which it waits for the streams that used it. 0 bytes: only records that `stream` uses
    /// the range.
    ///
    /// # Errors
    /// [`RangeError`]; nothing has changed, except that free memory may have been released. [`RangeError::Full`] when
    /// the range has fewer addresses left. [`AllocError::CannotWait`] where chunks were taken from the end by a stream that
    /// is being captured now: the host cannot wait for it until the capture ends.
    pub fn grow(&mut self, bytes: u64, stream: StreamId) -> Result<(), RangeError> {
        self.inner.door.enter(&self.inner.shared, |path| path.grow_range(&mut self.range, bytes, stream))
    }

    /// Unmaps up to `bytes` at the end: the whole chunks that lie in them, which become idle in the allocator. Waits for
    /// the streams that the range was used with. Returns the number of bytes unmapped.
    ///
    /// # Errors
    /// [`AllocError::Driver`], [`AllocError::CannotWait`]; chunks unmapped before stay unmapped.
    pub fn shrink(&mut self, bytes: u64) -> Result<u64, AllocError> {
        self.inner.door.enter(&self.inner.shared, |path| path.shrink_range(&mut self.range, bytes))
    }

    /// Moves whole chunks of up to `bytes` from the end of `other` to the end of this range, contents and all, for work on
    /// `stream` that is ordered behind all other work on `other`'s end. Their order is kept. The new mapping is made before
    /// the old one is given up, and the host does not wait. Returns the number of bytes moved.
    ///
    /// # Errors
    /// [`RangeError`]; nothing has changed. [`RangeError::Full`] when this range has fewer addresses left.
    ///
    /// # Panics
    /// When the ranges belong to different allocators.
    pub fn take_from(&mut self, other: &mut Self, bytes: u64, stream: StreamId) -> Result<u64, RangeError> {
        assert!(Arc::ptr_eq(&self.inner, &other.inner), "ranges of two allocators share no chunks");
        let work = |path: &mut super::slow_path::SlowPath<'_, D>| {
            path.move_range_end(&mut self.range, &mut other.range, bytes, stream)
        };
        self.inner.door.enter(&self.inner.shared, work)
    }
}

impl<D: Driver> Drop for VirtualRange<D> {
    fn drop(&mut self) {
        // In a forked process, all of it belongs to the process that built the allocator.
        if !self.inner.shared.is_forked() {
            self.inner.door.drop_range(&self.inner.shared, &mut self.range);
        }
    }
}
