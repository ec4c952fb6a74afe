//! The importing side: chunks that are imported, and mappings of blocks.

use crate::connection::{Connection, Opened};
use crate::error::ShareError;
use crate::handle::{Handle, Source, Token};
use crate::messages::{ListedChunk, MOST_DESCRIPTORS};
use crate::patience::Patience;
use gapless::driver::{ChunkHandle, Driver, DriverResult};
use gapless::{DeviceAddr, ProcessIdentity, StreamId};
use parking_lot::{Condvar, Mutex};
use rustix::fd::AsFd;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long [`Importer::open`] waits for the other process.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long one that is told to wait waits before it asks again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(200));

/// Opens blocks of other processes on one device.
///
/// Threads: any. Only those who want the same block, or ask the same process, wait for the other process's answer to each other.
#[derive(Debug)]
pub struct Importer<D: Driver> {
    inner: Arc<Inner<D>>,
}

struct Inner<D: Driver> {
    driver: Arc<D>,
    process: ProcessIdentity,
    may_be_capturing: Box<dyn Fn() -> bool + Send + Sync>,
    /// Not locked while the other process is asked or notified.
    state: Mutex<State<D>>,
    /// A block is not being opened any more.
    was_opened: Condvar,
}

#[derive(Debug)]
struct State<D: Driver> {
    connections: HashMap<Source, Arc<Connection>>,
    chunks: HashMap<ChunkKey, Imported>,
    /// Blocks that are open.
    blocks: HashMap<BlockKey, Weak<Block<D>>>,
    /// Blocks that somebody opens now.
    opening: HashSet<BlockKey>,
    /// Mappings of closed blocks that are kept for the next time, the one closed first at the front.
    kept: VecDeque<Mapping>,
    /// Most bytes of these.
    most_kept: u64,
    /// Mappings that nobody uses any more and that could not be removed yet.
    leaving: Vec<Mapping>,
    /// Blocks that are closed here, of which the exporters have not been notified yet.
    closed: Vec<(Arc<Connection>, u64)>,
}

/// The exporter, and the block's token.
type BlockKey = (Source, Token);

/// The connection, and the chunk's number there. A number is good while a block in the chunk is open through it.
type ChunkKey = (u64, u64);

/// A chunk of another process.
#[derive(Debug)]
struct Imported {
    handle: ChunkHandle,
    /// Number of mappings.
    uses: usize,
    /// Number of those whose blocks are open.
    open: usize,
}

/// The mapping of a block, in whole chunks.
#[derive(Debug)]
struct Mapping {
    block: BlockKey,
    addr: DeviceAddr,
    /// Of all chunks.
    bytes: u64,
    chunks: Vec<ChunkKey>,
    /// Where the block is in its chunks.
    place: Range<u64>,
    /// Keeps the block pinned at the other side, until it is closed.
    connection: Arc<Connection>,
    open: u64,
}

/// A block of another process, mapped in this one. Clones are of the same mapping, which goes with the last one.
#[derive(Debug)]
pub struct SharedBlock<D: Driver> {
    block: Arc<Block<D>>,
}

#[derive(Debug)]
struct Block<D: Driver> {
    importer: Arc<Inner<D>>,
    addr: DeviceAddr,
    bytes: u64,
    mapping: Option<Mapping>,
}

impl<D: Driver> Clone for SharedBlock<D> {
    fn clone(&self) -> Self {
        Self { block: Arc::clone(&self.block) }
    }
}

impl<D: Driver> SharedBlock<D> {
    /// The address of the block's first byte in this process.
    pub fn addr(&self) -> DeviceAddr {
        self.block.addr
    }

    /// Bytes of the block, rounding included.
    pub fn bytes(&self) -> u64 {
        self.block.bytes
    }

    /// Bytes of addresses that are mapped for it: those of the chunks under it.
    pub fn mapped_bytes(&self) -> u64 {
        self.block.mapping.as_ref().map_or(0, |mapping| mapping.bytes)
    }
}

impl<D: Driver> Importer<D> {
    /// An importer for a device. Of captures into graphs it knows those that the default stream waits for.
    pub fn new(driver: Arc<D>) -> Self {
        let of_default = Arc::clone(&driver);
        Self::with_captures(driver, move || of_default.is_capturing(StreamId::DEFAULT))
    }

