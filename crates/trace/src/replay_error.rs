//! Why a replay has no result.

use crate::policy::PolicyError;
use gapless::allocator::BuildError;
use gapless::driver::{DriverError, Mismatch};

/// The error returned when a replay has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The settings are not valid for an allocator.
    #[error(transparent)]
    Settings(#[from] BuildError),
    /// The policy failed for another reason than a lack of memory.
    #[error("op {op_index}: {cause}")]
    Policy {
        /// Index of the op, counted from 0, including marks.
        op_index: u64,
        /// The policy's error.
        cause: PolicyError,
    },
    /// A driver call made by the replay itself failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Blocks did not contain the bytes written to them: the policy allocated memory that was in use.
    #[error("{} checks found wrong bytes, the first one {}", .0.len(), .0.first().map_or(String::new(), ToString::to_string))]
    Mismatch(Vec<Mismatch>),
    /// The policy violated rules of the driver contract.
    #[error("{} violations of the driver contract, the first one: {}", .0.len(), .0.first().map_or("", String::as_str))]
    Violation(Vec<String>),
}
