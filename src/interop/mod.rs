//! Conversions between the types of gapless and the pointer, stream and event types of other CUDA crates.
//!
//! Both crates link `-lcuda` at build time, so a program with one of these features needs the driver library to build
//! and to start. gapless itself does not, and for that reason uses neither crate.

#[cfg(feature = "cust")]
pub mod cust;
#[cfg(feature = "cuda-driver-sys")]
pub mod driver_sys;
