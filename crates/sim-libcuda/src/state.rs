//! The state of the simulated driver: devices, memory, and objects by handle.

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

/// The state of the driver in this process.
pub struct State {
    /// The settings of the simulation.
    pub settings: &'static Settings,
    /// Memory and context of each device.
    pub devices: Vec<Device>,
    /// The streams of all devices.
    pub streams: Streams,
    /// Chunks by the handle that the program has.
    pub chunks: Mutex<HashMap<u64, Chunk>>,
    /// Mappings by address. Work holds a read lock while it runs.
    pub mappings: RwLock<BTreeMap<u64, Mapping>>,
    /// Reservations by address: size in bytes and device.
    pub reservations: Mutex<BTreeMap<u64, (u64, usize)>>,
    /// Memory of `cuMemAlloc` by address: size in bytes and handle of the chunk.
    pub plain: Mutex<HashMap<u64, (u64, u64)>>,
    /// Memory of `cuMemAllocHost` by address: size in bytes.
    pub pinned: Mutex<HashMap<u64, usize>>,
    /// Events by handle.
    pub events: Mutex<HashMap<u64, Event>>,
    /// Modules by handle: the text of the image.
    pub modules: Mutex<HashMap<u64, String>>,
    /// Functions by handle: the name of the kernel.
    pub functions: Mutex<HashMap<u64, &'static str>>,
    /// Graphs and executable graphs by handle: their operations.
    pub graphs: Mutex<HashMap<u64, Vec<Op>>>,
    next: AtomicU64,
}

/// A simulated device.
pub struct Device {
    /// The driver of the device's memory.
    pub host: HostDriver,
    /// Number of times the primary context is retained.
    pub retained: AtomicU32,
    /// The code that every call returns since work accessed invalid memory, or 0 before.
    pub lost: AtomicU32,
}

/// Physical memory created by `cuMemCreate`.
#[derive(Clone, Copy)]
pub struct Chunk {
    /// Number of the device.
    pub device: usize,
    /// Handle of the device's host driver.
    pub handle: ChunkHandle,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of references that the program holds.
    pub references: u32,
    /// Whether the chunk is RDMA-capable.
    pub rdma: bool,
    /// The `requestedHandleTypes` of the chunk.
    pub exportable: u32,
}

/// A mapping of a chunk.
#[derive(Clone, Copy)]
pub struct Mapping {
    /// Size in bytes, which is the size of the chunk.
    pub bytes: u64,
    /// Number of the chunk's device.
    pub device: usize,
    /// Handle of the chunk.
    pub chunk: u64,
    /// Whether the chunk is RDMA-capable.
    pub rdma: bool,
    /// Whether `cuMemSetAccess` was called for the mapping.
    pub accessible: bool,
}

/// An event.
#[derive(Clone, Default)]
pub struct Event {
    /// The last recording, if any.
    pub recorded: Option<Marker>,
    /// The number of the capture that the last recording belongs to, if any.
    pub captured: Option<u64>,
}

/// Whether `cuInit` was called successfully.
pub static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The current context: the number of its device plus one, or 0 for none.
    pub static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// The contexts below the current one on the thread's stack.
    pub static BELOW: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// The thread's `CUstreamCaptureMode`.
    pub static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

impl State {
    /// Returns the state of this process.
    pub fn get() -> &'static Self {
        static STATE: OnceLock<State> = OnceLock::new();
        STATE.get_or_init(|| {
            let settings = Settings::read();
            let device = |_| Device {
                host: HostDriver::new(HostConfig { capacity_bytes: settings.capacity, ..HostConfig::default() })
                    .expect("a simulated device can be created"),
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

    /// Returns a new handle, which no other object has and which is not a valid pointer.
    pub fn token(&self) -> u64 {
        0x6100_0000 + 16 * self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the device of the reservation that contains an address.
    pub fn device_of(&self, addr: u64) -> Option<usize> {
        let reservations = self.reservations.lock();
        let (start, (bytes, device)) = reservations.range(..=addr).next_back()?;
        (addr - start < *bytes).then_some(*device)
    }

    /// Returns `true` if all of `[addr, addr + bytes)` is mapped with access.
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

    /// Returns the addresses of the mappings that cover `[addr, addr + bytes)` exactly, or `None` if there are none.
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

    /// Allocates memory for `cuMemAlloc`, and returns its address.
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

    /// Frees memory of [`allocate`](Self::allocate). Returns `false` if the address is unknown.
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
