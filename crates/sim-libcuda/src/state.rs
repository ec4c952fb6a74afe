//! The simulated driver's state: devices, memory, tokens.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gapless::DeviceAddr;
use gapless::driver::host::{HostConfig, HostDriver};
use gapless::driver::{ChunkHandle, DriverResult, MemoryDriver};
use parking_lot::{Mutex, RwLock};

use crate::settings::Settings;
use crate::streams::{Marker, Op, Streams};

/// Everything that the process has asked of the driver.
pub struct State {
    /// What is simulated.
    pub settings: &'static Settings,
    /// Memory and context of each device.
    pub devices: Vec<Device>,
    /// All streams.
    pub streams: Streams,
    /// Chunks, by the handle given out.
    pub chunks: Mutex<HashMap<u64, Chunk>>,
    /// Mappings, by address. Work holds it for reading while it runs.
    pub mappings: RwLock<BTreeMap<u64, Mapping>>,
    /// Reservations, by address: bytes and device.
    pub reservations: Mutex<BTreeMap<u64, (u64, usize)>>,
    /// Memory of `cuMemAlloc`, by address: bytes and the chunk behind them.
    pub plain: Mutex<HashMap<u64, (u64, u64)>>,
    /// Memory of `cuMemAllocHost`, by address: bytes.
    pub pinned: Mutex<HashMap<u64, usize>>,
    /// Events: what was recorded last.
    pub events: Mutex<HashMap<u64, Event>>,
    /// Modules: the image's text.
    pub modules: Mutex<HashMap<u64, String>>,
    /// Functions: the kernel's name.
    pub functions: Mutex<HashMap<u64, &'static str>>,
    /// Graphs and executable graphs.
    pub graphs: Mutex<HashMap<u64, Vec<Op>>>,
    next: AtomicU64,
}

/// A device.
pub struct Device {
    /// Its memory.
    pub host: HostDriver,
    /// How often its primary context is retained.
    pub retained: AtomicU32,
    /// The code that every call answers since a kernel touched what it must not; 0 before.
    pub lost: AtomicU32,
}

/// A chunk.
#[derive(Clone, Copy)]
pub struct Chunk {
    /// Its device.
    pub device: usize,
    /// The device's handle.
    pub handle: ChunkHandle,
    /// Its size.
    pub bytes: u64,
    /// References held by the program.
    pub references: u32,
    /// Made for RDMA.
    pub rdma: bool,
    /// `requestedHandleTypes`.
    pub exportable: u32,
}

/// A mapping.
#[derive(Clone, Copy)]
pub struct Mapping {
    /// Its size, the chunk's.
    pub bytes: u64,
    /// The chunk's device.
    pub device: usize,
    /// The chunk.
    pub chunk: u64,
    /// Made for RDMA.
    pub rdma: bool,
    /// `cuMemSetAccess` was there.
    pub accessible: bool,
}

/// An event.
#[derive(Clone, Default)]
pub struct Event {
    /// The last recording, if any.
    pub recorded: Option<Marker>,
    /// The last recording belongs to a capture.
    pub captured: bool,
}

/// Set by `cuInit`.
pub static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The current context: device number plus one; 0 for none.
    pub static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// The contexts that come back when the current one is popped.
    pub static BELOW: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// The thread's `CUstreamCaptureMode`.
    pub static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

impl State {
    /// The state of this process.
    pub fn get() -> &'static Self {
        static STATE: OnceLock<State> = OnceLock::new();
        STATE.get_or_init(|| {
            let settings = Settings::read();
            let device = |_| Device {
                host: HostDriver::new(HostConfig { capacity_bytes: settings.capacity, ..HostConfig::default() })
                    .expect("memory for a simulated device"),
                retained: AtomicU32::new(0),
                lost: AtomicU32::new(0),
            };
            Self {
                settings,
                devices: (0..settings.devices).map(device).collect(),
                streams: Streams::default(),
                chunks: Mutex::default(),
                mappings: RwLock::default(),
                reservations: Mutex::default(),
                plain: Mutex::default(),
                pinned: Mutex::default(),
                events: Mutex::default(),
                modules: Mutex::default(),
                functions: Mutex::default(),
                graphs: Mutex::default(),
                next: AtomicU64::new(0),
            }
        })
    }

    /// A token that no other object has, and that is no pointer.
    pub fn token(&self) -> u64 {
        0x6100_0000 + 16 * self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The device whose memory a range of addresses belongs to.
    pub fn device_of(&self, addr: u64) -> Option<usize> {
        let reservations = self.reservations.lock();
        let (start, (bytes, device)) = reservations.range(..=addr).next_back()?;
        (addr - start < *bytes).then_some(*device)
    }

    /// True when all of `[addr, addr + bytes)` is mapped with access.
    pub fn accessible(mappings: &BTreeMap<u64, Mapping>, addr: u64, bytes: u64) -> bool {
        let Some(end) = addr.checked_add(bytes) else { return false };
        let mut at = addr;
        while at < end {
            match mappings.range(..=at).next_back() {
                Some((start, mapping)) if at - start < mapping.bytes && mapping.accessible => {
                    at = start + mapping.bytes
                }
                _ => return false,
            }
        }
        true
    }

    /// The mappings that tile `[addr, addr + bytes)` exactly, or `None`.
    pub fn tiling(mappings: &BTreeMap<u64, Mapping>, addr: u64, bytes: u64) -> Option<Vec<u64>> {
        let end = addr.checked_add(bytes)?;
        let mut at = addr;
        let mut starts = Vec::new();
        while at < end {
            let mapping = mappings.get(&at)?;
            starts.push(at);
            at += mapping.bytes;
        }
        (at == end && !starts.is_empty()).then_some(starts)
    }

    /// Memory as `cuMemAlloc` gives it.
    pub fn allocate(&self, device: usize, bytes: u64) -> DriverResult<u64> {
        let host = &self.devices[device].host;
        let bytes = bytes.next_multiple_of(host.granularity());
        let handle = host.create(bytes)?;
        let addr = host.reserve(bytes, host.granularity()).inspect_err(|_| {
            let _ = host.release(handle);
        })?;
        let mapped = host.map(addr, bytes, handle).and_then(|()| {
            host.set_access(addr, bytes).inspect_err(|_| {
                let _ = host.unmap(addr, bytes);
            })
        });
        if let Err(error) = mapped {
            let _ = host.address_free(addr, bytes);
            let _ = host.release(handle);
            return Err(error);
        }
        self.reservations.lock().insert(addr.0, (bytes, device));
        let mapping = Mapping { bytes, device, chunk: 0, rdma: false, accessible: true };
        self.mappings.write().insert(addr.0, mapping);
        self.plain.lock().insert(addr.0, (bytes, handle.0));
        Ok(addr.0)
    }

    /// Gives it back.
    pub fn free(&self, addr: u64) -> bool {
        let Some((bytes, handle)) = self.plain.lock().remove(&addr) else { return false };
        let Some((_, device)) = self.reservations.lock().remove(&addr) else { return false };
        self.mappings.write().remove(&addr);
        let host = &self.devices[device].host;
        let _ = host.unmap(DeviceAddr(addr), bytes);
        let _ = host.address_free(DeviceAddr(addr), bytes);
        let _ = host.release(ChunkHandle(handle));
        true
    }
}
