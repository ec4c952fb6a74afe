//! Where the device's memory is that no live block uses.

use crate::Device;
use crate::caching::{CachingAllocator, FreeBlock};
use crate::device::PAGE_BYTES;
use crate::foreign::layout::{FreePiece, Layout};
use gapless::driver::ModelDriver;
use gapless::units::{StreamId, round_down, round_up};
use std::collections::BTreeMap;

/// The device's memory at one moment, in bytes: `device = live + rounding + free in whole pages + free in partly used pages +
/// free in private pools + waiting + unreserved`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Stranded {
    /// Memory of the device that others hold. It is not part of the device's size.
    pub other_processes_bytes: u64,
    /// The memory that the allocator does not hold.
    pub unreserved_bytes: u64,
    /// The bytes that rounding adds to live blocks.
    pub rounding_bytes: u64,
    /// Free blocks: the part that consists of whole pages.
    pub free_in_whole_pages_bytes: u64,
    /// Free blocks: the part in pages that live blocks use too.
    pub free_in_partly_used_pages_bytes: u64,
    /// Free blocks of private pools, which serve no other request.
    pub free_in_private_pools_bytes: u64,
    /// Blocks that the program has freed, but that work of other streams may still use.
    pub waiting_bytes: u64,
    /// The largest free block outside private pools.
    pub largest_free_block_bytes: u64,
    /// The free blocks of each stream outside private pools, in the order of the streams' numbers.
    pub by_stream: Vec<FreeOfStream>,
    /// The free blocks outside private pools by size, the smallest first.
    pub by_size: Vec<FreeOfSize>,
}

/// The free blocks of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct FreeOfStream {
    /// The recorder's number of the stream.
    pub stream: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Their size together.
    pub bytes: u64,
}

/// The free blocks between a power of two and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct FreeOfSize {
    /// The smallest size that counts, in bytes.
    pub from_bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Their size together.
    pub bytes: u64,
}

/// The memory that the program has at the moment, as requested, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Requested {
    /// Live blocks.
    pub live: u64,
    /// Blocks that were freed and wait for streams.
    pub waiting: u64,
}

impl Stranded {
    /// Looks at what the allocators of tags hold on `device`. Free memory of a tag serves no other request, as that of a private
    /// pool. `number` is the recorder's number of a stream, or `None` for one of a private pool.
    pub(super) fn of(
        of_tag: &[CachingAllocator<ModelDriver>],
        device: &Device,
        requested: Requested,
        number: impl Fn(StreamId) -> Option<u64>,
    ) -> Self {
        let (mut reserved_bytes, mut live_bytes) = (0, 0);
        for figures in of_tag.iter().map(CachingAllocator::figures) {
            reserved_bytes += figures.reserved_bytes;
            live_bytes += figures.live_bytes;
        }
        let free = of_tag.iter().enumerate().flat_map(|(tag, allocator)| {
            let piece = |block: FreeBlock| {
                let stream = number(block.stream).filter(|_| tag == 0);
                FreePiece {
                    addr: block.addr.0,
                    bytes: block.bytes,
                    stream: stream.unwrap_or_default(),
                    private: stream.is_none(),
                }
            };
            allocator.free_blocks().map(piece).collect::<Vec<_>>()
        });
        Self {
            other_processes_bytes: device.external_bytes,
            unreserved_bytes: device.capacity_bytes.saturating_sub(reserved_bytes),
            rounding_bytes: live_bytes.saturating_sub(requested.live + requested.waiting),
            waiting_bytes: requested.waiting,
            ..Self::of_free(free)
        }
    }

    /// Looks at what the recorded allocator held.
    pub(super) fn recorded(layout: &Layout, device: &Device, requested: Requested) -> Self {
        Self {
            other_processes_bytes: device.external_bytes,
            unreserved_bytes: layout.device_free_bytes,
            rounding_bytes: layout.block_bytes(false).saturating_sub(requested.live),
            waiting_bytes: layout.block_bytes(true),
            ..Self::of_free(layout.free().into_iter())
        }
    }

    fn of_free(free: impl Iterator<Item = FreePiece>) -> Self {
        let mut streams: BTreeMap<u64, FreeOfStream> = BTreeMap::new();
        let mut sizes: BTreeMap<u64, FreeOfSize> = BTreeMap::new();
        let mut found = Self::default();
        for FreePiece { addr, bytes, stream, private } in free {
            if private {
                found.free_in_private_pools_bytes += bytes;
                continue;
            }
            let first = round_up(addr, PAGE_BYTES).unwrap_or(u64::MAX);
            let whole = round_down(addr.saturating_add(bytes), PAGE_BYTES).saturating_sub(first);
            found.free_in_whole_pages_bytes += whole;
            found.free_in_partly_used_pages_bytes += bytes - whole;
            found.largest_free_block_bytes = found.largest_free_block_bytes.max(bytes);
            let entry = streams.entry(stream).or_insert(FreeOfStream { stream, blocks: 0, bytes: 0 });
            entry.blocks += 1;
            entry.bytes += bytes;
            let from_bytes = 1 << bytes.ilog2();
            let entry = sizes.entry(from_bytes).or_insert(FreeOfSize { from_bytes, blocks: 0, bytes: 0 });
            entry.blocks += 1;
            entry.bytes += bytes;
        }
        Self { by_stream: streams.into_values().collect(), by_size: sizes.into_values().collect(), ..found }
    }
}
