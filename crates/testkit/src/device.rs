//! The worlds that operations run in: a simulated device, small enough that everything runs out.

use gapless::allocator::{Builder, ChunkPolicy};
use gapless::driver::{Driver, DriverUsage, HoldStreams, HostConfig, HostDriver, ModelConfig, ModelDriver};
use gapless::units::{KIB, StreamId};

/// State only, any size.
pub type Model = ModelDriver;
/// Real bytes.
pub type Host = HostDriver;

/// Pages of the smallest region that an allocator can be set to.
pub(crate) const SMALL_REGION: u64 = 32;

/// A device and the settings of the allocator on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// Pages of the device, and of the budget at first.
    pub pages: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages of a chunk.
    pub chunk_pages: u64,
    /// Streams.
    pub streams: usize,
    /// Slack, in percent; 0: none set.
    pub slack_percent: u32,
    /// Mappings kept, stale ones included.
    pub mapping_limit: usize,
    /// Pages of a region's addresses, 32 or more; 0: four times the budget or more.
    pub region_pages: u64,
    /// Seals after which a stream's epochs start anew.
    pub epoch_limit: u32,
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
        }
    }
}

impl World {
    /// Bytes of the device.
    pub fn bytes(&self) -> u64 {
        self.pages * self.page_bytes
    }

    /// The settings that do not depend on who uses the allocator.
    pub fn settings<D: Driver>(&self, builder: Builder<D>) -> Builder<D> {
        let builder = builder
            .budget(self.bytes())
            .chunk_policy(ChunkPolicy::Fixed(self.chunk_pages * self.page_bytes))
            .mapping_limit(self.mapping_limit)
            .epoch_limit(self.epoch_limit);
        match self.region_pages {
            0 => builder,
            pages => builder.region_bytes(pages * self.page_bytes),
        }
    }
}

/// A simulated device that a test can hold to account.
pub trait Device: HoldStreams + Sized {
    /// Bytes of a page in its worlds.
    const PAGE_BYTES: u64 = 64 * KIB;

    /// A device of a world.
    fn open(world: &World) -> Self;

    /// What is alive in it.
    fn usage(&self) -> DriverUsage;

    /// Rules of the driver contract that were broken since the last call; `model` panics instead.
    fn broken_rules(&self) -> Vec<String>;

    /// Other processes hold so many bytes from now on.
    fn set_external(&self, bytes: u64);

    /// The stream is captured from now on, or no longer. Devices that only run work do nothing.
    fn set_capturing(&self, _stream: StreamId, _capturing: bool) {}
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
            .expect("the host has memory for a small device")
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
