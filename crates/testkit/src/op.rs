//! The operations: what a caller of an allocator, or its environment, can do.

use gapless::allocator::Backup;
use gapless::driver::DriverErrorKind;

/// One operation. Blocks, streams and other objects are given by number, modulo the number of them when the operation
/// runs, so that every sequence is valid, also after it was shrunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Allocate a block for a stream, aligned to `2^align` (at most 2^20), and fill it on that stream.
    Alloc {
        /// Size in bytes.
        bytes: u64,
        /// Binary logarithm of the alignment in bytes, modulo 21.
        align: u8,
        /// Number of the stream.
        stream: u16,
    },
    /// Allocate all pages that a request must be able to have, or a few less.
    AllocRest {
        /// Number of pages that are left, at most all.
        less: u16,
        /// Number of the stream.
        stream: u16,
    },
    /// Allocate pairs of blocks as `Alloc` does, until a request is refused.
    Fill {
        /// Size in bytes of the first of each pair.
        bytes: u64,
        /// Size in bytes of the second, or 0 for none.
        beside: u64,
        /// Number of the stream of the first pair.
        stream: u16,
        /// Number of pairs.
        count: u16,
        /// Whether each pair is for the next stream.
        spread: bool,
    },
    /// Free blocks in the order of their allocation, but keep some of them.
    Thin {
        /// Of so many blocks, one is kept; none if it is 0.
        every: u16,
        /// Which of them.
        kept: u16,
    },
    /// Allocate at an address that a block was freed from, and use it on the stream that it is for; where that was destroyed, on
    /// another one.
    AllocAgain {
        /// Number of the address.
        address: u16,
        /// Number of the other stream.
        stream: u16,
    },
    /// Verify a block's bytes on the stream that last used it, and free it.
    Free {
        /// Number of the block.
        block: u16,
    },
    /// Record a stream on a block.
    Record {
        /// Number of the block.
        block: u16,
        /// Number of the stream.
        stream: u16,
    },
    /// Record a stream on a block, and queue work there that fills the block after its last use.
    Write {
        /// Number of the block.
        block: u16,
        /// Number of the stream.
        stream: u16,
    },
    /// Record a stream on a block, and queue work there that verifies the block after its last use.
    Read {
        /// Number of the block.
        block: u16,
        /// Number of the stream.
        stream: u16,
    },
    /// Ask how far the watched streams are, and mark the end of what is queued on a stream, as for work there that uses
    /// memory of another device.
    Watch {
        /// Number of the stream.
        stream: u16,
    },
    /// Queue work that fills a block, after its last use, on a stream that the block's allocator does not know of, as on one of
    /// another device: the stream is watched, and its mark is waited for before the block is freed. Where a peer has access, it is
    /// the peer's work. Does nothing where the allocator knows that the stream uses the block, for pools, and for a thread's own
    /// stream.
    ForeignUse {
        /// Number of the block.
        block: u16,
        /// Number of the stream.
        stream: u16,
    },
    /// Give another device access to all memory of the device: what is mapped, in every allocator, and what will be.
    AddPeer {
        /// Number of the peer.
        peer: u8,
    },
    /// Leave another device out of what is mapped from now on.
    RemovePeer {
        /// Number of the peer.
        peer: u8,
    },
    /// Hold a stream: its work no longer completes by itself.
    Hold {
        /// Number of the stream.
        stream: u16,
    },
    /// Complete the work queued on a stream.
    Complete {
        /// Number of the stream.
        stream: u16,
    },
    /// End the hold of a stream.
    Resume {
        /// Number of the stream.
        stream: u16,
    },
    /// Destroy a stream while its work is running, and create another in its place, whose handle has the same value. The
    /// default stream takes over what is live, behind that work. Does nothing for the default stream and in a capture.
    Renew {
        /// Number of the stream.
        stream: u16,
    },
    /// Begin the capture of a stream into a graph. Work queued there with blocks of a pool becomes steps of the graph. Other
    /// work runs immediately.
    BeginCapture {
        /// Number of the stream.
        stream: u16,
    },
    /// Make the captures that begin from now on in a mode, and by the calling thread or another. Does nothing on devices without
    /// modes.
    CaptureAs {
        /// The mode.
        mode: CaptureMode,
        /// Whether a thread begins and ends them that does nothing else.
        elsewhere: bool,
    },
    /// End the capture of a stream. If it has work with pools, its graph can be replayed until one of them is closed.
    EndCapture {
        /// Number of the stream.
        stream: u16,
    },
    /// Hold a stream, and replay a graph there, behind all work with the memory of its pools.
    Replay {
        /// Number of the graph.
        graph: u8,
        /// Number of the stream.
        stream: u16,
    },
    /// Reserve a growable range, unless four exist.
    ReserveRange {
        /// Size in pages, modulo twice the device.
        pages: u8,
    },
    /// Map more pages at the end of a range for a stream, and fill them there. With 0 pages, only records the
    /// stream.
    GrowRange {
        /// Number of the range.
        range: u8,
        /// Number of pages, modulo twice the device.
        pages: u8,
        /// Number of the stream.
        stream: u16,
    },
    /// Verify pages at the end of a range and unmap them.
    ShrinkRange {
        /// Number of the range.
        range: u8,
        /// Number of pages.
        pages: u8,
    },
    /// Move pages from the end of one range to the end of another, after their last uses, and verify them there.
    TakeRange {
        /// Number of the range that grows.
        to: u8,
        /// Number of the range that shrinks.
        from: u8,
        /// Number of pages.
        pages: u8,
        /// Number of the stream.
        stream: u16,
    },
    /// Record a stream on a range, and queue work there that fills the range after its last uses.
    WriteRange {
        /// Number of the range.
        range: u8,
        /// Number of the stream.
        stream: u16,
    },
    /// Record a stream on a range, and queue work there that verifies the range after its last uses.
    ReadRange {
        /// Number of the range.
        range: u8,
        /// Number of the stream.
        stream: u16,
    },
    /// Verify a range and drop it while it is mapped.
    DropRange {
        /// Number of the range.
        range: u8,
    },
    /// Pin a block, unless four pins exist.
    Pin {
        /// Number of the block.
        block: u16,
    },
    /// Expose a pinned block, unless its allocator keeps its mappings.
    Expose {
        /// Number of the pin.
        pin: u8,
    },
    /// Drop a pin.
    Unpin {
        /// Number of the pin.
        pin: u8,
    },
    /// Allocate a registered block, unless four exist.
    AllocRegistered {
        /// Size in pages, modulo the device.
        pages: u8,
        /// Number of the stream.
        stream: u16,
    },
    /// Free a registered block.
    FreeRegistered {
        /// Number of the registered block.
        block: u8,
    },
    /// Clone the allocator's handle, and continue with the clone.
    CopyHandle,
    /// Drop a handle. If it is the last one of an allocator without ranges, open another allocator as its replacement.
    DropHandle {
        /// Number of the handle.
        handle: u8,
    },
    /// Close the allocator with a handle. Must be refused while other handles or ranges exist. Otherwise it reports the
    /// live blocks, and another allocator is opened as its replacement.
    CloseHandle,
    /// Open another allocator on the device, unless three exist, and continue with it.
    OpenAllocator,
    /// Open another allocator that keeps its mappings, unless three exist, and continue with it.
    OpenPool,
    /// Continue with another allocator.
    UseAllocator {
        /// Number of the allocator.
        allocator: u8,
    },
    /// Release free memory until at most `keep` pages are held.
    Trim {
        /// Number of pages.
        keep: u32,
    },
    /// Wait for the uses that the allocator does not know of, and put everything to sleep that is not pinned.
    Sleep {
        /// What becomes of the content.
        backup: Backup,
    },
    /// Begin such a sleep, and do not finish it.
    SleepInPart {
        /// What would become of the content.
        backup: Backup,
        /// Whether the memory is unmapped.
        unmaps: bool,
    },
    /// Begin to wake what is asleep, and do not finish that.
    WakeInPart {
        /// Whether the content is copied.
        copies: bool,
    },
    /// Wake what is asleep.
    Wake {
        /// Retain backups.
        retain: bool,
    },
    /// Change the budget.
    Budget {
        /// The budget in pages, modulo twice the device.
        pages: u32,
    },
    /// Change the memory that other processes hold.
    External {
        /// Number of pages, modulo the device.
        pages: u32,
    },
    /// Make one of the allocator's next driver calls fail, once.
    Fail {
        /// Number of calls that succeed before it.
        nth: u8,
        /// The error that it returns.
        kind: Failure,
    },
    /// Continue on another thread, where the threads' own stream is another one.
    Thread {
        /// Number of the thread.
        thread: u8,
    },
    /// Make another context current on the thread. Its default streams may be others than the device's then. Does nothing on
    /// devices without contexts.
    SetContext {
        /// The context.
        context: CurrentContext,
    },
    /// Reset the device as a program can, which destroys its streams and events but not what is mapped. The allocators are
    /// closed, and others are opened on a new device. Does nothing on devices that cannot be reset.
    Reset,
    /// Make an incorrect call.
    Bad {
        /// Kind of the call.
        misuse: Misuse,
        /// Number of the block that the call concerns.
        block: u16,
    },
}

