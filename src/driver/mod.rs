//! Drivers: what the allocator needs from a device, as two small traits with a written contract.
//!
//! [`MemoryDriver`] is virtual memory management: addresses, chunks, mappings. [`StreamDriver`] is order: events and
//! waits. A [`Driver`] is both. [`WorkDriver`] adds work that touches memory in stream order, for tests and replays.
//!
//! Both are safe traits: addresses are numbers and handles are tokens, and nothing here dereferences them.
//!
//! Rules that every implementation enforces (the CUDA driver by error or by undefined behaviour, `model` by panic,
//! `host` by error and real faults), and that the allocator keeps:
//!
//! - a chunk is mapped whole, at offset 0, page-aligned, into addresses of one reservation where nothing is mapped;
//! - one chunk may be mapped at several addresses at once (aliases);
//! - a mapping gives no access until `set_access` covers it, whole mappings only;
//! - `unmap` takes whole mappings only, several adjacent ones in one call if wished, and no hole between them;
//! - `unmap` does not wait for work in flight: the caller proves that all work through the mapping has completed;
//! - `release` drops the handle; the memory is free once its last mapping is gone too;
//! - `address_free` takes exactly what `reserve` gave, with nothing mapped in it.
//!
//! Threads: every method may be called from any thread, concurrently. Implementations do not call back.
//! After a failed call nothing has changed: the same call may be repeated, the same undo steps remain valid.

mod calls;
mod counted;
pub mod cuda;
mod error;
pub mod fault;
pub mod host;
mod intercept;
mod ledger;
pub mod model;
mod ranges;
mod usage;

pub use calls::{DriverCall, DriverCalls};
pub use counted::{CallCounter, Counted};
pub use error::{DriverError, DriverErrorKind};
pub use fault::{Fault, FaultDriver, Faults};
pub use host::{HostConfig, HostDriver, Violation};
pub use intercept::{Hook, Intercepted};
pub use model::{CostTable, ModelConfig, ModelDriver};
pub use usage::DriverUsage;

use crate::units::{DeviceAddr, StreamId};

/// Shorthand for what driver calls return.
pub type DriverResult<T> = Result<T, DriverError>;

/// A physical allocation (`CUmemGenericAllocationHandle`): a token, meaningful to the driver that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkHandle(pub u64);

/// An event (`CUevent`): a token, meaningful to the driver that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventHandle(pub u64);

/// Physical memory of a device, in bytes, all processes counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryInfo {
    /// Bytes that nobody holds.
    pub free: u64,
    /// Bytes of the device.
    pub total: u64,
}

/// Virtual memory of one device.
pub trait MemoryDriver: Send + Sync + 'static {
    /// The page size in bytes, a power of two: the smallest chunk, and what every size and address below is a multiple
    /// of. Constant over the driver's life; free of charge.
    fn granularity(&self) -> u64;

    /// Free and total physical bytes of the device.
    ///
    /// # Errors
    /// Only when the device is lost.
    fn memory_info(&self) -> DriverResult<MemoryInfo>;

    /// Reserves `bytes` of addresses at a multiple of `alignment` (a power of two, at least the granularity).
    /// No memory is behind them.
    ///
    /// # Errors
    /// `OutOfMemory` when no such range is to be had (a smaller one may be), `InvalidValue` for a zero or unaligned
    /// size.
    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr>;

    /// Gives back a whole reservation, exactly as [`reserve`](Self::reserve) returned it. Nothing may be mapped in it.
    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()>;

    /// Creates a chunk of `bytes` physical memory. Its content is undefined.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has not that much free.
    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle>;

    /// Drops a chunk's handle. Legal while mapped: the memory is free when the last mapping is gone as well. A handle
    /// is released once; a stale handle is undefined behaviour on a real driver.
    fn release(&self, chunk: ChunkHandle) -> DriverResult<()>;

    /// Maps the whole chunk, `bytes` long, at `addr`, inside one reservation, where nothing is mapped. Gives no access.
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

    /// Removes the mappings that tile `[addr, addr + bytes)` exactly, whole mappings without a hole between them.
    /// Does not wait: all work through them has completed before the call.
    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()>;
}

