//! The bytes of what sleeps, in stores; and backups that are retained once their blocks have woken.
//!
//! A batch has a store of its own for its backup. If it is retained, the store stays when the batch wakes, and each part of a
//! block that has bytes in it is on record, until the block is freed, or sleeps again: with a backup of the same kind, that is
//! copied to the same place, so that the host's addresses of the bytes are the same again. Unless most of the store was of
//! blocks that are no more: then what sleeps gets another one, and so what is retained is at most twice as large as the blocks
//! that it is of, apart from blocks that stayed awake since. Files are not retained.
//!
//! - B1  of the blocks on record, those that have not been freed, and no others, have a mark. So a free does not look here: what it
//!   leaves on record is dropped later, and counts for nothing until then.
//! - B2  no two parts have bytes at one place, and each has its bytes in a store that is there.
//! - B3  a store that was retained has bytes of a part that is on record, or asleep.

use super::super::super::error::BackupError;
use super::super::super::stores::{Backup, Store, StoreId};
use super::super::super::streams::directory::Owner;
use super::super::{Door, SlowPath};
use super::{Batch, Sleeper, Span};
use crate::driver::Driver;
use crate::units::DeviceAddr;
use std::collections::{HashMap, HashSet};

/// Backups of blocks that are awake.
#[derive(Debug, Default)]
pub struct Retained {
    /// What has bytes in them.
    pub parts: Vec<Sleeper>,
    /// The stores that they are in, also with bytes of what sleeps again.
    pub stores: Vec<Store>,
}

impl Retained {
    /// The parts to whose places other bytes of the same blocks may be copied: those in stores of a kind that are half full.
    fn reusable(&self, kind: Backup) -> HashMap<(Owner, u64, u64), Sleeper> {
        let mut used: HashMap<StoreId, u64> = HashMap::new();
        for part in &self.parts {
            *used.entry(part.store()).or_default() += part.bytes;
        }
        let half_full = self.stores.iter().filter(|store| 2 * used.get(&store.id).unwrap_or(&0) >= store.bytes);
        let half_full: HashSet<StoreId> =
            half_full.filter(|store| store.kind() == kind).map(|store| store.id).collect();
        let reusable = self.parts.iter().filter(|part| half_full.contains(&part.store()));
        reusable.map(|part| ((part.owner, part.block, part.offset), *part)).collect()
    }
}

impl Sleeper {
    /// The store that a part on record has its bytes in.
    fn store(&self) -> StoreId {
        self.retained_in.expect("what is on record has its bytes in a store")
    }
}

impl Door {
    /// Gives the batch that falls asleep the store for its backup, whatever has happened to the device.
    pub fn set_backup(&self, store: Store) {
        let mut mapper = self.lock();
        mapper.asleep_mut().batches_mut().last_mut().expect("a batch falls asleep").backup = Some(store);
    }
}

