//! A GPU memory allocator on CUDA virtual memory management.
//!
//! The promise: **if the bytes are free, the allocation succeeds.** Addresses are reserved generously, physical memory is
//! mapped behind them on demand, and free pages are mapped where a request needs them, without waiting for the device.
//!
//! With a simulated device, which the feature `testing` has:
//!
//! ```
//! use gapless::driver::{ModelConfig, ModelDriver};
//! use gapless::{Allocator, StreamId};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A simulated device of 1 GiB. On a GPU: `let allocator = CudaAllocator::open(0)?`.
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
//! On a GPU:
//!
//! ```no_run
//! use gapless::{CudaAllocator, StreamId};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let allocator = CudaAllocator::open(0)?;
//! let buffer = allocator.alloc(1 << 30, StreamId::DEFAULT)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Which type do I need?
//!
//! | for | type |
//! | --- | --- |
//! | memory of a GPU | [`CudaAllocator`]; with settings, [`CudaBuilder::allocator`](driver::cuda::CudaBuilder::allocator) |
//! | memory that frees itself | [`Buffer`], from [`Allocator::alloc`] |
//! | addresses for a runtime of one's own | [`Allocator::alloc_raw`] and [`Allocator::free`] |
//! | memory that grows in place | [`VirtualRange`](allocator::VirtualRange), from [`Allocator::reserve_range`] |
//! | memory for network cards | [`RegisteredBlock`](allocator::RegisteredBlock), from [`Allocator::alloc_registered`] |
//! | memory that gives way to another process for a while | [`Allocator::sleep`] and [`Allocator::wake`] |
//! | any GPU, also an old one | [`CudaBuilder::device_allocator`](driver::cuda::CudaBuilder::device_allocator) |
//! | tests (feature `testing`) | [`ModelDriver`](driver::ModelDriver), and with bytes [`HostDriver`](driver::HostDriver) |
//! | another device | a [`Driver`](driver::Driver) of one's own |
//! | several devices, pools of graphs, PyTorch, C | the crate `gapless-process`, and `gapless.h` |
//!
//! [`allocator`] has statistics, snapshots, the out-of-memory report and errors as well.
//!
//! # Examples
//!
//! In [`examples`](https://docs.rs/crate/gapless/latest/source/examples/): `with_cudarc.rs`, `with_cust.rs`,
//! `with_cuda_driver_sys.rs` and `cubecl_storage.rs` show gapless beside other crates.
//!
//! # Features
//!
//! - `cust`, `cuda-driver-sys`: allocations in the types of these crates.
//! - `testing`: what tests and replays take in place of a GPU. These are the simulated devices of [`driver::model`] and
//!   [`driver::host`], the failures of [`driver::fault`], [`Intercepted`](driver::Intercepted) and [`Counted`](driver::Counted),
//!   which watch the calls to a driver, and [`WorkDriver`](driver::WorkDriver) and [`HoldStreams`](driver::HoldStreams), whose work
//!   tells whether memory was used too early. A program that only allocates does without it; for its tests,
//!   `cargo add --dev gapless --features testing`.
//! - `internals`: parts that this project's own tests look at, without any promise of stability.

#![cfg_attr(not(test), warn(missing_debug_implementations))]
// What only `internals` makes public is not looked at: nobody but this project uses it.
#![cfg_attr(
    not(feature = "internals"),
    warn(clippy::missing_errors_doc, clippy::must_use_candidate, clippy::return_self_not_must_use)
)]
// The documentation is built with the feature: without it, these links lead nowhere.
#![cfg_attr(not(feature = "testing"), allow(rustdoc::broken_intra_doc_links, rustdoc::private_intra_doc_links))]

pub mod allocator;
pub mod driver;
mod hash;
mod heap;
mod host_memory;
#[cfg(all(feature = "internals", debug_assertions, not(any(loom, shuttle))))]
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

pub use allocator::{Allocator, Buffer, Builder, ChunkPolicy, CudaAllocator, GRANULE};
pub use process::ProcessIdentity;
pub use units::{ByteSize, DeviceAddr, StreamId};

/// Parts of the allocator, for this project's own tests. They may change with any release.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub use crate::heap::Heap;
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    pub use crate::instances::{exercise_cuda, exercise_faults, exercise_host, exercise_model};
    pub use crate::stream::{Entries, StreamTable};
    #[cfg(loom)]
    pub use crate::sync::RawAsymmetricMutex;
}

/// Compiles and runs the Rust example of the readme with the other examples in the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
