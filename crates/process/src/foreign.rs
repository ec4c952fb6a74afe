//! Foreign uses: streams of other devices that a device's blocks were recorded for.
//!
//! An allocator knows the order of its own device's streams only. The free of a block with a foreign use is therefore a
//! *deferred free*: the end of what is queued by then is marked on each of these streams, by the allocator of their own device, and
//! the block goes to its allocator once all marks have been passed. Nothing waits on a device meanwhile. Until then the block
//! counts as live.
//!
//! ```text
//!   record_stream          free: a mark on each stream              the marks have been passed
//!       live, used  ───────────────────────▶  deferred  ────────────────────────────────▶  freed
//! ```
//!
//! - I1  an address is in `used` while its block is live, in `deferred` after it was freed, never in both.
//! - I2  a block is in `deferred` as long as one of its uses may not be over.
//!
//! Threads: any; one lock, under which clocks of other devices' streams are asked. Cost: a load of an atomic while there are no
//! foreign uses; while frees are deferred, a query for each stream that defers one, at every call.

use crate::error::Error;
use crate::streams::StreamLives;
use gapless::allocator::{AllocError, StreamError, StreamMark, WatchedStream};
use gapless::driver::cuda::{LEGACY_STREAM, PER_THREAD_STREAM};
use gapless::driver::{Driver, DriverResult};
use gapless::{Allocator, DeviceAddr, ProcessIdentity, StreamId};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The foreign uses of one device's blocks.
pub(crate) struct Foreign<D: Driver> {
    /// The process that the devices are used in: one that is forked from it can neither ask them nor wait for them.
    process: ProcessIdentity,
    /// Number of blocks in `used` and `deferred`; 0 most of the time.
    count: AtomicUsize,
    /// Number of blocks in `deferred`.
    deferred: AtomicUsize,
    state: Mutex<State<D>>,
}

struct State<D: Driver> {
    used: HashMap<DeviceAddr, Vec<Use<D>>>,
    /// Deferred frees, the oldest first.
    deferred: Vec<Deferred<D>>,
    /// Their addresses.
    deferred_at: HashSet<DeviceAddr>,
}

/// A block whose free is deferred.
struct Deferred<D: Driver> {
    addr: DeviceAddr,
    /// The ends of the uses that may not be over, each with the number of its device.
    uses: Vec<(u32, StreamMark<D>)>,
}

/// A stream of another device that uses a block.
struct Use<D: Driver> {
    /// The number of the device.
    ordinal: u32,
    stream: WatchedStream<D>,
}

impl<D: Driver> Foreign<D> {
    pub fn new() -> Self {
        let (count, deferred) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let state = State { used: HashMap::new(), deferred: Vec::new(), deferred_at: HashSet::new() };
        Self { process: ProcessIdentity::current(), count, deferred, state: Mutex::new(state) }
    }

    /// Notes that a stream of the device of that number, which has this allocator, uses the live block at `addr`.
    pub fn record(
        &self,
        addr: DeviceAddr,
        ordinal: u32,
        allocator: &Allocator<D>,
        stream: StreamId,
        lives: StreamLives,
    ) -> Result<(), StreamError> {
        // A thread's default stream can be named by that thread only. The legacy one runs behind those of all threads.
        let stream = if stream == PER_THREAD_STREAM { LEGACY_STREAM } else { stream };
        if lives == StreamLives::AsLongAsTheProcess {
            allocator.keep_stream(stream)?;
        }
        let stream = allocator.watch_stream(stream)?;
        let mut state = self.state.lock();
        let uses = state.used.entry(addr).or_default();
        if !uses.iter().any(|known| known.stream == stream) {
            uses.push(Use { ordinal, stream });
        }
        self.recount(&state);
        Ok(())
    }

