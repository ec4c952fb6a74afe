//! Pins: a block that others have open stays where it is, also once it has been freed.

use super::error::{AllocError, FreeError};
use super::slow_path::PinnedChunk;
use super::streams::directory::{Owner, Place};
use super::{Allocator, Inner};
use crate::driver::Driver;
use crate::units::DeviceAddr;
use std::fmt;

/// Keeps a block in place: as long as there is one of its pins, the bytes are not handed out again, and what is mapped at its
/// addresses stays mapped to the same memory, whether the block is freed meanwhile or not. With the last pin of a freed
/// block the memory is ordinary free memory.
///
/// For memory that another process or other hardware uses. What they do must have completed before the pin is dropped, or be
/// done in the order of a stream that the block is [recorded](Allocator::record_stream) on. Chunks are pinned whole: free
/// memory beside the block, in the same chunk, can be allocated, but cannot move.
///
/// A freed block that is pinned counts as pending. A pin keeps its allocator alive.
#[must_use = "the block is pinned until this is dropped"]
pub struct Pin<D: Driver> {
    allocator: Allocator<D>,
    owner: Owner,
    offset: u64,
    addr: DeviceAddr,
    bytes: u64,
}

impl<D: Driver> fmt::Debug for Pin<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("addr", &self.addr).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<D: Driver> Allocator<D> {
    /// Pins the live allocation at `addr`. Any number of pins may hold one.
    ///
    /// # Errors
    /// [`FreeError`] when no live allocation starts there, or one that is asleep.
    pub fn pin(&self, addr: DeviceAddr) -> Result<Pin<D>, FreeError> {
        let (owner, offset, bytes) = self.inner.pin(addr)?;
        Ok(Pin::new(self.clone(), owner, offset, addr, bytes))
    }
}

impl<D: Driver> Pin<D> {
    pub(super) fn new(allocator: Allocator<D>, owner: Owner, offset: u64, addr: DeviceAddr, bytes: u64) -> Self {
        Self { allocator, owner, offset, addr, bytes }
    }

    /// The chunks under the block, in address order: they follow each other without a gap, and stay under it as long as it is
    /// pinned. What they have beside the block can be memory of other blocks. Takes the lock of the slow path.
    ///
    /// # Errors
    /// [`AllocError::InListener`], [`AllocError::Forked`].
    pub fn chunks(&self) -> Result<Vec<PinnedChunk>, AllocError> {
        let inner = &self.allocator.inner;
        inner.door.enter(&inner.shared, |path| Ok(path.chunks_under(self.owner, self.offset, self.bytes)))
    }

    /// Says that somebody may keep what is under the block for as long as they like: once it is freed and nothing uses it any more,
    /// the chunks that lie under it alone go back to the driver, and new ones come in their place, which they do not see. That
    /// is done by the next request that needs memory, by [`trim`](Allocator::trim) or by a sleep; until then, the bytes count as
    /// pending. Of a chunk that it shares with other blocks, its bytes are ordinary free memory.
    ///
    /// Where [mappings are kept](super::Builder::keep_mappings), the bytes are not used again before the allocator ends.
    pub fn expose(&self) {
        let stream = self.allocator.inner.shared.streams.get(self.owner.stream);
        stream.lock().expose(self.owner.stream, (self.owner.region, self.offset));
    }

    /// The address of the first byte.
    #[must_use]
    pub fn addr(&self) -> DeviceAddr {
        self.addr
    }

    /// Bytes of the block, rounding included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The allocator that the block is of.
    #[must_use]
    pub fn allocator(&self) -> &Allocator<D> {
        &self.allocator
    }
}

impl<D: Driver> Drop for Pin<D> {
    fn drop(&mut self) {
        self.allocator.inner.unpin(self.owner, self.offset);
    }
}

impl<D: Driver> Inner<D> {
    /// Pins a live block. Returns where it is and its bytes.
    fn pin(&self, addr: DeviceAddr) -> Result<(Owner, u64, u64), FreeError> {
        let Place::Region(owner, offset) = self.shared.directory.find(addr) else {
            return Err(self.refuse(addr));
        };
        let mut state = self.shared.streams.get(owner.stream).lock();
        if state.is_asleep((owner.region, offset)) {
            return Err(FreeError::Asleep { addr });
        }
        let pinned = state.pin(owner, offset);
        drop(state);
        let bytes = pinned.ok_or_else(|| self.refuse(addr))?;
        Ok((owner, offset, bytes))
    }

    /// Takes one pin off a block. With the last one, a block that was freed waits for the streams that used it then.
    fn unpin(&self, owner: Owner, offset: u64) {
        let stream = self.shared.streams.get(owner.stream);
        let mut state = stream.lock();
        if state.unpin((owner.region, offset)) {
            self.shared.streams.note_pending(owner.stream, &state);
        }
    }
}
