//! The operations in the text format.

/// One line of a trace as it is in the file. Ids are arbitrary numbers, and none is used twice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceOp {
    /// `a ID BYTES STREAM`: allocates a block.
    Alloc {
        /// Identifies the block in the whole trace.
        id: u64,
        /// Number of bytes requested, without rounding. May be 0.
        bytes: u64,
        /// The recorder's number for the stream. The default stream is 0.
        stream: u64,
    },
    /// `f ID`: frees a block, in the order of the stream that it was allocated on.
    Free {
        /// Id of the block.
        id: u64,
    },
    /// `r BYTES STREAM`: a request that the recorded allocator refused, since memory was short.
    Refused {
        /// Number of bytes requested.
        bytes: u64,
        /// The recorder's number for the stream.
        stream: u64,
    },
    /// `m LABEL`: marks the end of the step with this name.
    Mark(String),
}
