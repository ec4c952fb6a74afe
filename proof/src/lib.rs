//! Evidence for gapless: one vocabulary of operations ([`Op`]), one oracle that knows what must be true after each of
//! them, and a runner that puts both to an allocator on a simulated device.
//!
//! Property tests, fault sweeps, exhaustive small worlds, fuzz targets and the soak all speak [`Op`]. A sequence that
//! fails is printed as a Rust test ([`as_test`]).
//!
//! ```text
//!   ops ──▶ Runner ──▶ Allocator ──▶ FaultDriver ──▶ Witness ──▶ ModelDriver | HostDriver
//!             │ Oracle: live blocks, bytes, streams     │ happens-before of every use of every physical byte
//! ```

mod device;
mod inputs;
mod op;
mod oracle;
mod prove;
mod runner;
mod stress;
mod threads;
mod traces;
mod wire;
mod witness;

pub use device::{Device, Host, Model, World};
pub use inputs::{op, ops, steady_op, world};
pub use op::{Failure, Misuse, Op};
pub use oracle::{Promise, Subject};
pub use prove::{as_test, budget_of_cases, prove};
pub use runner::{PrintOnPanic, Runner, Summary, run};
pub use stress::{Faults, Progress, Stress, run_stress};
pub use threads::run_scheduled;
pub use traces::{ReadTrace, check_trace};
pub use wire::{Extra, decode, encode};
pub use witness::Witness;