/// The error of a failing driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// [`DriverErrorKind::OutOfMemory`].
    NoMemory,
    /// [`DriverErrorKind::NotSupported`].
    Unsupported,
    /// [`DriverErrorKind::InvalidValue`].
    Invalid,
    /// [`DriverErrorKind::DeviceLost`].
    Lost,
}

impl Failure {
    /// All variants.
    pub const ALL: [Self; 4] = [Self::NoMemory, Self::Unsupported, Self::Invalid, Self::Lost];

    /// Returns the driver's error kind.
    pub const fn kind(self) -> DriverErrorKind {
        match self {
            Self::NoMemory => DriverErrorKind::OutOfMemory,
            Self::Unsupported => DriverErrorKind::NotSupported,
            Self::Invalid => DriverErrorKind::InvalidValue,
            Self::Lost => DriverErrorKind::DeviceLost,
        }
    }
}

/// What a program may have current on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CurrentContext {
    /// No context.
    None,
    /// The primary context of the device, whose streams and memory the allocators have.
    Primary,
    /// A context of the program's own on the device.
    Own,
    /// A green context of the primary one.
    Green,
}

impl CurrentContext {
    /// All variants.
    pub const ALL: [Self; 4] = [Self::None, Self::Primary, Self::Own, Self::Green];
}

/// Which calls of which threads break a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// Those that a capture forbids, of any thread in the same mode.
    #[default]
    Global,
    /// Those of the thread that began it.
    ThreadLocal,
    /// Those alone that concern the stream.
    Relaxed,
}

impl CaptureMode {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Global, Self::ThreadLocal, Self::Relaxed];
}

/// Incorrect calls. Each must return an error and change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Misuse {
    /// Free an address inside a live block.
    FreeInside,
    /// Free the last freed address again, if nothing was allocated there since.
    FreeTwice,
    /// Free an address that does not belong to an allocator.
    FreeForeign,
    /// Record a stream on the last freed address.
    RecordFreed,
    /// Record a stream that does not exist on a live block.
    RecordForeignStream,
    /// Allocate for a stream that does not exist.
    AllocForeignStream,
    /// Allocate more than the size of a region.
    AllocTooMuch,
    /// Allocate with an alignment of three.
    AllocOddAlignment,
}

impl Misuse {
    /// All variants, by their number in an input.
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
