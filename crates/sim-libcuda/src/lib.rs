//! A simulated `libcuda.so.1`: the driver-API functions that gapless loads, over gapless's host driver.
//!
//! Memory is real (a file in memory, mapped and remapped), streams run later on threads of their own, and gapless's own
//! kernels run on the CPU, by name. Settings are environment variables, see [`settings`]. It is a test tool: never
//! installed, never searched for; tests name its path, or put it in `LD_LIBRARY_PATH`.
//!
//! Rules that a real driver enforces, or breaks the program over, are enforced here: a current context where one is
//! needed, whole mappings, no forbidden call inside a stream capture, and a lost context (700, for every later call)
//! once work touches memory that is not mapped.

#![allow(non_snake_case, reason = "names are those of the driver API")]
#![allow(clippy::missing_safety_doc, reason = "each function's contract is that of its namesake in cuda.h")]
#![allow(missing_docs, reason = "as above")]
#![allow(clippy::cast_possible_truncation, reason = "64-bit only, as the driver")]

mod calls;
mod kernels;
mod others;
pub mod settings;
mod state;
mod streams;
