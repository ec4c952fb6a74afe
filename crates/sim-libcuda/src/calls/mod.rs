//! The driver API functions that gapless calls.

mod contexts;
pub mod entry;
mod graphs;
mod ipc;
mod launch;
mod plain_memory;
mod sharing;
mod start;
mod streams;
mod testing;
mod vmm;
mod work;

pub use streams::synchronize;
pub use work::{copy_in_on, copy_out_on, load_module};
