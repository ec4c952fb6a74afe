//! The slow path: everything that talks to the driver about memory.
//!
//! There is one way in, [`Door::enter`]: it refuses in a forked process and after the device was lost, takes the mapper's
//! lock, runs the work, and tidies up behind it. The work is one of the operations below, all methods of [`SlowPath`].
//!
//! ```text
//! growth.rs     a request that no cached block serves     ranges.rs      growth and shrinking of growable ranges
//! reuse.rs      blocks kept for another use               trim.rs        memory goes back to the driver
//! again.rs      an address that was handed out before     teardown.rs    everything goes back
//! addresses.rs  regions and the addresses behind them     inspect/       statistics, snapshot, report
//! plan/         decides, without a driver call            check.rs       the invariants
//! execute.rs    carries a plan out                        access.rs      access given again
//! mapper.rs     what is locked                            registered.rs  blocks that are one chunk
//! stale.rs      room for further mappings                 pinned.rs      what lies under a pinned block
//! gather.rs     chunks for ranges                         sleep/         live blocks without memory
//! exposed.rs    memory that others may have kept
//! ```
//!
//! Threads: any; one at a time is inside. No stream state is locked during a driver call.

mod access;
mod addresses;
mod again;
mod check;
mod execute;
mod exposed;
mod gather;
mod growth;
mod inspect;
mod mapper;
mod pinned;
mod plan;
mod ranges;
mod registered;
mod reuse;
mod sleep;
mod stale;
mod teardown;
mod trim;

pub use again::Wanted;
pub use pinned::PinnedChunk;
pub use ranges::GrowableRange;
pub use sleep::{Excluded, FellAsleep, LeftAwake, Marked, Span, ToWake};
pub use teardown::Users;
pub use trim::Trimmed;

use super::error::{AllocError, WithAlloc};
use super::request::Request;
use super::rules::Rules;
use super::shared::{Budget, Shared};
use super::streams::Progress;
use super::streams::directory::Place;
use super::streams::peak::Visit;
use super::streams::state::Stream;
use crate::driver::{Counted, Driver, DriverError, MemoryDriver};
use crate::pages::PageCount;
use crate::physical::ChunkId;
use crate::segment::listeners::{InListener, MapListeners};
use crate::stream::StreamIndex;
use crate::sync::{Mutex, MutexGuard};
use crate::units::DeviceAddr;
use growth::Growth;
use inspect::Holdings;
use mapper::Mapper;

/// The one entrance to the slow path of an allocator. What is behind it is locked while somebody is inside.
#[derive(Debug)]
pub struct Door {
    mapper: Mutex<Mapper>,
    /// The memory that was held when the slow path was left last, or was about to hand out a new block. Locked before stream
    /// states.
    holdings: Mutex<Holdings>,
}

/// A caller inside the slow path.
pub struct SlowPath<'a, D: Driver> {
    shared: &'a Shared<D>,
    mapper: MutexGuard<'a, Mapper>,
    holdings: &'a Mutex<Holdings>,
    /// The stream that the caller was handed, if any.
    given: Option<StreamIndex>,
    /// Chunks created since the caller entered: those still idle go back to the driver if its work fails.
    created: Vec<ChunkId>,
    /// How often a capture had kept the host from waiting for the device when the caller entered.
    waits_forbidden: u64,
}

impl Door {
    /// An entrance behind which nothing is held yet.
    pub fn new<D: Driver>(shared: &Shared<D>) -> Self {
        let mapper = Mapper::new(&shared.geometry, shared.creatable_bytes());
        Self { holdings: Mutex::new(Holdings::new(&mapper)), mapper: Mutex::new(mapper) }
    }

    /// Enters the slow path and runs `work` there. If that fails, what it created and did not use is released, so that
    /// nothing has changed; an error after which the device is lost is remembered.
    ///
    /// # Errors
    /// [`AllocError::InListener`] on a thread that is inside, [`AllocError::Forked`] in a forked process, the error with which the
    /// device was lost, and those of `work`.
    pub fn enter<D: Driver, T, E: WithAlloc>(
        &self,
        shared: &Shared<D>,
        work: impl FnOnce(&mut SlowPath<'_, D>) -> Result<T, E>,
    ) -> Result<T, E> {
        MapListeners::expect_outside().map_err(AllocError::from)?;
        shared.expect_usable()?;
        let mut path = self.path(shared);
        let mut result = work(&mut path);
        path.mapper.lift_bars();
        if result.is_err() {
            path.release_created();
        }
        path.publish();
        drop(path);
        if let Some(AllocError::OutOfMemory(report)) = result.as_mut().err().and_then(WithAlloc::alloc_mut) {
            // Nobody has to wait for that.
            report.list_largest(&shared.streams);
        }
        shared.note_loss(&result);
        result
    }

    /// The mapper, once nobody else has it.
    ///
    /// # Panics
    /// In a callback of a listener, which is a part of what has the mapper.
    fn lock(&self) -> MutexGuard<'_, Mapper> {
        if let Err(error) = MapListeners::expect_outside() {
            panic!("{error}");
        }
        self.mapper.lock()
    }

    /// A caller inside, whatever has happened before.
    fn path<'a, D: Driver>(&'a self, shared: &'a Shared<D>) -> SlowPath<'a, D> {
        let (mapper, holdings) = (self.lock(), &self.holdings);
        let waits_forbidden = shared.streams.waits_forbidden();
        SlowPath { shared, mapper, holdings, given: None, created: Vec::new(), waits_forbidden }
    }