    /// Defers the free of a block. Returns false when it has no foreign uses: then the caller frees it.
    pub fn defer_free(&self, addr: DeviceAddr) -> bool {
        // Relaxed: a thread that frees a block has synchronised with the one that recorded a stream for it.
        if self.count.load(Ordering::Relaxed) == 0 || self.is_forked() {
            return false;
        }
        let mut state = self.state.lock();
        let Some(uses) = state.used.remove(&addr) else { return false };
        let uses = uses.iter().map(Use::end).collect();
        state.deferred.push(Deferred { addr, uses });
        state.deferred_at.insert(addr);
        self.recount(&state);
        true
    }

    /// Whether the free of a block is deferred.
    pub fn is_deferred(&self, addr: DeviceAddr) -> bool {
        self.has_deferred() && self.state.lock().deferred_at.contains(&addr)
    }

    /// Whether any free is deferred.
    pub fn has_deferred(&self) -> bool {
        // Relaxed: as in `defer_free`.
        self.deferred.load(Ordering::Relaxed) > 0
    }

    /// Takes the blocks whose uses are over: the caller frees them.
    pub fn take_over(&self) -> Vec<DeviceAddr> {
        // The marks of one stream are passed in order: after one that is not, the later ones need not be asked about.
        let mut busy: Vec<WatchedStream<D>> = Vec::new();
        self.take(|mark| {
            if busy.contains(mark.stream()) {
                return false;
            }
            let over = is_over(mark.has_passed());
            if !over {
                busy.push(mark.stream().clone());
            }
            over
        })
    }

    /// Takes the blocks whose uses are over after a wait for all that can be waited for: the caller frees them.
    pub fn wait(&self) -> Vec<DeviceAddr> {
        self.take(|mark| is_over(mark.wait()))
    }

    /// Takes the blocks out of `deferred` of which no use is left.
    fn take(&self, mut is_over: impl FnMut(&StreamMark<D>) -> bool) -> Vec<DeviceAddr> {
        if self.is_forked() {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let mut over = Vec::new();
        state.deferred.retain_mut(|deferred| {
            deferred.uses.retain(|(_, mark)| !is_over(mark));
            if deferred.uses.is_empty() {
                over.push(deferred.addr);
            }
            !deferred.uses.is_empty()
        });
        for addr in &over {
            state.deferred_at.remove(addr);
        }
        self.recount(&state);
        over
    }

    /// Waits until streams of other devices are done with the blocks that they were recorded for, freed or not, as far as these are
    /// wanted.
    pub fn wait_for_uses(&self, wanted: impl Fn(DeviceAddr) -> bool) -> Result<(), Error> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        // Without the lock: work may take its time.
        let uses: Vec<(u32, StreamMark<D>)> = {
            let state = self.state.lock();
            let of_live = state.used.iter().filter(|(addr, _)| wanted(**addr)).flat_map(|(_, uses)| uses);
            let of_freed = state.deferred.iter().filter(|freed| wanted(freed.addr)).flat_map(|freed| &freed.uses);
            of_live.map(Use::end).chain(of_freed.cloned()).collect()
        };
        let busy = uses.iter().find(|(_, mark)| !is_over(mark.wait()));
        busy.map_or(Ok(()), |(ordinal, _)| Err(Error::Capturing(*ordinal)))
    }

    /// Refuses in a process that was forked from the one that the devices are used in.
    pub fn expect_not_forked(&self) -> Result<(), AllocError> {
        if self.is_forked() { Err(AllocError::Forked { built_in: self.process.number() }) } else { Ok(()) }
    }

    fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    fn recount(&self, state: &State<D>) {
        self.count.store(state.used.len() + state.deferred.len(), Ordering::Relaxed);
        self.deferred.store(state.deferred.len(), Ordering::Relaxed);
    }
}

impl<D: Driver> Use<D> {
    /// The number of its device, and the end of what is queued on its stream now.
    fn end(&self) -> (u32, StreamMark<D>) {
        (self.ordinal, self.stream.mark())
    }
}

/// Whether a use is over, by the driver's answer. A device that is lost runs nothing any more; after any other error the next
/// call asks again.
fn is_over(answer: DriverResult<bool>) -> bool {
    answer.unwrap_or_else(|error| error.kind.is_sticky())
}
