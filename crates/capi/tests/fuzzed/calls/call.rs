//! Which call a record stands for. Shared with the seeds of the corpus (`crates/testkit/examples/seeds`).

/// A call, or several that go by other parts of the record. The number of each is the byte that stands for it in a seed; other
/// bytes may stand for it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Call {
    // By the handle of an allocator.
    Alloc = 0,
    AllocAligned = 2,
    AllocAlignedOddly = 3,
    Free = 4,
    RecordStream = 7,
    Trim = 8,
    SetBudget = 9,
    GetStats = 10,
    Json = 11,
    Create = 12,
    Destroy = 13,
    Recording = 14,
    // PyTorch's plug-in.
    TorchAlloc = 15,
    TorchFree = 95,
    TorchUse = 115,
    TorchBudget = 135,
    TorchReport = 155,
    TorchPool = 17,
    // By the number of a device.
    DeviceAlloc = 175,
    DeviceAllocToo = 195,
    DeviceFree = 215,
    DeviceUse = 235,
    // PyTorch's allocator object.
    ObjectAlloc = 37,
    ObjectFree = 57,
    ObjectUse = 77,
    ObjectDescribe = 97,
    ObjectLists = 117,
    ObjectPool = 137,
    ObjectRestore = 157,
    ObjectAllocAgain = 177,
    ObjectTrim = 197,
    ObjectHistory = 217,
    /// Many threads, or a forked process.
    ObjectProcess = 237,
    // Memory that stays where it is.
    Pin = 119,
    Unpin = 139,
    AllocRegistered = 159,
    UseRegistered = 179,
    FreeRegistered = 199,
    Listen = 219,
    // Memory that grows and shrinks.
    Range = 98,
    // Memory that goes and comes back.
    Sleep = 138,
    Tag = 218,
    // Without an allocator.
    Conf = 18,
    Replay = 19,
    Explain = 99,
    /// No call: the next one meets a driver that fails.
    Fail = 240,
}

impl Call {
    /// The byte that stands for the call.
    #[allow(dead_code, reason = "for seeds")]
    pub const fn encode(self) -> u8 {
        self as u8
    }

    /// The call that a byte stands for. The remainder by 20 says of which kind it is, the quotient which of them.
    #[allow(dead_code, reason = "for the target")]
    pub const fn decode(byte: u8) -> Self {
        if byte >= Self::Fail as u8 {
            return Self::Fail;
        }
        match (byte % 20, byte / 20) {
            (0 | 1, _) => Self::Alloc,
            (2, _) => Self::AllocAligned,
            (3, _) => Self::AllocAlignedOddly,
            (4..=6, _) => Self::Free,
            (7, _) => Self::RecordStream,
            (8, _) => Self::Trim,
            (9, _) => Self::SetBudget,
            (10, _) => Self::GetStats,
            (11, _) => Self::Json,
            (12, _) => Self::Create,
            (13, _) => Self::Destroy,
            (14, _) => Self::Recording,
            (15 | 16, 0..=3) => Self::TorchAlloc,
            (15 | 16, 4) => Self::TorchFree,
            (15 | 16, 5) => Self::TorchUse,
            (15 | 16, 6) => Self::TorchBudget,
            (15 | 16, 7) => Self::TorchReport,
            (15 | 16, 8) => Self::DeviceAlloc,
            (15 | 16, 9) => Self::DeviceAllocToo,
            (15 | 16, 10) => Self::DeviceFree,
            (15 | 16, _) => Self::DeviceUse,
            (17, 0) => Self::TorchPool,
            (17, 1) => Self::ObjectAlloc,
            (17, 2) => Self::ObjectFree,
            (17, 3) => Self::ObjectUse,
            (17, 4) => Self::ObjectDescribe,
            (17, 5) => Self::ObjectLists,
            (17, 6) => Self::ObjectPool,
            (17, 7) => Self::ObjectRestore,
            (17, 8) => Self::ObjectAllocAgain,
            (17, 9) => Self::ObjectTrim,
            (17, 10) => Self::ObjectHistory,
            (17, _) => Self::ObjectProcess,
            (18, 0..=3) => Self::Conf,
            (18, 4) => Self::Range,
            (18, 5..=8) => Self::Sleep,
            (18, _) => Self::Tag,
            (_, 0..=3) => Self::Replay,
            (_, 4) => Self::Explain,
            (_, 5) => Self::Pin,
            (_, 6) => Self::Unpin,
            (_, 7) => Self::AllocRegistered,
            (_, 8) => Self::UseRegistered,
            (_, 9) => Self::FreeRegistered,
            (_, 10) => Self::Listen,
            (_, _) => Self::Range,
        }
    }
}
