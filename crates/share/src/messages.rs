//! The messages between the two processes: one packet for each message, one answer for each question.

use crate::handle::Token;
use serde::{Deserialize, Serialize};

/// Most bytes of a packet.
pub const MOST_BYTES: usize = 16 << 10;
/// Most descriptors that are open at a time for one process.
pub const MOST_DESCRIPTORS: usize = 64;
/// Most chunks in one answer.
pub const MOST_LISTED: usize = 512;

/// A question, with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Distinguishes it from the others of its connection; not [`UNASKED`].
    pub number: u64,
    pub request: Request,
}

/// An answer, with the number of its question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// That of the question, or [`UNASKED`].
    pub number: u64,
    pub reply: Reply,
}

/// The number of what is said without a question.
pub const UNASKED: u64 = 0;

/// A question of an importing process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// To open a block.
    Open {
        /// Of its handle.
        token: Token,
    },
    /// For the chunks of a block that is open, from one on.
    Chunks {
        /// As it was opened.
        open: u64,
        /// Index of the first chunk.
        from: u64,
    },
    /// For the descriptors of chunks.
    Descriptors {
        /// As it was opened.
        open: u64,
        /// Indices of chunks, at most [`MOST_DESCRIPTORS`].
        which: Vec<u64>,
    },
    /// To close a block.
    Close {
        /// As it was opened.
        open: u64,
    },
}

/// A chunk under a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedChunk {
    /// Distinguishes it from all others of the exporting process that are open.
    pub number: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// An answer of the exporting process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It is open, and pinned until it is closed.
    Opened {
        /// Names it for this connection.
        open: u64,
        /// Bytes of the block.
        bytes: u64,
        /// Where it starts in its first chunk.
        offset: u64,
        /// Number of chunks under it.
        chunks: u64,
    },
    /// Chunks, at most [`MOST_LISTED`].
    Chunks(Vec<ListedChunk>),
    /// The descriptors that come with this packet, in the order that was asked for.
    Descriptors,
    /// It is closed.
    Closed,
    /// The block has been freed.
    Gone,
    /// There are too many connections; this one is closed. Nobody has asked for it.
    Busy,
    /// Nothing was done, for this reason.
    Refused(String),
    /// The exporting process has no descriptors left for so many at a time.
    FewDescriptors,
}
