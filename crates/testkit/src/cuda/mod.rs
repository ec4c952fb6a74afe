//! A GPU as a [`Device`]: a small part of its memory, with a record of the objects that exist.
//!
//! - I1  the record contains exactly the objects that successful calls have created and not released.
//!
//! A GPU's streams cannot be held. Instead, a hold makes the stream busy for a short time, so that work is in flight
//! when the allocator queries it. The oracle's checks do not depend on how long.
//!
//! Device 1 is the peer, if it exists and can reach the memory of device 0.

mod captures;
mod program;

use self::captures::{By, Captures};
use self::program::Program;
use crate::device::{Device, World};
use crate::op::{CaptureMode, CurrentContext};
use gapless::driver::cuda::{CudaBuilder, CudaDriver, LEGACY_STREAM, OpenError};
use gapless::driver::{
    CheckedDriver, ChunkHandle, DriverCall, DriverError, DriverErrorKind, DriverResult, DriverUsage, EventHandle,
    HoldStreams, HostMemory, MemoryDriver, MemoryInfo, Mismatch, PER_THREAD_STREAM, StreamDriver, StreamIdentity,
    WorkDriver,
};
use gapless::units::{DeviceAddr, MIB, StreamId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The GPU, as the allocators and the program use it.
#[derive(Clone)]
struct Gpu {
    driver: Arc<CudaDriver>,
    program: Arc<Program>,
    /// To open it again.
    builder: CudaBuilder,
}

/// A part of the GPU opened by [`open_device`](Self::open_device).
#[derive(Debug)]
pub struct Cuda {
    driver: Arc<CudaDriver>,
    program: Arc<Program>,
    capacity: u64,
    /// Whether every second stream is one of a green context.
    green_streams: bool,
    /// Whether the others wait for the legacy default stream.
    blocking_streams: bool,
    /// Whether the allocators may ask at any time whether a stream is captured.
    kept: bool,
    state: Mutex<State>,
    /// Locked before `state`.
    captures: Mutex<Captures>,
    capture_as: Mutex<(CaptureMode, By)>,
}

#[derive(Debug, Default)]
struct State {
    chunks: HashMap<ChunkHandle, Chunk>,
    /// Mappings by address: size in bytes and chunk.
    mappings: BTreeMap<u64, (u64, ChunkHandle)>,
    reservations: HashMap<u64, u64>,
    events: usize,
    streams: HashSet<StreamId>,
    /// Those of them that wait for the legacy default stream.
    blocking: HashSet<StreamId>,
    /// Number of streams that were created.
    created: u64,
    /// Number of pieces of the host's memory.
    host_memory: usize,
    external: u64,
    host_waits: u64,
    /// Its streams and events are gone.
    is_reset: bool,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    bytes: u64,
    handle: bool,
    mappings: usize,
}

/// Time for which a held stream is busy.
const HOLD: Duration = Duration::from_micros(100);
/// One for the process, until it is reset: opening it takes a while, and its kernels are loaded once.
static GPU: Mutex<Option<Gpu>> = Mutex::new(None);
/// The driver of the peer.
static PEER: OnceLock<CudaDriver> = OnceLock::new();
/// The peer's number.
const PEER_ORDINAL: u32 = 1;

impl State {
    fn bytes(&self) -> u64 {
        self.chunks.values().map(|chunk| chunk.bytes).sum()
    }

    /// Removes a chunk once its handle is released and its last mapping is removed.
    fn settle(&mut self, handle: ChunkHandle) {
        if self.chunks.get(&handle).is_some_and(|chunk| !chunk.handle && chunk.mappings == 0) {
            self.chunks.remove(&handle);
        }
    }
}

fn open(builder: CudaBuilder) -> Result<CudaDriver, OpenError> {
    // SAFETY: the test kit, its only caller, breaks no rule of the traits on a real device.
    unsafe { builder.open() }
}

impl Cuda {
    /// Opens the GPU for all devices of this type in the process. Further calls do nothing.
    ///
    /// # Errors
    /// Returns an error if there is no usable GPU.
    pub fn open_device(builder: CudaBuilder) -> Result<(), OpenError> {
        let mut gpu = GPU.lock();
        if gpu.is_none() {
            let driver = open(builder.clone())?;
            if driver.add_peers([PEER_ORDINAL]).is_ok() {
                driver.remove_peers([PEER_ORDINAL]);
                let _ = PEER.set(open(builder.clone().device(PEER_ORDINAL))?);
            }
            let program = Arc::new(Program::new(&driver));
            *gpu = Some(Gpu { driver: Arc::new(driver), program, builder });
        }
        Ok(())
    }

    /// Returns whether a stream can be captured and the allocators can know of it. One that they may not name at all times is
    /// noticed only where it waits for the legacy default stream. That stream cannot be captured.
    fn can_capture(&self, stream: StreamId) -> bool {
        match stream {
            StreamId::DEFAULT => false,
            PER_THREAD_STREAM => self.blocking_streams,
            _ => self.kept || self.is_blocking(stream),
        }
    }

    fn is_blocking(&self, stream: StreamId) -> bool {
        stream == PER_THREAD_STREAM || self.state.lock().blocking.contains(&stream)
    }

    /// Returns the stream that runs the work of a stream now.
    fn place(&self, stream: StreamId) -> StreamId {
        self.captures.lock().place(stream)
    }

    /// Forgets a stream that was destroyed.
    fn forget(&self, stream: StreamId) {
        let mut state = self.state.lock();
        state.streams.remove(&stream);
        state.blocking.remove(&stream);
    }

    /// Refuses a handle that is not one of this device: the driver dereferences every handle it is given.
    fn known(&self, stream: StreamId) -> DriverResult<()> {
        if [StreamId::DEFAULT, LEGACY_STREAM, PER_THREAD_STREAM].contains(&stream)
            || self.state.lock().streams.contains(&stream)
        {
            return Ok(());
        }
        Err(DriverError::new(DriverCall::Stream, DriverErrorKind::InvalidHandle, "not a stream of this device"))
    }
}

impl Device for Cuda {
    const PAGE_BYTES: u64 = 2 * MIB;

    fn open(world: &World) -> Self {
        let Gpu { driver, program, .. } = GPU.lock().clone().expect("Cuda::open_device was called before");
        assert_eq!(driver.granularity(), world.page_bytes, "the world has the GPU's page size");
        Self {
            driver,
            program,
            capacity: world.bytes(),
            green_streams: world.green_streams,
            blocking_streams: world.blocking_streams,
            kept: world.kept,
            state: Mutex::default(),
            captures: Mutex::default(),
            capture_as: Mutex::new((CaptureMode::default(), By::Caller)),
        }
    }

    fn usage(&self) -> DriverUsage {
        let state = self.state.lock();
        let mut usage = DriverUsage::default();
        usage.chunks = state.chunks.len();
        usage.handles = state.chunks.values().filter(|chunk| chunk.handle).count();
        usage.bytes = state.bytes();
        usage.mappings = state.mappings.len();
        usage.reservations = state.reservations.len();
        usage.address_bytes = state.reservations.values().sum();
        if !state.is_reset {
            usage.events = state.events;
            usage.streams = state.streams.len();
            usage.host_memory = state.host_memory;
        }
        usage
    }

    fn broken_rules(&self) -> Vec<String> {
        self.captures.lock().take_lost()
    }

    fn set_context(&self, context: CurrentContext) {
        self.program.make_current(context);
    }

    fn capture_as(&self, mode: CaptureMode, elsewhere: bool) {
        *self.capture_as.lock() = (mode, if elsewhere { By::Another } else { By::Caller });
    }

    fn set_capturing(&self, stream: StreamId, capturing: bool) {
        let (device, mut captures) = ((&*self.driver, &self.program), self.captures.lock());
        if !capturing {
            captures.end(device, stream);
        } else if self.can_capture(stream) {
            let (as_set, blocking) = (*self.capture_as.lock(), self.is_blocking(stream));
            captures.begin(device, stream, as_set, blocking);
        }
    }

    fn has_resets(&self) -> bool {
        self.driver.raw().optional().cuDevicePrimaryCtxReset_v2.is_ok()
    }

    fn reset(&self) {
        let mut gpu = GPU.lock();
        let builder = gpu.take().expect("this device is open").builder;
        self.program.reset();
        self.state.lock().is_reset = true;
        let driver = open(builder.clone()).expect("a device can be opened after a reset");
        let program = Arc::new(self.program.after_reset(&driver));
        *gpu = Some(Gpu { driver: Arc::new(driver), program, builder });
    }

    fn captures_leave_others_alone(&self) -> bool {
        !self.blocking_streams
    }

    fn end_captures(&self) {
        self.captures.lock().end_all((&self.driver, &self.program));
    }

    fn ends_with_thread(&self, stream: StreamId) -> bool {
        self.captures.lock().is_of_caller(stream)
    }

    fn has_other_default_streams(&self) -> bool {
        self.program.is_in_other_context()
    }

    fn set_external(&self, bytes: u64) {
        self.state.lock().external = bytes;
    }

    fn peers(&self) -> u8 {
        u8::from(PEER.get().is_some())
    }

    fn add_peer(&self, _peer: u8) {
        self.driver.add_peers([PEER_ORDINAL]).expect("the peer can reach this device's memory");
    }

    fn remove_peer(&self, _peer: u8) {
        self.driver.remove_peers([PEER_ORDINAL]);
    }

    fn fill_as_peer(&self, _peer: u8, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        let peer = PEER.get().expect("a peer was added");
        self.driver.synchronize(stream)?;
        peer.fill(StreamId::DEFAULT, addr, bytes, seed)?;
        peer.synchronize(StreamId::DEFAULT)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.driver.remove_peers([PEER_ORDINAL]);
    }
}

// SAFETY: the tests of this crate are its only users. Over the simulated library each call is checked there.
unsafe impl CheckedDriver for Cuda {}

impl MemoryDriver for Cuda {
    fn granularity(&self) -> u64 {
        self.driver.granularity()
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        let state = self.state.lock();
        if state.is_reset {
            return self.driver.memory_info();
        }
        let free = self.capacity.saturating_sub(state.bytes() + state.external);
        Ok(MemoryInfo::new(free, self.capacity))
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        let addr = self.driver.reserve(bytes, alignment)?;
        self.state.lock().reservations.insert(addr.0, bytes);
        Ok(addr)
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.driver.address_free(addr, bytes)?;
        state.reservations.remove(&addr.0);
        Ok(())
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        let mut state = self.state.lock();
        if state.bytes() + state.external + bytes > self.capacity {
            let text = "this part of the GPU's memory is used up";
            return Err(DriverError::new(DriverCall::Create, DriverErrorKind::OutOfMemory, text));
        }
        let handle = self.driver.create(bytes)?;
        state.chunks.insert(handle, Chunk { bytes, handle: true, mappings: 0 });
        Ok(handle)
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.driver.release(chunk)?;
        if let Some(known) = state.chunks.get_mut(&chunk) {
            known.handle = false;
        }
        state.settle(chunk);
        Ok(())
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.driver.map(addr, bytes, chunk)?;
        state.mappings.insert(addr.0, (bytes, chunk));
        if let Some(known) = state.chunks.get_mut(&chunk) {
            known.mappings += 1;
        }
        Ok(())
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.driver.set_access(addr, bytes)
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.driver.unmap(addr, bytes)?;
        let gone: Vec<u64> = state.mappings.range(addr.0..addr.0 + bytes).map(|(at, _)| *at).collect();
        for at in gone {
            let (_, chunk) = state.mappings.remove(&at).expect("found above");
            if let Some(known) = state.chunks.get_mut(&chunk) {
                known.mappings -= 1;
            }
            state.settle(chunk);
        }
        Ok(())
    }

    fn host_alloc(&self, bytes: u64) -> DriverResult<HostMemory> {
        let memory = self.driver.host_alloc(bytes)?;
        self.state.lock().host_memory += 1;
        Ok(memory)
    }

    fn host_free(&self, memory: HostMemory) -> DriverResult<()> {
        self.driver.host_free(memory)?;
        self.state.lock().host_memory -= 1;
        Ok(())
    }

    fn host_read(&self, memory: HostMemory, offset: u64, bytes: u64, read: &mut dyn FnMut(&[u8])) -> DriverResult<()> {
        self.driver.host_read(memory, offset, bytes, read)
    }

    fn host_write(
        &self,
        memory: HostMemory,
        offset: u64,
        bytes: u64,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        self.driver.host_write(memory, offset, bytes, write)
    }

    fn host_memory_has_bytes(&self) -> bool {
        self.driver.host_memory_has_bytes()
    }
}

impl StreamDriver for Cuda {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.known(stream)?;
        self.driver.check_stream(stream)
    }

    fn identify(&self, stream: StreamId) -> DriverResult<StreamIdentity> {
        self.known(stream)?;
        self.driver.identify(stream)
    }

    fn owns_default_stream(&self) -> bool {
        self.driver.owns_default_stream()
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.driver.is_capturing(stream)
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        let event = self.driver.event_create()?;
        self.state.lock().events += 1;
        Ok(event)
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.driver.event_destroy(event)?;
        self.state.lock().events -= 1;
        Ok(())
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        self.driver.event_record(event, stream)
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.driver.event_query(event)
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.state.lock().host_waits += 1;
        self.driver.event_synchronize(event)
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        self.driver.stream_wait(stream, event)
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        self.state.lock().host_waits += 1;
        self.driver.synchronize_device()
    }

    fn create_copy_stream(&self) -> DriverResult<StreamId> {
        let stream = self.driver.create_copy_stream()?;
        self.state.lock().streams.insert(stream);
        Ok(stream)
    }

    fn destroy_copy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.driver.destroy_copy_stream(stream)?;
        self.forget(stream);
        Ok(())
    }

    fn copy_out(
        &self,
        stream: StreamId,
        target: HostMemory,
        offset: u64,
        source: DeviceAddr,
        bytes: u64,
    ) -> DriverResult<()> {
        self.driver.copy_out(stream, target, offset, source, bytes)
    }

    fn copy_in(
        &self,
        stream: StreamId,
        target: DeviceAddr,
        source: HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        self.driver.copy_in(stream, target, source, offset, bytes)
    }

    fn clear(&self, stream: StreamId, target: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.driver.clear(stream, target, bytes)
    }
}

