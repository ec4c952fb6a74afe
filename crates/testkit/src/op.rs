//! The vocabulary: what a caller, or the world around it, can do to an allocator.

use gapless::driver::DriverErrorKind;

/// One operation. Blocks and streams are named by number, modulo how many there are when it runs, so that every sequence
/// means something and a shrunk one still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Allocate so many bytes, at a multiple of `2^align` (at most 2^20), for a stream; fill them there.
    Alloc {
        /// Bytes.
        bytes: u32,
        /// Logarithm of the alignment, modulo 21.
        align: u8,
        /// Stream.
        stream: u8,
    },
    /// Verify a block's bytes on the stream that used it last, and free it.
    Free {
        /// Block.
        block: u16,
    },
    /// Make a further user of a block known.
    Record {
        /// Block.
        block: u16,
        /// Stream.
        stream: u8,
    },
    /// Launch work that fills a block, on any stream, ordered behind the last use and recorded.
    Write {
        /// Block.
        block: u16,
        /// Stream.
        stream: u8,
    },
    /// Launch work that verifies a block, on any stream, ordered behind the last use and recorded.
    Read {
        /// Block.
        block: u16,
        /// Stream.
        stream: u8,
    },
    /// Nothing on the stream completes by itself from now on.
    Hold {
        /// Stream.
        stream: u8,
    },
    /// What is queued on the stream completes.
    Complete {
        /// Stream.
        stream: u8,
    },
    /// A hold ends.
    Resume {
        /// Stream.
        stream: u8,
    },
    /// The stream is captured into a graph from now on; what is launched there runs at once.
    BeginCapture {
        /// Stream.
        stream: u8,
    },
    /// A capture ends.
    EndCapture {
        /// Stream.
        stream: u8,
    },
    /// Reserve a raw range of so many pages, modulo twice the device; four at most are kept.
    ReserveRange {
        /// Pages.
        pages: u8,
    },
    /// Map more pages at the end of a range, for a stream, and fill them there. No pages: the stream becomes known.
    GrowRange {
        /// Range.
        range: u8,
        /// Pages, modulo twice the device.
        pages: u8,
        /// Stream.
        stream: u8,
    },
    /// Verify pages at the end of a range and unmap them.
    ShrinkRange {
        /// Range.
        range: u8,
        /// Pages.
        pages: u8,
    },
    /// Move pages from the end of one range to the end of another, ordered behind what used them, and verify them there.
    TakeRange {
        /// Range that grows.
        to: u8,
        /// Range that shrinks.
        from: u8,
        /// Pages.
        pages: u8,
        /// Stream.
        stream: u8,
    },
    /// Launch work that fills a range, on any stream, ordered behind its last uses and made known.
    WriteRange {
        /// Range.
        range: u8,
        /// Stream.
        stream: u8,
    },
    /// Launch work that verifies a range, on any stream, ordered behind its last uses and made known.
    ReadRange {
        /// Range.
        range: u8,
        /// Stream.
        stream: u8,
    },
    /// Verify a range and drop it, mapped as it is.
    DropRange {
        /// Range.
        range: u8,
    },
    /// Make another handle of the allocator, and go on through it.
    CopyHandle,
    /// Drop a handle. The last one of an allocator without ranges: it is gone, and another is opened in its place.
    DropHandle {
        /// Handle.
        handle: u8,
    },
    /// Close the allocator through a handle: refused while there are others or ranges. Otherwise it names what is live,
    /// and another is opened in its place.
    CloseHandle,
    /// Open a further allocator on the device, three at most, and go on with it.
    OpenAllocator,
    /// Go on with another allocator.
    UseAllocator {
        /// Allocator.
        allocator: u8,
    },
    /// Give free memory back until so many pages are held.
    Trim {
        /// Pages.
        keep: u8,
    },
    /// Change the budget to so many pages, modulo twice the device.
    Budget {
        /// Pages.
        pages: u8,
    },
    /// Other processes hold so many pages of the device from now on, modulo the device.
    External {
        /// Pages.
        pages: u8,
    },
    /// The n-th driver call of the allocator from here on fails, once.
    Fail {
        /// Calls that succeed before it.
        nth: u8,
        /// How it fails.
        kind: Failure,
    },
    /// Go on in another thread.
    Thread {
        /// Thread.
        thread: u8,
    },
    /// Call wrongly.
    Bad {
        /// How.
        misuse: Misuse,
        /// Block that is concerned.
        block: u16,
    },
}

/// How a driver call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// `OutOfMemory`.
    NoMemory,
    /// `NotSupported`.
    Unsupported,
    /// `InvalidValue`.
    Invalid,
    /// `DeviceLost`.
    Lost,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NoMemory, Self::Unsupported, Self::Invalid, Self::Lost];

    /// As the driver says it.
    pub const fn kind(self) -> DriverErrorKind {
        match self {
            Self::NoMemory => DriverErrorKind::OutOfMemory,
            Self::Unsupported => DriverErrorKind::NotSupported,
            Self::Invalid => DriverErrorKind::InvalidValue,
            Self::Lost => DriverErrorKind::DeviceLost,
        }
    }
}

/// Calls that must be refused and change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Misuse {
    /// Free an address inside a live block.
    FreeInside,
    /// Free the address freed last, if nothing was allocated there since.
    FreeTwice,
    /// Free an address of nobody.
    FreeForeign,
    /// Record a stream on the address freed last.
    RecordFreed,
    /// Record a stream that does not exist on a live block.
    RecordForeignStream,
    /// Allocate for a stream that does not exist.
    AllocForeignStream,
    /// Allocate more than any region holds.
    AllocTooMuch,
    /// Allocate at a multiple of three.
    AllocOddAlignment,
}

impl Misuse {
    /// Each of them, by its number in an input.
    pub const ALL: [Self; 8] = [
        Self::FreeInside,
        Self::FreeTwice,
        Self::FreeForeign,
        Self::RecordFreed,
        Self::RecordForeignStream,
        Self::AllocForeignStream,
        Self::AllocTooMuch,
        Self::AllocOddAlignment,
    ];
}
