//! The state of the simulated driver: devices, memory, and objects by handle.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gapless::DeviceAddr;
use gapless::driver::host::{HostConfig, HostDriver};
use gapless::driver::{ChunkHandle, DriverResult, MemoryDriver};
use parking_lot::{Mutex, RwLock};

use crate::accounts::Accounts;
use crate::broken;
use crate::context::{Context, OtherContext};
use crate::ipc::{OfProcess, SharedEvent};
use crate::kept::Kept;
use crate::settings::Settings;
use crate::streams::{Marker, Op, Streams};

/// The state of the driver in this process.
pub struct State {
    /// The settings of the simulation.
    pub settings: &'static Settings,
    /// Memory and context of each device.
    pub devices: Vec<Device>,
    /// The memory that each process holds, where several share the devices.
    pub accounts: Option<Accounts>,
    /// The streams of all devices.
    pub streams: Streams,
    /// Chunks by the handle that the program has.
    pub chunks: Mutex<Kept<HashMap<u64, Chunk>>>,
    /// Mappings by address. Work holds a read lock while it runs.
    pub mappings: RwLock<Kept<BTreeMap<u64, Mapping>>>,
    /// Reservations by address: size in bytes and device.
    pub reservations: Mutex<Kept<BTreeMap<u64, (u64, usize)>>>,
    /// Memory of `cuMemAlloc` by address.
    pub plain: Mutex<Kept<HashMap<u64, PlainMemory>>>,
    /// Memory of `cuMemAlloc` in other processes by address.
    pub opened: Mutex<Kept<HashMap<u64, Opened>>>,
    /// Memory of `cuMemAllocHost` by address: its size in bytes.
    pub pinned: Mutex<Kept<BTreeMap<u64, usize>>>,
    /// Events by handle.
    pub events: Mutex<Kept<HashMap<u64, Event>>>,
    /// Modules by handle: the text of the image.
    pub modules: Mutex<HashMap<u64, String>>,
    /// Functions by handle: the name of the kernel.
    pub functions: Mutex<HashMap<u64, &'static str>>,
    /// Graphs and executable graphs by handle: their operations.
    pub graphs: Mutex<HashMap<u64, Vec<Op>>>,
    /// The contexts other than primary ones, from number 1 on; none for a destroyed one.
    pub contexts: Mutex<Vec<Option<OtherContext>>>,
    /// Pairs of devices, of which the first was given access to the `cuMemAlloc` memory of the second.
    pub peers_enabled: RwLock<HashSet<(usize, usize)>>,
    /// Number of waits that took a processor's time.
    pub spins: AtomicU64,
    next: AtomicU64,
}

/// A simulated device.
pub struct Device {
    /// The driver of the device's memory.
    pub host: HostDriver,
    /// Number of times the primary context is retained.
    pub retained: AtomicU32,
    /// Number of times the primary context was reset.
    pub resets: AtomicU64,
    /// The primary context was reset, and not retained since.
    pub is_reset: AtomicBool,
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
    /// The devices that were given access to the mapping.
    pub granted: DeviceSet,
}

/// Memory of `cuMemAlloc`.
pub struct PlainMemory {
    /// Size in bytes.
    pub bytes: u64,
    /// Handle of the device's host driver.
    pub chunk: ChunkHandle,
    /// The file that other processes open, if there is a handle for them.
    pub file: Option<Arc<OwnedFd>>,
}

/// Memory of `cuMemAlloc` in another process.
pub struct Opened {
    /// The name that it was opened by.
    pub name: OfProcess,
    /// Size in bytes.
    pub bytes: u64,
    /// Handle of the device's host driver.
    pub chunk: ChunkHandle,
    /// Number of times it is to be closed.
    pub times: u32,
}

/// A set of devices.
#[derive(Clone, Copy, Default)]
pub struct DeviceSet(u64);

impl DeviceSet {
    /// Adds a device.
    #[must_use]
    pub fn with(self, device: usize) -> Self {
        Self(self.0 | 1 << device)
    }

    /// Removes a device.
    #[must_use]
    pub fn without(self, device: usize) -> Self {
        Self(self.0 & !(1 << device))
    }

    /// Returns `true` if the device is in the set.
    pub fn contains(self, device: usize) -> bool {
        self.0 & 1 << device != 0
    }
}

/// Who accesses memory: a device, by its number.
#[derive(Clone, Copy)]
pub enum Accessor {
    /// A kernel, or a memset.
    Kernel(usize),
    /// A copy. Memory of `cuMemAlloc` on a device that cannot be reached is copied through the host.
    Copy(usize),
}

