//! The copies of a sleep and of a wake, between the device and the host. No lock but that of sleeping is held meanwhile.
//!
//! Pinned memory is copied to and from directly. What is elsewhere passes through the slots of the [`Ring`], a load at a time:
//! while the device copies one load, the calling thread writes out the one before, or reads the next one.
//!
//! - C1  a slot gets other bytes once its last load has been copied, and written out.

use super::super::Inner;
use super::super::error::SleepError;
use super::super::slow_path::{Marked, Span, ToWake};
use super::super::stores::{Backup, BackupFile, BackupFileError, Medium, Pageable, Ring, Store, StoreId, Unpinned};
use crate::driver::{Driver, DriverError, HostMemory, MemoryDriver, StreamDriver};
use crate::stream::StreamIndex;
use crate::sync::Arc;
use crate::units::DeviceAddr;
use std::collections::{HashMap, VecDeque};

/// Bytes that pass through a slot together.
#[derive(Debug, Default)]
struct Load<'a> {
    /// What the device copies.
    copies: Vec<Copy>,
    /// What the calling thread moves between the slot and stores.
    moves: Vec<Move<'a>>,
    bytes: u64,
}

/// Bytes on the device, and their offset in a slot.
#[derive(Debug)]
struct Copy {
    addr: DeviceAddr,
    at: u64,
    bytes: u64,
}

/// Bytes in a store, and their offset in a slot.
#[derive(Debug)]
struct Move<'a> {
    store: &'a Unpinned,
    place: u64,
    at: u64,
    bytes: u64,
}

impl<D: Driver> Inner<D> {
    /// Waits for what `lane` is ordered behind, and copies what was `marked` to the host, if it is not discarded: to stores that
    /// are retained, or to a new one, which the batch that falls asleep has from the start.
    ///
    /// # Errors
    /// [`SleepError::HostMemory`], [`SleepError::BackupFile`], and the driver's. Copies may still be under way.
    pub(super) fn copy_out(&self, lane: StreamIndex, backup: Backup, marked: &Marked) -> Result<(), SleepError> {
        self.clear_slots(lane)?;
        let spans = if backup == Backup::Discard { &[] } else { &marked.spans[..] };
        let bytes = spans.iter().filter(|span| span.retained_in.is_none()).map(|span| span.bytes).sum();
        let store = self.new_store(backup, bytes)?;
        if let Some(store) = &store {
            self.door.set_backup(store.clone());
        }
        let stores: HashMap<StoreId, &Store> =
            marked.retained.iter().chain(&store).map(|store| (store.id, store)).collect();
        let own = store.as_ref().map(|store| store.id);
        let placed = spans.iter().filter_map(|span| Some((stores[&span.retained_in.or(own)?], *span)));
        self.copy_to(lane, placed)
    }

    /// Copies spans to their stores, and waits for that.
    fn copy_to<'a>(
        &self,
        lane: StreamIndex,
        placed: impl Iterator<Item = (&'a Store, Span)>,
    ) -> Result<(), SleepError> {
        let (driver, stream) = (&self.shared.streams.driver, self.shared.streams.get(lane).id());
        let mut elsewhere = Vec::new();
        for (store, span) in placed {
            match &store.medium {
                Medium::Pinned(memory) => driver.copy_out(stream, *memory, span.place, span.addr, span.bytes)?,
                Medium::Unpinned(unpinned) => elsewhere.push((&**unpinned, span)),
            }
        }
        if elsewhere.is_empty() {
            return Ok(self.wait_for(lane)?);
        }
        let slot_bytes = self.slot_bytes(&elsewhere);
        self.take_host_memory(Ring::SLOTS * slot_bytes)?;
        self.pass_through(lane, slot_bytes, |slots| self.pass_out(lane, &self.loads(&elsewhere, slot_bytes), slots))
    }

