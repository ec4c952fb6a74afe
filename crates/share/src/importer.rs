//! The importing side: chunks that are imported, and mappings of blocks.

use crate::connection::{Connection, Opened};
use crate::error::ShareError;
use crate::handle::{Handle, Token};
use crate::messages::{ListedChunk, MOST_DESCRIPTORS};
use gapless::driver::{ChunkHandle, Driver, DriverResult};
use gapless::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use rustix::fd::AsFd;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Opens blocks of other processes on one device.
///
/// Threads: any; one opens or closes at a time.
#[derive(Debug)]
pub struct Importer<D: Driver> {
    inner: Arc<Inner<D>>,
}

struct Inner<D: Driver> {
    driver: Arc<D>,
    process: u32,
    may_be_capturing: Box<dyn Fn() -> bool + Send + Sync>,
    state: Mutex<State<D>>,
}

#[derive(Debug)]
struct State<D: Driver> {
    connections: HashMap<Token, Arc<Connection>>,
    chunks: HashMap<ChunkKey, Imported>,
    /// Blocks that are open.
    blocks: HashMap<BlockKey, Weak<Block<D>>>,
    /// Mappings of closed blocks that are kept for the next time, the one closed first at the front.
    kept: VecDeque<Mapping>,
    /// Most bytes of these.
    most_kept: u64,
    /// Mappings that nobody uses any more and that could not be removed yet.
    leaving: Vec<Mapping>,
}

/// The exporter, and the block's token.
type BlockKey = (Token, Token);

