//! What can be wrong with a trace.

use std::fmt;
use std::io;

/// A trace that cannot be read: where, and why.
#[derive(Debug)]
pub struct ReadError {
    /// The line, counted from 1; 0 when the file as a whole is meant.
    pub line: u64,
    /// What is wrong with it.
    pub kind: ReadErrorKind,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 { write!(f, "{}", self.kind) } else { write!(f, "line {}: {}", self.line, self.kind) }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ReadErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// The reasons. Texts that come from the file are cut to `EXCERPT_CHARS` characters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadErrorKind {
    /// The file could not be opened or read.
    #[error("cannot be read: {0}")]
    Io(io::Error),
    /// The compressed data end in the middle.
    #[error("the gzip data end too early: the file was cut short")]
    TruncatedGzip,
    /// The compressed data make no sense.
    #[error("the gzip data are damaged: {0}")]
    CorruptGzip(io::Error),
    /// A line above [`Limits::line_bytes`](crate::Limits::line_bytes).
    #[error("longer than {limit} bytes: this is not a trace")]
    LineTooLong {
        /// The limit.
        limit: usize,
    },
    /// Bytes that are not UTF-8.
    #[error("not UTF-8 text: this is not a trace")]
    NotUtf8,
    /// A line that begins with something else than `a`, `f`, `m` or `#`.
    #[error("unknown op '{op}': expected 'a ID BYTES STREAM', 'f ID', 'm LABEL' or a '#' line")]
    UnknownOp {
        /// The first word of the line.
        op: String,
    },
    /// A line that ends too early.
    #[error("the {field} is missing")]
    MissingField {
        /// What was expected.
        field: &'static str,
    },
    /// A line with more words than its op takes.
    #[error("'{text}' is one word too many")]
    ExtraField {
        /// The first superfluous word.
        text: String,
    },
    /// A field that is not a whole number below 2^64.
    #[error("the {field} '{text}' is not a whole number below 2^64")]
    BadNumber {
        /// Which field.
        field: &'static str,
        /// What the file has there.
        text: String,
    },
    /// A header line whose value this program needs and cannot read.
    #[error("the header '{key}' has the value '{value}', expected {expected}")]
    BadHeader {
        /// The key.
        key: &'static str,
        /// What the file has there.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// An id allocated twice.
    #[error("id {id} was allocated before: an id is used once")]
    DuplicateId {
        /// The id.
        id: u64,
    },
    /// A free without an allocation.
    #[error("free of id {id}, which was never allocated")]
    UnknownId {
        /// The id.
        id: u64,
    },
    /// A second free.
    #[error("free of id {id}, which was freed before")]
    AlreadyFreed {
        /// The id.
        id: u64,
    },
    /// Live bytes that do not fit in 64 bits.
    #[error("the live bytes exceed 2^64")]
    TooManyBytes,
    /// More ops than [`Limits::ops`](crate::Limits::ops).
    #[error("more than {limit} ops: cut the trace into pieces")]
    TooManyOps {
        /// The limit.
        limit: usize,
    },
    /// More streams than [`Limits::streams`](crate::Limits::streams).
    #[error("more than {limit} streams")]
    TooManyStreams {
        /// The limit.
        limit: usize,
    },
    /// Header and labels above [`Limits::text_bytes`](crate::Limits::text_bytes).
    #[error("header and labels are longer than {limit} bytes together")]
    TooMuchText {
        /// The limit.
        limit: usize,
    },
    /// A pickle that cannot be read.
    #[error("byte {offset}: {reason}")]
    BadPickle {
        /// Where in the (unpacked) file.
        offset: u64,
        /// Why.
        reason: String,
    },
    /// A pickle that is not a PyTorch memory snapshot with a history.
    #[error("this pickle is not a PyTorch memory snapshot that can be replayed: {reason}")]
    NotASnapshot {
        /// What is missing or different.
        reason: String,
    },
    /// A row of an RMM log that cannot be read.
    #[error("not a row of an RMM log: {reason}")]
    BadRow {
        /// What is wrong with it.
        reason: String,
    },
}

/// The start of a text from the file, fit for a one-line message.
pub(crate) fn excerpt(text: &str) -> String {
    let mut short: String = text.chars().take(EXCERPT_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(EXCERPT_CHARS).is_some() {
        short.push_str("...");
    }
    short
}

const EXCERPT_CHARS: usize = 40;
