//! The memory of a process's devices: one allocator per device, with what all of the process shares.
//!
//! ```text
//! process.rs    one allocator per device, made on first use     uses.rs       which streams use a block, of any device
//! peers.rs      access from device to device
//! memory.rs     alloc, free, trim: for every front end          restore.rs    blocks at the addresses that they had
//! figures.rs    figures of a device and its pools               blocks.rs     its blocks, one by one
//! outside.rs    pinned, registered and shared blocks            sleep.rs      memory that goes and comes back
//! growable.rs   memory that grows and shrinks                   tags.rs       tags of graph pools, by thread
//! device.rs     one device                                      ranges.rs     what grows, in a table by address
//!
//! pools/        memory of captured graphs and of `MemPool`      recorded.rs   an allocator: sums, last report, recording
//! foreign.rs    frees deferred for other devices                by_address.rs, registered.rs, sharing.rs   tables by address
//! history.rs    the last allocations and frees                  settings.rs   what is built by them
//! conf.rs, budget.rs   GAPLESS_CONF                             error.rs, notice.rs   failures; lines on stderr
//! driver.rs     what is needed of a driver                      streams.rs    how long streams live
//! simulated.rs  several devices without a GPU                   sums.rs       how statistics add up
//! ```
//!
//! A file imports only what stands below it: there is no circle.
//!
//! Generic over the driver, by [`DeviceDriver`]: the few questions that this logic asks a device beyond what an allocator does
//! (which capture a stream belongs to, which device, who reaches whose memory, a name). So all of it runs without a GPU, too.
//! There is one [`Error`]; requests for memory and frees keep the errors of the allocator, with the report in them.
//!
//! Threads: any. No global state: who wants one process-wide table makes a `static` of a [`Process`], as the C interface does.

#![deny(unsafe_code)]

mod blocks;
mod budget;
mod by_address;
mod conf;
mod device;
mod driver;
mod error;
mod figures;
mod foreign;
mod growable;
mod history;
mod memory;
mod notice;
mod outside;
mod peers;
mod pools;
mod process;
mod ranges;
mod recorded;
mod recording_file;
mod registered;
mod restore;
mod settings;
mod sharing;
mod simulated;
mod sleep;
mod streams;
mod sums;
mod tags;
mod uses;

pub use blocks::{Block, BlockUse};
pub use budget::Budget;
pub use conf::{Conf, ConfError, Peers};
pub use device::{Device, NO_POOL};
pub use driver::DeviceDriver;
pub use error::Error;
pub use figures::{Contents, DeviceReport, MemoryUse};
pub use gapless::allocator::Figures;
pub use history::{Action, Before, Event, History};
pub use memory::Place;
pub use notice::notice;
pub use pools::{Pool, PoolId, PoolKind, Pools};
pub use process::{MOST_DEVICES, Process};
pub use ranges::RangeHold;
pub use recorded::{Recorded, Request};
pub use settings::Settings;
pub use simulated::Simulated;
pub use sleep::TagAsleep;
pub use streams::StreamLives;
pub use tags::{pop_tag, push_tag};
