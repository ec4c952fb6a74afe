//! The importing side: connections, chunks that are imported, and mappings of blocks.

use crate::error::ShareError;
use crate::handle::{Handle, Token};
use crate::messages::{ListedChunk, MOST_DESCRIPTORS, Reply, Request};
use crate::sockets::{self, Packet};
use gapless::DeviceAddr;
use gapless::driver::{ChunkHandle, Driver, DriverResult};
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, SendFlags};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Weak};

/// Most chunks of a block: as many as 2 TiB have in pages of 2 MiB.
const MOST_CHUNKS: u64 = 1 << 20;

/// Opens blocks of other processes on one device.
///
/// Threads: any; one opens or closes at a time.
#[derive(Debug)]
pub struct Importer<D: Driver> {
    inner: Arc<Inner<D>>,
}

#[derive(Debug)]
struct Inner<D: Driver> {
    driver: Arc<D>,
    process: u32,
    state: Mutex<State<D>>,
}

#[derive(Debug)]
struct State<D: Driver> {
    connections: HashMap<Token, Arc<Connection>>,
    chunks: HashMap<ChunkKey, Imported>,
    /// Blocks that are open, by exporter and token.
    blocks: HashMap<(Token, Token), Weak<Block<D>>>,
    /// Mappings that nobody uses any more and that could not be removed yet.
    leaving: Vec<Mapping>,
}

/// The exporter, and the chunk's number there. A number is good while the chunk is open.
type ChunkKey = (Token, u64);

/// A chunk of another process.
#[derive(Debug)]
struct Imported {
    handle: ChunkHandle,
    /// Number of mappings.
    uses: usize,
}

/// A connection to an exporter. What is open through it counts as long as it lasts.
#[derive(Debug)]
struct Connection {
    exporter: Token,
    socket: OwnedFd,
}

/// The mapping of a block, in whole chunks.
#[derive(Debug)]
struct Mapping {
    addr: DeviceAddr,
    /// Of all chunks.
    bytes: u64,
    chunks: Vec<ChunkKey>,
    /// Keeps the block pinned at the other side.
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
    /// An importer for a device.
    pub fn new(driver: Arc<D>) -> Self {
        let state =
            State { connections: HashMap::new(), chunks: HashMap::new(), blocks: HashMap::new(), leaving: Vec::new() };
        Self { inner: Arc::new(Inner { driver, process: std::process::id(), state: Mutex::new(state) }) }
    }

    /// Opens the block of a handle. What is open already costs no call to the driver and none to the other process.
    ///
    /// The exporting process's writes have to be ordered before uses here by the caller, with an event for instance. When the
    /// last clone is dropped, the host waits for the device, and the mapping goes.
    ///
    /// # Errors
    /// [`ShareError`]; nothing has changed.
    pub fn open(&self, handle: &Handle) -> Result<SharedBlock<D>, ShareError> {
        if self.inner.process != std::process::id() {
            return Err(ShareError::Forked);
        }
        let mut state = self.inner.state.lock();
        let name = (handle.exporter, handle.token);
        if let Some(block) = state.blocks.get(&name).and_then(Weak::upgrade) {
            return Ok(SharedBlock { block });
        }
        self.inner.remove_leaving(&mut state);
        state.blocks.retain(|_, block| block.strong_count() > 0);
        let connection = state.connection(handle)?;
        let opened = connection.open(handle.token);
        if matches!(&opened, Err(ShareError::ExporterGone(_) | ShareError::Message(_) | ShareError::Busy)) {
            // What is open through it keeps it; the next question goes through another.
            state.connections.remove(&handle.exporter);
        }
        let (open, bytes, offset, listed) = opened?;
        let mapping = self.inner.map(&mut state, &connection, open, &listed);
        if mapping.is_err() {
            connection.close(open);
        }
        let mapping = mapping?;
        let addr = mapping.addr.offset(offset);
        let importer = Arc::clone(&self.inner);
        let block = Arc::new(Block { importer, addr, bytes, mapping: Some(mapping) });
        state.blocks.insert(name, Arc::downgrade(&block));
        Ok(SharedBlock { block })
    }

    /// Number of chunks of other processes that are imported now.
    pub fn imported_chunks(&self) -> usize {
        self.inner.state.lock().chunks.len()
    }
}

impl<D: Driver> State<D> {
    /// The connection to a handle's exporter, made now if there is none.
    fn connection(&mut self, handle: &Handle) -> Result<Arc<Connection>, ShareError> {
        if let Some(connection) = self.connections.get(&handle.exporter) {
            return Ok(Arc::clone(connection));
        }
        let socket = sockets::connected(&handle.socket)?;
        let connection = Arc::new(Connection { exporter: handle.exporter, socket });
        self.connections.insert(handle.exporter, Arc::clone(&connection));
        Ok(connection)
    }
}