    /// Runs `work` on the mappings, for tests of the books themselves.
    #[cfg(test)]
    pub fn with_mappings<T>(&self, work: impl FnOnce(&mut super::mappings::Mappings) -> T) -> T {
        work(&mut self.lock())
    }

    /// Serves a request that no cached block of `stream` serves.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed.
    #[cold]
    pub fn alloc<D: Driver>(
        &self,
        shared: &Shared<D>,
        stream: &Stream,
        request: Request,
    ) -> Result<DeviceAddr, AllocError> {
        #[cfg(test)]
        shared.counters.slow_allocs.fetch_add(1, crate::sync::Ordering::Relaxed);
        self.enter(shared, |path| {
            path.given = Some(stream.index);
            let addr = Growth::new(path, stream, request).serve()?;
            path.note_peak(addr);
            Ok(addr)
        })
    }

    /// Sets a budget, in a forked process and after the device was lost as well. Releases nothing.
    ///
    /// # Errors
    /// [`InListener`].
    pub fn set_budget<D: Driver>(&self, shared: &Shared<D>, bytes: u64) -> Result<(), InListener> {
        MapListeners::expect_outside()?;
        if shared.is_forked() {
            // Whoever had the lock in the parent does not exist here. Nothing is created in this process.
            shared.set_budget(Budget::Set(bytes));
            return Ok(());
        }
        // Under the lock, so that of two callers one sets both.
        let mut mapper = self.lock();
        shared.set_budget(Budget::Set(bytes));
        mapper.set_budget(shared.creatable_bytes());
        self.holdings.lock().update(&mapper);
        Ok(())
    }
}

impl<'a, D: Driver> SlowPath<'a, D> {
    /// The driver, for memory calls.
    fn driver(&self) -> &'a Counted<D> {
        &self.shared.streams.driver
    }

    /// The map listeners.
    fn listeners(&self) -> &'a MapListeners {
        &self.shared.listeners
    }

    /// How far the streams are, as far as the caller may learn it.
    fn progress(&self) -> Progress<'a, D> {
        self.shared.streams.progress(self.given)
    }

    /// Notes the peak of live bytes after an allocation, on whose region's stream it counts, and how large the block is.
    fn note_peak(&self, addr: DeviceAddr) {
        let Place::Region(owner, offset) = self.shared.directory.find(addr) else { return };
        let streams = &self.shared.streams;
        let mut state = streams.get(owner.stream).lock();
        state.note_size(owner.region, offset);
        let of_index = |index| streams.get(index);
        if state.mark.is_passed(state.live_bytes) && streams.peak.note(owner.stream, &mut state, of_index) == Visit::Due
        {
            drop(state);
            streams.peak.visit(of_index, owner.stream);
        }
    }

    /// Returns the rules for mapped memory.
    fn rules(&self) -> Rules {
        self.shared.geometry.rules
    }

    /// Lets statistics see what is held now.
    fn publish(&self) {
        self.holdings.lock().update(&self.mapper);
    }

    /// Frees the blocks that waited for streams which have passed, and gives the memory of exposed ones back to the driver. Returns
    /// whether there was some.
    fn settle_pending(&mut self) -> Result<bool, DriverError> {
        self.progress().settle_pending()?;
        Ok(self.release_exposed())
    }

    /// Tries again what has failed before and keeps memory from everybody: to unmap dropped ranges, and to end a sleep. Returns
    /// whether some is free that was not.
    ///
    /// # Errors
    /// The driver's, when the device is lost.
    fn settle_failures(&mut self) -> Result<bool, AllocError> {
        Ok(self.settle_left_behind()? || self.settle_uses()?)
    }

    /// Bytes of a page.
    fn page_bytes(&self) -> u64 {
        self.shared.geometry.page_bytes
    }

    /// Asks the device what is free now. Where the device is the budget, that is changed accordingly. Returns the pages that may
    /// be created now; `None` where the device does not answer.
    fn look_at_device(&mut self) -> Option<PageCount> {
        let free = self.driver().memory_info().ok()?.free;
        if self.shared.follows_device() {
            let last_seen = self.mapper.chunks().held_bytes().saturating_add(free);
            self.shared.set_budget(Budget::Device { last_seen });
            self.mapper.set_budget(self.shared.creatable_bytes());
        }
        let chunks = self.mapper.chunks();
        Some(chunks.headroom_pages().min(PageCount::within(free, chunks.page_bytes())))
    }

    /// Whether the budget allows no more chunks.
    fn is_tight(&self) -> bool {
        self.mapper.chunks().headroom_pages() == PageCount::ZERO
    }

    /// Waits for the whole device where chunks are barred, or memory was freed, on a stream that may have been destroyed.
    /// They can be moved then. Returns false where that would not help.
    fn wait_for_device(&mut self) -> Result<bool, DriverError> {
        let progress = self.progress();
        let waited =
            if self.mapper.chunks().has_bars() { progress.synchronize()? } else { progress.wait_for_device()? };
        if waited {
            self.mapper.lift_bars();
        }
        Ok(waited)
    }

    /// Releases the chunks that the caller created and did not use.
    fn release_created(&mut self) {
        for chunk in std::mem::take(&mut self.created) {
            if self.mapper.chunks().has_idle(chunk) {
                self.release_idle(chunk);
            }
        }
    }

    /// Releases an idle chunk. It stays idle if the driver refuses.
    fn release_idle(&mut self, chunk: ChunkId) {
        let handle = self.mapper.chunks().get(chunk).handle;
        if self.driver().release(handle).is_ok() {
            self.mapper.remove_chunk(chunk);
        }
    }
}
