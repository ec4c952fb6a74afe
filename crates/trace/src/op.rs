//! The operations of a trace: as they are in its text, and as they are once it is loaded.

use std::ops::Range;

/// One line of a trace as it is in the file. Ids are arbitrary numbers, and none is used twice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceOp {
    /// `a ID BYTES STREAM [TAG]`: allocates a block.
    Alloc {
        /// Identifies the block in the whole trace.
        id: u64,
        /// Number of bytes requested, without rounding. May be 0.
        bytes: u64,
        /// The recorder's number for the stream. The default stream is 0.
        stream: u64,
        /// The name of a part of the memory that sleeps by itself, if it is of one.
        tag: Option<Box<str>>,
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
    /// `s TAG keep` or `s TAG discard`: what is live of a tag gives up its memory and keeps its addresses. What is asleep already
    /// stays so.
    Sleep {
        /// The tag; `None`, in the file `*`, for all memory.
        tag: Option<Box<str>>,
        /// What becomes of the bytes.
        content: Content,
    },
    /// `w TAG`: what is asleep of a tag gets memory again.
    Wake {
        /// The tag; `None`, in the file `*`, for all memory.
        tag: Option<Box<str>>,
    },
    /// `m LABEL`: marks the end of the step with this name.
    Mark(String),
}

/// What becomes of the bytes of what sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Content {
    /// They are copied to the host, and back when it wakes.
    Keep,
    /// They are lost.
    Discard,
}

/// Whether a word can be a tag: not too long, no number, and not `*`, which stands for all memory.
pub(crate) fn is_tag(word: &str) -> bool {
    let begins = word.starts_with(|first: char| !first.is_ascii_digit());
    begins && word != ALL && word.len() <= MOST_TAG_BYTES && !word.contains(char::is_whitespace)
}

/// All memory, in place of a tag.
pub(crate) const ALL: &str = "*";
/// Length of the longest tag.
pub(crate) const MOST_TAG_BYTES: usize = 100;
/// Number of the tags that a file may have.
pub(crate) const MOST_TAGS: usize = u8::MAX as usize;

/// One op of a [`Trace`](crate::Trace).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Allocates a block and stores it in an empty slot.
    Alloc {
        /// The slot, below [`Trace::slots`](crate::Trace::slots).
        slot: u32,
        /// Index of the stream in [`Trace::streams`](crate::Trace::streams).
        stream: u16,
        /// Number of the tag: 0 without one, else its place in [`Trace::tags`](crate::Trace::tags), counted from 1.
        tag: u8,
        /// Number of bytes requested.
        bytes: u64,
    },
    /// Frees the block in a slot, which becomes empty.
    Free {
        /// The slot, below [`Trace::slots`](crate::Trace::slots).
        slot: u32,
    },
    /// A request that the recorded allocator refused. It has no slot, since it never was live.
    Refused {
        /// Index of the stream in [`Trace::streams`](crate::Trace::streams).
        stream: u16,
        /// Number of bytes requested.
        bytes: u64,
    },
    /// Puts what is live to sleep.
    Sleep {
        /// Whose memory.
        tags: Tags,
        /// What becomes of the bytes.
        content: Content,
    },
    /// Wakes what is asleep.
    Wake {
        /// Whose memory.
        tags: Tags,
    },
    /// Marks the end of a step.
    Mark {
        /// Index of the step's name in [`Trace::labels`](crate::Trace::labels).
        label: u32,
    },
}

const _: () = assert!(size_of::<Op>() == 16, "a trace has many ops");

/// The memory that sleeps or wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tags {
    /// All of it.
    All,
    /// That of the tag with this number, as in [`Op::Alloc`].
    One(u8),
}

impl Tags {
    /// The numbers of the tags, among `count` of them.
    pub(crate) fn within(self, count: usize) -> Range<usize> {
        match self {
            Self::All => 0..count,
            Self::One(tag) => usize::from(tag)..usize::from(tag) + 1,
        }
    }
}
