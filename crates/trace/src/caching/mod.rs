//! The baseline: the policy of PyTorch's native caching allocator, under its settings.
//!
//! ```text
//!   request ─▶ round ─▶ best fit among free blocks of its pool and stream ─▶ split
//!  (rounding)              │ none                                            (split)
//!                          ▼
//!                      collect garbage, if that is on (collect)
//!                          ▼
//!                      a new segment (grow): cudaMalloc (segments), or memory mapped in an expandable one (expandable)
//!                          │ the device is out of memory
//!                          ▼
//!                      free oversize blocks, if there is a limit, and try again
//!                          ▼
//!                      free everything without live blocks (release), and try again ─▶ out of memory
//! ```
//!
//! - I1  the blocks of a segment cover it without gaps, and neighbours in the same state are merged (`blocks`), unless
//!   live.
//! - I2  a free block is in exactly one `Pool`, under its stream, and serves requests of that stream only.
//! - I3  `live <= reserved`, where `reserved` counts whole segments, and what is mapped of expandable ones.
//!
//! Constants and rules are those of `c10/cuda/CUDACachingAllocator.cpp` of pytorch/pytorch, version 2.13. A private pool is
//! streams of its own, whose memory stays theirs. `record_stream` is not modelled: a recording says when a block was free.
//! `cudaMalloc` becomes `create`, `reserve`, `map` and `set_access` of one chunk. `cudaFree` becomes `unmap`, `address_free` and
//! `release`, after waiting for all streams.
//!
//! Threads: not synchronized. Cost: O(log free blocks) for each call that needs no new memory.

mod blocks;
mod collect;
mod divisions;
mod error;
mod expandable;
mod free;
mod grow;
mod kind;
mod pool;
mod release;
mod rounding;
mod segments;
mod settings;
mod sleep;
mod split;
mod waits;

pub use divisions::Divisions;
pub use error::{CachingError, CachingOutOfMemory};
pub use segments::SegmentBytes;
pub use settings::{CachingSettings, ParseSettingsError};

/// Returns the size of the segment that PyTorch asks the device for to serve a request of `bytes` bytes, or `None` on overflow.
pub(crate) fn segment_bytes_of(bytes: u64) -> Option<u64> {
    rounding::block_bytes(bytes, None).and_then(rounding::segment_bytes)
}

use crate::held::HeldBlock;
use blocks::{BlockId, Blocks};
use expandable::ExpandableSegments;
use gapless::driver::Driver;
use gapless::units::{DeviceAddr, StreamId};
use kind::PoolKind;
use pool::Pool;
use segments::Segments;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use waits::Waits;

/// PyTorch's caching allocator on a driver.
pub struct CachingAllocator<D: Driver> {
    driver: Arc<D>,
    settings: CachingSettings,
    segments: Segments<D>,
    expandable: ExpandableSegments<D>,
    waits: Waits<D>,
    blocks: Blocks,
    small: Pool,
    large: Pool,
    /// The free blocks of asleep segments.
    asleep: Pool,
    /// What a wake that found too little memory has woken.
    half_awake: SegmentBytes,
    /// The stream of copies to and from the host, from the first sleep on.
    lane: Option<StreamId>,
    /// The streams whose memory stays theirs.
    private: HashSet<StreamId>,
    figures: Figures,
    /// Whether the memory stays with the driver.
    abandoned: bool,
}

impl<D: Driver> fmt::Debug for CachingAllocator<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachingAllocator").finish_non_exhaustive()
    }
}

/// Statistics of a [`CachingAllocator`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Total size of the live blocks that are not asleep in bytes, including rounding.
    pub live_bytes: u64,
    /// Total size of the segments in bytes; of expandable ones, what is mapped.
    pub reserved_bytes: u64,
    /// Peak of `reserved_bytes`.
    pub peak_reserved_bytes: u64,
    /// Number of times the host waited for the device or for a stream before memory was given back.
    pub host_waits: u64,
}

/// A cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreeBlock {
    /// Its address.
    pub addr: DeviceAddr,
    /// Its size in bytes.
    pub bytes: u64,
    /// The stream that it may be used on.
    pub stream: StreamId,
}

impl Figures {
    fn reserve(&mut self, bytes: u64) {
        self.reserved_bytes += bytes;
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(self.reserved_bytes);
    }
}

