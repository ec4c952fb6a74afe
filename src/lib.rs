//! A GPU memory allocator on CUDA virtual memory management.
//!
//! The promise: **if the bytes are free, the allocation succeeds.** Addresses are reserved generously, physical memory is
//! mapped behind them on demand, and free pages are mapped where a request needs them, without waiting for the device.
//!
//! ```
//! use gapless::driver::{ModelConfig, ModelDriver};
//! use gapless::{Allocator, StreamId};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A simulated device of 1 GiB. On a GPU: `CudaDriver::open(0)?`.
//! let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 1 << 30, ..ModelConfig::default() }));
//! let allocator = Allocator::builder(driver).build()?;
//! let stream = StreamId::DEFAULT;
//!
//! let buffers = (0..8).map(|_| allocator.alloc(128 << 20, stream)).collect::<Result<Vec<_>, _>>()?;
//! // Every other buffer goes: 512 MiB are free, in four gaps of 128 MiB.
//! let kept: Vec<_> = buffers.into_iter().step_by(2).collect();
//! // One buffer as large as the four gaps together.
//! let joined = allocator.alloc(512 << 20, stream)?;
//! assert_eq!(kept.len() as u64 * kept[0].len() + joined.len(), 1 << 30);
//! # Ok(())
//! # }
//! ```
//!
//! Where to start:
//!
//! - [`Allocator`] allocates and frees; [`Buffer`] frees itself. [`Builder`] has the settings.
//! - [`driver`] has the drivers: [`CudaDriver`](driver::cuda::CudaDriver) for a GPU, [`ModelDriver`](driver::ModelDriver) and
//!   [`HostDriver`](driver::HostDriver) for a machine without one.
//! - [`allocator`] has statistics, snapshots, the out-of-memory report, errors, and ranges of addresses without a heap.
//!
//! # Features
//!
//! - `cust`, `cuda-driver-sys`: allocations in the types of these crates.
//! - `internals`: parts that this project's own tests look at, without any promise of stability.

pub mod allocator;
pub mod driver;
mod heap;
mod host_memory;
#[cfg(all(feature = "internals", not(any(loom, shuttle))))]
mod instances;
#[cfg(any(feature = "cust", feature = "cuda-driver-sys"))]
pub mod interop;
mod pages;
mod physical;
mod process;
mod segment;
mod stream;
mod sync;
#[cfg(test)]
mod testing;
pub mod units;

pub use allocator::{Allocator, Buffer, Builder, ChunkPolicy, GRANULE};
pub use process::ProcessIdentity;
pub use units::{ByteSize, DeviceAddr, StreamId};

/// Parts of the allocator, for this project's own tests. They may change with any release.
#[cfg(feature = "internals")]
pub mod internals {
    pub use crate::heap::Heap;
    #[cfg(not(any(loom, shuttle)))]
    pub use crate::instances::{exercise_cuda, exercise_faults, exercise_host, exercise_model};
    pub use crate::stream::{Entries, StreamTable};
    #[cfg(loom)]
    pub use crate::sync::RawAsymmetricMutex;
}

/// Compiles and runs the Rust example of the readme with the other examples in the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
