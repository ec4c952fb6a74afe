//! gapless behind a C ABI: `include/gapless.h`, `gapless_share.h` for other processes, and in `gapless_torch.h` the entry points
//! that PyTorch and CuPy call directly.
//!
//! ```text
//! handles.rs    create, alloc, free, trim, ...   device.rs       memory of this process's devices, by number
//! reports.rs    statistics, reports, snapshots   streams.rs      streams that live long, and their end
//! listeners.rs  callbacks for what is mapped     pins.rs, registered.rs, sharing.rs   blocks for others
//! replay.rs     replays without the command line   cupy.rs       what CuPy calls
//! explain.rs    what is said beside an out-of-memory error   sleep.rs   memory that goes and comes back
//! ranges.rs     memory that grows and shrinks    dlpack.rs       the same as tensors of others
//! torch/        what PyTorch calls: plug-in, allocator object, segments, history, the words of its errors
//!
//! process.rs    the devices, in one table        registry.rs     handles, checked
//! config.rs     the C struct of settings         last_error.rs   the boundary; the thread's last failure
//! out.rs        out-parameters and buffers       abi.rs          streams, pointers, strings
//! stats.rs      the C struct of statistics
//! status.rs     statuses, their names, and which one a failure has   error_kind.rs   its kind, CUDA's code
//! version.rs    that of the library
//! ```
//!
//! - I1  nothing unwinds across the boundary: a function that can fail runs its body in `last_error`. The one exception is
//!   asked for by the host: an out-of-memory handler that throws (see `torch`).
//! - I2  out-parameters are untouched when a function fails, except the size that a too small buffer would have needed.
//! - I3  a handle is a token that is looked up, never a pointer that is followed.
//!
//! Threads: any. No logic of its own: translate, call, report. What there is of it is in `gapless-process`.

#![allow(non_camel_case_types, reason = "names of a C header")]

mod abi;
mod config;
mod cupy;
mod device;
mod dlpack;
mod error_kind;
mod explain;
mod handles;
mod last_error;
mod listeners;
mod out;
mod pins;
mod process;
mod ranges;
mod registered;
mod registry;
mod replay;
mod reports;
mod sharing;
mod sleep;
mod stats;
mod status;
mod streams;
mod torch;
mod version;

pub use abi::CUstream_st;
pub use config::gapless_config;
pub use cupy::*;
pub use device::{
    gapless_check_conf, gapless_configure, gapless_device_alloc, gapless_device_alloc_aligned,
    gapless_device_allocator, gapless_device_free, gapless_device_free_on, gapless_device_record_stream,
    gapless_device_trim,
};
pub use dlpack::{DLManagedTensor, gapless_range_dlpack};
pub use error_kind::*;
pub use explain::gapless_explain_json;
pub use gapless_process::{Budget, Conf, ConfError, Figures, Peers};
pub use handles::*;
pub use last_error::{
    gapless_last_error, gapless_last_error_code, gapless_last_error_kind, gapless_last_error_report_json,
    gapless_last_error_status,
};
pub use listeners::*;
pub use pins::*;
pub use ranges::*;
pub use registered::*;
pub use registry::gapless_allocator;
pub use replay::gapless_replay_json;
pub use reports::*;
pub use sharing::*;
pub use sleep::{
    GAPLESS_BACKUP_DISCARD, GAPLESS_BACKUP_FILE, GAPLESS_BACKUP_PAGEABLE, GAPLESS_BACKUP_PINNED,
    GAPLESS_WAKE_RETAIN_BACKUPS, gapless_asleep, gapless_backup, gapless_backup_of, gapless_sleep, gapless_sleep_tags,
    gapless_slept, gapless_tag_backup, gapless_tag_pop, gapless_tag_push, gapless_wake, gapless_wake_flags,
    gapless_wake_tags,
};
pub use stats::gapless_stats;
pub use status::*;
pub use streams::*;
pub use torch::history::{gapless_torch_history_json, gapless_torch_record_history};
pub use torch::object::*;
pub use torch::plugin::*;
pub use torch::segments::*;
pub use version::*;