impl<D: Driver> SlowPath<'_, D> {
    /// Where the bytes of a part of a live block are, while it is asleep with a backup, or the backup is retained. `None` where no
    /// byte of it is in a backup.
    ///
    /// # Errors
    /// [`BackupError::InParts`].
    pub fn place_in_backup(&self, addr: DeviceAddr, bytes: u64) -> Result<Option<(Store, u64)>, BackupError> {
        let range = addr.0..addr.0.saturating_add(bytes.max(1));
        let touches =
            |start: DeviceAddr, bytes: u64| start.0 < range.end && range.start < start.0.saturating_add(bytes);
        let mut found: Vec<(StoreId, (Owner, Span))> = Vec::new();
        for batch in self.mapper.asleep().batches().iter().filter(|batch| batch.phase.is_asleep()) {
            let is_asleep = |part: &Sleeper| self.with_state(part, |state| state.is_asleep(part.at()));
            if batch.blocks.iter().any(|part| touches(part.addr, part.bytes) && is_asleep(part)) {
                let spans = self.spans_with_owners(batch).filter(|(_, span)| touches(span.addr, span.bytes));
                found.extend(spans.filter_map(|span| Some((batch.store_of(&span.1)?, span))));
            }
        }
        let retained = self.mapper.asleep().retained.parts.iter().filter(|part| touches(part.addr, part.bytes));
        let retained = retained.filter(|part| self.with_state(part, |state| state.has_backup(part.at())));
        found.extend(retained.map(|part| (part.store(), part.span())));
        let Some((store, _)) = found.first().copied() else { return Ok(None) };
        let mut of_one: Vec<(Owner, Span)> =
            found.into_iter().filter(|(other, _)| *other == store).map(|(_, span)| span).collect();
        of_one.sort_unstable_by_key(|(_, span)| span.addr);
        let span = Span::joined(of_one.into_iter())[0];
        if range.start < span.addr.0 || span.addr.0 + span.bytes < range.end {
            return Err(BackupError::InParts { addr, bytes });
        }
        let store = self.mapper.asleep().stores().find(|other| other.id == store).expect("the store is there");
        Ok(Some((store.clone(), span.place + (addr.0 - span.addr.0))))
    }

    /// Has what falls asleep replace its retained backup, if it has one: its bytes go to the same place, if it gets a backup of the
    /// same kind.
    pub fn replace_retained(&mut self, batch: &mut Batch, backup: Backup) {
        self.drop_unused_backups();
        let retained = &mut self.mapper.asleep_mut().retained;
        let reusable = retained.reusable(backup);
        let falling: HashSet<(Owner, u64)> = batch.blocks.iter().map(|part| (part.owner, part.block)).collect();
        retained.parts.retain(|part| !falling.contains(&(part.owner, part.block)));
        let mut end = 0;
        for part in &mut batch.blocks {
            match reusable.get(&(part.owner, part.block, part.offset)).filter(|before| before.bytes == part.bytes) {
                Some(before) => (part.retained_in, part.place) = (before.retained_in, before.place),
                None => {
                    part.place = end;
                    end += part.bytes;
                }
            }
        }
        for part in &batch.blocks {
            self.with_state(part, |state| state.forget_backup(part.at()));
        }
    }

    /// Puts the parts of a batch that wakes on record, with their backup. A chunk that sleeps whole has none for each of its
    /// blocks.
    pub fn retain_backup(&mut self, batch: &Batch) {
        let own = batch.backup.as_ref().filter(|store| store.kind() != Backup::File).map(|store| store.id);
        for part in &batch.blocks {
            let part = Sleeper { retained_in: part.retained_in.or(own), ..*part };
            let is_kept = part.retained_in.is_some() && batch.chunks.is_empty();
            if is_kept && self.with_state(&part, |state| state.retain_backup(part.at())) {
                self.mapper.asleep_mut().retained.parts.push(part);
            }
        }
    }

    /// Takes over the store of a batch that ends. What of it is not retained goes with
    /// [`drop_unused_backups`](Self::drop_unused_backups).
    pub fn take_over_backup(&mut self, batch: &mut Batch) {
        self.mapper.asleep_mut().retained.stores.extend(batch.backup.take());
    }

    /// Gives the stores of retained backups back that have no bytes of live blocks any more. What the driver refuses to take is
    /// kept for the end.
    pub fn drop_unused_backups(&mut self) {
        let mut retained = std::mem::take(&mut self.mapper.asleep_mut().retained);
        retained.parts.retain(|part| self.with_state(part, |state| state.has_backup(part.at())));
        let asleep = self.mapper.asleep().batches().iter().flat_map(|batch| &batch.blocks);
        let used: HashSet<StoreId> = asleep.chain(&retained.parts).filter_map(|part| part.retained_in).collect();
        let (used, unused): (Vec<_>, Vec<_>) = retained.stores.into_iter().partition(|store| used.contains(&store.id));
        retained.stores = used;
        self.mapper.asleep_mut().retained = retained;
        for store in unused {
            match self.free_store(&store) {
                Ok(()) => self.shared.host_budget.give_back(store.memory_bytes()),
                Err(_) => self.mapper.asleep_mut().leave_over(store),
            }
        }
    }
}
