//! Work that touches memory, for tests and replays, and the pattern that it writes.
//!
//! With the feature `testing`.

use super::{Driver, DriverResult};
use crate::units::{DeviceAddr, StreamId};

/// A byte that [`WorkDriver::verify`] found different from what [`WorkDriver::fill`] with the same seed writes. With the
/// feature `testing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Mismatch {
    /// The stream that the check ran on.
    pub stream: StreamId,
    /// The start of the range that was checked.
    pub addr: DeviceAddr,
    /// The length of that range in bytes.
    pub bytes: u64,
    /// The seed that was expected.
    pub seed: u64,
    /// Offset of the first byte that differs.
    pub first: u64,
    /// The number of bytes that differ.
    pub count: u64,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { stream, addr, bytes, seed, first, count } = self;
        write!(
            f,
            "on {stream:?}: {count} of {bytes} bytes at {addr}, from byte {first} on, are not those of seed {seed}"
        )
    }
}

/// Work that touches memory, in stream order: what tests and replays use to catch a block that was reused, remapped or
/// unmapped too early. Each call queues and returns; the work runs later. With the feature `testing`.
///
/// A stream that is not of this driver is refused with `InvalidHandle`.
///
/// Drivers without bytes (`model`) check the ranges instead: mapped with access, and not unmapped while queued.
pub trait WorkDriver: Driver {
    /// Creates a stream on this device.
    ///
    /// # Errors
    /// `OutOfMemory` when the driver has no room for another stream.
    fn create_stream(&self) -> DriverResult<StreamId>;

    /// Waits for the stream's work and destroys it. The default stream cannot be destroyed.
    ///
    /// # Errors
    /// `InvalidHandle` for the default stream.
    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()>;

    /// Destroys a stream as its owner would: at once, while what is queued on it still runs.
    ///
    /// # Errors
    /// Those of [`destroy_stream`](Self::destroy_stream).
    fn abandon_stream(&self, stream: StreamId) -> DriverResult<()>;

    /// Queues a write of [`pattern_byte`]`(seed, offset)` to every byte of `[addr, addr + bytes)`.
    ///
    /// # Errors
    /// `InvalidValue` for a range that is not mapped with access, where the driver looks before the work runs.
    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()>;

    /// Queues a check that the range holds what `fill` with this seed writes. What it finds is reported by
    /// [`take_mismatches`](Self::take_mismatches).
    ///
    /// # Errors
    /// Those of [`fill`](Self::fill).
    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()>;

    /// Queues a copy of `bytes` from `source` to `target`. The two ranges must not overlap.
    ///
    /// # Errors
    /// Those of [`fill`](Self::fill), and `InvalidValue` for ranges that overlap.
    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()>;

    /// Queues work that keeps the stream busy for about this long (on `model`, one op for each microsecond).
    ///
    /// # Errors
    /// Only that of a stream of another driver.
    fn delay(&self, stream: StreamId, duration: std::time::Duration) -> DriverResult<()>;

    /// Blocks the calling thread until everything queued on `stream` so far has completed.
    ///
    /// # Errors
    /// Only that of a stream of another driver; `DeviceLost` for work that failed.
    fn synchronize(&self, stream: StreamId) -> DriverResult<()>;

    /// Returns the mismatches that completed checks have found since the last call.
    fn take_mismatches(&self) -> Vec<Mismatch>;
}

/// A driver whose streams can be held, so that a test decides when work completes. With the feature `testing`.
///
/// A host wait, for an event or a stream, does not block on a held stream: it lets what it waits for complete, held or
/// not, and whatever that waits for on other streams. So code under test cannot hang on a stream that the test holds;
/// [`host_waits`](Self::host_waits) counts its waits.
pub trait HoldStreams: WorkDriver {
    /// Holds `stream`: nothing queued on it completes by itself until [`resume`](Self::resume).
    ///
    /// # Panics
    /// This method and the others panic when there is no such stream.
    fn hold(&self, stream: StreamId);

    /// Completes what is queued on `stream` now, as far as it does not wait for an event of another stream that has not
    /// completed; the rest completes with that event. A hold stays for what is queued later.
    fn complete(&self, stream: StreamId);

    /// Ends the hold of `stream`.
    fn resume(&self, stream: StreamId);

    /// Returns how many times the host has waited for work that had not completed.
    fn host_waits(&self) -> u64;
}

/// Returns the byte that [`WorkDriver::fill`] writes at `offset` of a range. It depends on seed and offset such that
/// shifted, swapped or stale content is noticed.
#[inline]
#[must_use]
pub const fn pattern_byte(seed: u64, offset: u64) -> u8 {
    let word = pattern_word(seed, offset / 8);
    word.to_le_bytes()[(offset % 8) as usize]
}

/// Returns eight pattern bytes at once: those at offsets `8 * index .. 8 * index + 8`, little-endian.
#[inline]
#[must_use]
pub const fn pattern_word(seed: u64, index: u64) -> u64 {
    // SplitMix64's finaliser: every output bit depends on every input bit.
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_mul(0xd1b5_4a32_d192_ed03));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
