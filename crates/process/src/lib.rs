//! The memory of a process's devices: one allocator per device, with what all of the process shares.

#![forbid(unsafe_code)]

mod conf;
mod error;
mod history;
mod notice;
mod settings;

pub use conf::{Conf, ConfError, Peers};
pub use error::Error;
pub use history::{Action, Before, Event, History};
pub use notice::notice;
pub use settings::Budget;
