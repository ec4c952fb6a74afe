//! Drivers: what the allocator needs from a device, as two small traits with a written contract.
//!
//! [`MemoryDriver`] manages virtual memory: addresses, chunks, mappings. [`StreamDriver`] orders work: events, waits.
//! A [`Driver`] is both. [`cuda`] has that of a GPU.
//!
//! The feature `testing` adds what tests and replays take: the simulated devices [`model`] and [`host`], [`fault`], [`Intercepted`]
//! and [`Counted`], [`DriverUsage`], and [`WorkDriver`], a driver with work that touches memory in stream order.
//!
//! Addresses are numbers and handles are tokens, and nothing here dereferences them. The methods are safe to call, since most
//! drivers look at what they get: those are [`CheckedDriver`]s. Others, as CUDA's, trust their caller, and to open one is
//! `unsafe`: see [`CudaBuilder::open`](cuda::CudaBuilder::open). Safe code does not get such a driver from an allocator.
//!
//! Rules that every implementation enforces (the CUDA driver by error, by undefined behaviour or not at all, `model` by panic,
//! `host` by error and real faults), and that the allocator keeps:
//!
//! - a chunk is mapped whole, at offset 0, page-aligned, into addresses of one reservation where nothing is mapped;
//! - one chunk may be mapped at several addresses at once (aliases);
//! - a mapping gives no access until `set_access` covers it, whole mappings only;
//! - `unmap` takes whole mappings only; one call may take several, if no unmapped addresses lie between them;
//! - `unmap` does not wait for work in flight: the caller proves that all work through the mapping has completed;
//! - `release` drops the handle; the memory is free once its last mapping is gone too;
//! - no call gets the handle of a stream that has been destroyed: on a real driver that is undefined behaviour;
//! - an event that was recorded on a stream during its capture is neither queried nor waited for;
//! - `address_free` takes exactly what `reserve` returned, with nothing mapped in it.
//!
//! Threads: every method may be called from any thread, concurrently. Implementations do not call back.
//! A failed call changes nothing: it may be repeated, and the steps that would undo earlier calls remain valid.

mod calls;
mod counted;
pub mod cuda;
mod error;
#[cfg(feature = "testing")]
pub mod fault;
#[cfg(feature = "testing")]
mod handles;
#[cfg(feature = "testing")]
pub mod host;
mod intercept;
#[cfg(feature = "testing")]
mod intervals;
#[cfg(feature = "testing")]
mod ledger;
#[cfg(feature = "testing")]
pub mod model;
mod thread;
#[cfg(feature = "testing")]
mod usage;
#[cfg(feature = "testing")]
mod work;

pub use calls::{DriverCall, DriverCalls};
#[cfg(not(feature = "testing"))]
pub(crate) use counted::Counted;
#[cfg(feature = "testing")]
pub use counted::{CallCounter, Counted};
pub use error::{DriverError, DriverErrorKind};
#[cfg(feature = "testing")]
pub use fault::{Fault, FaultDriver, Faults};
#[cfg(feature = "testing")]
pub use host::{HostConfig, HostDriver, Violation};
#[cfg(feature = "testing")]
pub use intercept::{Hook, Intercepted};
#[cfg(feature = "testing")]
pub use model::{CostTable, ModelConfig, ModelDriver};
pub use thread::PER_THREAD_STREAM;
#[cfg(feature = "testing")]
pub use usage::DriverUsage;
#[cfg(feature = "testing")]
pub use work::{HoldStreams, Mismatch, WorkDriver, pattern_byte, pattern_word};

use crate::units::{DeviceAddr, StreamId};
use std::os::fd::{BorrowedFd, OwnedFd};

/// The result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// A physical allocation (`CUmemGenericAllocationHandle`): a token that only the driver that created it understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkHandle(pub u64);

/// An event (`CUevent`): a token that only the driver that created it understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventHandle(pub u64);

/// Pinned memory of the host (`cuMemAllocHost`), for copies from and to the device: a token that only the driver that allocated it
/// understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostMemory(pub u64);

/// Physical memory of a device, in bytes, with the use by all processes taken into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Bytes that no process holds.
    pub free: u64,
    /// Bytes of physical memory that the device has.
    pub total: u64,
}

impl MemoryInfo {
    /// What a [`MemoryDriver`] answers: `free` bytes that no process holds, of `total`.
    #[must_use]
    pub const fn new(free: u64, total: u64) -> Self {
        Self { free, total }
    }
}

