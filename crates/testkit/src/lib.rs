//! Test kit of gapless: a set of operations ([`Op`]), an oracle that knows what must hold after each of them, and a
//! runner that applies operations to an allocator on a device and checks the result.
//!
//! Property tests, fault sweeps, exhaustive small worlds, fuzz targets and the soak test all use [`Op`]. A sequence
//! that fails is printed as a Rust test ([`as_test`]).
//!
//! ```text
//!   ops ──▶ Runner ──▶ Allocator ──▶ FaultDriver ──▶ Witness ──▶ ModelDriver | HostDriver | Cuda
//!             │ Oracle: live blocks, bytes, streams     │ happens-before of every use of every physical byte
//! ```

mod checks;
mod cuda;
mod device;
mod elsewhere;
mod errors;
mod graphs;
#[cfg(feature = "properties")]
mod inputs;
#[cfg(feature = "instances")]
mod instances;
mod kept;
#[cfg(feature = "properties")]
mod large;
mod op;
mod oracle;
#[cfg(feature = "process")]
mod process;
mod promise;
#[cfg(feature = "properties")]
mod prove;
mod runner;
mod scale;
mod show;
mod stress;
mod summary;
mod sweep;
mod threads;
#[cfg(feature = "traces")]
mod traces;
mod wire;
mod witness;

pub use cuda::Cuda;
pub use device::{Device, Host, Model, World};
pub use gapless::allocator::Backup;
#[cfg(feature = "properties")]
pub use inputs::{capture_op, graph_op, handle_op, kept_op, op, ops, range_op, sleep_op, steady_op, world};
#[cfg(feature = "instances")]
pub use instances::run_input;
#[cfg(all(feature = "instances", feature = "properties"))]
pub use instances::{run_input_on_cuda, run_on_cuda};
#[cfg(feature = "properties")]
pub use large::{LARGEST_DEVICE, MOST_STREAMS, by_logarithm, large_ops, large_world};
pub use op::{CaptureMode, CurrentContext, Failure, Misuse, Op};
pub use oracle::Subject;
#[cfg(feature = "process")]
pub use process::{ProcessOp, ProcessSummary, Simulates, TwoDevices, run_process, sweep_process};
#[cfg(all(feature = "process", feature = "properties"))]
pub use process::{process_ops, two_devices};
pub use promise::Promise;
#[cfg(feature = "properties")]
pub use prove::prove;
pub use runner::{Runner, run};
pub use scale::{budget_of_cases, is_reduced};
pub use show::{PrintOnPanic, as_test};
pub use stress::{End, Faults, Progress, Stress, run_stress};
pub use summary::Summary;
pub use sweep::{Case, cases, sweep};
pub use threads::run_scheduled;
#[cfg(feature = "traces")]
pub use traces::{ReadTrace, check_trace};
pub use wire::{Extra, decode, encode};
pub use witness::Witness;
