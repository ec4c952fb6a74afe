//! How long streams live: promised, and ended before a stream is destroyed.
//!
//! Streams that nobody promises anything about are the rule for CuPy, RMM and Numba, whose stream objects end with
//! Python's. PyTorch's streams live as long as the process, so its requests promise it ([`StreamLives`]).

/// Whether a stream may be destroyed while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamLives {
    /// It is not.
    AsLongAsTheProcess,
    /// Nobody has promised anything.
    Unknown,
}