impl<D: Driver> CachingAllocator<D> {
    /// Creates an allocator without segments.
    pub fn new(driver: Arc<D>, settings: CachingSettings) -> Self {
        Self {
            segments: Segments::new(Arc::clone(&driver)),
            expandable: ExpandableSegments::new(Arc::clone(&driver)),
            waits: Waits::new(Arc::clone(&driver)),
            driver,
            settings,
            blocks: Blocks::default(),
            small: Pool::default(),
            large: Pool::default(),
            asleep: Pool::default(),
            half_awake: SegmentBytes::default(),
            lane: None,
            private: HashSet::new(),
            figures: Figures::default(),
            abandoned: false,
        }
    }

    /// Creates an allocator with private pools, of which each is streams of its own.
    pub(crate) fn with_pools(driver: &Arc<D>, settings: CachingSettings, pools: &[Vec<StreamId>]) -> Self {
        let mut this = Self::new(Arc::clone(driver), settings);
        this.keep_private(pools.iter().flatten().copied());
        this
    }

    /// Drops the allocator and gives nothing back to its driver, which is dropped as well.
    pub fn abandon(mut self) {
        self.abandoned = true;
    }

    /// Notes streams that stand for private pools, one for each stream of a pool: their memory is not given back when it is short.
    pub fn keep_private(&mut self, streams: impl IntoIterator<Item = StreamId>) {
        self.private.extend(streams);
    }

