//! Two devices of one process, in the vocabulary of [`ProcessOp`]: pools, uses by streams of the other device, budgets and peers.
//!
//! ```text
//!   ops ──▶ ProcessRunner ──▶ Process ──▶ a FaultDriver ──▶ Witness ──▶ Simulated<ModelDriver | HostDriver>   for each device
//!               │ Book: what callers hold of a device           └─ one state: the order of the work of both devices
//! ```

mod book;
mod device;
#[cfg(feature = "properties")]
mod inputs;
mod op;
mod runner;
mod summary;
mod sweep;

pub use device::{Simulates, TwoDevices};
#[cfg(feature = "properties")]
pub use inputs::{process_ops, two_devices};
pub use op::ProcessOp;
pub use runner::run_process;
pub use summary::ProcessSummary;
pub use sweep::sweep_process;
