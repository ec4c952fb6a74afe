//! Oracle: a plain map of what callers of an allocator hold, live blocks and ranges.

use crate::device::{Device, World};
use crate::kept::KeptBytes;
use crate::witness::Witness;
use gapless::GRANULE;
use gapless::allocator::{Allocator, BlockSnapshot, BlockState};
use gapless::driver::{ChunkHandle, FaultDriver};
use gapless::units::{DeviceAddr, StreamId, round_up};
use std::collections::{BTreeMap, BTreeSet};

/// The allocator under test, with all layers between it and the device.
pub type Subject<D> = Allocator<FaultDriver<Witness<D>>>;

/// Keeps a stream. Where an injected failure strikes, it is kept the second time: the promise counts on streams that are kept.
pub(crate) fn keep<D: Device>(allocator: &Subject<D>, stream: StreamId) {
    if allocator.keep_stream(stream).is_err() {
        let _ = allocator.keep_stream(stream);
    }
}

/// A live block, as its owner knows it.
#[derive(Clone, Debug)]
pub struct Block {
    pub addr: DeviceAddr,
    pub bytes: u64,
    /// The stream that it was allocated on; `None` once that has been destroyed.
    pub home: Option<StreamId>,
    /// The handle of that stream, which another may have now.
    pub handle: StreamId,
    /// The streams that were recorded on it.
    pub recorded: Vec<StreamId>,
    /// The streams that its allocator does not know of.
    pub foreign: Vec<StreamId>,
    /// Number of chunks that had been created on the device when it was asked for.
    pub since: u64,
    /// The stream of the last work on it.
    pub last_user: StreamId,
    /// The seed of its content. `None` for a block of a pool, while nothing says what it holds.
    pub content: Option<u64>,
    /// The seed of its content as of the last sleep, while a backup may have that.
    pub backup: Option<u64>,
    /// The capture or graph that wrote it last, and the seed that it wrote.
    pub graph: Option<(u64, u64)>,
}

impl Block {
    /// Returns `true` if a stream allocated, recorded or used it.
    pub fn uses(&self, stream: StreamId) -> bool {
        self.is_known(stream) || self.last_user == stream || self.foreign.contains(&stream)
    }

    /// Returns `true` if the allocator knows that a stream uses it.
    fn is_known(&self, stream: StreamId) -> bool {
        self.home == Some(stream) || self.recorded.contains(&stream)
    }

    /// Notes that a stream was waited for: what comes next need not run there. It runs where the allocator knows of uses; where it
    /// knows of none, nobody looks at the content any more.
    pub fn was_waited_for(&mut self, stream: StreamId) {
        if self.last_user == stream && !self.is_known(stream) {
            let known = self.home.or(self.recorded.first().copied());
            self.last_user = known.unwrap_or(StreamId::DEFAULT);
            self.content = self.content.filter(|_| known.is_some());
        }
    }

    /// Forgets a stream that is destroyed. The default stream runs behind it.
    pub fn leave(&mut self, stream: StreamId) {
        self.home = self.home.filter(|home| *home != stream);
        self.recorded.retain(|recorded| *recorded != stream);
        self.foreign.retain(|user| *user != stream);
        if self.last_user == stream {
            self.last_user = StreamId::DEFAULT;
        }
    }
}

/// An address that a block was freed from.
#[derive(Clone, Copy, Debug)]
pub struct Former {
    pub addr: DeviceAddr,
    pub bytes: u64,
    /// The handle of the stream that it was allocated for.
    pub handle: StreamId,
    /// That stream; `None` once it has been destroyed.
    pub home: Option<StreamId>,
    /// Whether a living stream with that handle has used it.
    pub used_by_namesake: bool,
}

impl Former {
    /// Whether both have bytes in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.addr.0 < other.addr.0 + other.bytes.max(1) && other.addr.0 < self.addr.0 + self.bytes.max(1)
    }
}

/// Number of addresses that are remembered.
const MOST_FORMER: usize = 16;

/// A growable range, as its owner knows it.
#[derive(Clone, Debug)]
pub struct Range {
    pub addr: DeviceAddr,
    pub reserved_pages: u64,
    /// The mapped pages, from the start of the range.
    pub pages: Vec<RangePage>,
    /// The streams that were recorded on it.
    pub users: Vec<StreamId>,
}

/// A page of a growable range.
#[derive(Clone, Copy, Debug)]
pub struct RangePage {
    /// The seed of its content.
    pub seed: u64,
    /// The stream of the last work on it.
    pub last_user: StreamId,
    /// The chunk and the offset in it. A page keeps them when it moves, or its content would be lost.
    pub memory: (ChunkHandle, u64),
}

