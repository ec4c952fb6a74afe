//! The promise: which requests must succeed.
//!
//! It is judged by what callers hold, and by the chunks that the driver was seen to create and to map. The allocator is asked
//! only which of these chunks are its own.

use crate::device::{Device, World};
use crate::oracle::{Block, Oracle, Subject};
use crate::witness::Witness;
use gapless::GRANULE;
use gapless::driver::{ChunkHandle, MemoryDriver};
use gapless::units::{DeviceAddr, KIB, MIB, round_up};
use std::collections::BTreeMap;
use std::ops::Range;

/// With the allocator's own choice of chunks, no chunk is smaller for the sake of what it could pin.
const SMALLEST_AUTO: u64 = 2 * MIB;
/// The same for a chunk that was created for several blocks: small ones, or any below 2 MiB that are each to lie within one chunk.
const SMALLEST_AUTO_FOR_SEVERAL: u64 = 8 * MIB;
/// Size from which on a block is not small.
const SMALL_BELOW: u64 = 64 * KIB;

/// Whether a request had to succeed: compares what was available for it with the pages that it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// Number of pages that contain no live byte, or that could be created.
    pub free_pages: u64,
    /// The same without those beside a live byte in a chunk: with chunks of one page, there are none.
    pub obtainable_pages: u64,
    /// The same without those that the chunk policy may pin: see `World::may_pin`.
    pub promised_pages: u64,
    /// Number of pages that the request needs.
    pub needed_pages: u64,
}

impl Promise {
    /// Returns `true` if the request had to succeed.
    pub fn holds(&self) -> bool {
        self.needed_pages <= self.promised_pages
    }
}

/// The part of a chunk that callers hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Number of pages with live bytes.
    pub pages: u64,
    /// [`Block::since`](crate::oracle::Block::since) of the youngest block in it.
    youngest: u64,
    /// Whether a small block is in it.
    small: bool,
}

impl World {
    /// Returns `true` if the chunk policy allows that what callers hold of a chunk keeps the rest of it from others.
    ///
    /// A chunk of a fixed size may be pinned whole, and so may one that a block lies within. One that the allocator chose the
    /// size of covers no pages that the block it was created for does not use, beyond the smallest size; a block that came later
    /// may pin it.
    fn may_pin(&self, bytes: u64, made: u64, held: Held) -> bool {
        let is_least = bytes <= SMALLEST_AUTO || held.small && bytes <= SMALLEST_AUTO_FOR_SEVERAL;
        self.chunk_pages > 0 || self.whole_blocks || is_least || held.youngest >= made
    }
}

/// Checks that the chunks created for a block are no larger than they may be: with the allocator's own choice of sizes, one
/// beyond the smallest size is covered whole by the block. `since` is [`Block::since`](crate::oracle::Block::since).
///
/// # Panics
/// Panics if a chunk is larger.
pub(crate) fn check_new_chunks<D: Device>(world: &World, driver: &Witness<D>, block: (DeviceAddr, u64), since: u64) {
    if world.chunk_pages > 0 {
        return;
    }
    let size = round_up(block.1.max(1), GRANULE).expect("a live block");
    let for_several = size < SMALL_BELOW || world.whole_blocks && size < SMALLEST_AUTO;
    let least = if for_several { SMALLEST_AUTO_FOR_SEVERAL } else { SMALLEST_AUTO };
    // A chunk that a block is to lie within ends with the page that the block ends in.
    let beside = if world.whole_blocks { world.page_bytes - 1 } else { 0 };
    for (chunk, part) in driver.backing(block.0, size).into_iter().flatten() {
        let made = driver.chunk(chunk).expect("a chunk of the device");
        let fits = made.number <= since || made.bytes <= least || part.end - part.start + beside >= made.bytes;
        assert!(fits, "the promise: {block:?} has {part:?} of {made:?}, which was created for it");
    }
}

impl Oracle {
    /// Returns the bytes of live blocks that have no memory, rounding included.
    ///
    /// # Panics
    /// Panics if a block without memory is not asleep.
    pub(crate) fn without_memory<D: Device>(&self, world: &World, driver: &Witness<D>) -> u64 {
        let of_block = |block: &Block| {
            let size = round_up(block.bytes.max(1), GRANULE).expect("a live block");
            let backed: u64 =
                self.backing(world, driver, block.addr, size).map(|(_, part)| part.end - part.start).sum();
            size - backed
        };
        self.live.values().map(of_block).sum()
    }