    /// Copies everything back, and waits for the copies.
    ///
    /// # Errors
    /// [`SleepError::BackupFile`], and the driver's.
    pub(super) fn copy_in(&self, lane: StreamIndex, to_wake: &ToWake) -> Result<(), SleepError> {
        self.clear_slots(lane)?;
        let (driver, stream) = (&self.shared.streams.driver, self.shared.streams.get(lane).id());
        let stores: HashMap<StoreId, &Store> = to_wake.stores.iter().map(|store| (store.id, store)).collect();
        let mut elsewhere = Vec::new();
        for (store, span) in &to_wake.copies {
            match &stores[store].medium {
                Medium::Pinned(memory) => driver.copy_in(stream, span.addr, *memory, span.place, span.bytes)?,
                Medium::Unpinned(unpinned) => elsewhere.push((&**unpinned, *span)),
            }
        }
        if elsewhere.is_empty() {
            return Ok(self.wait_for(lane)?);
        }
        let slot_bytes = self.slot_bytes(&elsewhere);
        // A wake is promised whatever others have taken since.
        self.shared.host_budget.take_in_any_case(Ring::SLOTS * slot_bytes);
        self.pass_through(lane, slot_bytes, |slots| self.pass_in(lane, &self.loads(&elsewhere, slot_bytes), slots))
    }

    /// A store for so many bytes, if there are any, whose memory is taken from the budget.
    fn new_store(&self, backup: Backup, bytes: u64) -> Result<Option<Store>, SleepError> {
        let driver = &self.shared.streams.driver;
        if bytes == 0 {
            return Ok(None);
        }
        let kept = if driver.host_memory_has_bytes() { bytes } else { 0 };
        let in_memory =
            |medium: Result<Medium, SleepError>| medium.inspect_err(|_| self.shared.host_budget.give_back(bytes));
        let medium = match backup {
            Backup::Discard => return Ok(None),
            Backup::Pinned => {
                self.take_host_memory(bytes)?;
                in_memory(driver.host_alloc(bytes).map(Medium::Pinned).map_err(SleepError::from))?
            }
            Backup::Pageable => {
                self.take_host_memory(bytes)?;
                let memory = Pageable::new(kept).map_err(|_| SleepError::HostMemory { bytes, left: 0 });
                in_memory(memory.map(|memory| Medium::Unpinned(Arc::new(Unpinned::Pageable(memory)))))?
            }
            Backup::File => {
                let directory = self.shared.backup_directory.as_deref().ok_or(BackupFileError::NoDirectory)?;
                Medium::Unpinned(Arc::new(Unpinned::File(BackupFile::new(directory, kept)?)))
            }
        };
        Ok(Some(Store::new(medium, bytes)))
    }

    fn take_host_memory(&self, bytes: u64) -> Result<(), SleepError> {
        self.shared.host_budget.take(bytes).map_err(|left| SleepError::HostMemory { bytes, left })
    }

    /// The bytes of a slot for what passes through.
    fn slot_bytes(&self, elsewhere: &[(&Unpinned, Span)]) -> u64 {
        let bytes: u64 = elsewhere.iter().map(|(_, span)| span.bytes).sum();
        bytes.div_ceil(Ring::SLOTS).min(self.shared.geometry.copy_slot_bytes)
    }

    /// Gives back what slots are left of copies that failed, once these are over.
    fn clear_slots(&self, lane: StreamIndex) -> Result<(), DriverError> {
        if self.shared.ring.is_left_over() {
            self.wait_for(lane)?;
            self.give_slots_back();
        }
        Ok(())
    }

    /// Gives slots back that no copy uses any more. What the driver refuses to take stays for the next time.
    fn give_slots_back(&self) {
        let _ = self.shared.ring.give_back(&self.shared.streams.driver, &self.shared.host_budget);
    }

    /// Has bytes pass through slots that are there meanwhile, and were taken from the budget. Where `pass` succeeds, nothing uses
    /// them any more.
    fn pass_through(
        &self,
        lane: StreamIndex,
        slot_bytes: u64,
        pass: impl FnOnce(&[HostMemory]) -> Result<(), SleepError>,
    ) -> Result<(), SleepError> {
        let slots = self.shared.ring.open(&self.shared.streams.driver, &self.shared.host_budget, slot_bytes)?;
        let passed = pass(&slots);
        if passed.is_ok() || self.wait_for(lane).is_ok() {
            self.give_slots_back();
        }
        passed
    }