/// Returns the free blocks, of any stream and kind, that have `bytes` bytes at a multiple of `alignment`.
pub fn fitting_blocks<D: Device>(
    allocator: &Subject<D>,
    bytes: u64,
    alignment: u64,
) -> impl Iterator<Item = BlockSnapshot> {
    let size = round_up(bytes.max(1), GRANULE).unwrap_or(u64::MAX);
    let blocks = allocator.snapshot().regions.into_iter().flat_map(|region| region.blocks);
    blocks.filter(|block| block.state == BlockState::Free).filter(move |block| {
        let start = round_up(block.addr.0, alignment).and_then(|start| start.checked_add(size));
        start.is_some_and(|end| end <= block.addr.0 + block.bytes)
    })
}

/// An allocator's memory, as its callers know it.
#[derive(Debug, Default)]
pub struct Oracle {
    pub live: BTreeMap<u64, Block>,
    /// Addresses of live blocks in the order of their allocation: the block number of an operation is an index into it.
    pub order: Vec<u64>,
    pub live_bytes: u64,
    pub peak_live_bytes: u64,
    pub allocs: u64,
    pub frees: u64,
    pub freed_bytes: u64,
    pub refused_frees: u64,
    /// Number of requests that ran out of memory.
    pub failed_allocs: u64,
    pub budget: u64,
    /// Most bytes that may be held: the budget, or what was already held when the budget was lowered.
    pub ceiling: u64,
    pub last_freed: Option<u64>,
    /// Addresses of the live blocks that were put to sleep, and so are not used.
    pub asleep: BTreeSet<u64>,
    /// Addresses of the live blocks whose memory somebody may keep.
    pub exposed: BTreeSet<u64>,
    /// The numbers of the chunks that lay under such blocks alone when these were freed.
    pub spent: BTreeSet<u64>,
    /// Addresses that blocks were freed from, the newest last.
    pub former: Vec<Former>,
    pub ranges: Vec<Range>,
    /// Pinned blocks, one entry for each pin.
    pub pinned: Vec<KeptBytes>,
    pub registered: Vec<KeptBytes>,
    /// Bytes of ranges that could not be unmapped when they were dropped. They are unused until memory is short.
    pub abandoned_bytes: u64,
}

impl Oracle {
    /// Adds a block that was just allocated. Checks invariant 1 for addresses.
    ///
    /// # Panics
    /// Panics if the block overlaps a live one.
    pub fn add(&mut self, block: Block) {
        let end = block.addr.0 + block.bytes.max(1);
        if let Some((_, before)) = self.live.range(..end).next_back() {
            let before_end = before.addr.0 + before.bytes.max(1);
            assert!(before_end <= block.addr.0, "invariant 1: {block:?} was allocated over {before:?}");
        }
        self.live_bytes += block.bytes;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        self.allocs += 1;
        self.order.push(block.addr.0);
        self.live.insert(block.addr.0, block);
    }

    pub fn remove(&mut self, addr: u64) -> Block {
        let block = self.live.remove(&addr).expect("the block is live");
        self.order.retain(|other| *other != addr);
        self.asleep.remove(&addr);
        self.exposed.remove(&addr);
        self.live_bytes -= block.bytes;
        self.frees += 1;
        self.freed_bytes += block.bytes;
        self.last_freed = Some(addr);
        if self.former.len() == MOST_FORMER {
            self.former.remove(0);
        }
        let Block { addr: start, bytes, handle, home, .. } = block;
        let used_by_namesake = home.is_none() && block.recorded.contains(&handle);
        self.former.push(Former { addr: start, bytes, handle, home, used_by_namesake });
        self.pinned.iter_mut().filter(|pinned| pinned.addr.0 == addr).for_each(|pinned| pinned.alone = true);
        block
    }

    /// Notes the chunks that nobody may have any more once a block is freed.
    pub fn spend<D: Device>(&mut self, world: &World, driver: &Witness<D>, block: &Block) {
        if !self.exposed.contains(&block.addr.0) {
            return;
        }
        let size = round_up(block.bytes.max(1), GRANULE).expect("a live block");
        for (chunk, part) in self.backing(world, driver, block.addr, size).collect::<Vec<_>>() {
            let made = driver.chunk(chunk).expect("a chunk of the device");
            if part.end - part.start == made.bytes {
                self.spent.insert(made.number);
            }
        }
    }

    /// The bytes of the chunks that nobody may have any more and that the driver still has.
    pub fn spent_bytes<D>(&self, driver: &Witness<D>) -> u64 {
        let made = driver.chunks().into_iter().filter_map(|chunk| driver.chunk(ChunkHandle(chunk)));
        made.filter(|made| self.spent.contains(&made.number)).map(|made| made.bytes).sum()
    }

    /// Returns the live block with a number, modulo the number of live blocks.
    pub fn block(&self, number: u16) -> Option<&Block> {
        let index = usize::from(number).checked_rem(self.order.len())?;
        self.live.get(&self.order[index])
    }

    /// Returns the number of bytes mapped in ranges.
    pub fn range_bytes(&self, world: &World) -> u64 {
        self.ranges.iter().map(|range| range.pages.len() as u64 * world.page_bytes).sum()
    }

    /// Returns the number of bytes of registered blocks.
    pub fn registered_bytes(&self) -> u64 {
        self.registered.iter().map(|block| block.bytes).sum()
    }
}