/// An event.
#[derive(Clone, Default)]
pub struct Event {
    /// The context in which the event was created.
    pub context: Context,
    /// Whether a thread that waits for it sleeps; it spins otherwise.
    pub blocking: bool,
    /// The last recording, if any.
    pub recorded: Option<Marker>,
    /// The number of the capture that the last recording belongs to, if any.
    pub captured: Option<u64>,
    /// The recordings of an event that other processes have, too, instead of `recorded`.
    pub shared: Option<Arc<SharedEvent>>,
    /// Whether the event was created by another process.
    pub imported: bool,
}

impl Event {
    /// Returns `true` if the work before the last recording has completed.
    pub fn is_complete(&self) -> bool {
        self.recorded.as_ref().is_none_or(Marker::is_complete)
            && self.shared.as_ref().is_none_or(|shared| shared.is_complete(shared.last()))
    }
}

/// Whether `cuInit` was called successfully.
pub static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The current context.
    pub static CURRENT: Cell<Option<Context>> = const { Cell::new(None) };
    /// The contexts below the current one on the thread's stack.
    pub static BELOW: RefCell<Vec<Option<Context>>> = const { RefCell::new(Vec::new()) };
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
                resets: AtomicU64::new(0),
                is_reset: AtomicBool::new(false),
                lost: AtomicU32::new(0),
            };
            Self {
                settings,
                devices: (0..settings.devices).map(device).collect(),
                accounts: settings
                    .shared
                    .as_deref()
                    .map(|path| Accounts::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))),
                streams: Streams::default(),
                chunks: Mutex::default(),
                mappings: RwLock::default(),
                reservations: Mutex::default(),
                plain: Mutex::default(),
                opened: Mutex::default(),
                pinned: Mutex::default(),
                events: Mutex::default(),
                modules: Mutex::default(),
                functions: Mutex::default(),
                graphs: Mutex::default(),
                contexts: Mutex::default(),
                peers_enabled: RwLock::default(),
                spins: AtomicU64::new(0),
                next: AtomicU64::new(0),
            }
        })
    }

    /// Runs a call that creates, frees or counts memory of a device, which other processes may share.
    pub fn accounted<T>(&self, device: usize, call: impl FnOnce(&HostDriver) -> DriverResult<T>) -> DriverResult<T> {
        let host = &self.devices[device].host;
        match &self.accounts {
            None => call(host),
            Some(accounts) => accounts.around(self.settings.physical[device], host, call),
        }
    }

    /// Returns whether a context is a green one.
    pub fn is_green(&self, context: Context) -> bool {
        let Some(at) = context.number.checked_sub(1) else { return false };
        self.contexts.lock()[at].is_some_and(|other| other.green)
    }

    /// Returns the green contexts of a device.
    pub fn green_contexts_of(&self, device: usize) -> Vec<Context> {
        let contexts = self.contexts.lock();
        let green = |other: &OtherContext| other.green && other.device == device;
        let numbered = contexts.iter().enumerate().filter(|(_, other)| other.as_ref().is_some_and(green));
        numbered.map(|(at, _)| Context { device, number: at + 1 }).collect()
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

    /// Returns `true` if `addr` lies in memory of `cuMemAllocHost`.
    pub fn is_pinned(&self, addr: u64) -> bool {
        let pinned = self.pinned.lock();
        pinned.range(..=addr).next_back().is_some_and(|(start, bytes)| addr - start < *bytes as u64)
    }

    /// Returns `true` if all of `[addr, addr + bytes)` is mapped, and `by` may access it.
    pub fn accessible(&self, mappings: &BTreeMap<u64, Mapping>, by: Accessor, addr: u64, bytes: u64) -> bool {
        addr.checked_add(bytes).is_some() && self.inaccessible(mappings, by, addr, bytes).is_none()
    }

    fn may_access(&self, mapping: &Mapping, by: Accessor) -> bool {
        let plain = mapping.chunk == 0;
        match by {
            Accessor::Copy(_) if plain => true,
            Accessor::Copy(device) | Accessor::Kernel(device) => {
                mapping.granted.contains(device)
                    || (plain && self.peers_enabled.read().contains(&(device, mapping.device)))
            }
        }
    }

    /// Returns `true` if `device` can be given access to memory of `owner`.
    pub fn can_reach(&self, device: usize, owner: usize) -> bool {
        device == owner || self.settings.peers
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

    /// Returns a mapping of which a part lies in `[addr, addr + bytes)`: where it begins, and its size.
    pub fn overlapping(mappings: &BTreeMap<u64, Mapping>, addr: u64, bytes: u64) -> Option<(u64, u64)> {
        let (start, mapping) = mappings.range(..addr.saturating_add(bytes)).next_back()?;
        let first = mappings.range(..=addr).next_back().filter(|(start, mapping)| addr - *start < mapping.bytes);
        let (start, mapping) = first.or((*start >= addr).then_some((start, mapping)))?;
        Some((*start, mapping.bytes))
    }

    /// Returns whether an address lies inside of a mapping, and not at its beginning.
    pub fn is_cut(mappings: &BTreeMap<u64, Mapping>, addr: u64) -> bool {
        mappings.range(..addr).next_back().is_some_and(|(start, mapping)| addr - start < mapping.bytes)
    }

    /// Returns the first address of `[addr, addr + bytes)` that `by` may not access, and whether something is mapped there.
    pub fn inaccessible(
        &self,
        mappings: &BTreeMap<u64, Mapping>,
        by: Accessor,
        addr: u64,
        bytes: u64,
    ) -> Option<(u64, bool)> {
        let end = addr.checked_add(bytes)?;
        let mut at = addr;
        while at < end {
            let here = mappings.range(..=at).next_back().filter(|(start, mapping)| at - *start < mapping.bytes);
            match here {
                Some((start, mapping)) if self.may_access(mapping, by) => at = start + mapping.bytes,
                found => return Some((at, found.is_some())),
            }
        }
        None
    }

    /// Allocates memory for `cuMemAlloc`, and returns its address.
    pub fn allocate(&self, device: usize, bytes: u64) -> DriverResult<u64> {
        let bytes = bytes.next_multiple_of(self.devices[device].host.granularity());
        let (addr, chunk) = self.map_plain(device, bytes, |host| host.create(bytes))?;
        self.plain.lock().insert(addr, PlainMemory { bytes, chunk, file: None });
        Ok(addr)
    }

    /// Maps a chunk of `bytes` bytes that `obtain` returns at addresses of its own, as memory without a handle that the program
    /// has. Returns the address and the chunk.
    pub fn map_plain(
        &self,
        device: usize,
        bytes: u64,
        obtain: impl FnOnce(&HostDriver) -> DriverResult<ChunkHandle>,
    ) -> DriverResult<(u64, ChunkHandle)> {
        let host = &self.devices[device].host;
        let chunk = self.accounted(device, obtain)?;
        let addr = host.reserve(bytes, host.granularity()).inspect_err(|_| {
            let _ = self.accounted(device, |host| host.release(chunk));
        })?;
        let mapped = host.map(addr, bytes, chunk).and_then(|()| {
            host.set_access(addr, bytes).inspect_err(|_| {
                let _ = host.unmap(addr, bytes);
            })
        });
        if let Err(error) = mapped {
            let _ = host.address_free(addr, bytes);
            let _ = self.accounted(device, |host| host.release(chunk));
            return Err(error);
        }
        self.reservations.lock().insert_part(addr.0, (bytes, device));
        let mapping = Mapping { bytes, device, chunk: 0, rdma: false, granted: DeviceSet::default().with(device) };
        self.mappings.write().insert_part(addr.0, mapping);
        Ok((addr.0, chunk))
    }

    /// Undoes [`map_plain`](Self::map_plain).
    pub fn unmap_plain(&self, addr: u64, bytes: u64, chunk: ChunkHandle) {
        let Some((_, device)) = self.reservations.lock().remove(&addr) else { return };
        broken::unmapping(addr, bytes);
        self.mappings.write().remove(&addr);
        let host = &self.devices[device].host;
        let _ = host.unmap(DeviceAddr(addr), bytes);
        let _ = host.address_free(DeviceAddr(addr), bytes);
        let _ = self.accounted(device, |host| host.release(chunk));
    }

    /// Destroys everything that a context has but its memory: streams, after their work, and events.
    pub fn destroy_objects_of(&self, context: Context) {
        self.streams.destroy_all_of(context);
        self.events.lock().retain(|_, event| event.context != context);
    }

    /// Frees all memory of [`allocate`](Self::allocate) that this process holds of a device.
    pub fn free_all_of(&self, device: usize) {
        let plain: Vec<u64> =
            self.plain.lock().keys().copied().filter(|addr| self.device_of(*addr) == Some(device)).collect();
        for addr in plain {
            self.free(addr);
        }
    }

    /// Frees memory of [`allocate`](Self::allocate). Returns `false` if the address is unknown.
    pub fn free(&self, addr: u64) -> bool {
        let Some(memory) = self.plain.lock().remove(&addr) else { return false };
        self.unmap_plain(addr, memory.bytes, memory.chunk);
        true
    }
}
