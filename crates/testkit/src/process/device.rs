//! The devices of a process: their settings, and the layers between its allocators and a simulated device.

use crate::device::{Device, Host, Model};
use crate::witness::Witness;
use gapless::driver::cuda::{Capture, OpenError};
use gapless::driver::{DriverResult, FaultDriver, HostConfig, ModelConfig};
use gapless::units::{KIB, MIB, StreamId};
use gapless_process::{DeviceDriver, Simulated};

/// All layers between an allocator of a process and the device.
pub(super) type Layers<M> = FaultDriver<Witness<Simulated<M>>>;

/// Two devices, and the settings of a process that uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoDevices {
    /// Memory of each device, in pages.
    pub pages: u64,
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Number of streams of each device, beside the default one.
    pub streams: usize,
    /// Whether chunks are single pages, of 2 MiB then: else the allocators choose.
    pub single_pages: bool,
    /// The budget at the start as a percentage of the device, or 0 for none.
    pub budget_percent: u64,
    /// Whether each device gets access to the other one's memory.
    pub peers: bool,
    /// Whether blocks of a page and more have their chunks for themselves.
    pub private: bool,
    /// Whether streams are promised to live as long as the process.
    pub kept: bool,
}

impl Default for TwoDevices {
    fn default() -> Self {
        Self {
            pages: 16,
            page_bytes: 2 * MIB,
            streams: 2,
            single_pages: true,
            budget_percent: 0,
            peers: true,
            private: false,
            kept: true,
        }
    }
}

impl TwoDevices {
    /// The memory of each device in bytes.
    pub fn bytes(&self) -> u64 {
        self.pages * self.page_bytes
    }

    /// The settings in the words of `GAPLESS_CONF`.
    pub(super) fn conf(&self) -> String {
        let mut parts = Vec::new();
        if self.single_pages {
            assert_eq!(self.page_bytes, 2 * MIB, "the configuration knows multiples of 2 MiB");
            parts.push("chunk:2MiB".to_owned());
        }
        if self.budget_percent > 0 {
            parts.push(format!("budget:{}%", self.budget_percent));
        }
        if !self.peers {
            parts.push("peers:none".to_owned());
        }
        if self.private {
            parts.push("ipc:private".to_owned());
        }
        parts.join(",")
    }

    /// The budget at the start, if one is set.
    pub(super) fn budget(&self) -> Option<u64> {
        (self.budget_percent > 0).then(|| self.bytes() * self.budget_percent / 100)
    }
}

/// A device that can be one of several of a process.
pub trait Simulates: Device + DeviceDriver {
    /// Size of a page where the allocators choose the size of chunks, in bytes.
    const SMALL_PAGE_BYTES: u64 = 64 * KIB;

    /// Creates the device of that number.
    fn simulated(devices: &TwoDevices, ordinal: u32) -> Simulated<Self>;
}

impl Simulates for Model {
    fn simulated(devices: &TwoDevices, ordinal: u32) -> Simulated<Self> {
        let (capacity_bytes, granularity) = (devices.bytes(), devices.page_bytes);
        Simulated::model(ordinal, ModelConfig { capacity_bytes, granularity, ..ModelConfig::default() })
    }
}

impl Simulates for Host {
    fn simulated(devices: &TwoDevices, ordinal: u32) -> Simulated<Self> {
        let (capacity_bytes, granularity) = (devices.bytes(), devices.page_bytes);
        let config = HostConfig { capacity_bytes, granularity, ..HostConfig::default() };
        Simulated::host(ordinal, config).expect("the host has enough memory for a small device")
    }
}

impl<D: DeviceDriver> DeviceDriver for Witness<D> {
    fn name(&self) -> String {
        self.inner().name()
    }

    fn capture_of(&self, stream: StreamId) -> Option<Capture> {
        self.inner().capture_of(stream)
    }

    fn device_of_stream(&self, stream: StreamId) -> DriverResult<u32> {
        self.inner().device_of_stream(stream)
    }

    fn add_peer(&self, peer: u32) -> Result<(), OpenError> {
        self.inner().add_peer(peer)?;
        self.name_peer(number_of(peer));
        Ok(())
    }

    fn remove_peer(&self, peer: u32) {
        self.leave_peer_out(number_of(peer));
        self.inner().remove_peer(peer);
    }

    fn peers(&self) -> Vec<u32> {
        self.inner().peers()
    }
}

fn number_of(peer: u32) -> u8 {
    u8::try_from(peer).expect("a device of a test")
}