    /// An importer for a device that asks `may_be_capturing` before it waits for the device, which would break a capture into a
    /// graph. `may_be_capturing` has nothing to do with the importer's blocks.
    pub fn with_captures(driver: Arc<D>, may_be_capturing: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let state = State {
            connections: HashMap::new(),
            chunks: HashMap::new(),
            blocks: HashMap::new(),
            opening: HashSet::new(),
            kept: VecDeque::new(),
            most_kept: 0,
            leaving: Vec::new(),
            closed: Vec::new(),
        };
        let inner = Inner {
            driver,
            process: ProcessIdentity::current(),
            may_be_capturing: Box::new(may_be_capturing),
            state: Mutex::new(state),
            was_opened: Condvar::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Opens the block of a handle. What is open already costs no call to the driver and none to the other process.
    ///
    /// The exporting process's writes have to be ordered before uses here by the caller, with an event for instance. When the
    /// last clone is dropped, the host waits for the device, and the mapping goes. Where a stream may be being captured, which the
    /// wait would break, that happens later: when a block is opened or closed, or with [`settle`](Self::settle).
    ///
    /// Waits [`PATIENCE`] for an exporting process that does not answer, or serves as many others as it can.
    ///
    /// # Errors
    /// [`ShareError`]; nothing has changed. [`ShareError::ExporterGone`] for a process that has ended,
    /// [`ShareError::NoAnswer`] for one that lives and does not answer, [`ShareError::Busy`] for one that serves others.
    pub fn open(&self, handle: &Handle) -> Result<SharedBlock<D>, ShareError> {
        self.open_within(handle, PATIENCE)
    }

    /// As [`open`](Self::open), but waits at most so long for the other process. What that opens later is closed: at once, or,
    /// where other blocks of it are open, when another one is opened or closed, or with [`settle`](Self::settle).
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_within(&self, handle: &Handle, patience: Duration) -> Result<SharedBlock<D>, ShareError> {
        let inner = &self.inner;
        if !inner.process.is_current() {
            return Err(ShareError::Forked);
        }
        if let (Some(theirs), Some(ours)) = (handle.device, inner.driver.uuid())
            && theirs != ours
        {
            return Err(ShareError::OtherDevice { theirs, ours });
        }
        let patience = Patience::of(patience);
        let key = (handle.source.clone(), handle.token);
        if let Some(block) = inner.opened_or_first(&key, &patience)? {
            return Ok(SharedBlock { block });
        }
        let _first = First { inner, key: &key };
        // Others than the one who is asked may not answer.
        inner.notify_closed(Connection::close_unheard);
        let (connection, opened) = match inner.ask_for(handle, &patience) {
            Ok(opened) => opened,
            Err(error) => {
                inner.discard_in_vain(&key, &error);
                return Err(error);
            }
        };
        let mapping = match inner.mapping(&key, &connection, &opened, &patience) {
            Ok(mapping) => mapping,
            Err(error) => {
                connection.close_unheard(opened.open);
                inner.forget_in_vain(&connection);
                return Err(error);
            }
        };
        let (addr, bytes) = (mapping.addr.offset(mapping.place.start), mapping.place.end - mapping.place.start);
        let block = Arc::new(Block { importer: Arc::clone(inner), addr, bytes, mapping: Some(mapping) });
        inner.state.lock().blocks.insert(key.clone(), Arc::downgrade(&block));
        Ok(SharedBlock { block })
    }

    /// Keeps up to `bytes` of closed blocks mapped, those closed last, for exporters that send the same blocks again: to open
    /// one that lives still costs no call to the driver then. At first, none are kept.
    ///
    /// The exporter has no part in it: to it they are closed, and their memory is ordinary memory. What it releases to the
    /// driver while it is kept here comes back to the device when it is given up here: for closed blocks above that many bytes,
    /// when its block is opened in vain, and with `keep_closed(0)`.
    pub fn keep_closed(&self, bytes: u64) {
        if !self.inner.process.is_current() {
            return;
        }
        let mut state = self.inner.state.lock();
        state.most_kept = bytes;
        self.inner.remove_leaving(&mut state);
        self.inner.limit_kept(&mut state);
        drop(state);
        self.inner.notify_closed(Connection::close);
    }

    /// Closes the blocks that nobody uses any more and that could not be closed during a capture, if there is none now, and those
    /// that an exporter has opened when nobody waited for its answer any more.
    pub fn settle(&self) {
        if self.inner.process.is_current() {
            self.inner.remove_leaving(&mut self.inner.state.lock());
            self.inner.notify_closed(Connection::close);
            let connections: Vec<_> = self.inner.state.lock().connections.values().cloned().collect();
            for connection in connections {
                connection.hear_late_answers();
                self.inner.forget_in_vain(&connection);
            }
        }
    }

    /// Number of chunks of other processes that are imported now.
    pub fn imported_chunks(&self) -> usize {
        self.inner.state.lock().chunks.len()
    }
}

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

/// Whoever opens a block, until it is open or not to be had. Others that want it wait.
struct First<'a, D: Driver> {
    inner: &'a Inner<D>,
    key: &'a BlockKey,
}

impl<D: Driver> Drop for First<'_, D> {
    fn drop(&mut self) {
        self.inner.state.lock().opening.remove(self.key);
        self.inner.was_opened.notify_all();
    }
}