    /// Copies loads to the slots in turns, and writes each out while the next one is copied.
    fn pass_out(&self, lane: StreamIndex, loads: &[Load<'_>], slots: &[HostMemory]) -> Result<(), SleepError> {
        let (driver, stream) = (&self.shared.streams.driver, self.shared.streams.get(lane).id());
        let progress = self.shared.streams.progress(Some(lane));
        let write_out = |(load, slot, mark): (&Load<'_>, HostMemory, u64)| -> Result<(), SleepError> {
            progress.wait_for_mark(mark)?;
            for Move { store, place, at, bytes } in &load.moves {
                let mut written = Ok(());
                driver.host_read(slot, *at, *bytes, &mut |shown| written = store.write(*place, shown))?;
                written?;
            }
            Ok(())
        };
        let mut before = None;
        for (load, slot) in loads.iter().zip(slots.iter().cycle()) {
            for Copy { addr, at, bytes } in &load.copies {
                driver.copy_out(stream, *slot, *at, *addr, *bytes)?;
            }
            if let Some(before) = before.replace((load, *slot, progress.mark_own()?)) {
                write_out(before)?;
            }
        }
        before.map_or(Ok(()), write_out)
    }

    /// Reads loads into the slots in turns, each while the one before is copied from the other slot.
    fn pass_in(&self, lane: StreamIndex, loads: &[Load<'_>], slots: &[HostMemory]) -> Result<(), SleepError> {
        let (driver, stream) = (&self.shared.streams.driver, self.shared.streams.get(lane).id());
        let progress = self.shared.streams.progress(Some(lane));
        let mut marks: VecDeque<u64> = VecDeque::new();
        for (load, slot) in loads.iter().zip(slots.iter().cycle()) {
            if marks.len() == slots.len()
                && let Some(mark) = marks.pop_front()
            {
                progress.wait_for_mark(mark)?;
            }
            for Move { store, place, at, bytes } in &load.moves {
                let mut read = Ok(());
                driver.host_write(*slot, *at, *bytes, &mut |shown| read = store.read(*place, shown))?;
                read?;
            }
            for Copy { addr, at, bytes } in &load.copies {
                driver.copy_in(stream, *addr, *slot, *at, *bytes)?;
            }
            marks.push_back(progress.mark_own()?);
        }
        Ok(self.wait_for(lane)?)
    }

    /// What passes through slots of so many bytes, in loads that fill one each.
    fn loads<'a>(&self, elsewhere: &[(&'a Unpinned, Span)], slot_bytes: u64) -> Vec<Load<'a>> {
        let has_bytes = self.shared.streams.driver.host_memory_has_bytes();
        let mut loads = vec![Load::default()];
        for (store, span) in elsewhere {
            let mut done = 0;
            while done < span.bytes {
                if loads.last().is_some_and(|load| load.bytes == slot_bytes) {
                    loads.push(Load::default());
                }
                let load = loads.last_mut().expect("there is one");
                let bytes = (span.bytes - done).min(slot_bytes - load.bytes);
                load.add(store, span.addr.offset(done), span.place + done, bytes, has_bytes);
                done += bytes;
            }
        }
        loads
    }

    /// Blocks the host until `lane` has done what is queued on it.
    fn wait_for(&self, lane: StreamIndex) -> Result<(), DriverError> {
        self.shared.streams.progress(Some(lane)).wait_for_own()
    }
}

impl<'a> Load<'a> {
    /// Adds bytes. What is moved from place to place is moved at once where it follows.
    fn add(&mut self, store: &'a Unpinned, addr: DeviceAddr, place: u64, bytes: u64, has_bytes: bool) {
        let at = self.bytes;
        self.bytes += bytes;
        self.copies.push(Copy { addr, at, bytes });
        match self.moves.last_mut() {
            Some(last) if std::ptr::eq(last.store, store) && last.place + last.bytes == place => last.bytes += bytes,
            _ if has_bytes => self.moves.push(Move { store, place, at, bytes }),
            _ => {}
        }
    }
}
