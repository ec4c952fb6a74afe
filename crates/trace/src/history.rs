//! What a file says about the run that it records, beside the ops.

/// What is known of a recorded run besides its ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// How much of the run the ops are.
    pub extent: Extent,
    /// Size of the blocks that were live before the first recorded event, as far as known, in bytes. The trace begins
    /// with their allocations.
    pub live_at_start_bytes: u64,
    /// Memory that the recorded allocator held before the first recorded event, in bytes. `None` if the file does not
    /// say.
    pub held_at_start_bytes: Option<u64>,
}

/// How much of a run a recording holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Everything from the start on.
    Whole,
    /// It begins in the middle of the run, but all blocks that were live then are known: from their frees, and from the
    /// blocks that the file lists as live at the end. Where they lay, and the free memory between them, is not.
    LaterPart,
    /// It begins in the middle of the run, and blocks may have been live all the time that it does not mention.
    Unknown,
}

impl History {
    /// The history of a file that begins with the run.
    pub(crate) const WHOLE: Self = Self { extent: Extent::Whole, live_at_start_bytes: 0, held_at_start_bytes: Some(0) };
}

/// A request that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FailedRequest {
    /// Index of its op, counted from 0, including marks.
    pub op_index: u64,
    /// Number of bytes requested.
    pub bytes: u64,
}