/// Which stream a handle stands for, on the thread that asks.
///
/// A handle alone does not say: its value is used again once its stream has been destroyed, and one handle may stand for
/// a stream of its own on every thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamIdentity {
    /// The key under which the stream is filed. Of the streams that exist at a time, no two have the same.
    pub key: StreamId,
    /// A number that no other stream of the process has or had. 0 if the driver does not report one; then a stream
    /// that was destroyed cannot be distinguished from one that has its key now.
    pub number: u64,
    /// How long the stream lives.
    pub lifetime: StreamLifetime,
}

/// How long a stream lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamLifetime {
    /// As long as its device: the default stream.
    Device,
    /// Until its owner destroys it, which is reported to nobody.
    Owner,
    /// As long as a thread, the only one whose calls can name it.
    Thread,
}

/// Virtual memory management of one device.
///
/// Where a call has an error for what its documentation rules out, [`ModelDriver`] panics in its place: in a test, it is a bug of
/// the caller. With the feature `testing`.
pub trait MemoryDriver: Send + Sync + 'static {
    /// Returns the page size in bytes, a power of two. It is the size of the smallest chunk, and every size and address
    /// below is a multiple of it. Constant over the driver's lifetime; makes no driver call.
    fn granularity(&self) -> u64;

    /// Returns the number of the device in this process. Constant; makes no driver call.
    fn ordinal(&self) -> u32 {
        0
    }

    /// Returns what names the physical device in every process of the host; `None` where the driver does not tell. Constant;
    /// makes no driver call.
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    /// Returns the free and total physical bytes of the device.
    ///
    /// # Errors
    /// Only when the device is lost.
    fn memory_info(&self) -> DriverResult<MemoryInfo>;

    /// Reserves `bytes` of addresses at a multiple of `alignment` (a power of two, at least the granularity).
    /// No memory is behind them.
    ///
    /// # Errors
    /// `OutOfMemory` when no such range is free (a smaller one may be), `InvalidValue` for a zero or unaligned size.
    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr>;

    /// Frees a whole reservation, exactly as [`reserve`](Self::reserve) returned it. Nothing may be mapped in it.
    ///
    /// # Errors
    /// `InvalidValue` for anything but a whole reservation without mappings.
    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()>;

    /// Creates a chunk of `bytes` of physical memory. Its content is undefined.
    ///
    /// # Errors
    /// `OutOfMemory` when less than that is free on the device.
    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle>;

    /// Releases a chunk's handle. Allowed while the chunk is mapped: the memory is freed once the last mapping is gone
    /// too. A handle is released once; using it afterwards is undefined behaviour on a real driver.
    ///
    /// # Errors
    /// `InvalidValue` for a handle that a driver which checks knows to be none. The memory stays with whoever has it.
    fn release(&self, chunk: ChunkHandle) -> DriverResult<()>;

    /// Maps the whole chunk, `bytes` long, at `addr`, inside one reservation, where nothing is mapped. The mapping
    /// has no access yet.
    ///
    /// # Errors
    /// `OutOfMemory` when the driver has no room for another mapping.
    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()>;

    /// Gives this device (and its configured peers) read and write access to `[addr, addr + bytes)`, which is tiled by
    /// whole mappings.
    ///
    /// # Errors
    /// `OutOfMemory` at the driver's limit of mappings.
    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()>;

    /// Removes the mappings that tile `[addr, addr + bytes)` exactly, whole mappings without unmapped addresses between them.
    /// Does not wait: the caller makes sure that all work through them has completed before the call.
    ///
    /// # Errors
    /// `InvalidValue` where whole mappings do not tile the range.
    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()>;

    /// Returns a descriptor of a chunk, which a process that it is sent to can import. It may be closed once it has been.
    ///
    /// # Errors
    /// `NotSupported` where the driver cannot share memory, and `InvalidValue` for a chunk that was created without the right
    /// to be exported.
    fn export(&self, chunk: ChunkHandle) -> DriverResult<OwnedFd> {
        let _ = chunk;
        Err(DriverError::new(DriverCall::Export, DriverErrorKind::NotSupported, "this driver shares no memory"))
    }

    /// Returns a handle of the memory behind an exported chunk of `bytes` bytes, in any process. It is a chunk like one that
    /// was created here, to be released as often as it was imported; the memory is freed once no process holds a handle or a
    /// mapping of it. Importing a chunk again may return the same handle. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// `NotSupported` where the driver cannot share memory, and `InvalidValue` for a descriptor of anything else. A driver
    /// need not notice that `bytes` is not the chunk's size; then mapping it fails.
    fn import(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> DriverResult<ChunkHandle> {
        let _ = (descriptor, bytes);
        Err(DriverError::new(DriverCall::Import, DriverErrorKind::NotSupported, "this driver shares no memory"))
    }

    /// Returns a dma-buf of what one whole mapping at `addr` has behind it, for other hardware: a network card reads and writes
    /// the memory through it as long as the descriptor is open or the hardware has it attached.
    ///
    /// # Errors
    /// `NotSupported` where the device has no dma-bufs, and `InvalidValue` for anything but one whole mapping.
    fn export_dma_buf(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<OwnedFd> {
        let _ = (addr, bytes);
        Err(DriverError::new(DriverCall::ExportDmaBuf, DriverErrorKind::NotSupported, "this driver has no dma-bufs"))
    }

    /// Allocates `bytes` of pinned memory of the host. Its content is undefined.
    ///
    /// # Errors
    /// `OutOfMemory` when the host has no more of it, and `NotSupported` where the driver has none.
    fn host_alloc(&self, bytes: u64) -> DriverResult<HostMemory> {
        let _ = bytes;
        Err(no_copies(DriverCall::HostAlloc))
    }

    /// Frees memory of the host. No copy from or to it is queued any more.
    ///
    /// # Errors
    /// `InvalidValue` for memory that is not of this driver, and `NotSupported` where the driver has none. It is not freed.
    fn host_free(&self, memory: HostMemory) -> DriverResult<()> {
        let _ = memory;
        Err(no_copies(DriverCall::HostFree))
    }

    /// Calls `read` with `bytes` at `offset` of memory of the host, to which no copy is queued. It is not freed meanwhile, and no
    /// copy to it is queued. Makes no driver call.
    ///
    /// # Errors
    /// `NotSupported` where the memory has no bytes.
    fn host_read(&self, memory: HostMemory, offset: u64, bytes: u64, read: &mut dyn FnMut(&[u8])) -> DriverResult<()> {
        let _ = (memory, offset, bytes, read);
        Err(no_bytes())
    }

    /// Calls `write` with `bytes` at `offset` of memory of the host, for it to change: no copy from or to the memory is queued. It
    /// is not freed meanwhile, and no copy from or to it is queued. Makes no driver call. What the bytes are before is undefined.
    ///
    /// # Errors
    /// `NotSupported` where the memory has no bytes.
    fn host_write(
        &self,
        memory: HostMemory,
        offset: u64,
        bytes: u64,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        let _ = (memory, offset, bytes, write);
        Err(no_bytes())
    }

    /// Returns whether memory of the host has bytes, which [`host_read`](Self::host_read) and [`host_write`](Self::host_write)
    /// show. Constant; makes no driver call.
    fn host_memory_has_bytes(&self) -> bool {
        true
    }
}

/// The order of work on a device's streams.
pub trait StreamDriver: Send + Sync + 'static {
    /// Checks that `stream` is a stream of this device that may be used from the calling thread.
    /// Called once when a stream is first seen, not on the hot path.
    ///
    /// # Errors
    /// `InvalidHandle` when it is not.
    fn check_stream(&self, stream: StreamId) -> DriverResult<()>;

    /// Returns which stream the handle stands for on the calling thread. Called with handles that the caller of the
    /// allocator has just given, and so of streams that exist.
    ///
    /// # Errors
    /// `InvalidHandle` when there is no such stream, and `Capturing` where the driver does not report it during a capture.
    fn identify(&self, stream: StreamId) -> DriverResult<StreamIdentity>;

    /// Returns whether [`StreamId::DEFAULT`] stands on the calling thread for the default stream of this device. With CUDA it
    /// does not while another context of the device is current: [`identify`](Self::identify) refuses it then.
    ///
    /// Called at each request that is handed the default stream: at most a few tens of nanoseconds.
    #[inline]
    fn owns_default_stream(&self) -> bool {
        true
    }

    /// Returns true while `stream` is being captured into a graph: events must not be recorded, queried or waited for
    /// there.
    fn is_capturing(&self, stream: StreamId) -> bool {
        let _ = stream;
        false
    }

    /// Creates an event. Until it is recorded for the first time, it counts as complete.
    ///
    /// # Errors
    /// `OutOfMemory` when the driver has no room for another event.
    fn event_create(&self) -> DriverResult<EventHandle>;

    /// Destroys an event. Allowed while it is pending.
    ///
    /// # Errors
    /// `InvalidHandle` for an event that is not of this driver.
    fn event_destroy(&self, event: EventHandle) -> DriverResult<()>;

    /// Records `event` at the end of what is queued on `stream` now. An earlier recording is forgotten.
    ///
    /// # Errors
    /// `InvalidHandle` for a stream or an event that is not of this driver.
    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()>;

    /// Returns true when all work before the event's last recording has completed.
    ///
    /// # Errors
    /// `InvalidHandle` for an event that is not of this driver, `Capturing` while a capture forbids the question, and `DeviceLost`
    /// where the work before it failed.
    fn event_query(&self, event: EventHandle) -> DriverResult<bool>;

    /// Blocks the calling thread until the event's last recording has completed.
    ///
    /// # Errors
    /// Those of [`event_query`](Self::event_query).
    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()>;

    /// Makes all work that is queued on `stream` after this call wait, on the device, for the event's last recording.
    /// The host does not wait.
    ///
    /// # Errors
    /// Those of [`event_record`](Self::event_record).
    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()>;

    /// Creates a stream for copies between the device and the host, which nobody else knows.
    ///
    /// # Errors
    /// `NotSupported` where the driver makes no such copies.
    fn create_copy_stream(&self) -> DriverResult<StreamId> {
        Err(no_copies(DriverCall::Stream))
    }

    /// Waits for a stream of [`create_copy_stream`](Self::create_copy_stream) and destroys it.
    ///
    /// # Errors
    /// `InvalidHandle` for another stream, and `NotSupported` where the driver makes no such copies.
    fn destroy_copy_stream(&self, stream: StreamId) -> DriverResult<()> {
        let _ = stream;
        Err(no_copies(DriverCall::Stream))
    }

    /// Queues a copy of `bytes` at `source`, on the device, to `offset` of memory of the host. The range on the device may consist
    /// of several mappings.
    ///
    /// # Errors
    /// `InvalidValue` for a range of either side that is not there whole, and `NotSupported` where the driver makes no such copies.
    fn copy_out(
        &self,
        stream: StreamId,
        target: HostMemory,
        offset: u64,
        source: DeviceAddr,
        bytes: u64,
    ) -> DriverResult<()> {
        let _ = (stream, target, offset, source, bytes);
        Err(no_copies(DriverCall::CopyOut))
    }

    /// Queues a copy of `bytes` at `offset` of memory of the host to `target`, on the device.
    ///
    /// # Errors
    /// Those of [`copy_out`](Self::copy_out).
    fn copy_in(
        &self,
        stream: StreamId,
        target: DeviceAddr,
        source: HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        let _ = (stream, target, source, offset, bytes);
        Err(no_copies(DriverCall::CopyIn))
    }

    /// Queues setting `bytes` at `target`, on the device, to zero. The range may consist of several mappings.
    ///
    /// # Errors
    /// `NotSupported` where the driver clears nothing.
    fn clear(&self, stream: StreamId, target: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let _ = (stream, target, bytes);
        let call = DriverCall::Clear;
        Err(DriverError::new(call, DriverErrorKind::NotSupported, "this driver clears no memory"))
    }

    /// Blocks the calling thread until everything queued on the device so far has completed, on every stream and in
    /// every graph that is running.
    ///
    /// # Errors
    /// `Capturing` while a stream of the device is being captured into a graph. A real device may discard the capture
    /// then, so callers do not try this while they know of one.
    fn synchronize_device(&self) -> DriverResult<()>;
}

/// The error for who wants to see bytes that a driver does not have.
pub(crate) fn no_bytes() -> DriverError {
    DriverError::new(DriverCall::HostAlloc, DriverErrorKind::NotSupported, "this driver's copies have no bytes")
}

fn no_copies(call: DriverCall) -> DriverError {
    DriverError::new(call, DriverErrorKind::NotSupported, "this driver copies nothing between the device and the host")
}

/// Everything that the allocator needs from a device.
pub trait Driver: MemoryDriver + StreamDriver {}

impl<T: MemoryDriver + StreamDriver> Driver for T {}

/// A driver that looks at the handles, streams and addresses of each call, so that a wrong one is an error or a panic.
///
/// CUDA's does not, and safe code does not get it from an allocator:
///
/// ```compile_fail,E0277
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let allocator = gapless::CudaAllocator::open(0)?;
/// allocator.driver();
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// Whatever a call brings, it neither reads nor changes memory of this program but the driver's own.
pub unsafe trait CheckedDriver: Driver {}