/// The exporter, and the chunk's number there. A number is good while a block in the chunk is open.
type ChunkKey = (Token, u64);

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
        let may_be_capturing = Box::new(may_be_capturing);
        let (chunks, kept, leaving) = (HashMap::new(), VecDeque::new(), Vec::new());
        let state = State { connections: HashMap::new(), chunks, blocks: HashMap::new(), kept, most_kept: 0, leaving };
        Self {
            inner: Arc::new(Inner { driver, process: std::process::id(), may_be_capturing, state: Mutex::new(state) }),
        }
    }

    /// Opens the block of a handle. What is open already costs no call to the driver and none to the other process.
    ///
    /// The exporting process's writes have to be ordered before uses here by the caller, with an event for instance. When the
    /// last clone is dropped, the host waits for the device, and the mapping goes. Where a stream may be being captured, which the
    /// wait would break, that happens later: when a block is opened or closed, or with [`settle`](Self::settle).
    ///
    /// # Errors
    /// [`ShareError`]; nothing has changed.
    pub fn open(&self, handle: &Handle) -> Result<SharedBlock<D>, ShareError> {
        if self.inner.process != std::process::id() {
            return Err(ShareError::Forked);
        }
        let mut state = self.inner.state.lock();
        let key = (handle.exporter, handle.token);
        if let Some(block) = state.blocks.get(&key).and_then(Weak::upgrade) {
            return Ok(SharedBlock { block });
        }
        self.inner.remove_leaving(&mut state);
        state.blocks.retain(|_, block| block.strong_count() > 0);
        let opened = state.open(handle);
        // What the driver does not unmap now stays kept.
        let _ = match &opened {
            Err(ShareError::Gone) => self.inner.discard_where(&mut state, |mapping| mapping.block == key),
            Err(ShareError::ExporterGone(_)) => {
                self.inner.discard_where(&mut state, |mapping| mapping.block.0 == key.0)
            }
            _ => Ok(()),
        };
        let (connection, opened) = opened?;
        let mapping = self.inner.mapping(&mut state, key, &connection, &opened);
        if mapping.is_err() {
            connection.close(opened.open);
        }
        let mapping = mapping?;
        let (addr, bytes) = (mapping.addr.offset(mapping.place.start), mapping.place.end - mapping.place.start);
        let importer = Arc::clone(&self.inner);
        let block = Arc::new(Block { importer, addr, bytes, mapping: Some(mapping) });
        state.blocks.insert(key, Arc::downgrade(&block));
        Ok(SharedBlock { block })
    }

    /// Keeps up to `bytes` of closed blocks mapped, those closed last, for exporters that send the same blocks again: to open
    /// one that lives still costs no call to the driver then. At first, none are kept.
    ///
    /// The exporter has no part in it: to it they are closed, and their memory is ordinary memory. What it releases to the
    /// driver while it is kept here comes back to the device when it is given up here: for closed blocks above that many bytes,
    /// when its block is opened in vain, and with `keep_closed(0)`.
    pub fn keep_closed(&self, bytes: u64) {
        if self.inner.process != std::process::id() {
            return;
        }
        let mut state = self.inner.state.lock();
        state.most_kept = bytes;
        self.inner.remove_leaving(&mut state);
        self.inner.limit_kept(&mut state);
    }

    /// Closes the blocks that nobody uses any more and that could not be closed during a capture, if there is none now.
    pub fn settle(&self) {
        if self.inner.process == std::process::id() {
            self.inner.remove_leaving(&mut self.inner.state.lock());
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

    /// Opens a block. An exporter may have closed a connection through which nothing was open: then there is another.
    fn open(&mut self, handle: &Handle) -> Result<(Arc<Connection>, Opened), ShareError> {
        let is_known = self.connections.contains_key(&handle.exporter);
        let first = self.open_once(handle);
        match first {
            Err(ShareError::ExporterGone(_)) if is_known => self.open_once(handle),
            first => first,
        }
    }

    fn open_once(&mut self, handle: &Handle) -> Result<(Arc<Connection>, Opened), ShareError> {
        let connection = self.connection(handle)?;
        let opened = connection.open(handle.token);
        if matches!(&opened, Err(ShareError::ExporterGone(_) | ShareError::Message(_) | ShareError::Busy)) {
            // What is open through it keeps it; the next question goes through another.
            self.connections.remove(&handle.exporter);
        }
        Ok((connection, opened?))
    }

    /// The connection to a handle's exporter, made now if there is none.
    fn connection(&mut self, handle: &Handle) -> Result<Arc<Connection>, ShareError> {
        if let Some(connection) = self.connections.get(&handle.exporter) {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(Connection::new(handle)?);
        self.connections.insert(handle.exporter, Arc::clone(&connection));
        Ok(connection)
    }
}

impl<D: Driver> Inner<D> {
    /// The mapping of a block that was just opened: the one that was kept, or a new one.
    fn mapping(
        &self,
        state: &mut State<D>,
        block: BlockKey,
        connection: &Arc<Connection>,
        opened: &Opened,
    ) -> Result<Mapping, ShareError> {
        let (open, place, connection) = (opened.open, opened.place.clone(), Arc::clone(connection));
        if let Some(at) = state.kept.iter().position(|mapping| mapping.block == block) {
            let kept = state.kept.remove(at).expect("just found");
            // A block that lives does not move, and another one has another token.
            if kept.place == place && kept.chunks.len() as u64 == opened.chunks {
                kept.chunks.iter().for_each(|key| state.imported(key).open += 1);
                return Ok(Mapping { connection, open, ..kept });
            }
            self.discard(state, kept)?;
        }
        let listed = connection.chunks(opened)?;
        let (addr, bytes, chunks) = self.map(state, &connection, open, &listed)?;
        Ok(Mapping { block, addr, bytes, chunks, place, connection, open })
    }

    /// Maps chunks in one piece. What is missing is imported; on failure, nothing is left of it.
    fn map(
        &self,
        state: &mut State<D>,
        connection: &Connection,
        open: u64,
        listed: &[ListedChunk],
    ) -> Result<(DeviceAddr, u64, Vec<ChunkKey>), ShareError> {
        let keys: Vec<ChunkKey> = listed.iter().map(|chunk| (connection.exporter, chunk.number)).collect();
        self.discard_unsure(state, &keys)?;
        let mut used = 0;
        let done = self.import(state, connection, open, listed, &keys, &mut used).and_then(|()| {
            let bytes = listed.iter().map(|chunk| chunk.bytes).sum();
            let addr = self.driver.reserve(bytes, self.driver.granularity())?;
            let mapped = self.map_at(state, addr, bytes, listed, &keys);
            if mapped.is_err() {
                // Nothing is mapped there; an address that stays reserved costs nothing.
                let _ = self.driver.address_free(addr, bytes);
            }
            mapped?;
            Ok((addr, bytes))
        });
        match done {
            Ok((addr, bytes)) => Ok((addr, bytes, keys)),
            Err(error) => {
                keys[..used].iter().for_each(|key| state.imported(key).open -= 1);
                self.release(state, &keys[..used]);
                self.release_unused(state);
                Err(error)
            }
        }
    }

    /// Counts a use of each chunk, after importing those that are missing. `used` is how many have been counted.
    fn import(
        &self,
        state: &mut State<D>,
        connection: &Connection,
        open: u64,
        listed: &[ListedChunk],
        keys: &[ChunkKey],
        used: &mut usize,
    ) -> Result<(), ShareError> {
        let indices: Vec<u64> = (0..keys.len() as u64).collect();
        let place = |index: u64| usize::try_from(index).expect("an index of the list");
        for batch in indices.chunks(MOST_DESCRIPTORS) {
            let is_missing = |index: &u64| !state.chunks.contains_key(&keys[place(*index)]);
            let missing: Vec<u64> = batch.iter().copied().filter(is_missing).collect();
            if !missing.is_empty() {
                let descriptors = connection.descriptors(open, &missing)?;
                for (index, descriptor) in missing.iter().map(|index| place(*index)).zip(descriptors) {
                    let handle = self.driver.import(descriptor.as_fd(), listed[index].bytes)?;
                    state.chunks.insert(keys[index], Imported { handle, uses: 0, open: 0 });
                }
            }
            for key in batch.iter().map(|index| &keys[place(*index)]) {
                let chunk = state.imported(key);
                chunk.uses += 1;
                chunk.open += 1;
                *used += 1;
            }
        }
        Ok(())
    }

    /// Maps the chunks one behind the other, with access. On failure, nothing is mapped.
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
        if mapped.is_err() && end > addr {
            self.driver.unmap(addr, end.0 - addr.0)?;
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

    /// Releases what was imported for a mapping that was not made.
    fn release_unused(&self, state: &mut State<D>) {
        state.chunks.retain(|_, chunk| {
            if chunk.uses == 0 {
                let _ = self.driver.release(chunk.handle);
            }
            chunk.uses > 0
        });
    }

    /// Closes the blocks that nobody uses any more, once the device is done with them, and removes their mappings or keeps them.
    /// What cannot be removed yet, during a capture for instance, stays.
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
            mapping.connection.close(mapping.open);
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
    /// What the driver does not unmap stays kept.
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
        if self.importer.process != std::process::id() {
            // In a forked process all of it is the parent's.
            std::mem::forget(mapping);
            return;
        }
        let mut state = self.importer.state.lock();
        state.leaving.push(mapping);
        self.importer.remove_leaving(&mut state);
    }
}
