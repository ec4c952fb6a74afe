//! The state that the threads of a stress test share, and the operations of each of them on a block.

use super::gate::Gate;
use crate::device::{Device, World};
use crate::oracle::Subject;
use crate::witness::Witness;
use gapless::allocator::{AllocError, StreamError};
use gapless::driver::{ChunkHandle, PER_THREAD_STREAM, WorkDriver};
use gapless::units::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Settings of a stress test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stress {
    /// Number of threads.
    pub threads: u64,
    /// Number of operations per thread.
    pub ops: u64,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Whether driver calls fail occasionally.
    pub faults: Faults,
    /// Whether the threads capture graphs into a pool, and replay them.
    pub graphs: bool,
    /// Whether one thread puts everything to sleep, and wakes it.
    pub sleeps: bool,
    /// How the allocator ends.
    pub end: End,
}

/// How the allocator of a stress test ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is closed.
    Close,
    /// The program resets the device first, where it can.
    Reset,
}

/// Whether driver calls fail during a stress test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// No call fails.
    None,
    /// Some calls fail.
    Some,
}

/// Counters of a running stress test.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of operations.
    pub ops: AtomicU64,
    /// Number of bytes whose verification was queued.
    pub verified_bytes: AtomicU64,
    /// Number of allocations that were served.
    pub allocs: AtomicU64,
    /// Number of allocations that failed for any reason.
    pub failed: AtomicU64,
    /// Number of injected failures that occurred.
    pub faults: AtomicU64,
    /// Number of sleeps that put something to sleep.
    pub slept: AtomicU64,
    /// Number of those that put a pool of graphs to sleep.
    pub pool_slept: AtomicU64,
    /// Number of wakes that mapped something again.
    pub woken: AtomicU64,
    /// Set by the caller to end the threads early.
    pub stop: AtomicBool,
}

/// The stream that every page of the pool's memory was handed out on, as a chunk and an offset.
pub(crate) type Owners = Mutex<HashMap<(ChunkHandle, u64), StreamId>>;

pub(crate) struct Shared<'a, D: Device> {
    pub(crate) world: &'a World,
    pub(crate) stress: Stress,
    pub(crate) allocator: Subject<D>,
    pub(crate) streams: &'a [StreamId],
    /// Start and end address of each live block.
    pub(crate) owned: Mutex<BTreeMap<u64, u64>>,
    /// Blocks that any thread may take over.
    pub(crate) passed_on: Mutex<Vec<Block>>,
    /// For graphs.
    pub(crate) pool: Option<Subject<D>>,
    pub(crate) owners: Owners,
    pub(crate) gate: Gate,
    /// The same for the pool.
    pub(crate) pool_gate: Gate,
    /// The streams that the threads capture.
    pub(crate) captured: Mutex<Vec<StreamId>>,
    /// Held by the thread that changes the peers.
    pub(crate) peers: Mutex<()>,
    /// Number of requests of `allocator` that ran out of memory.
    pub(crate) refusals: AtomicU64,
    pub(crate) progress: &'a Progress,
}

/// A live block. Any thread may own it.
pub(crate) struct Block {
    pub(crate) addr: DeviceAddr,
    pub(crate) bytes: u64,
    /// The stream of the last work on it.
    pub(crate) last_user: StreamId,
    /// The streams that its allocator does not know of, as those of another device.
    pub(crate) foreign: Vec<StreamId>,
    /// The seed of its content, once it has been written.
    pub(crate) seed: Option<u64>,
    /// The time of the gate before it was allocated.
    pub(crate) born: u64,
}

/// The random number generator SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