    /// Allocates `bytes` bytes for use on `stream`. A request of 0 bytes returns address 0, which [`free`](Self::free)
    /// accepts.
    ///
    /// # Errors
    /// Returns [`CachingError::OutOfMemory`] if memory is short even after everything without live blocks was given back,
    /// and [`CachingError::Driver`] if the driver fails otherwise.
    pub fn alloc(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, CachingError> {
        if bytes == 0 {
            return Ok(DeviceAddr(0));
        }
        let Some(size) =
            rounding::block_bytes(bytes, self.settings.roundup_divisions.and_then(|divisions| divisions.of(bytes)))
        else {
            return Err(CachingError::OutOfMemory(self.report(bytes)?));
        };
        let kind = PoolKind::of(size);
        let block = match self.take_best_fit(size, kind, stream) {
            Some(block) => block,
            None => match self.obtain(size, kind, stream)? {
                Some(block) => block,
                None => return Err(CachingError::OutOfMemory(self.report(bytes)?)),
            },
        };
        if split::should_split(&self.settings, kind, size, self.blocks.bytes(block) - size) {
            let rest = self.blocks.split(block, size);
            self.put_free(rest);
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
        if !self.blocks.is_asleep(block) {
            self.figures.live_bytes -= self.blocks.bytes(block);
        }
        self.merge_free(block);
        Ok(())
    }

    /// Gives back everything without live blocks, as `torch.cuda.empty_cache()` does.
    ///
    /// # Errors
    /// Returns [`CachingError::Driver`] if the driver fails.
    pub fn empty_cache(&mut self) -> Result<(), CachingError> {
        self.release_cached()
    }

    /// Returns the settings.
    #[must_use]
    pub const fn settings(&self) -> &CachingSettings {
        &self.settings
    }

    /// Returns the allocator's statistics.
    #[must_use]
    pub const fn figures(&self) -> Figures {
        Figures { host_waits: self.waits.count(), ..self.figures }
    }

    /// Returns all free blocks.
    pub fn free_blocks(&self) -> impl Iterator<Item = FreeBlock> {
        let blocks = self.small.blocks().into_iter().chain(self.large.blocks());
        blocks.map(|block| FreeBlock {
            addr: self.blocks.addr(block),
            bytes: self.blocks.bytes(block),
            stream: self.blocks.stream(block),
        })
    }

    /// Returns all blocks with memory behind them, live or free.
    pub fn held_blocks(&self) -> impl Iterator<Item = HeldBlock> {
        self.blocks.held()
    }

    /// Returns the free blocks of a pool, but for those of private pools, in order.
    fn releasable(&self, kind: PoolKind) -> Vec<BlockId> {
        let mut blocks = self.pool_of(kind).blocks();
        if !self.private.is_empty() {
            blocks.retain(|block| !self.private.contains(&self.blocks.stream(*block)));
        }
        blocks
    }

    /// Takes the free block that fits best, if there is one (`get_free_block`).
    fn take_best_fit(&mut self, size: u64, kind: PoolKind, stream: StreamId) -> Option<BlockId> {
        self.pool(kind).searches += 1;
        let (mut bytes, mut block) = self.pool_of(kind).best_fit(stream, size)?;
        if self.settings.expandable_segments {
            // A block counts with the addresses after it that memory can be mapped at: so that room to grow is kept for
            // requests that need it, larger blocks are preferred as long as they can grow less.
            for (next_bytes, next) in self.pool_of(kind).fits(stream, size).skip(1) {
                if self.blocks.expandable_bytes(next) >= self.blocks.expandable_bytes(block) {
                    break;
                }
                (bytes, block) = (next_bytes, next);
            }
        }
        if !split::may_serve(&self.settings, bytes, size) {
            return None;
        }
        self.take_free(block);
        Some(block)
    }

    /// Makes a block from new memory, and gives cached memory back where there is none.
    fn obtain(&mut self, size: u64, kind: PoolKind, stream: StreamId) -> Result<Option<BlockId>, CachingError> {
        self.collect_garbage()?;
        if let Some(block) = self.grow(size, kind, stream)? {
            return Ok(Some(block));
        }
        if self.release_oversize(size, kind, stream)?
            && let Some(block) = self.grow(size, kind, stream)?
        {
            return Ok(Some(block));
        }
        self.release_cached()?;
        self.grow(size, kind, stream)
    }

    /// Merges a free block, which is in no pool, with its free neighbours, and puts it into its pool.
    fn merge_free(&mut self, block: BlockId) {
        for neighbour in self.blocks.like_neighbours(block).into_iter().flatten() {
            self.take_free(neighbour);
            self.blocks.merge(block, neighbour);
        }
        self.put_free(block);
    }

    fn take_free(&mut self, block: BlockId) {
        let (bytes, addr) = (self.blocks.bytes(block), self.blocks.addr(block));
        let stream = self.blocks.stream(block);
        self.pool_with(block).remove(stream, bytes, addr, block);
    }

    fn put_free(&mut self, block: BlockId) {
        let (bytes, addr) = (self.blocks.bytes(block), self.blocks.addr(block));
        let (kind, stream) = (self.blocks.kind(block), self.blocks.stream(block));
        let searches = self.pool(kind).searches;
        self.blocks.set_free_since(block, searches);
        self.pool_with(block).insert(stream, bytes, addr, block);
    }

    /// The pool that a free block is in.
    fn pool_with(&mut self, block: BlockId) -> &mut Pool {
        if self.blocks.is_asleep(block) { &mut self.asleep } else { self.pool(self.blocks.kind(block)) }
    }

    /// Returns how much may be reserved, if that is limited (`per_process_memory_fraction`).
    fn allowed_bytes(&self) -> Result<Option<u64>, CachingError> {
        let Some(fraction) = self.settings.memory_fraction else { return Ok(None) };
        Ok(Some(collect::part(self.driver.memory_info()?.total, fraction)))
    }

    fn pool(&mut self, kind: PoolKind) -> &mut Pool {
        match kind {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        }
    }

    const fn pool_of(&self, kind: PoolKind) -> &Pool {
        match kind {
            PoolKind::Small => &self.small,
            PoolKind::Large => &self.large,
        }
    }

    fn report(&self, requested_bytes: u64) -> Result<CachingOutOfMemory, CachingError> {
        let info = self.driver.memory_info()?;
        Ok(CachingOutOfMemory {
            requested_bytes,
            total_bytes: info.total,
            free_bytes: info.free,
            live_bytes: self.figures.live_bytes,
            reserved_bytes: self.figures.reserved_bytes,
        })
    }
}

/// Gives the remaining memory back, live or not, because a device is used for more than one replay.
impl<D: Driver> Drop for CachingAllocator<D> {
    fn drop(&mut self) {
        // If the device is lost, the memory is lost with it, and `drop` cannot report an error.
        if !self.abandoned && self.waits.for_device().is_ok() {
            for (addr, segment) in self.segments.asleep() {
                let _ = self.segments.forget(addr);
                let _ = segment.backup.map_or(Ok(()), |backup| self.driver.host_free(backup));
            }
            let _ = self.lane.map_or(Ok(()), |lane| self.driver.destroy_copy_stream(lane));
            self.segments.destroy_all();
            self.expandable.destroy_all();
        }
    }
}
