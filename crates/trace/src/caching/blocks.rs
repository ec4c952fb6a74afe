//! The blocks of all segments, and their neighbours.
//!
//! Each segment is a doubly linked list of blocks that cover it without gaps. All entries are in one array, and unused
//! ones are reused. Only expandable segments have blocks without memory.

use super::kind::PoolKind;
use crate::held::HeldBlock;
use gapless::units::{DeviceAddr, StreamId};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Index of a block in [`Blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockId(u32);

impl BlockId {
    /// The smallest id.
    pub(super) const FIRST: Self = Self(0);
}

#[derive(Clone, Copy)]
struct Block {
    addr: DeviceAddr,
    bytes: u64,
    stream: StreamId,
    kind: PoolKind,
    state: State,
    /// Whether its segment is asleep.
    is_asleep: bool,
    /// When the block became free, by the count of searches of its pool.
    free_since: u64,
    previous: Option<BlockId>,
    next: Option<BlockId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Live,
    Free,
    /// Addresses without memory behind them.
    Unmapped,
    /// The entry holds no block.
    Unused,
}

#[derive(Default)]
pub(super) struct Blocks {
    entries: Vec<Block>,
    unused: Vec<BlockId>,
    live: HashMap<DeviceAddr, BlockId, BuildHasherDefault<AddressHasher>>,
}

impl Blocks {
    pub(super) fn bytes(&self, block: BlockId) -> u64 {
        self.entry(block).bytes
    }

    pub(super) fn addr(&self, block: BlockId) -> DeviceAddr {
        self.entry(block).addr
    }

    pub(super) fn stream(&self, block: BlockId) -> StreamId {
        self.entry(block).stream
    }

    pub(super) fn kind(&self, block: BlockId) -> PoolKind {
        self.entry(block).kind
    }

    pub(super) fn is_whole_segment(&self, block: BlockId) -> bool {
        let entry = self.entry(block);
        entry.previous.is_none() && entry.next.is_none()
    }

    pub(super) fn is_free(&self, block: BlockId) -> bool {
        self.entry(block).state == State::Free
    }

    pub(super) fn is_live(&self, block: BlockId) -> bool {
        self.entry(block).state == State::Live
    }

    pub(super) fn is_asleep(&self, block: BlockId) -> bool {
        self.entry(block).is_asleep
    }

    pub(super) fn set_asleep(&mut self, block: BlockId, is_asleep: bool) {
        self.entry_mut(block).is_asleep = is_asleep;
    }

    /// Returns the live and free blocks that are asleep, or those that are not.
    pub(super) fn which_are(&self, asleep: bool) -> Vec<BlockId> {
        let ids = (0..).map(BlockId).zip(&self.entries);
        ids.filter(|(_, entry)| matches!(entry.state, State::Live | State::Free) && entry.is_asleep == asleep)
            .map(|(id, _)| id)
            .collect()
    }

    pub(super) fn previous(&self, block: BlockId) -> Option<BlockId> {
        self.entry(block).previous
    }

    pub(super) fn next(&self, block: BlockId) -> Option<BlockId> {
        self.entry(block).next
    }

    pub(super) fn free_since(&self, block: BlockId) -> u64 {
        self.entry(block).free_since
    }

    pub(super) fn set_free_since(&mut self, block: BlockId, searches: u64) {
        self.entry_mut(block).free_since = searches;
    }

    /// Returns the size of the block together with the unmapped block after it, if there is one.
    pub(super) fn expandable_bytes(&self, block: BlockId) -> u64 {
        let entry = self.entry(block);
        let next = entry.next.map(|next| self.entry(next)).filter(|next| next.state == State::Unmapped);
        entry.bytes + next.map_or(0, |next| next.bytes)
    }

    /// Returns the live and the free blocks.
    pub(super) fn held(&self) -> impl Iterator<Item = HeldBlock> {
        let held =
            self.entries.iter().filter(|entry| !entry.is_asleep && matches!(entry.state, State::Live | State::Free));
        held.map(|entry| HeldBlock { addr: entry.addr, bytes: entry.bytes, live: entry.state == State::Live })
    }

    /// Adds a segment as one block that is free or unmapped.
    pub(super) fn insert(
        &mut self,
        addr: DeviceAddr,
        bytes: u64,
        stream: StreamId,
        kind: PoolKind,
        state: State,
    ) -> BlockId {
        self.add(Block {
            addr,
            bytes,
            stream,
            kind,
            state,
            is_asleep: false,
            free_since: 0,
            previous: None,
            next: None,
        })
    }

    /// Memory was mapped behind an unmapped block, or taken away from a free one.
    pub(super) fn set_state(&mut self, block: BlockId, state: State) {
        debug_assert!(state != State::Live && self.entry(block).state != State::Live);
        self.entry_mut(block).state = state;
    }

    /// Removes a block that is not live and a whole segment.
    pub(super) fn remove(&mut self, block: BlockId) {
        debug_assert!(self.is_whole_segment(block));
        self.entry_mut(block).state = State::Unused;
        self.unused.push(block);
    }

    pub(super) fn set_live(&mut self, block: BlockId) -> DeviceAddr {
        let entry = self.entry_mut(block);
        entry.state = State::Live;
        let addr = entry.addr;
        self.live.insert(addr, block);
        addr
    }

    /// Frees the live block that starts at `addr` and returns it, or `None` if there is none.
    pub(super) fn set_free(&mut self, addr: DeviceAddr) -> Option<BlockId> {
        let block = self.live.remove(&addr)?;
        self.entry_mut(block).state = State::Free;
        Some(block)
    }

    /// Shrinks `block` to `bytes` bytes. Returns the rest, a block after it that is unmapped if `block` is, else free.
    pub(super) fn split(&mut self, block: BlockId, bytes: u64) -> BlockId {
        let head = *self.entry(block);
        debug_assert!(bytes < head.bytes);
        let tail = self.add(Block {
            addr: head.addr.offset(bytes),
            bytes: head.bytes - bytes,
            state: if head.state == State::Unmapped { State::Unmapped } else { State::Free },
            previous: Some(block),
            next: head.next,
            ..head
        });
        if let Some(next) = head.next {
            self.entry_mut(next).previous = Some(tail);
        }
        let head = self.entry_mut(block);
        head.bytes = bytes;
        head.next = Some(tail);
        tail
    }

    /// Returns the blocks directly before and directly after `block` that are in the same state.
    pub(super) fn like_neighbours(&self, block: BlockId) -> [Option<BlockId>; 2] {
        let entry = self.entry(block);
        [entry.previous, entry.next].map(|side| side.filter(|&near| self.entry(near).state == entry.state))
    }

    /// Merges the adjacent block `neighbour` into `block`.
    pub(super) fn merge(&mut self, block: BlockId, neighbour: BlockId) {
        let gone = *self.entry(neighbour);
        let entry = self.entry_mut(block);
        entry.bytes += gone.bytes;
        if entry.previous == Some(neighbour) {
            entry.addr = gone.addr;
            entry.previous = gone.previous;
            if let Some(previous) = gone.previous {
                self.entry_mut(previous).next = Some(block);
            }
        } else {
            debug_assert!(entry.next == Some(neighbour));
            entry.next = gone.next;
            if let Some(next) = gone.next {
                self.entry_mut(next).previous = Some(block);
            }
        }
        self.entry_mut(neighbour).state = State::Unused;
        self.unused.push(neighbour);
    }

    fn add(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.unused.pop() {
            *self.entry_mut(id) = block;
            return id;
        }
        let id = BlockId(u32::try_from(self.entries.len()).expect("a trace has fewer than 2^32 ops, so fewer blocks"));
        self.entries.push(block);
        id
    }

    fn entry(&self, block: BlockId) -> &Block {
        &self.entries[block.0 as usize]
    }

    fn entry_mut(&mut self, block: BlockId) -> &mut Block {
        &mut self.entries[block.0 as usize]
    }
}

/// Hashes addresses, which are multiples of 512, with one multiplication. PyTorch's table is as cheap.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
