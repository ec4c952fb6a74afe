//! The baseline: PyTorch's native caching allocator, as its policy is with default settings.
//!
//! ```text
//!   request ─▶ round to 512 B ─▶ best fit among free blocks of its pool and stream ─▶ split
//!                                   │ none
//!                                   ▼
//!                          a new segment of its own (cudaMalloc) ─▶ split
//!                                   │ the device has no room
//!                                   ▼
//!                 wait for the device, free every segment without live blocks, try once more ─▶ out of memory
//! ```
//!
//! - I1  the blocks of a segment tile it, and no two free neighbours stay apart (`blocks`).
//! - I2  a free block is in exactly one `Pool`, under its stream; it serves no other stream.
//! - I3  `live <= reserved`, where `reserved` counts whole segments.
//!
//! Constants and rules: `c10/cuda/CUDACachingAllocator.cpp` of pytorch/pytorch, 2.13. Not modelled, because off by
//! default or without effect on one recorded trace: `max_split_size_mb`, `garbage_collection_threshold`,
//! `roundup_power2_divisions`, expandable segments, private pools, `record_stream`.
//! `cudaMalloc` stands as create, reserve, map and `set_access` of one chunk; `cudaFree` as unmap, `address_free` and
//! release, after a wait for all streams.
//!
//! Threads: one. Cost: O(log free blocks) for each call that needs no segment.

mod blocks;
mod pool;
mod segments;

use blocks::{BlockId, Blocks};
use gapless::driver::{Driver, DriverError, DriverErrorKind};
use gapless::units::{ByteSize, DeviceAddr, MIB, StreamId, round_up};
use pool::{Pool, PoolKind};
use segments::Segments;
use std::fmt;
use std::sync::Arc;

/// A caching allocator on `driver`.
pub struct CachingAllocator<D: Driver> {
    segments: Segments<D>,
    blocks: Blocks,
    small: Pool,
    large: Pool,
    figures: Figures,
}

/// What the allocator holds and did, in bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes of live blocks, rounded as the allocator rounds them.
    pub live_bytes: u64,
    /// Bytes of segments held.
    pub reserved_bytes: u64,
    /// Most bytes of segments held at once.
    pub peak_reserved_bytes: u64,
    /// Flushes that waited for the device.
    pub host_waits: u64,
}

impl<D: Driver> CachingAllocator<D> {
    /// An allocator that holds nothing yet.
    pub fn new(driver: Arc<D>) -> Self {
        Self {
            segments: Segments::new(driver),
            blocks: Blocks::default(),
            small: Pool::new(PoolKind::Small),
            large: Pool::new(PoolKind::Large),
            figures: Figures::default(),
        }
    }

