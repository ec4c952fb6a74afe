//! gapless: a GPU memory allocator on CUDA virtual memory management.
//!
//! The promise: **if the bytes are free, the allocation succeeds.** Addresses are reserved generously, physical chunks
//! are mapped behind them on demand, and free chunks are mapped where a request needs them, without waiting for the
//! device. Where to look for what: `ARCHITECTURE.md`.

pub mod allocator;
pub mod driver;
pub mod heap;
#[cfg(any(feature = "cust", feature = "cuda-driver-sys"))]
pub mod interop;
pub mod physical;
pub mod segment;
pub mod stream;
mod sync;
#[cfg(test)]
mod testing;
pub mod units;

pub use allocator::{Allocator, Buffer, Builder, ChunkPolicy};
pub use units::{ByteSize, DeviceAddr, StreamId};
