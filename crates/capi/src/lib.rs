//! gapless behind a C ABI: `include/gapless.h`, and the entry points that PyTorch, CuPy and RMM call directly.
//!
//! ```text
//! functions.rs  create, alloc, free, trim, ...    registry.rs     handles, checked
//! reports.rs    statistics, reports, snapshots    instance.rs     one allocator: sums, last report, recording
//! config.rs     the C struct of settings          status.rs       statuses, and which one a failure has
//!                                                error_kind.rs   its kind, CUDA's code
//! replay.rs     replays without the command line  last_error.rs   the boundary; the thread's last failure
//! out.rs        out-parameters and buffers
//!
//! process.rs    one allocator per device, made on first use from GAPLESS_CONF
//! device_memory.rs   memory of these devices: the door that all front ends share
//! torch.rs      what PyTorch calls                pools/          memory of captured graphs
//! torch_object.rs   what PyTorch's allocator object calls    device_views.rs   what a device's memory is made of
//! cupy.rs       what CuPy calls                   history.rs      the last allocations and frees
//! registered.rs  blocks that a library registers
//! pins.rs       blocks that stay where they are
//! sharing.rs    blocks for other processes, and of other processes
//! listeners.rs  callbacks for what is mapped and unmapped
//! peers.rs      access from device to device     foreign.rs      streams of other devices that use a block
//! ```
//!
//! - I1  nothing unwinds across the boundary: a function that can fail runs its body in `last_error`. The one exception is
//!   asked for by the host: an out-of-memory handler that throws (see `torch`).
//! - I2  out-parameters are untouched when a function fails, except the size that a too small buffer would have needed.
//! - I3  a handle is a token that is looked up, never a pointer that is followed.
//!
//! Threads: any. No logic of its own: translate, call, report.

#![allow(non_camel_case_types, reason = "names of a C header")]

mod config;
mod cupy;
mod device_memory;
mod device_views;
mod error_kind;
mod foreign;
mod functions;
mod history;
mod instance;
mod last_error;
mod listeners;
mod out;
mod peers;
mod pins;
mod pools;
mod process;
mod registered;
mod registry;
mod replay;
mod reports;
mod sharing;
mod status;
mod streams;
mod torch;
mod torch_message;
mod torch_object;

pub use config::gapless_config;
pub use cupy::*;
pub use device_memory::{
    gapless_device_alloc, gapless_device_alloc_aligned, gapless_device_free, gapless_device_free_on,
    gapless_device_record_stream, gapless_device_trim,
};
pub use error_kind::*;
pub use functions::*;
pub use gapless_process::{Budget, Conf, ConfError, Peers};
pub use history::{gapless_torch_history_json, gapless_torch_record_history};
pub use last_error::{
    gapless_last_error, gapless_last_error_code, gapless_last_error_kind, gapless_last_error_report_json,
    gapless_last_error_status,
};
pub use listeners::*;
pub use pins::*;
pub use process::{gapless_check_conf, gapless_configure, gapless_device_allocator};
pub use registered::*;
pub use registry::gapless_allocator;
pub use replay::gapless_replay_json;
pub use reports::*;
pub use sharing::*;
pub use status::*;
pub use streams::*;
pub use torch::*;
pub use torch_object::*;
