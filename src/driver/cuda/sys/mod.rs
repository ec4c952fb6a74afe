//! The CUDA driver API as `cuda.h` declares it: types, and two tables of functions that are looked up at run time. Public with the
//! feature `internals` alone.
//!
//! Everything but this file is generated (`cargo xtask generate-bindings`). Result codes and enums are integer newtypes, so
//! a value that a newer driver invents is a number like any other. Struct sizes and offsets are asserted when this is
//! compiled.
//!
//! Of [`Optional`] only the fields are used: its methods panic where a function is missing.

#![allow(
    missing_debug_implementations,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    dead_code,
    unused_imports,
    reason = "generated: names are those of cuda.h"
)]
#![allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::missing_safety_doc,
    reason = "generated"
)]

mod optional;
mod required;
mod symbols;

pub use optional::Optional;
pub use required::*;
pub use symbols::{OPTIONAL, REQUIRED};
