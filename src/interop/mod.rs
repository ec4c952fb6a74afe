//! gapless for users of other CUDA crates: allocations into and out of their pointer, stream and event types.
//!
//! Both crates link `-lcuda` when they are built, so a program with one of these features needs the driver library to
//! build and to start; gapless itself does not, which is why neither is what it is built on.

#[cfg(feature = "cust")]
pub mod cust;
#[cfg(feature = "cuda-driver-sys")]
pub mod driver_sys;