    /// Returns the memory at the addresses of a block, or of a range. Where there is none, it is asleep.
    ///
    /// # Panics
    /// Panics if it is not.
    pub(crate) fn backing<D: Device>(
        &self,
        world: &World,
        driver: &Witness<D>,
        addr: DeviceAddr,
        bytes: u64,
    ) -> impl Iterator<Item = (ChunkHandle, Range<u64>)> {
        let whole = driver.backing(addr, bytes);
        let is_asleep = whole.is_none() && self.asleep.contains(&addr.0);
        assert!(whole.is_some() || is_asleep, "invariant 2: {bytes} bytes at {addr} are not fully mapped with access");
        let pages =
            if is_asleep { addr.0 / world.page_bytes..(addr.0 + bytes).div_ceil(world.page_bytes) } else { 0..0 };
        let parts = pages.filter_map(|page| {
            let start = addr.0.max(page * world.page_bytes);
            let end = (addr.0 + bytes).min((page + 1) * world.page_bytes);
            driver.backing(DeviceAddr(start), end - start)
        });
        let parts: Vec<_> = parts.flatten().collect();
        whole.into_iter().flatten().chain(parts)
    }

    /// Returns what callers hold of each chunk. Checks invariant 2, and invariant 1 for physical memory.
    pub(crate) fn held<D: Device>(&self, world: &World, driver: &Witness<D>) -> BTreeMap<ChunkHandle, Held> {
        let mut held: BTreeMap<ChunkHandle, Held> = BTreeMap::new();
        let mut parts: BTreeMap<(ChunkHandle, u64), u64> = BTreeMap::new();
        let blocks = self.live.values().map(|block| (block.addr, block.bytes.max(1), block.since, false));
        let of_range =
            |range: &crate::oracle::Range| (range.addr, range.pages.len() as u64 * world.page_bytes, 0, false);
        let ranges = self.ranges.iter().map(of_range);
        // Several pins of one block hold its bytes once.
        let mut seen = std::collections::BTreeSet::new();
        let kept = self.pinned.iter().chain(&self.registered).filter(|kept| kept.alone && seen.insert(kept.addr));
        let kept = kept.map(|kept| (kept.addr, kept.bytes, kept.since, true));
        let is_spent = |chunk| driver.chunk(chunk).is_some_and(|made| self.spent.contains(&made.number));
        for (addr, bytes, since, is_freed) in blocks.chain(ranges).chain(kept) {
            for (chunk, part) in self.backing(world, driver, addr, bytes) {
                assert!(
                    is_freed || self.spent.is_empty() || !is_spent(chunk),
                    "invariant 14: {chunk:?}, which somebody may have kept, is used again at {addr}"
                );
                if let Some(((other, _), end)) = parts.range(..(chunk, part.end)).next_back() {
                    let apart = *other != chunk || *end <= part.start;
                    assert!(apart, "invariant 1: bytes {part:?} of {chunk:?} at {addr} belong to another as well");
                }
                let of_chunk = held.entry(chunk).or_default();
                of_chunk.youngest = of_chunk.youngest.max(since);
                of_chunk.small |= bytes <= SMALL_BELOW - GRANULE;
                parts.insert((chunk, part.start), part.end);
            }
        }
        let mut counted = (ChunkHandle(u64::MAX), 0);
        for ((chunk, start), end) in parts {
            let first = if counted.0 == chunk { counted.1 } else { 0 };
            let (start, end) = ((start / world.page_bytes).max(first), end.div_ceil(world.page_bytes));
            held.entry(chunk).or_default().pages += end.saturating_sub(start);
            counted = (chunk, end.max(first));
        }
        held
    }

    /// Returns whether a request of `bytes` bytes must succeed now.
    pub fn promise<D: Device>(&self, world: &World, allocator: &Subject<D>, bytes: u64) -> Promise {
        let driver = allocator.driver().inner();
        let held = self.held(world, driver);
        let mut promise = Promise::default();
        let mut pages_held = 0;
        for chunk in allocator.snapshot().chunks {
            let made = driver.chunk(ChunkHandle(chunk.handle)).expect("a chunk of the device");
            let pages = made.bytes / world.page_bytes;
            let part = held.get(&ChunkHandle(chunk.handle)).copied().unwrap_or_default();
            let free = pages - part.pages;
            pages_held += pages;
            promise.free_pages += free;
            promise.obtainable_pages += if part.pages == 0 { free } else { 0 };
            let pinned = part.pages > 0 && world.may_pin(made.bytes, made.number, part);
            promise.promised_pages += if pinned { 0 } else { free };
        }
        let device = driver.memory_info().map_or(0, |info| info.free / world.page_bytes);
        let headroom = (self.budget / world.page_bytes).saturating_sub(pages_held).min(device);
        for pages in [&mut promise.free_pages, &mut promise.obtainable_pages, &mut promise.promised_pages] {
            *pages += headroom;
        }
        let size = round_up(bytes.max(1), world.page_bytes).unwrap_or(u64::MAX);
        Promise { needed_pages: size / world.page_bytes, ..promise }
    }
}