impl Connection {
    fn ask(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), ShareError> {
        let gone = |errno: rustix::io::Errno| ShareError::ExporterGone(errno.into());
        sockets::send(&self.socket, request, &[], SendFlags::empty()).map_err(gone)?;
        match sockets::receive(&self.socket, RecvFlags::empty()).map_err(gone)? {
            Packet::Message(Reply::Gone, _) => Err(ShareError::Gone),
            Packet::Message(Reply::Busy, _) => Err(ShareError::Busy),
            Packet::Message(Reply::Refused(reason), _) => Err(ShareError::Refused(reason)),
            Packet::Message(reply, descriptors) => Ok((reply, descriptors)),
            Packet::End => Err(ShareError::ExporterGone(io::ErrorKind::ConnectionAborted.into())),
            Packet::Nonsense => Err(ShareError::Message("a packet that is none")),
        }
    }

    /// Opens a block: its number, its bytes, its place in its chunks, and these.
    fn open(&self, token: Token) -> Result<(u64, u64, u64, Vec<ListedChunk>), ShareError> {
        let (Reply::Opened { open, bytes, offset, chunks }, _) = self.ask(&Request::Open { token })? else {
            return Err(ShareError::Message("no block where one was asked for"));
        };
        let listed = self.list(open, chunks).and_then(|listed| {
            let total = listed.iter().try_fold(0_u64, |sum, chunk| sum.checked_add(chunk.bytes));
            match (offset.checked_add(bytes), total) {
                (Some(end), Some(total)) if end <= total => Ok(listed),
                _ => Err(ShareError::Message("a block that is larger than its chunks")),
            }
        });
        if listed.is_err() {
            self.close(open);
        }
        Ok((open, bytes, offset, listed?))
    }

    fn list(&self, open: u64, chunks: u64) -> Result<Vec<ListedChunk>, ShareError> {
        if chunks == 0 || chunks > MOST_CHUNKS {
            return Err(ShareError::Message("a block without chunks, or with too many"));
        }
        let mut listed = Vec::new();
        while (listed.len() as u64) < chunks {
            let (Reply::Chunks(more), _) = self.ask(&Request::Chunks { open, from: listed.len() as u64 })? else {
                return Err(ShareError::Message("no chunks where these were asked for"));
            };
            if more.is_empty() || more.iter().any(|chunk| chunk.bytes == 0) {
                return Err(ShareError::Message("chunks that are missing or empty"));
            }
            listed.extend(more);
        }
        let numbers: HashSet<u64> = listed.iter().map(|chunk| chunk.number).collect();
        if numbers.len() as u64 != chunks || listed.len() as u64 != chunks {
            return Err(ShareError::Message("more chunks than the block has, or one of them twice"));
        }
        Ok(listed)
    }

    /// Descriptors of chunks, in the order of `which`.
    fn descriptors(&self, open: u64, which: &[u64]) -> Result<Vec<OwnedFd>, ShareError> {
        match self.ask(&Request::Descriptors { open, which: which.to_vec() })? {
            (Reply::Descriptors, descriptors) if descriptors.len() == which.len() => Ok(descriptors),
            _ => Err(ShareError::Message("other descriptors than were asked for")),
        }
    }

    fn close(&self, open: u64) {
        // Where the other process has ended, there is nothing to give back.
        let _ = self.ask(&Request::Close { open });
    }
}

impl<D: Driver> Inner<D> {
    /// Maps chunks in one piece. What is missing is imported; on failure, nothing is left of it.
    fn map(
        &self,
        state: &mut State<D>,
        connection: &Arc<Connection>,
        open: u64,
        listed: &[ListedChunk],
    ) -> Result<Mapping, ShareError> {
        let keys: Vec<ChunkKey> = listed.iter().map(|chunk| (connection.exporter, chunk.number)).collect();
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
            Ok((addr, bytes)) => Ok(Mapping { addr, bytes, chunks: keys, connection: Arc::clone(connection), open }),
            Err(error) => {
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
                    state.chunks.insert(keys[index], Imported { handle, uses: 0 });
                }
            }
            for key in batch.iter().map(|index| &keys[place(*index)]) {
                state.chunks.get_mut(key).expect("imported").uses += 1;
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
            let chunk = state.chunks.get_mut(key).expect("a chunk that is mapped is imported");
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

    /// Removes the mappings that nobody uses any more, once the device is done with them. What cannot be removed yet, during a
    /// capture for instance, stays.
    fn remove_leaving(&self, state: &mut State<D>) {
        if state.leaving.is_empty() || self.driver.synchronize_device().is_err() {
            return;
        }
        for mapping in std::mem::take(&mut state.leaving) {
            if self.driver.unmap(mapping.addr, mapping.bytes).is_err() {
                state.leaving.push(mapping);
                continue;
            }
            let _ = self.driver.address_free(mapping.addr, mapping.bytes);
            self.release(state, &mapping.chunks);
            mapping.connection.close(mapping.open);
        }
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
