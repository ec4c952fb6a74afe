//! A simulated `libcuda.so.1`: the driver API functions that gapless loads, implemented with gapless's host driver.
//!
//! Memory is real (an in-memory file that is mapped and remapped), streams run asynchronously on their own threads, and
//! gapless's kernels run on the CPU. Settings are environment variables; see [`settings`]. The library is a test tool:
//! it is never installed or searched for. Tests give its path, or put it in `LD_LIBRARY_PATH`.
//!
//! Rules whose violation is an error or undefined with a real driver are checked: functions that need a current context
//! have one, mappings are unmapped as a whole, a forbidden function called during a stream capture ends the capture without
//! a graph, and after work has accessed memory that is not mapped, or to which its device was not given access, the context
//! is lost and every later call returns error 700. A program that uses a stream that it has destroyed is stopped.
//!
//! Processes share chunks by descriptors, and events and memory of `cuMemAlloc` by handles. With `GAPLESS_SIM_SHARED`, they share
//! the memory of the devices, too.

#![allow(non_snake_case, reason = "the functions have the names of the driver API")]
#![allow(clippy::missing_safety_doc, reason = "each function has the contract of the same function in cuda.h")]
#![allow(missing_docs, reason = "as above")]
#![allow(clippy::cast_possible_truncation, reason = "64-bit only, like the driver")]

mod accounts;
pub mod broken;
mod calls;
mod context;
mod counts;
pub mod faults;
pub mod functions;
pub mod held;
mod interruption;
mod ipc;
mod kept;
mod kernels;
mod missing;
mod others;
pub mod pauses;
mod python;
pub mod record;
pub mod rules;
pub mod settings;
pub mod stacks;
mod state;
mod streams;
