//! gapless behind a C ABI: `include/gapless.h`, and the entry points that PyTorch, CuPy and RMM call directly.
//!
//! ```text
//! functions.rs  create, alloc, free, trim, ...    registry.rs  handles, checked     heap.rs     one allocator
//! reports.rs    statistics, reports, snapshots    status.rs    statuses, last error config.rs   the C struct
//! torch.rs      what PyTorch calls                process.rs   one allocator per device, on first use
//! cupy.rs       what CuPy calls                   pools.rs     memory of captured graphs
//! conf.rs       GAPLESS_CONF                      replay.rs    replays for hosts without the command line
//! ```
//!
//! - I1  nothing unwinds across the boundary: every function runs its body under `status::guard`. The one exception is
//!   asked for by the host: an out-of-memory handler that throws (see `torch`).
//! - I2  out-parameters are untouched when a function fails, except the size that a too small buffer would have needed.
//! - I3  a handle is a token that is looked up, never a pointer that is followed.
//!
//! Threads: any. No logic of its own: translate, call, report.

#![allow(non_camel_case_types, reason = "names of a C header")]

mod conf;
mod config;
mod cupy;
mod functions;
mod heap;
mod history;
mod pools;
mod process;
mod registry;
mod replay;
mod reports;
mod status;
mod torch;

pub use conf::{Conf, ConfError};
pub use config::{Budget, gapless_config};
pub use cupy::*;
pub use functions::*;
pub use history::{gapless_torch_history_json, gapless_torch_record_history};
pub use process::{gapless_check_conf, gapless_configure, gapless_device_allocator};
pub use registry::gapless_allocator;
pub use replay::gapless_replay_json;
pub use reports::*;
pub use status::*;
pub use torch::*;
