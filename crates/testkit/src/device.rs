//! The worlds in which operations run: a device small enough that every resource runs out.

use crate::op::{CaptureMode, CurrentContext};
use gapless::allocator::{Builder, ChunkPolicy};
use gapless::driver::{
    CheckedDriver, Driver, DriverResult, DriverUsage, HoldStreams, HostConfig, HostDriver, ModelConfig, ModelDriver,
    PER_THREAD_STREAM,
};
use gapless::units::{DeviceAddr, KIB, MIB, StreamId};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A device that only keeps state, of any size.
pub type Model = ModelDriver;
/// A device with real memory.
pub type Host = HostDriver;

/// Size in pages of the smallest region that can be configured.
pub(crate) const SMALL_REGION: u64 = 32;

/// A device and the settings of the allocator on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// Memory of the device, and initial budget, in pages.
    pub pages: u64,
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Size of a chunk in pages, or 0 for the allocator's own choice.
    pub chunk_pages: u64,
    /// Number of streams.
    pub streams: usize,
    /// Slack in percent, or 0 for the default.
    pub slack_percent: u32,
    /// Maximum number of mappings, including stale ones.
    pub mapping_limit: usize,
    /// Size of a region's addresses in pages, at least 32, or 0 for the default of at least four times the budget.
    pub region_pages: u64,
    /// Number of seals after which a stream's epochs are renumbered.
    pub epoch_limit: u32,
    /// Whether the allocators are notified of how long streams live: they keep each, and forget it before it is destroyed.
    pub kept: bool,
    /// Whether the stream that every thread has of its own is one of the streams, in addition.
    pub own_streams: bool,
    /// Whether every second stream that is created is one of a green context, on devices that have them.
    pub green_streams: bool,
    /// Whether the streams of a GPU wait for its legacy default stream, and that for them.
    pub blocking_streams: bool,
    /// Whether the allocators place each large block within one chunk while they may create another.
    pub whole_blocks: bool,
}

impl Default for World {
    fn default() -> Self {
        Self {
            pages: 16,
            page_bytes: 64 * KIB,
            chunk_pages: 1,
            streams: 3,
            slack_percent: 0,
            mapping_limit: 400_000,
            region_pages: 0,
            epoch_limit: u32::MAX,
            kept: true,
            own_streams: false,
            green_streams: false,
            blocking_streams: false,
            whole_blocks: false,
        }
    }
}

impl World {
    /// Returns the memory of the device in bytes.
    pub fn bytes(&self) -> u64 {
        self.pages * self.page_bytes
    }

    /// Returns `true` if a device with real memory can have the size.
    pub fn fits_in_memory(&self) -> bool {
        self.bytes() <= 64 * MIB
    }

    /// Applies the settings that are the same for all users of the allocator.
    pub fn settings<D: Driver>(&self, builder: Builder<D>) -> Builder<D> {
        let chunks = match self.chunk_pages {
            0 => ChunkPolicy::Auto,
            pages => ChunkPolicy::Fixed(pages * self.page_bytes),
        };
        let builder = builder
            .budget(self.bytes())
            .chunk_policy(chunks)
            .mapping_limit(self.mapping_limit)
            .epoch_limit(self.epoch_limit)
            // Less than most blocks have.
            .copy_slot_bytes(self.page_bytes / 2 + 512)
            .backup_directory(backup_directory());
        let builder = if self.whole_blocks { builder.whole_blocks() } else { builder };
        match self.region_pages {
            0 => builder,
            pages => builder.region_bytes(pages * self.page_bytes),
        }
    }
}

/// A directory for files without names.
fn backup_directory() -> PathBuf {
    let user = std::fs::metadata("/proc/self").map_or(0, |process| process.uid());
    std::env::temp_dir().join(format!("gapless-testkit-{user}"))
}

/// Returns the stream that has a handle, or none.
pub(crate) const fn stream_of(handle: u64) -> StreamId {
    // SAFETY: the drivers of tests look at what they get, and get no stream that does not exist where they are a real device.
    unsafe { StreamId::from_raw(handle) }
}

