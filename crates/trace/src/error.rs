//! Errors of reading a trace.

use std::fmt;
use std::io;

/// The error returned when a trace cannot be read: the line and the reason.
#[derive(Debug)]
pub struct ReadError {
    /// Number of the line, counted from 1, or 0 if the error concerns the whole file.
    pub line: u64,
    /// The reason.
    pub kind: ReadErrorKind,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 { write!(f, "{}", self.kind) } else { write!(f, "line {}: {}", self.line, self.kind) }
    }
}

impl std::error::Error for ReadError {}

/// The reason for a [`ReadError`]. Texts from the file are cut to `EXCERPT_CHARS` characters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadErrorKind {
    /// The file could not be opened or read.
    #[error("cannot be read: {0}")]
    Io(io::Error),
    /// The compressed data ends too early.
    #[error("the gzip data ends too early: the file was cut short")]
    TruncatedGzip,
    /// The compressed data is damaged.
    #[error("the gzip data is damaged: {0}")]
    CorruptGzip(io::Error),
    /// A line is longer than [`Limits::line_bytes`](crate::Limits::line_bytes).
    #[error("longer than {limit} bytes: this is not a trace")]
    LineTooLong {
        /// The limit that was exceeded.
        limit: usize,
    },
    /// The file is not UTF-8 text.
    #[error("not UTF-8 text: this is not a trace")]
    NotUtf8,
    /// A line does not begin with `a`, `f`, `r`, `s`, `w`, `m` or `#`.
    #[error(
        "unknown op '{op}': expected 'a ID BYTES STREAM', 'f ID', 'r BYTES STREAM', 's TAG keep', 'w TAG', 'm LABEL' or a \
         '#' line"
    )]
    UnknownOp {
        /// The first word of the line.
        op: String,
    },
    /// A line lacks a field.
    #[error("the {field} is missing")]
    MissingField {
        /// Name of the missing field.
        field: &'static str,
    },
    /// A line has more fields than its op.
    #[error("'{text}' is one word too many")]
    ExtraField {
        /// The first extra word.
        text: String,
    },
    /// A field is not a whole number below 2^64.
    #[error("the {field} '{text}' is not a whole number below 2^64")]
    BadNumber {
        /// Name of the field.
        field: &'static str,
        /// Text of the field.
        text: String,
    },
    /// A word cannot be a tag.
    #[error(
        "'{text}' is not a tag: a word of at most 100 bytes, which does not begin with a digit, or * for all memory"
    )]
    BadTag {
        /// Text of the field.
        text: String,
    },
    /// A sleep says something else of the bytes than whether they are kept.
    #[error("'{text}' is neither keep nor discard")]
    BadContent {
        /// Text of the field.
        text: String,
    },
    /// A header line that this crate uses has an invalid value.
    #[error("the header '{key}' has the value '{value}', expected {expected}")]
    BadHeader {
        /// Key of the header line.
        key: &'static str,
        /// Text of the value.
        value: String,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// An id is allocated twice.
    #[error("id {id} was allocated before: every id may be used only once")]
    DuplicateId {
        /// The repeated id.
        id: u64,
    },
    /// An id is freed without an allocation.
    #[error("free of id {id}, which was never allocated")]
    UnknownId {
        /// The unknown id.
        id: u64,
    },
    /// An id is freed twice.
    #[error("free of id {id}, which was freed before")]
    AlreadyFreed {
        /// The freed id.
        id: u64,
    },
    /// The number of live bytes does not fit in 64 bits.
    #[error("the live bytes exceed 2^64")]
    TooManyBytes,
    /// The trace has more ops than [`Limits::ops`](crate::Limits::ops).
    #[error("more than {limit} ops: cut the trace into pieces")]
    TooManyOps {
        /// The limit that was exceeded.
        limit: usize,
    },
    /// The trace has more streams than [`Limits::streams`](crate::Limits::streams).
    #[error("more than {limit} streams")]
    TooManyStreams {
        /// The limit that was exceeded.
        limit: usize,
    },
    /// The trace has more tags than are read.
    #[error("more than {limit} tags")]
    TooManyTags {
        /// The limit that was exceeded.
        limit: usize,
    },
    /// Header and labels together are longer than [`Limits::text_bytes`](crate::Limits::text_bytes).
    #[error("header and labels are longer than {limit} bytes together")]
    TooMuchText {
        /// The limit that was exceeded.
        limit: usize,
    },
    /// Empty lines and comments are longer than [`Limits::filler_bytes`](crate::Limits::filler_bytes) together.
    #[error("empty lines and comments are longer than {limit} bytes together: this is not a trace")]
    TooMuchFiller {
        /// The limit that was exceeded.
        limit: usize,
    },
    /// The file is of a kind that is not read.
    #[error("it is {what}")]
    OtherFormat {
        /// A description of the file, and what to do with it.
        what: &'static str,
    },
    /// A device was asked for in a file that has only one.
    #[error("it is no snapshot of PyTorch: it has one device only, and none that is number {device}")]
    OneDevice {
        /// The number of the device.
        device: usize,
    },
    /// A pickle cannot be read.
    #[error("byte {offset}: {reason}")]
    BadPickle {
        /// Offset in the file, after decompression, in bytes.
        offset: u64,
        /// Description of the error.
        reason: String,
    },
    /// A pickle is not a PyTorch memory snapshot with a history.
    #[error("this pickle is not a PyTorch memory snapshot that can be replayed: {reason}")]
    NotASnapshot {
        /// Description of the difference.
        reason: String,
    },
    /// A row of an RMM log cannot be read.
    #[error("not a row of an RMM log: {reason}")]
    BadRow {
        /// Description of the error.
        reason: String,
    },
}

/// Returns the start of a text from the file, escaped for a one-line message.
pub(crate) fn excerpt(text: &str) -> String {
    let mut short: String = text.chars().take(EXCERPT_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(EXCERPT_CHARS).is_some() {
        short.push_str("...");
    }
    short
}

const EXCERPT_CHARS: usize = 40;