impl<D: Driver> Inner<D> {
    /// The block, if it is open; else the caller is the first who opens it now.
    fn opened_or_first(&self, key: &BlockKey, patience: &Patience) -> Result<Option<Arc<Block<D>>>, ShareError> {
        let mut state = self.state.lock();
        loop {
            if let Some(block) = state.blocks.get(key).and_then(Weak::upgrade) {
                return Ok(Some(block));
            }
            if state.opening.insert(key.clone()) {
                break;
            }
            match patience.until() {
                Some(until) if self.was_opened.wait_until(&mut state, until).timed_out() => return Err(patience.over()),
                Some(_) => {}
                None => self.was_opened.wait(&mut state),
            }
        }
        self.remove_leaving(&mut state);
        state.blocks.retain(|_, block| block.strong_count() > 0);
        Ok(None)
    }

    /// Opens a block at its exporter. One that has ended cannot be connected to; one that ends a connection through which nothing
    /// is open, or is busy, is asked again.
    fn ask_for(&self, handle: &Handle, patience: &Patience) -> Result<(Arc<Connection>, Opened), ShareError> {
        let (mut pause, longest) = PAUSE;
        loop {
            let connection = self.connection(handle, patience)?;
            let error = match connection.open(handle.token, patience) {
                Ok(opened) => return Ok((connection, opened)),
                Err(error) => error,
            };
            if !matches!(&error, ShareError::ExporterGone(_) | ShareError::Message(_) | ShareError::Busy) {
                self.forget_in_vain(&connection);
                return Err(error);
            }
            self.forget(&connection);
            if matches!(error, ShareError::Message(_)) {
                return Err(error);
            }
            if matches!(error, ShareError::Busy) {
                patience.told_to_wait();
            }
            std::thread::sleep(patience.left_within(pause).unwrap_or_default());
            if patience.left().is_none() {
                return Err(patience.over());
            }
            pause = (2 * pause).min(longest);
        }
    }

    /// The connection to a handle's exporter, made now if there is none.
    fn connection(&self, handle: &Handle, patience: &Patience) -> Result<Arc<Connection>, ShareError> {
        if let Some(connection) = self.state.lock().connections.get(&handle.source) {
            return Ok(Arc::clone(connection));
        }
        let made = Arc::new(Connection::new(&handle.source, patience)?);
        Ok(Arc::clone(self.state.lock().connections.entry(handle.source.clone()).or_insert(made)))
    }

    /// The next question goes through another connection. What is open through this one keeps it.
    fn forget(&self, connection: &Arc<Connection>) {
        let mut state = self.state.lock();
        if state.connections.get(&connection.source).is_some_and(|known| Arc::ptr_eq(known, connection)) {
            state.connections.remove(&connection.source);
        }
    }

    /// As [`forget`](Self::forget), where the connection is only good for an answer that nobody waits for any more.
    fn forget_in_vain(&self, connection: &Arc<Connection>) {
        if connection.end_in_vain() {
            self.forget(connection);
        }
    }

    /// Notifies the exporters of what is closed. Called with nothing locked.
    fn notify_closed(&self, close: impl Fn(&Connection, u64)) {
        let closed = std::mem::take(&mut self.state.lock().closed);
        for (connection, open) in closed {
            close(&connection, open);
            self.forget_in_vain(&connection);
        }
    }

    /// Gives up what is kept of a block that is gone, or of an exporter that is. What the driver does not unmap now stays kept.
    fn discard_in_vain(&self, key: &BlockKey, error: &ShareError) {
        let mut state = self.state.lock();
        let _ = match error {
            ShareError::Gone => self.discard_where(&mut state, |mapping| mapping.block == *key),
            ShareError::ExporterGone(_) => self.discard_where(&mut state, |mapping| mapping.block.0 == key.0),
            _ => Ok(()),
        };
    }

    /// The mapping of a block that was just opened: the one that was kept, or a new one.
    fn mapping(
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
    fn remove_leaving(&self, state: &mut State<D>) {
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
    fn limit_kept(&self, state: &mut State<D>) {
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
    fn discard_where(&self, state: &mut State<D>, chosen: impl Fn(&Mapping) -> bool) -> DriverResult<()> {
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

impl<D: Driver> fmt::Debug for Inner<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Importer").field("process", &self.process).finish_non_exhaustive()
    }
}

impl<D: Driver> Drop for Block<D> {
    fn drop(&mut self) {
        let Some(mapping) = self.mapping.take() else { return };
        if !self.importer.process.is_current() {
            // In a forked process all of it is the parent's.
            std::mem::forget(mapping);
            return;
        }
        let mut state = self.importer.state.lock();
        state.leaving.push(mapping);
        self.importer.remove_leaving(&mut state);
        drop(state);
        self.importer.notify_closed(Connection::close);
    }
}