    /// Allocates `bytes` for use on `stream`. 0 bytes: address 0, which [`free`](Self::free) takes back.
    ///
    /// # Errors
    /// [`CachingError::OutOfMemory`] after the flush did not help either; everything cached is gone then.
    pub fn alloc(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, CachingError> {
        if bytes == 0 {
            return Ok(DeviceAddr(0));
        }
        let Some(size) = round_up(bytes, ROUNDING_BYTES) else {
            return Err(CachingError::OutOfMemory(self.report(bytes)?));
        };
        let kind = if size <= SMALL_BYTES { PoolKind::Small } else { PoolKind::Large };
        let block = match self.pool(kind).take_best_fit(stream, size) {
            Some(block) => block,
            None => match self.new_segment(size, kind, stream)? {
                Some(block) => block,
                None => return Err(CachingError::OutOfMemory(self.report(bytes)?)),
            },
        };
        let remaining = self.blocks.bytes(block) - size;
        if kind.should_split(remaining) {
            let tail = self.blocks.split(block, size);
            let (bytes, addr) = (self.blocks.bytes(tail), self.blocks.addr(tail));
            self.pool(kind).insert(stream, bytes, addr, tail);
        }
        self.figures.live_bytes += self.blocks.bytes(block);
        Ok(self.blocks.set_live(block))
    }

    /// Frees a block, in the order of its stream.
    ///
    /// # Errors
    /// [`CachingError::UnknownAddress`] for anything but a live block's start.
    pub fn free(&mut self, addr: DeviceAddr) -> Result<(), CachingError> {
        if addr == DeviceAddr(0) {
            return Ok(());
        }
        let block = self.blocks.set_free(addr).ok_or(CachingError::UnknownAddress { addr })?;
        self.figures.live_bytes -= self.blocks.bytes(block);
        let (kind, stream) = (self.blocks.kind(block), self.blocks.stream(block));
        for neighbour in self.blocks.free_neighbours(block).into_iter().flatten() {
            let (bytes, addr) = (self.blocks.bytes(neighbour), self.blocks.addr(neighbour));
            self.pool(kind).remove(stream, bytes, addr, neighbour);
            self.blocks.merge(block, neighbour);
        }
        let (bytes, addr) = (self.blocks.bytes(block), self.blocks.addr(block));
        self.pool(kind).insert(stream, bytes, addr, block);
        Ok(())
    }

    /// What it holds and did.
    pub const fn figures(&self) -> Figures {
        self.figures
    }

    /// A whole segment as one block, with a flush and a second try when the device has no room.
    fn new_segment(&mut self, size: u64, kind: PoolKind, stream: StreamId) -> Result<Option<BlockId>, CachingError> {
        let Some(bytes) = segment_bytes(size) else { return Ok(None) };
        let addr = match self.segments.create(bytes, stream)? {
            Some(addr) => addr,
            None => {
                self.flush()?;
                match self.segments.create(bytes, stream)? {
                    Some(addr) => addr,
                    None => return Ok(None),
                }
            }
        };
        self.figures.reserved_bytes += bytes;
        self.figures.peak_reserved_bytes = self.figures.peak_reserved_bytes.max(self.figures.reserved_bytes);
        Ok(Some(self.blocks.insert(addr, bytes, stream, kind)))
    }

    /// Gives back every segment without live blocks (`release_cached_blocks`).
    fn flush(&mut self) -> Result<(), CachingError> {
        let mut waited = false;
        for kind in [PoolKind::Large, PoolKind::Small] {
            for block in self.pool(kind).blocks() {
                if !self.blocks.is_whole_segment(block) {
                    continue;
                }
                if !waited {
                    self.segments.wait_for_device()?;
                    self.figures.host_waits += 1;
                    waited = true;
                }
                let (bytes, addr, stream) =
                    (self.blocks.bytes(block), self.blocks.addr(block), self.blocks.stream(block));
                self.segments.destroy(addr)?;
                self.pool(kind).remove(stream, bytes, addr, block);
                self.blocks.remove(block);
                self.figures.reserved_bytes -= bytes;
            }
        }
        Ok(())
    }

    fn pool(&mut self, kind: PoolKind) -> &mut Pool {
        match kind {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        }
    }

    fn report(&self, requested_bytes: u64) -> Result<CachingOutOfMemory, CachingError> {
        let info = self.segments.memory_info()?;
        Ok(CachingOutOfMemory {
            requested_bytes,
            total_bytes: info.total,
            free_bytes: info.free,
            live_bytes: self.figures.live_bytes,
            reserved_bytes: self.figures.reserved_bytes,
        })
    }
}

/// The segment for a request of `size` bytes, or `None` on overflow.
const fn segment_bytes(size: u64) -> Option<u64> {
    if size <= SMALL_BYTES {
        Some(SMALL_SEGMENT_BYTES)
    } else if size < LARGE_REQUEST_BYTES {
        Some(LARGE_SEGMENT_BYTES)
    } else {
        round_up(size, SEGMENT_ROUNDING_BYTES)
    }
}

/// Why the baseline refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CachingError {
    /// Not even a flush made room.
    #[error("{0}")]
    OutOfMemory(CachingOutOfMemory),
    /// A free of something that is not a live block.
    #[error("{addr} is not the start of a live block")]
    UnknownAddress {
        /// The address.
        addr: DeviceAddr,
    },
    /// The driver failed otherwise than for want of memory.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// The figures of PyTorch's message, in bytes, after the flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CachingOutOfMemory {
    /// The request.
    pub requested_bytes: u64,
    /// The device.
    pub total_bytes: u64,
    /// What the driver still has.
    pub free_bytes: u64,
    /// Live blocks ("allocated").
    pub live_bytes: u64,
    /// Segments held.
    pub reserved_bytes: u64,
}

impl fmt::Display for CachingOutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CUDA out of memory. Tried to allocate {}. The device has a total capacity of {} of which {} is free. \
             {} is allocated, and {} is reserved but unallocated.",
            ByteSize(self.requested_bytes),
            ByteSize(self.total_bytes),
            ByteSize(self.free_bytes),
            ByteSize(self.live_bytes),
            ByteSize(self.reserved_bytes - self.live_bytes),
        )
    }
}

/// True when the driver says that memory, and nothing else, is the trouble.
fn is_out_of_memory(error: &DriverError) -> bool {
    error.kind == DriverErrorKind::OutOfMemory
}

/// `kMinBlockSize`.
const ROUNDING_BYTES: u64 = 512;
/// `kSmallSize`: the largest request of the small pool.
const SMALL_BYTES: u64 = MIB;
/// `kSmallBuffer`: a segment of the small pool.
const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// `kMinLargeAlloc`: requests from here on get a segment of their own size.
const LARGE_REQUEST_BYTES: u64 = 10 * MIB;
/// `kLargeBuffer`: a segment of the large pool for smaller requests.
const LARGE_SEGMENT_BYTES: u64 = 20 * MIB;
/// `kRoundLarge`.
const SEGMENT_ROUNDING_BYTES: u64 = 2 * MIB;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_have_the_sizes_of_the_original() {
        for (size, segment) in [
            (512, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 512, 12 * MIB),
        ] {
            assert_eq!(segment_bytes(size), Some(segment), "{size}");
        }
        assert_eq!(segment_bytes(!511), None);
    }
}
