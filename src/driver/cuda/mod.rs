//! The CUDA driver: [`MemoryDriver`](super::MemoryDriver) and its companions on a real GPU, through the driver library
//! loaded at run time.
//!
//! ```text
//! library.rs   libcuda.so.1, loaded and initialised once          sys/        generated bindings
//! context.rs   primary context and capture mode, per call         error.rs    codes; why a device cannot be opened
//! device.rs    facts about a device                               trial.rs    the trial cycle
//! peers.rs     the devices that get access
//! memory.rs    virtual memory      streams.rs  streams, events    work.rs     fill, verify, copy
//! kernels.rs   kernels from PTX                                   plain.rs    cuMemAlloc
//! captures.rs  which capture a stream belongs to                  known_streams.rs   what the driver has told of streams
//! soft_memory.rs   what is free where the kernel gives memory back
//! raw.rs       a way below the traits, for experiments only (feature `internals`)
//! ```
//!
//! - I1  every chunk of a [`CudaDriver`] is made with one set of properties, for which `granularity` was queried and a
//!   whole create, map, access, unmap cycle succeeded when the driver was opened.
//! - I2  no call leaves another context or capture mode behind on the calling thread.
//! - I3  no call waits for the device, except `event_synchronize`, `synchronize`, `synchronize_device` and
//!   `destroy_stream`, whose purpose that is.
//!
//! Threads: any, concurrently. The driver library has its own locks: calls that change mappings run one after another.
//! Cost, on an H100 with driver 580, for chunks of 2 MiB to 512 MiB: reserve and address_free 1-5 us; create 8-52 us; map 1-9 us;
//! set_access 19-63 us and unmap 17-40 us for each mapping in the range; release 10-327 us, by the bytes; creating or destroying an
//! event 1-2 us. Beside a running kernel, calls about chunks take 4 to 6 times as long. `gapless probe` measures it:
//! `--only calls_by_size,ranged_access,creation_flags,busy`.
//!
//! Not here: which memory goes where (the allocator), and devices without virtual memory management.

mod captures;
mod context;
mod device;
mod error;
#[cfg(feature = "testing")]
mod kernels;
mod known_streams;
mod library;
mod memory;
mod peers;
mod plain;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod raw;
mod soft_memory;
mod streams;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod sys;
#[cfg(not(feature = "internals"))]
mod sys;
mod trial;
#[cfg(feature = "testing")]
mod work;

pub use crate::driver::thread::PER_THREAD_STREAM;
pub use captures::Capture;
pub use device::DeviceInfo;
pub use error::{CudaVersion, LoadError, MINIMUM_VERSION, OpenError};
pub use library::{Library, LibraryFile};
pub use plain::PlainDevice;
pub use streams::LEGACY_STREAM;

use std::path::PathBuf;

use context::Context;
use peers::Peers;
use sys::CUdevice;

/// A CUDA device as a [`Driver`](super::Driver).
pub struct CudaDriver {
    library: &'static Library,
    info: DeviceInfo,
    device: CUdevice,
    context: Context,
    features: ChunkFeatures,
    granularity: u64,
    recommended_granularity: u64,
    peers: Peers,
    #[cfg(feature = "testing")]
    work: crate::sync::unseen::Mutex<Option<work::Work>>,
}

/// Uses of every chunk of a driver besides being mapped. Fixed when the driver is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ChunkFeatures {
    /// Whether chunks can be exported as POSIX file descriptors.
    pub posix_fd: bool,
    /// Whether chunks can be registered for GPUDirect RDMA.
    pub rdma: bool,
}

/// Whether chunks may leave the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Sharing {
    /// Chunks are exportable and RDMA-capable if the device supports it and the trial at opening succeeds with it.
    #[default]
    WherePossible,
    /// Chunks are neither exportable nor RDMA-capable.
    Never,
}

/// Settings of a [`CudaDriver`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is opened before `open`"]
pub struct CudaBuilder {
    ordinal: u32,
    peers: Vec<u32>,
    sharing: Sharing,
    library: Option<PathBuf>,
}