/// A device whose state a test can inspect and control.
pub trait Device: CheckedDriver + HoldStreams + Sized {
    /// Size of a page in the worlds of this device, in bytes.
    const PAGE_BYTES: u64 = 64 * KIB;

    /// Creates the device of a world.
    fn open(world: &World) -> Self;

    /// Returns the number of objects that exist on the device.
    fn usage(&self) -> DriverUsage;

    /// Returns the violations of the driver contract since the last call. `ModelDriver` panics instead.
    fn broken_rules(&self) -> Vec<String>;

    /// Sets the memory held by other processes, in bytes.
    fn set_external(&self, bytes: u64);

    /// Returns the number of other devices that can be given access to this one's memory. Those of the model and of host
    /// exist in the witness only.
    fn peers(&self) -> u8 {
        2
    }

    /// Gives a peer access to everything for which [`set_access`](gapless::driver::MemoryDriver::set_access) is called from
    /// now on.
    fn add_peer(&self, _peer: u8) {}

    /// Leaves a peer out of it again.
    fn remove_peer(&self, _peer: u8) {}

    /// Fills memory as work of a peer, behind what is queued on a stream, and before what will be.
    ///
    /// # Errors
    /// Those of the device.
    fn fill_as_peer(&self, _peer: u8, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.fill(stream, addr, bytes, seed)
    }

    /// Makes another context current on the calling thread. Does nothing on devices without contexts.
    fn set_context(&self, _context: CurrentContext) {}

    /// Returns whether the handles of default streams stand for those of another context on the calling thread.
    fn has_other_default_streams(&self) -> bool {
        false
    }

    /// Returns whether the program can reset the device.
    fn has_resets(&self) -> bool {
        false
    }

    /// Destroys all streams and events. Nothing works any more but giving memory back.
    fn reset(&self) {}

    /// Sets how captures are made that begin from now on: see [`Op::CaptureAs`](crate::Op::CaptureAs).
    fn capture_as(&self, _mode: CaptureMode, _elsewhere: bool) {}

    /// Begins or ends a capture of the stream, where the device can capture it.
    fn set_capturing(&self, stream: StreamId, capturing: bool);

    /// Returns whether a capture leaves all other streams as they are: pools count on it.
    fn captures_leave_others_alone(&self) -> bool {
        true
    }

    /// Ends the captures that outlive the device otherwise.
    fn end_captures(&self) {}

    /// Returns whether only the thread that began the capture of a stream can end it.
    fn ends_with_thread(&self, stream: StreamId) -> bool {
        stream == PER_THREAD_STREAM
    }
}

impl Device for ModelDriver {
    fn open(world: &World) -> Self {
        Self::new(ModelConfig {
            capacity_bytes: world.bytes(),
            granularity: world.page_bytes,
            ..ModelConfig::default()
        })
    }

    fn usage(&self) -> DriverUsage {
        self.usage()
    }

    fn broken_rules(&self) -> Vec<String> {
        Vec::new()
    }

    fn set_external(&self, bytes: u64) {
        self.set_external(bytes);
    }

    fn set_capturing(&self, stream: StreamId, capturing: bool) {
        if capturing { self.begin_capture(stream) } else { self.end_capture(stream) }
    }
}

impl Device for HostDriver {
    fn open(world: &World) -> Self {
        Self::new(HostConfig { capacity_bytes: world.bytes(), granularity: world.page_bytes, ..HostConfig::default() })
            .expect("the host has enough memory for a small device")
    }

    fn usage(&self) -> DriverUsage {
        self.usage()
    }

    fn broken_rules(&self) -> Vec<String> {
        self.take_violations().iter().map(ToString::to_string).collect()
    }

    fn set_external(&self, bytes: u64) {
        self.set_external(bytes);
    }

    fn set_capturing(&self, stream: StreamId, capturing: bool) {
        if capturing { self.begin_capture(stream) } else { self.end_capture(stream) }
    }
}
