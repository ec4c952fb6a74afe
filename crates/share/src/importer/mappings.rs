//! Chunks of other processes that are imported, and the mappings of blocks in them: of open ones, and of closed ones that are kept.

use super::{BlockKey, ChunkKey, Imported, Inner, Mapping, State};
use crate::connection::{Connection, Opened};
use crate::error::ShareError;
use crate::messages::{ListedChunk, MOST_DESCRIPTORS};
use crate::patience::Patience;
use gapless::DeviceAddr;
use gapless::driver::{Driver, DriverResult};
use rustix::fd::AsFd;
use std::collections::hash_map::Entry;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

impl<D: Driver> State<D> {
    /// A chunk that is mapped.
    fn imported(&mut self, key: &ChunkKey) -> &mut Imported {
        self.chunks.get_mut(key).expect("a chunk that is mapped is imported")
    }

    /// Counts a use of an imported chunk, in a block that is open.
    fn use_chunk(&mut self, key: ChunkKey, used: &mut Vec<ChunkKey>) {
        let chunk = self.imported(&key);
        chunk.uses += 1;
        chunk.open += 1;
        used.push(key);
    }
}

impl<D: Driver> Inner<D> {
    /// The mapping of a block that was just opened: the one that was kept, or a new one.
    pub(super) fn mapping(
        &self,
        block: &BlockKey,
        connection: &Arc<Connection>,
        opened: &Opened,
        patience: &Patience,
    ) -> Result<Mapping, ShareError> {
        let (open, place, connection) = (opened.open, opened.place.clone(), Arc::clone(connection));
        let mut state = self.state.lock();
        if let Some(at) = state.kept.iter().position(|mapping| mapping.block == *block) {
            let kept = state.kept.remove(at).expect("just found");
            // A block that lives does not move, and another one has another token.
            if kept.place == place && kept.chunks.len() as u64 == opened.chunks {
                kept.chunks.iter().for_each(|key| state.imported(key).open += 1);
                return Ok(Mapping { connection, open, ..kept });
            }
            self.discard(&mut state, kept)?;
        }
        drop(state);
        let listed = connection.chunks(opened, patience)?;
        let (addr, bytes, chunks) = self.map(&connection, open, &listed, patience)?;
        Ok(Mapping { block: block.clone(), addr, bytes, chunks, place, connection, open })
    }

    /// Maps chunks in one piece. What is missing is imported; on failure, nothing is left of it.
    fn map(
        &self,
        connection: &Connection,
        open: u64,
        listed: &[ListedChunk],
        patience: &Patience,
    ) -> Result<(DeviceAddr, u64, Vec<ChunkKey>), ShareError> {
        let keys: Vec<ChunkKey> = listed.iter().map(|chunk| (connection.id, chunk.number)).collect();
        let mut used = Vec::with_capacity(keys.len());
        let done = self.import(connection, open, listed, &keys, &mut used, patience).and_then(|()| {
            let state = self.state.lock();
            let bytes = listed.iter().map(|chunk| chunk.bytes).sum();
            let addr = self.driver.reserve(bytes, self.driver.granularity())?;
            self.map_at(&state, addr, bytes, listed, &keys)?;
            Ok((addr, bytes))
        });
        match done {
            Ok((addr, bytes)) => Ok((addr, bytes, keys)),
            Err(error) => {
                let mut state = self.state.lock();
                used.iter().for_each(|key| state.imported(key).open -= 1);
                self.release(&mut state, &used);
                Err(error)
            }
        }
    }

    /// Uses each chunk once; those that are missing are imported. `used` are those that are used by now.
    fn import(
        &self,
        connection: &Connection,
        open: u64,
        listed: &[ListedChunk],
        keys: &[ChunkKey],
        used: &mut Vec<ChunkKey>,
        patience: &Patience,
    ) -> Result<(), ShareError> {
        let mut missing: Vec<usize> = Vec::new();
        let mut state = self.state.lock();
        self.discard_unsure(&mut state, keys)?;
        for (index, key) in keys.iter().enumerate() {
            if state.chunks.contains_key(key) { state.use_chunk(*key, used) } else { missing.push(index) }
        }
        drop(state);
        let mut at_a_time = MOST_DESCRIPTORS;
        while !missing.is_empty() {
            let batch = &missing[..at_a_time.min(missing.len())];
            let which: Vec<u64> = batch.iter().map(|index| *index as u64).collect();
            let descriptors = match connection.descriptors(open, &which, patience) {
                Err(ShareError::FewDescriptors) if at_a_time > 1 => {
                    at_a_time /= 2;
                    continue;
                }
                descriptors => descriptors?,
            };
            let mut state = self.state.lock();
            for (index, descriptor) in batch.iter().zip(descriptors) {
                // Since this block was opened, the number has meant the same chunk, whoever has imported it.
                if let Entry::Vacant(place) = state.chunks.entry(keys[*index]) {
                    let handle = match self.driver.import(descriptor.as_fd(), listed[*index].bytes) {
                        Ok(handle) => handle,
                        // Drivers do not say so.
                        Err(_) if descriptor.try_clone().is_err() => return Err(ShareError::FewDescriptors),
                        Err(error) => return Err(error.into()),
                    };
                    place.insert(Imported { handle, uses: 0, open: 0 });
                }
                state.use_chunk(keys[*index], used);
            }
            drop(state);
            missing.drain(..which.len());
        }
        Ok(())
    }

