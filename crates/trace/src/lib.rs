//! Traces: reads, writes and records sequences of allocations and frees, and replays them through allocation policies.
//!
//! ```text
//!   file ──TextReader──▶ TraceOp ──Trace::read──▶ Trace ──replay──▶ ReplayResult
//!   program ──TextWriter──▶ file                    │
//!                                                   └──search──▶ smallest device that survives
//! ```
//!
//! [`advice`] puts replays through several policies together, for a program that ran out of memory. [`timeline`] says
//! what they hold over time and where it lies, for a picture.
//!
//! The smallest device that survives a program, with each policy:
//!
//! ```
//! use gapless_trace::caching::CachingSettings;
//! use gapless_trace::{GaplessSettings, PolicyKind, ReplayError, Search, Trace};
//! use std::num::NonZero;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Six blocks of 6 MiB on stream 0. Every other one is freed, and what is free is asked for in one piece.
//! let mut ops: String = (0..6).map(|id| format!("a {id} {} 0\n", 6 << 20)).collect();
//! ops += &format!("f 0\nf 2\nf 4\na 6 {} 0\n", 18 << 20);
//! let trace = Trace::read("six blocks", ops.as_bytes())?;
//! assert_eq!(trace.peak_live_bytes(), 36 << 20);
//!
//! let smallest_device = |policy| -> Result<Option<u64>, ReplayError> {
//!     let search = Search {
//!         trace: &trace,
//!         policy,
//!         gapless: GaplessSettings::default(),
//!         caching: CachingSettings::default(),
//!         lag_ops: 0,
//!         threads: NonZero::<usize>::MIN,
//!         progress: None,
//!     };
//!     Ok(search.run()?.min_capacity_bytes)
//! };
//! assert_eq!(smallest_device(PolicyKind::Gapless)?, Some(36 << 20));
//! assert_eq!(smallest_device(PolicyKind::Caching)?, Some(58 << 20));
//! # Ok(())
//! # }
//! ```
//!
//! A replay runs one policy, either gapless itself or the baseline in [`caching`], on one driver. This crate uses
//! only the allocator's public interface.

#![cfg_attr(not(test), warn(missing_debug_implementations))]
#![warn(clippy::missing_errors_doc, clippy::must_use_candidate, clippy::return_self_not_must_use)]

pub mod advice;
mod awake;
pub mod caching;
mod capacity;
mod device;
mod error;
mod foreign;
mod header;
mod held;
mod history;
mod meter;
mod op;
mod open;
mod policy;
mod pooled;
mod record;
mod replay;
mod replay_error;
mod search;
mod search_result;
mod tagged;
mod text;
pub mod timeline;
mod trace;
mod work;
mod write;

pub use device::{Ballast, BallastError, Device, DeviceError};
pub use error::{ReadError, ReadErrorKind};
pub use header::Header;
pub use held::HeldBlock;
pub use history::{Extent, FailedRequest, History, RecordedAllocator, RecordedSettings, Refusal};
pub use meter::{Clock, Meter, Metered};
pub use op::{Content, Op, Tags, TraceOp};
pub use policy::{GaplessSettings, PolicyError, PolicyKind};
pub use record::{RecordedStream, Recorder};
pub use replay::{OutOfMemoryAt, Phase, PhaseKind, ReplayDriver, ReplayOptions, ReplayResult, replay};
pub use replay_error::ReplayError;
pub use search::Search;
pub use search_result::SearchResult;
pub use text::{Limits, TextReader};
pub use trace::{PrivatePool, Trace};
pub use work::{EDGE_BYTES, Touch};
pub use write::{Compression, TextWriter};

#[cfg(test)]
mod tests {
    use super::*;

    const fn anywhere<T: Send + Sync>() {}

    #[test]
    fn traces_and_recorders_are_sent_and_shared() {
        anywhere::<(Trace, ReplayResult, ReplayError, Search)>();
        anywhere::<Recorder<Vec<u8>>>();
        const fn elsewhere<T: Send>() {}
        elsewhere::<TextReader<'_>>();
        elsewhere::<TextWriter<Vec<u8>>>();
    }
}