impl WorkDriver for Cuda {
    fn create_stream(&self) -> DriverResult<StreamId> {
        let mut state = self.state.lock();
        state.created += 1;
        let green = (self.green_streams && state.created.is_multiple_of(2))
            .then(|| self.program.create_green_stream())
            .flatten();
        let stream = match green {
            Some(stream) => stream,
            None if self.blocking_streams => {
                let stream = self.program.create_blocking_stream();
                state.blocking.insert(stream);
                stream
            }
            None => self.driver.create_stream()?,
        };
        state.streams.insert(stream);
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.driver.destroy_stream(stream)?;
        self.forget(stream);
        Ok(())
    }

    fn abandon_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.driver.abandon_stream(stream)?;
        self.forget(stream);
        Ok(())
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.driver.fill(self.place(stream), addr, bytes, seed)
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.driver.verify(self.place(stream), addr, bytes, seed)
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.driver.copy(self.place(stream), target, source, bytes)
    }

    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        self.driver.delay(self.place(stream), duration)
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.driver.synchronize(self.place(stream))
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        self.driver.take_mismatches()
    }
}

impl HoldStreams for Cuda {
    fn hold(&self, stream: StreamId) {
        self.driver.delay(self.place(stream), HOLD).expect("the stream belongs to this device");
    }

    fn complete(&self, stream: StreamId) {
        self.driver.synchronize(self.place(stream)).expect("the stream belongs to this device");
    }

    fn resume(&self, _stream: StreamId) {}

    fn host_waits(&self) -> u64 {
        self.state.lock().host_waits
    }
}
