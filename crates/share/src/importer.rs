//! The importing side: how blocks of other processes are opened, and when they are closed.

mod mappings;

use crate::connection::{Connection, Opened};
use crate::error::ShareError;
use crate::handle::{Handle, Source, Token};
use crate::patience::Patience;
use gapless::driver::{ChunkHandle, Driver};
use gapless::{Allocator, DeviceAddr, ProcessIdentity, StreamId};
use parking_lot::{Condvar, Mutex};
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
pub struct Importer<D: Driver> {
    inner: Arc<Inner<D>>,
}

impl<D: Driver> fmt::Debug for Importer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Importer").field("process", &self.inner.process).finish_non_exhaustive()
    }
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
pub struct SharedBlock<D: Driver> {
    block: Arc<Block<D>>,
}

impl<D: Driver> fmt::Debug for SharedBlock<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBlock")
            .field("addr", &self.block.addr)
            .field("bytes", &self.block.bytes)
            .finish_non_exhaustive()
    }
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
    #[must_use]
    pub fn addr(&self) -> DeviceAddr {
        self.block.addr
    }

    /// Bytes of the block, rounding included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.block.bytes
    }

    /// Bytes of addresses that are mapped for it: those of the chunks under it.
    #[must_use]
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

    /// An importer on the device of an allocator, as [`new`](Self::new).
    #[must_use]
    pub fn beside(allocator: &Allocator<D>) -> Self {
        // SAFETY: an importer ends nothing that an allocator uses, and names no stream but the default one.
        Self::new(Arc::clone(unsafe { allocator.driver_unchecked() }))
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
    #[must_use]
    pub fn imported_chunks(&self) -> usize {
        self.inner.state.lock().chunks.len()
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
