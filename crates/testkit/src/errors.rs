//! What an allocation answers, in the errors of other calls.

use gapless::allocator::{AllocError, SleepError};

/// # Panics
/// Panics on an error of a sleep or a wake alone: the tests have enough memory of the host, and no files.
pub(crate) fn of_sleep(error: SleepError) -> AllocError {
    match error {
        SleepError::Alloc(error) => error,
        other => panic!("the call failed: {other}"),
    }
}