    /// Maps the chunks one behind the other, with access, at reserved addresses. On failure, nothing is mapped, and the addresses
    /// are given back. Where the driver does not unmap, they stay.
    fn map_at(
        &self,
        state: &State<D>,
        addr: DeviceAddr,
        bytes: u64,
        listed: &[ListedChunk],
        keys: &[ChunkKey],
    ) -> DriverResult<()> {
        let mut end = addr;
        let mut mapped = Ok(());
        for (chunk, key) in listed.iter().zip(keys) {
            mapped = self.driver.map(end, chunk.bytes, state.chunks[key].handle);
            if mapped.is_err() {
                break;
            }
            end = end.offset(chunk.bytes);
        }
        mapped = mapped.and_then(|()| self.driver.set_access(addr, bytes));
        if mapped.is_err() {
            if end > addr {
                self.driver.unmap(addr, end.0 - addr.0)?;
            }
            // Addresses that stay reserved cost nothing.
            let _ = self.driver.address_free(addr, bytes);
        }
        mapped
    }

    /// Takes a use off each chunk; what is not used any more is released.
    fn release(&self, state: &mut State<D>, keys: &[ChunkKey]) {
        for key in keys {
            let chunk = state.imported(key);
            chunk.uses -= 1;
            if chunk.uses == 0 {
                let chunk = state.chunks.remove(key).expect("just found");
                // A driver that keeps it has been lost.
                let _ = self.driver.release(chunk.handle);
            }
        }
    }

    /// Closes the blocks that nobody uses any more, once the device is done with them, and removes their mappings or keeps them.
    /// The exporters are notified later. A mapping that cannot be removed yet, during a capture for instance, stays.
    pub(super) fn remove_leaving(&self, state: &mut State<D>) {
        if state.leaving.is_empty() || (self.may_be_capturing)() || self.driver.synchronize_device().is_err() {
            return;
        }
        for mapping in std::mem::take(&mut state.leaving) {
            if mapping.bytes > state.most_kept && self.unmap(&mapping).is_err() {
                state.leaving.push(mapping);
                continue;
            }
            mapping.chunks.iter().for_each(|key| state.imported(key).open -= 1);
            state.closed.push((Arc::clone(&mapping.connection), mapping.open));
            if mapping.bytes > state.most_kept {
                self.release(state, &mapping.chunks);
            } else {
                state.kept.push_back(mapping);
            }
        }
        self.limit_kept(state);
    }

    /// Gives up what is kept beyond the limit, the oldest first.
    pub(super) fn limit_kept(&self, state: &mut State<D>) {
        let mut bytes: u64 = state.kept.iter().map(|mapping| mapping.bytes).sum();
        while bytes > state.most_kept
            && let Some(mapping) = state.kept.pop_front()
        {
            bytes -= mapping.bytes;
            if self.discard(state, mapping).is_err() {
                break;
            }
        }
    }

    /// Gives up what is kept of chunks in which nothing is open: the exporter may have released them since, and have others of
    /// the same numbers.
    fn discard_unsure(&self, state: &mut State<D>, keys: &[ChunkKey]) -> DriverResult<()> {
        let unsure: HashSet<ChunkKey> =
            keys.iter().filter(|key| state.chunks.get(*key).is_some_and(|chunk| chunk.open == 0)).copied().collect();
        if unsure.is_empty() {
            return Ok(());
        }
        self.discard_where(state, |mapping| mapping.chunks.iter().any(|key| unsure.contains(key)))
    }

    /// Gives up what is kept and chosen.
    pub(super) fn discard_where(&self, state: &mut State<D>, chosen: impl Fn(&Mapping) -> bool) -> DriverResult<()> {
        let (given_up, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut state.kept).into_iter().partition(chosen);
        state.kept = kept;
        given_up.into_iter().try_fold((), |(), mapping| self.discard(state, mapping))
    }

    /// Removes a mapping that was kept. The device is done with it since its block was closed.
    /// A mapping that the driver does not unmap stays kept.
    fn discard(&self, state: &mut State<D>, mapping: Mapping) -> DriverResult<()> {
        let unmapped = self.unmap(&mapping);
        if unmapped.is_ok() {
            self.release(state, &mapping.chunks);
        } else {
            state.kept.push_front(mapping);
        }
        unmapped
    }

    /// Removes a mapping and its addresses.
    fn unmap(&self, mapping: &Mapping) -> DriverResult<()> {
        self.driver.unmap(mapping.addr, mapping.bytes)?;
        let _ = self.driver.address_free(mapping.addr, mapping.bytes);
        Ok(())
    }
}