impl CudaBuilder {
    /// Sets the device, counted from 0 among those that `CUDA_VISIBLE_DEVICES` leaves visible. Default: 0.
    pub fn device(mut self, ordinal: u32) -> Self {
        self.ordinal = ordinal;
        self
    }

    /// Sets the devices that get access to every mapping, in addition to the device itself. Default: none. More may be added
    /// later, with [`CudaDriver::add_peers`].
    pub fn peers(mut self, ordinals: impl IntoIterator<Item = u32>) -> Self {
        self.peers = ordinals.into_iter().collect();
        self
    }

    /// Sets whether chunks may leave the process. Default: [`Sharing::WherePossible`].
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// Sets the driver library to use. Default: the installed one.
    ///
    /// # Safety
    /// The file is a driver library, or none at all: loading it runs its code.
    pub unsafe fn library(mut self, path: impl Into<PathBuf>) -> Self {
        self.library = Some(path.into());
        self
    }

    /// Opens the device: loads the library if that has not happened yet, retains the primary context, and runs one
    /// whole cycle of virtual memory calls.
    ///
    /// # Safety
    /// The methods of the driver traits are safe to call, but the CUDA driver does not look at what it gets. No code that gets this
    /// driver calls them with a handle, a stream or an address that is not valid at that time, as [`driver`](crate::driver) says.
    /// Allocators keep this: [`allocator`](Self::allocator) is safe, since the driver is handed to nobody else.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do. Nothing is held afterwards.
    pub unsafe fn open(self) -> Result<CudaDriver, OpenError> {
        let library = self.load()?;
        let count = library.device_count()?;
        if self.ordinal >= count {
            return Err(OpenError::NoSuchDevice { ordinal: self.ordinal, count });
        }
        let info = DeviceInfo::query(library, self.ordinal)?;
        if !info.vmm {
            let reason = "the driver says so: attribute VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0".into();
            return Err(OpenError::NoVmm { ordinal: self.ordinal, name: info.name, reason });
        }
        let device = library.device(self.ordinal)?;
        let access = peers::Access::of(library, self.ordinal)?.with(library, &self.peers)?;
        let context = Context::retain(library, device)?;
        let wanted = match self.sharing {
            Sharing::WherePossible => ChunkFeatures { posix_fd: info.posix_fd_export, rdma: info.rdma },
            Sharing::Never => ChunkFeatures { posix_fd: false, rdma: false },
        };
        let agreed = trial::agree(library, &context, device, &info, access.list(), wanted)?;
        Ok(CudaDriver {
            library,
            info,
            device,
            context,
            features: agreed.features,
            granularity: agreed.granularity,
            recommended_granularity: agreed.recommended_granularity,
            peers: Peers::new(access),
            #[cfg(feature = "testing")]
            work: crate::sync::unseen::Mutex::new(None),
        })
    }
}

impl CudaBuilder {
    fn load(&self) -> Result<&'static Library, LoadError> {
        match &self.library {
            // SAFETY: who set it has made sure that it is a driver library.
            Some(path) => unsafe { Library::open_from(path) },
            None => Library::open(),
        }
    }
}

impl CudaDriver {
    /// Opens device number `ordinal`, counted from 0, with the default settings.
    ///
    /// # Safety
    /// That of [`CudaBuilder::open`].
    ///
    /// # Errors
    /// As [`CudaBuilder::open`].
    pub unsafe fn open(ordinal: u32) -> Result<Self, OpenError> {
        // SAFETY: the caller's part.
        unsafe { Self::builder().device(ordinal).open() }
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> CudaBuilder {
        CudaBuilder::default()
    }

    /// Returns the properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns the library that this driver calls.
    pub fn library(&self) -> &'static Library {
        self.library
    }

    /// Returns what every chunk can be used for.
    pub fn features(&self) -> ChunkFeatures {
        self.features
    }

    /// Returns the page size that the driver recommends for speed. It is at least
    /// [`granularity`](super::MemoryDriver::granularity).
    pub fn recommended_granularity(&self) -> u64 {
        self.recommended_granularity
    }
}

impl std::fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDriver")
            .field("info", &self.info)
            .field("features", &self.features)
            .field("granularity", &self.granularity)
            .finish_non_exhaustive()
    }
}
