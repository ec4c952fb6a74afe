//! Memory that stays as it is: pins, registered blocks, and the mappings that a listener was notified of.

use crate::device::Device;
use crate::witness::Witness;
use gapless::allocator::{MapListener, MappedRange, Pin, Refusal, RegisteredBlock};
use gapless::driver::{ChunkHandle, FaultDriver};
use gapless::units::DeviceAddr;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Chunks and the parts of them that are mapped at a run of addresses.
pub type Backing = Vec<(ChunkHandle, Range<u64>)>;

/// The pins and registered blocks of one allocator, as their owners hold them.
#[derive(Debug)]
pub struct Kept<D: Device> {
    pub pins: Vec<Pin<FaultDriver<Witness<D>>>>,
    pub registered: Vec<RegisteredBlock<FaultDriver<Witness<D>>>>,
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

/// Memory that stays as it is, as the oracle knows it.
#[derive(Clone, Debug)]
pub struct KeptBytes {
    pub addr: DeviceAddr,
    pub bytes: u64,
    /// As that of the block, 0 for a registered one.
    pub since: u64,
    /// Whether nothing else knows of it: a registered block, or one that was freed.
    pub alone: bool,
    pub backing: Backing,
}

impl KeptBytes {
    pub fn new<D: Device>(driver: &Witness<D>, addr: DeviceAddr, bytes: u64, since: u64, alone: bool) -> Self {
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

/// A stand-in for a library that registers memory, such as NCCL: it remembers what is mapped where, and goes on using it until it
/// is notified that the mapping ends.
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

    /// The number of mappings that it was notified of and that are there as far as it knows.
    pub fn mappings(&self) -> u64 {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    /// The number of mappings whose end it was notified of before it came.
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
        assert!(before.is_none(), "L1: {range:?} was reported twice");
        Ok(())
    }

    fn before_unmap(&self, range: MappedRange) -> Result<(), Refusal> {
        let registered = self.mapped.lock().unwrap_or_else(PoisonError::into_inner).remove(&range.addr);
        // Of a mapping that could neither be used nor be undone, it was never notified.
        if let Some(registered) = registered {
            assert_eq!(registered, (range.bytes, self.backing(range)), "L1: {range:?} changed without a word");
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
