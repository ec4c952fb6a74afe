//! The runner's operations on memory that stays as it is: pins, registered blocks, and what a listener was told.

use crate::device::Device;
use crate::op::Op;
use crate::runner::Runner;
use crate::witness::Witness;
use gapless::allocator::{AllocError, MapListener, MappedRange, Pin, Refusal, RegisteredBlock};
use gapless::driver::{ChunkHandle, FaultDriver};
use gapless::units::{DeviceAddr, StreamId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of pins of one allocator, and of registered blocks.
const MOST_KEPT: usize = 4;

/// Chunks and the parts of them that are mapped at a run of addresses.
type Backing = Vec<(ChunkHandle, Range<u64>)>;

/// What the owners of pins and registered blocks of one allocator hold.
#[derive(Debug)]
pub struct Kept<D: Device> {
    pins: Vec<Pin<FaultDriver<Witness<D>>>>,
    registered: Vec<RegisteredBlock<FaultDriver<Witness<D>>>>,
}

impl<D: Device> Default for Kept<D> {
    fn default() -> Self {
        Self { pins: Vec::new(), registered: Vec::new() }
    }
}

impl<D: Device> Kept<D> {
    /// The number of pins and registered blocks: each keeps its allocator.
    pub fn len(&self) -> usize {
        self.pins.len() + self.registered.len()
    }
}

/// What the oracle knows about memory that stays as it is.
#[derive(Clone, Debug)]
pub struct KeptBytes {
    pub addr: DeviceAddr,
    pub bytes: u64,
    /// As that of the block, 0 for a registered one.
    pub since: u64,
    /// Whether nothing else knows of it: a registered block, or one that was freed.
    pub alone: bool,
    backing: Backing,
}

impl KeptBytes {
    fn new<D: Device>(driver: &Witness<D>, addr: DeviceAddr, bytes: u64, since: u64, alone: bool) -> Self {
        let backing = driver.backing(addr, bytes).expect("invariant 2: what is kept is mapped");
        Self { addr, bytes, since, alone, backing }
    }

    /// Checks that it has the memory that it had.
    ///
    /// # Panics
    /// Panics if it has not.
    pub fn check<D: Device>(&self, driver: &Witness<D>) {
        let now = driver.backing(self.addr, self.bytes);
        assert_eq!(now.as_ref(), Some(&self.backing), "invariants 7 and 8: {} has other memory", self.addr);
    }
}

impl<D: Device> Runner<D> {
    pub(crate) fn act_on_kept(&mut self, op: Op) {
        match op {
            Op::Pin { block } => self.pin(block),
            Op::Unpin { pin } => {
                if let Some(index) = usize::from(pin).checked_rem(self.instance().kept.pins.len()) {
                    let instance = self.instance_mut();
                    drop(instance.kept.pins.remove(index));
                    instance.oracle.pinned.remove(index);
                }
            }
            Op::AllocRegistered { pages, stream } => {
                let pages = u64::from(pages) % self.world.pages + 1;
                self.alloc_registered(pages, self.stream(stream));
            }
            Op::FreeRegistered { block } => {
                if let Some(index) = usize::from(block).checked_rem(self.instance().kept.registered.len()) {
                    self.free_registered(index);
                }
            }
            _ => unreachable!("an operation on what is kept"),
        }
    }

    fn pin(&mut self, number: u16) {
        let Some(block) = self.instance().oracle.block(number).cloned() else { return };
        if self.instance().kept.pins.len() >= MOST_KEPT {
            return;
        }
        let pin = self.allocator().pin(block.addr).expect("a live block can be pinned");
        let driver = self.driver.inner();
        let known = KeptBytes::new(driver, block.addr, block.bytes.max(1), block.since, false);
        self.summary.kept += 1;
        let instance = self.instance_mut();
        instance.kept.pins.push(pin);
        instance.oracle.pinned.push(known);
    }

    fn alloc_registered(&mut self, pages: u64, stream: StreamId) {
        if self.instance().kept.registered.len() >= MOST_KEPT {
            return;
        }
        let bytes = pages * self.world.page_bytes;
        let held = self.allocator().reserved_bytes();
        let error = match self.allocator().alloc_registered(bytes, stream) {
            Ok(block) => {
                let known = KeptBytes::new(self.driver.inner(), block.addr(), block.bytes(), 0, true);
                assert_eq!((block.bytes(), known.backing.len()), (bytes, 1), "invariant 7: one chunk");
                self.summary.kept += 1;
                let instance = self.instance_mut();
                instance.kept.registered.push(block);
                instance.oracle.registered.push(known);
                return;
            }
            Err(error) => error,
        };
        // What waits for a capture is not there.
        let waits = self.may_be_capturing() && matches!(error, AllocError::CannotWait { .. });
        if !waits && self.excuse(&error, bytes, held, true) {
            self.alloc_registered(pages, stream);
        }
    }

    fn free_registered(&mut self, index: usize) {
        let instance = self.instance_mut();
        drop(instance.kept.registered.remove(index));
        let block = instance.oracle.registered.remove(index);
        if self.struck() || self.instance().lost || self.may_be_capturing() {
            self.note_left_behind(block.bytes);
        }
    }

    /// Notes what could not be unmapped of something of `bytes` bytes that was dropped. It stays until it is needed, or until
    /// the allocator is closed.
    pub(crate) fn note_left_behind(&mut self, bytes: u64) {
        let stats = self.allocator().stats();
        let elsewhere = stats.live_block_bytes + stats.cached_bytes + stats.pending_bytes + stats.idle_bytes;
        let oracle = &self.instance().oracle;
        let left = stats.reserved_bytes - elsewhere - oracle.range_bytes(&self.world) - oracle.registered_bytes();
        let most = oracle.abandoned_bytes + bytes;
        assert!((oracle.abandoned_bytes..=most).contains(&left), "{left} bytes are unaccounted for");
        self.instance_mut().oracle.abandoned_bytes = left;
    }
}

/// A stand-in for a library that registers memory, such as NCCL: it remembers what is mapped where, and goes on using it until it
/// is told that the mapping ends.
#[derive(Debug)]
pub struct Registry<D: Device> {
    driver: Arc<FaultDriver<Witness<D>>>,
    mapped: Mutex<BTreeMap<DeviceAddr, (u64, Backing)>>,
    ended: AtomicU64,
}

impl<D: Device> Registry<D> {
    pub fn new(driver: &Arc<FaultDriver<Witness<D>>>) -> Self {
        Self { driver: Arc::clone(driver), mapped: Mutex::default(), ended: AtomicU64::new(0) }
    }

    /// The number of mappings that it was told of and that are there as far as it knows.
    pub fn mappings(&self) -> u64 {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    /// The number of mappings whose end it was told of before it came.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Looks at the memory at every address that is registered, as a transfer would use it.
    ///
    /// # Panics
    /// Panics if a registration is stale: nothing is mapped there any more, or other memory.
    pub fn check(&self) {
        for (addr, (bytes, backing)) in &*self.mapped.lock().unwrap_or_else(PoisonError::into_inner) {
            let now = self.driver.inner().mapped(*addr, *bytes);
            assert_eq!(now.as_ref(), Some(backing), "L1: the registration of {addr} is stale");
        }
    }

    fn backing(&self, range: MappedRange) -> Backing {
        self.driver.inner().mapped(range.addr, range.bytes).unwrap_or_else(|| panic!("L1: {range:?} is not mapped"))
    }
}

impl<D: Device> MapListener for Registry<D> {
    fn on_map(&self, range: MappedRange) -> Result<(), Refusal> {
        let backing = self.backing(range);
        let before =
            self.mapped.lock().unwrap_or_else(PoisonError::into_inner).insert(range.addr, (range.bytes, backing));
        assert!(before.is_none(), "L1: {range:?} was told twice");
        Ok(())
    }

    fn before_unmap(&self, range: MappedRange) -> Result<(), Refusal> {
        let told = self.mapped.lock().unwrap_or_else(PoisonError::into_inner).remove(&range.addr);
        // A mapping that could neither be used nor be undone is never told of before its end.
        if let Some(told) = told {
            assert_eq!(told, (range.bytes, self.backing(range)), "L1: {range:?} changed without a word");
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
