//! Where the device's memory is that no live block uses.

use crate::Device;
use crate::caching::CachingAllocator;
use crate::device::PAGE_BYTES;
use gapless::driver::ModelDriver;
use gapless::units::{StreamId, round_down, round_up};
use std::collections::BTreeMap;

/// The device's memory at one moment, in bytes:
/// `device = live + rounding + free in whole pages + free in partly used pages + unreserved`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Stranded {
    /// Memory of the device that others hold. It is not part of the device's size.
    pub other_processes_bytes: u64,
    /// What the allocator does not hold.
    pub unreserved_bytes: u64,
    /// What rounding adds to live blocks.
    pub rounding_bytes: u64,
    /// Free blocks: the part that consists of whole pages.
    pub free_in_whole_pages_bytes: u64,
    /// Free blocks: the part in pages that live blocks use too.
    pub free_in_partly_used_pages_bytes: u64,
    /// The largest free block.
    pub largest_free_block_bytes: u64,
    /// The free blocks of each stream, in the order of the streams' numbers.
    pub by_stream: Vec<FreeOfStream>,
    /// The free blocks by size, the smallest first.
    pub by_size: Vec<FreeOfSize>,
}

/// The free blocks of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FreeOfStream {
    /// The recorder's number of the stream.
    pub stream: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Their size together.
    pub bytes: u64,
}

/// The free blocks between a power of two and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FreeOfSize {
    /// The smallest size that counts, in bytes.
    pub from_bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Their size together.
    pub bytes: u64,
}

impl Stranded {
    /// Looks at what an allocator holds on `device`, of which `live_bytes` were requested. `number` is the recorder's
    /// number of a stream.
    pub(super) fn of(
        allocator: &CachingAllocator<ModelDriver>,
        device: &Device,
        live_bytes: u64,
        number: impl Fn(StreamId) -> u64,
    ) -> Self {
        let figures = allocator.figures();
        let mut streams: BTreeMap<u64, FreeOfStream> = BTreeMap::new();
        let mut sizes: BTreeMap<u64, FreeOfSize> = BTreeMap::new();
        let (mut free, mut whole, mut largest) = (0, 0, 0);
        for block in allocator.free_blocks() {
            free += block.bytes;
            largest = largest.max(block.bytes);
            let first = round_up(block.addr.0, PAGE_BYTES).unwrap_or(u64::MAX);
            whole += round_down(block.addr.0 + block.bytes, PAGE_BYTES).saturating_sub(first);
            let stream = number(block.stream);
            let entry = streams.entry(stream).or_insert(FreeOfStream { stream, blocks: 0, bytes: 0 });
            entry.blocks += 1;
            entry.bytes += block.bytes;
            let from_bytes = 1 << block.bytes.ilog2();
            let entry = sizes.entry(from_bytes).or_insert(FreeOfSize { from_bytes, blocks: 0, bytes: 0 });
            entry.blocks += 1;
            entry.bytes += block.bytes;
        }
        Self {
            other_processes_bytes: device.external_bytes,
            unreserved_bytes: device.capacity_bytes.saturating_sub(figures.reserved_bytes),
            rounding_bytes: figures.live_bytes.saturating_sub(live_bytes),
            free_in_whole_pages_bytes: whole,
            free_in_partly_used_pages_bytes: free - whole,
            largest_free_block_bytes: largest,
            by_stream: streams.into_values().collect(),
            by_size: sizes.into_values().collect(),
        }
    }
}
