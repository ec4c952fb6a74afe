//! The baseline: the policy of PyTorch's native caching allocator with default settings.
//!
//! ```text
//!   request ─▶ round to 512 B ─▶ best fit among free blocks of its pool and stream ─▶ split
//!                                   │ none
//!                                   ▼
//!                               a new segment (cudaMalloc) ─▶ split
//!                                   │ the device is out of memory
//!                                   ▼
//!                 wait for the device, free every segment without live blocks, try again ─▶ out of memory
//! ```
//!
//! - I1  the blocks of a segment cover it without gaps, and free neighbours are merged (`blocks`).
//! - I2  a free block is in exactly one `Pool`, under its stream, and serves requests of that stream only.
//! - I3  `live <= reserved`, where `reserved` counts whole segments.
//!
//! Constants and rules are those of `c10/cuda/CUDACachingAllocator.cpp` of pytorch/pytorch, version 2.13. Features that
//! are off by default, or that have no effect on a recorded trace, are not modelled: `max_split_size_mb`,
//! `garbage_collection_threshold`, `roundup_power2_divisions`, expandable segments, private pools, `record_stream`.
//! `cudaMalloc` becomes `create`, `reserve`, `map` and `set_access` of one chunk. `cudaFree` becomes `unmap`,
//! `address_free` and `release`, after waiting for all streams.
//!
//! Threads: not synchronized. Cost: O(log free blocks) for each call that creates no segment.

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

/// PyTorch's caching allocator on a driver.
pub struct CachingAllocator<D: Driver> {
    segments: Segments<D>,
    blocks: Blocks,
    small: Pool,
    large: Pool,
    figures: Figures,
}

/// Statistics of a [`CachingAllocator`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Total size of the live blocks in bytes, including rounding.
    pub live_bytes: u64,
    /// Total size of the segments in bytes.
    pub reserved_bytes: u64,
    /// Peak of `reserved_bytes`.
    pub peak_reserved_bytes: u64,
    /// Number of times the host waited for the device before freeing segments.
    pub host_waits: u64,
}

impl<D: Driver> CachingAllocator<D> {
    /// Creates an allocator without segments.
    pub fn new(driver: Arc<D>) -> Self {
        Self {
            segments: Segments::new(driver),
            blocks: Blocks::default(),
            small: Pool::new(PoolKind::Small),
            large: Pool::new(PoolKind::Large),
            figures: Figures::default(),
        }
    }

    /// Allocates `bytes` bytes for use on `stream`. A request of 0 bytes returns address 0, which [`free`](Self::free)
    /// accepts.
    ///
    /// # Errors
    /// Returns [`CachingError::OutOfMemory`] if memory is short even after all segments without live blocks were freed,
    /// and [`CachingError::Driver`] if the driver fails otherwise.
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

    /// Frees the live block at `addr`, in the order of its stream.
    ///
    /// # Errors
    /// Returns [`CachingError::UnknownAddress`] if no live block starts at `addr`.
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

    /// Returns the allocator's statistics.
    pub const fn figures(&self) -> Figures {
        self.figures
    }

    /// Creates a segment as one free block. If the device is out of memory, flushes and tries again.
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

    /// Frees every segment without live blocks (`release_cached_blocks`).
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

/// Returns the size of the segment for a request of `size` bytes, or `None` on overflow.
const fn segment_bytes(size: u64) -> Option<u64> {
    if size <= SMALL_BYTES {
        Some(SMALL_SEGMENT_BYTES)
    } else if size < LARGE_REQUEST_BYTES {
        Some(LARGE_SEGMENT_BYTES)
    } else {
        round_up(size, SEGMENT_ROUNDING_BYTES)
    }
}

/// An error of the baseline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CachingError {
    /// The device is out of memory, even after a flush.
    #[error("{0}")]
    OutOfMemory(CachingOutOfMemory),
    /// The freed address is not the start of a live block.
    #[error("{addr} is not the start of a live block")]
    UnknownAddress {
        /// The address that was passed to [`CachingAllocator::free`].
        addr: DeviceAddr,
    },
    /// The driver failed for another reason than a lack of memory.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// The figures of PyTorch's message, in bytes, taken after the flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CachingOutOfMemory {
    /// Size of the request, without rounding.
    pub requested_bytes: u64,
    /// Memory of the device.
    pub total_bytes: u64,
    /// Memory of the device that is free.
    pub free_bytes: u64,
    /// Total size of the live blocks, "allocated" in the message.
    pub live_bytes: u64,
    /// Total size of the segments.
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

/// Returns `true` if the driver reports a lack of memory.
fn is_out_of_memory(error: &DriverError) -> bool {
    error.kind == DriverErrorKind::OutOfMemory
}

/// `kMinBlockSize`: every size is rounded up to a multiple of it.
const ROUNDING_BYTES: u64 = 512;
/// `kSmallSize`: the largest request of the small pool.
const SMALL_BYTES: u64 = MIB;
/// `kSmallBuffer`: the size of a segment in the small pool.
const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// `kMinLargeAlloc`: the smallest request whose segment depends on its size.
const LARGE_REQUEST_BYTES: u64 = 10 * MIB;
/// `kLargeBuffer`: the size of a segment in the large pool for smaller requests.
const LARGE_SEGMENT_BYTES: u64 = 20 * MIB;
/// `kRoundLarge`: sizes of larger segments are rounded up to a multiple of it.
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