/// Order of work on a device's streams.
pub trait StreamDriver: Send + Sync + 'static {
    /// Checks that `stream` is a stream of this device that may be used from the calling thread.
    /// Called once when a stream is first seen, not on the hot path.
    ///
    /// # Errors
    /// `InvalidHandle` when it is not.
    fn check_stream(&self, stream: StreamId) -> DriverResult<()>;

    /// True while `stream` is being captured into a graph: events must not be recorded, queried or waited for there.
    fn is_capturing(&self, stream: StreamId) -> bool {
        let _ = stream;
        false
    }

    /// Creates an event, not recorded anywhere; querying it says "complete".
    fn event_create(&self) -> DriverResult<EventHandle>;

    /// Destroys an event. Legal while it is pending.
    fn event_destroy(&self, event: EventHandle) -> DriverResult<()>;

    /// Records `event` at the end of what is queued on `stream` now. An earlier recording is forgotten.
    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()>;

    /// True when all work before the event's last recording has completed.
    fn event_query(&self, event: EventHandle) -> DriverResult<bool>;

    /// Blocks the calling thread until the event's last recording has completed.
    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()>;

    /// Makes work queued on `stream` from now on wait, on the device, for the event's last recording. The host does not
    /// wait.
    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()>;
}

/// Everything the allocator needs of a device.
pub trait Driver: MemoryDriver + StreamDriver {}

impl<T: MemoryDriver + StreamDriver> Driver for T {}

/// A byte that [`WorkDriver::verify`] found different from what [`WorkDriver::fill`] with the same seed writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Mismatch {
    /// The stream on which the check ran.
    pub stream: StreamId,
    /// Start of the range that was checked.
    pub addr: DeviceAddr,
    /// Bytes of that range.
    pub bytes: u64,
    /// The seed that was expected.
    pub seed: u64,
    /// Offset of the first byte that differs.
    pub first: u64,
    /// How many bytes differ.
    pub count: u64,
}

/// Work that touches memory, in stream order: what tests and replays use to catch a block that was reused, remapped or
/// unmapped too early. Each call queues and returns; the work runs later.
///
/// Drivers without bytes (`model`) check the ranges instead: mapped with access, and not unmapped while queued.
pub trait WorkDriver: Driver {
    /// A new stream of this device.
    fn create_stream(&self) -> DriverResult<StreamId>;

    /// Waits for the stream's work and destroys it. The default stream cannot be destroyed.
    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()>;

    /// Queues writing `[addr, addr + bytes)` with [`pattern_byte`]`(seed, offset)`.
    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()>;

    /// Queues a check that the range holds what `fill` with this seed writes; differences go to
    /// [`take_mismatches`](Self::take_mismatches).
    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()>;

    /// Queues copying `bytes` from `source` to `target`, which do not overlap.
    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()>;

    /// Queues work that keeps the stream busy for about this long (`model`: this many microseconds of ops; see there).
    fn delay(&self, stream: StreamId, duration: std::time::Duration) -> DriverResult<()>;

    /// Waits on the host until everything queued on `stream` so far has completed.
    fn synchronize(&self, stream: StreamId) -> DriverResult<()>;

    /// The mismatches that completed checks have found since the last call.
    fn take_mismatches(&self) -> Vec<Mismatch>;
}

/// A driver whose streams can be held, so that a test decides when work completes.
///
/// A wait on the host, for an event or a stream, still takes no longer than it must: it lets through what it waits for,
/// held or not, and whatever that waits for on other streams. So code under test cannot block on a stream that the test
/// holds; [`host_waits`](Self::host_waits) says that it waited.
pub trait HoldStreams: WorkDriver {
    /// From now on nothing queued on `stream` completes by itself.
    ///
    /// # Panics
    /// This and the other methods: when there is no such stream.
    fn hold(&self, stream: StreamId);

    /// Completes what is queued on `stream` now, as far as it does not wait for an event of another stream that has not
    /// completed; the rest completes with that event. A hold stays for what is queued later.
    fn complete(&self, stream: StreamId);

    /// Ends a hold.
    fn resume(&self, stream: StreamId);

    /// How often the host has waited for work that had not completed.
    fn host_waits(&self) -> u64;
}

/// The byte that [`WorkDriver::fill`] writes at `offset` of a range: a function of seed and offset such that shifted,
/// swapped or stale content shows.
pub const fn pattern_byte(seed: u64, offset: u64) -> u8 {
    let word = pattern_word(seed, offset / 8);
    word.to_le_bytes()[(offset % 8) as usize]
}

/// Eight pattern bytes at once: those at offsets `8 * index .. 8 * index + 8`, little-endian.
pub const fn pattern_word(seed: u64, index: u64) -> u64 {
    // SplitMix64's finaliser: every output bit depends on every input bit.
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_mul(0xd1b5_4a32_d192_ed03));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