impl<D: Device> Shared<'_, D> {
    pub(crate) fn witness(&self) -> &Witness<D> {
        self.allocator.driver().inner()
    }

    /// Counts a request of the main allocator that ran out of memory.
    pub(crate) fn note_refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns any stream. It may be the thread's own.
    pub(crate) fn stream(&self, random: &mut Random) -> StreamId {
        let streams = self.streams.len() as u64 + u64::from(self.world.own_streams);
        let number = usize::try_from(random.below(streams)).expect("small");
        self.streams.get(number).copied().unwrap_or(PER_THREAD_STREAM)
    }

    /// Runs `work` with a block, unless it may be asleep.
    pub(crate) fn with_memory<T>(&self, block: &Block, work: impl FnOnce() -> T) -> Option<T> {
        self.gate.pass(block.born, work)
    }

    pub(crate) fn expect_injected(&self, error: &AllocError) {
        let injected = matches!(
            error,
            AllocError::Driver(_) | AllocError::OutOfMappings { .. } | AllocError::Stream(StreamError::Foreign { .. })
        );
        // Ranges wait for the device where the pool's streams may be captured.
        let captured = self.stress.graphs && matches!(error, AllocError::CannotWait { .. });
        assert!(captured || (injected && self.stress.faults == Faults::Some), "a call returned {error}");
    }

    pub(crate) fn alloc(&self, bytes: u64, stream: StreamId, seed: u64, blocks: &mut Vec<Block>) {
        let born = self.gate.time();
        match self.allocator.alloc_raw(bytes, stream) {
            Ok(addr) => {
                {
                    let mut owned = self.owned.lock();
                    let end = addr.0 + bytes.max(1);
                    let before = owned.range(..end).next_back().map_or(0, |(_, end)| *end);
                    assert!(before <= addr.0, "invariant 1: {bytes} bytes at {addr} overlap a live block");
                    owned.insert(addr.0, end);
                }
                self.progress.allocs.fetch_add(1, Ordering::Relaxed);
                let mut block = Block { addr, bytes, last_user: stream, foreign: Vec::new(), seed: None, born };
                let fill = || self.witness().fill(stream, addr, bytes, seed);
                if let Some(filled) = self.with_memory(&block, fill) {
                    filled.expect("invariant 2: new memory can be written");
                    block.seed = Some(seed);
                }
                blocks.push(block);
            }
            Err(error) => {
                self.progress.failed.fetch_add(1, Ordering::Relaxed);
                match error {
                    AllocError::OutOfMemory(_) => self.note_refusal(),
                    AllocError::Driver(_)
                    | AllocError::OutOfMappings { .. }
                    | AllocError::Stream(StreamError::Foreign { .. })
                        if self.stress.faults == Faults::Some => {}
                    other => panic!("alloc returned {other}"),
                }
            }
        }
    }

    /// Uses a block on a stream, which is recorded, or watched until the block is freed. Where it may be asleep, the stream is
    /// recorded for nothing.
    pub(crate) fn use_on(&self, block: &mut Block, stream: StreamId, seed: u64) {
        let born = block.born;
        let used = self.gate.pass(born, || self.use_awake(block, stream, seed));
        if used.is_none() && self.allocator.record_stream(block.addr, stream).is_err() {
            assert_eq!(self.stress.faults, Faults::Some, "a live block can be recorded");
        }
    }

    fn use_awake(&self, block: &mut Block, stream: StreamId, seed: u64) {
        // Who sleeps would have to wait for these streams.
        let foreign = seed.is_multiple_of(4) && stream != PER_THREAD_STREAM && !self.stress.sleeps;
        if foreign {
            block.foreign.push(stream);
        } else if self.allocator.record_stream(block.addr, stream).is_err() {
            assert_eq!(self.stress.faults, Faults::Some, "a live block can be recorded");
            return;
        }
        self.witness().order(block.last_user, stream).expect("streams can be ordered");
        self.verify(block, stream);
        let fill = if foreign { Witness::fill_as_foreign } else { WorkDriver::fill };
        fill(self.witness(), stream, block.addr, block.bytes, seed).expect("invariant 2: a live block");
        (block.seed, block.last_user) = (Some(seed), stream);
    }

    /// Lets any thread take over a block. Other threads cannot name this thread's own stream, so the default one uses it last.
    pub(crate) fn pass_on(&self, mut block: Block, seed: u64, blocks: &mut Vec<Block>) {
        if block.last_user == PER_THREAD_STREAM {
            self.use_on(&mut block, StreamId::DEFAULT, seed);
        }
        // After an injected failure it stays.
        if block.last_user == PER_THREAD_STREAM { blocks.push(block) } else { self.passed_on.lock().push(block) }
    }

    pub(crate) fn verify(&self, block: &Block, stream: StreamId) {
        let Some(seed) = block.seed else { return };
        self.progress.verified_bytes.fetch_add(block.bytes, Ordering::Relaxed);
        let result = self.witness().verify(stream, block.addr, block.bytes, seed);
        result.expect("invariant 2: a live block can be read");
    }

    pub(crate) fn free(&self, block: Block) {
        self.end_uses(&block);
        self.owned.lock().remove(&block.addr.0);
        self.allocator.free(block.addr).expect("a live block can be freed");
    }

    /// Frees a block that is pinned: it is nobody else's before the pin is gone.
    pub(crate) fn free_pinned(&self, block: &Block) {
        self.end_uses(block);
        self.allocator.free(block.addr).expect("a live block can be freed");
    }

    pub(crate) fn end_uses(&self, block: &Block) {
        self.with_memory(block, || self.verify(block, block.last_user));
        block.foreign.iter().for_each(|stream| self.wait_for_foreign_use(*stream));
    }

    /// Waits until a stream that is watched has done what is queued on it: by itself after an injected failure, and while a
    /// stream is captured that is not kept.
    pub(crate) fn wait_for_foreign_use(&self, stream: StreamId) {
        let wait = || {
            let watched = self.allocator.watch_stream(stream).ok()?;
            watched.mark().wait().ok()
        };
        if wait() != Some(true) {
            self.witness().synchronize(stream).expect("a stream that nobody captures");
        }
    }
}
