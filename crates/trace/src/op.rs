//! One recorded operation.

/// One line of a trace, as the file has it: ids are any numbers, never used twice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceOp {
    /// `a ID BYTES STREAM`: allocate.
    Alloc {
        /// Names the block until the end of the trace.
        id: u64,
        /// Bytes as asked for, not rounded; 0 is allowed.
        bytes: u64,
        /// The recorder's number of the stream; 0 is the default stream.
        stream: u64,
    },
    /// `f ID`: free, in the order of the stream that the block was allocated on.
    Free {
        /// The block's id.
        id: u64,
    },
    /// `m LABEL`: the step of this name ends here.
    Mark(String),
}
