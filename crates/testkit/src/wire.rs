//! Encodes sequences as bytes for fuzzing: a header and records of fixed size, so that every input is valid, a changed
//! byte changes one operation, and seeds can be written as operations.
//!
//! ```text
//!   header  pages-4  chunk  streams  slack  limit  epochs  region|green|blocking  kept|own|large|doublings
//!   record  tag  small  number(2)  bytes(4)  nth  failure       (little-endian)
//! ```

use crate::device::{SMALL_REGION, World};
use crate::op::{CaptureMode, CurrentContext, Failure, Misuse, Op};
use gapless::allocator::Backup;
use gapless::units::{KIB, MIB};

/// Size of the header in bytes.
const HEADER: usize = 8;
/// Size of a record in bytes.
const RECORD: usize = 10;
/// Maximum number of operations in an input. Longer ones take long and find nothing new.
const MOST_OPS: usize = 200;

/// How often the device of a large world may have doubled: from 4 pages of 64 KiB up to 1.4 TiB.
const MOST_DOUBLINGS: u8 = 16;
/// Most chunks of a fixed size in a large world, about.
const MOST_CHUNKS: u64 = 1000;
/// Bound of the pairs of one `Fill`.
const MOST_PAIRS: u16 = 128;
/// Most streams of a large world.
const MOST_STREAMS: usize = 1000;

/// Whether the last two bytes of a record, which inject a failure before its operation, are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// They are ignored.
    Ignored,
    /// A failure kind other than 0 makes the n-th of the following driver calls fail.
    Failures,
}

/// Decodes a world and its operations. Returns `None` if `bytes` is shorter than a header.
pub fn decode(bytes: &[u8], extra: Extra) -> Option<(World, Vec<Op>)> {
    let (header, records) = bytes.split_at_checked(HEADER)?;
    let region_pages = if header[6] % 4 == 3 { SMALL_REGION } else { 0 };
    let world = World {
        pages: 4 + u64::from(header[0] % 20) + region_pages,
        chunk_pages: 1 << (header[1] % 3),
        streams: 1 + usize::from(header[2] % 4),
        slack_percent: u32::from(header[3] % 4) * 25,
        mapping_limit: if header[4] % 4 == 3 { 8 + usize::from(header[4] / 4) } else { 400_000 },
        epoch_limit: if header[5] % 4 == 3 { 2 + u32::from(header[5] / 4) } else { u32::MAX },
        region_pages,
        kept: header[7] % 2 == 0,
        own_streams: header[7] / 2 % 2 == 1,
        green_streams: header[6] / 4 % 4 == 3,
        blocking_streams: header[6] / 16 % 4 == 3,
        whole_blocks: header[3] / 4 % 4 == 3,
        ..World::default()
    };
    // In a large world the sizes of operations grow with the device, and a byte stands for more streams.
    let large = header[7] / 4 % 2 == 1;
    let doublings = if large { u32::from(header[7] / 8 % MOST_DOUBLINGS) } else { 0 };
    let world = if large {
        let pages = (world.pages - region_pages) << doublings;
        World {
            pages,
            page_bytes: if header[0] / 128 == 0 { 64 * KIB } else { 2 * MIB },
            chunk_pages: [0, 1, 3, 8][usize::from(header[1] % 4)] * pages.div_ceil(MOST_CHUNKS),
            streams: (1 + usize::from(header[2]) * 4).min(MOST_STREAMS),
            region_pages: 0,
            ..world
        }
    } else {
        world
    };
    let mut ops = Vec::new();
    for record in records.chunks_exact(RECORD).take(MOST_OPS) {
        if extra == Extra::Failures && record[9] % 5 != 0 {
            ops.push(Op::Fail { nth: record[8] % 24, kind: Failure::ALL[usize::from(record[9] % 5 - 1)] });
        }
        ops.push(operation(record).grown(doublings));
    }
    Some((world, ops))
}

impl Op {
    /// The same with sizes that have doubled so often.
    fn grown(self, doublings: u32) -> Self {
        match self {
            Self::Alloc { bytes, align, stream } => Self::Alloc { bytes: bytes << doublings, align, stream },
            Self::Fill { bytes, beside, stream, count, spread } => {
                Self::Fill { bytes: bytes << doublings, beside, stream, count, spread }
            }
            Self::Trim { keep } => Self::Trim { keep: keep << doublings },
            Self::Budget { pages } => Self::Budget { pages: pages << doublings },
            Self::External { pages } => Self::External { pages: pages << doublings },
            other => other,
        }
    }
}

fn operation(record: &[u8]) -> Op {
    let small = record[1];
    let block = u16::from_le_bytes([record[2], record[3]]);
    let stream = block;
    // Where the number is that of a block or of a range, the stream has its low byte elsewhere.
    let other_stream = u16::from_le_bytes([small, record[4]]);
    let range_stream = u16::from_le_bytes([record[2], record[5]]);
    let bytes = u64::from(u32::from_le_bytes([record[4], record[5], record[6], record[7]]));
    match record[0] % 54 {
        // Sizes up to about that of the device: the top byte is rarely useful.
        0 | 1 | 28 => {
            Op::Alloc { bytes: if small & 0x80 == 0 { bytes % (2 << 20) } else { bytes }, align: small & 0x1f, stream }
        }
        2 | 30 => Op::Free { block },
        3 => Op::Record { block, stream: other_stream },
        4 => Op::Write { block, stream: other_stream },
        5 => Op::Read { block, stream: other_stream },
        6 => Op::Hold { stream },
        7 => Op::Complete { stream },
        8 => Op::Resume { stream },
        9 => Op::Trim { keep: small.into() },
        10 => Op::Budget { pages: small.into() },
        11 => Op::External { pages: small.into() },
        12 => Op::Fail { nth: small % 24, kind: Failure::ALL[usize::from(record[4] % 3)] },
        13 => Op::Thread { thread: small },
        15 => Op::ReserveRange { pages: small },
        16 => Op::GrowRange { range: record[3], pages: small, stream: range_stream },
        17 => Op::ShrinkRange { range: record[3], pages: small },
        18 => Op::TakeRange { to: record[3], from: record[4], pages: small, stream: range_stream },
        19 => Op::WriteRange { range: record[3], stream: range_stream },
        20 => Op::ReadRange { range: record[3], stream: range_stream },
        21 => Op::DropRange { range: record[3] },
        22 => Op::CopyHandle,
        23 => Op::DropHandle { handle: small },
        24 => Op::CloseHandle,
        25 => Op::OpenAllocator,
        26 => Op::UseAllocator { allocator: small },
        27 => Op::Renew { stream },
        29 => Op::BeginCapture { stream },
        31 => Op::EndCapture { stream },
        32 => Op::OpenPool,
        33 => Op::Replay { graph: small, stream },
        36 => Op::Watch { stream },
        38 => Op::ForeignUse { block, stream: other_stream },
        34 => Op::BeginCapture { stream },
        35 => Op::EndCapture { stream },
        37 => Op::Alloc { bytes: bytes % (1 << 20), align: 9, stream },
        39 => Op::AllocAgain { address: block, stream: other_stream },
        40 => Op::Fill {
            bytes: bytes & 0xf_ffff,
            beside: if small.is_multiple_of(32) { 0 } else { 1 << (small % 24) },
            stream,
            count: u16::try_from(bytes >> 20).unwrap_or(0) % MOST_PAIRS,
            spread: small & 0x80 != 0,
        },
        42 => Op::AllocRest { less: small.into(), stream },
        41 => Op::Thin { every: small.into(), kept: block },
        43 => Op::AddPeer { peer: small },
        44 => Op::RemovePeer { peer: small },
        45 if small & 1 != 0 => Op::Expose { pin: record[2] },
        45 => Op::Pin { block },
        46 => Op::Unpin { pin: small },
        47 => Op::AllocRegistered { pages: small, stream },
        48 => Op::FreeRegistered { block: small },
        51 => Op::Reset,
        52 if small & 4 != 0 => {
            Op::SleepInPart { backup: BACKUPS[usize::from(small) % BACKUPS.len()], unmaps: small & 8 != 0 }
        }
        52 => Op::Sleep { backup: BACKUPS[usize::from(small) % BACKUPS.len()] },
        53 if small & 2 != 0 => Op::WakeInPart { copies: small & 4 != 0 },
        53 => Op::Wake { retain: small % 2 == 1 },
        50 => Op::CaptureAs {
            mode: CaptureMode::ALL[usize::from(small / 2) % CaptureMode::ALL.len()],
            elsewhere: small % 2 == 1,
        },
        49 => Op::SetContext { context: CurrentContext::ALL[usize::from(small) % CurrentContext::ALL.len()] },
        _ => Op::Bad { misuse: Misuse::ALL[usize::from(small) % Misuse::ALL.len()], block },
    }
}

const BACKUPS: [Backup; 4] = [Backup::Pinned, Backup::Discard, Backup::Pageable, Backup::File];

/// Encodes a sequence in a world of `pages` pages with chunks of `1 << chunk` pages. Values that do not fit in a record
/// are truncated.
pub fn encode(pages: u8, chunk: u8, streams: u8, ops: &[Op]) -> Vec<u8> {
    let mut bytes = vec![pages - 4, chunk, streams - 1, 0, 0, 0, 0, 0];
    let pair = |stream: u16, range| u16::from_le_bytes([low(stream), range]);
    let high = |stream: u16| u32::from(stream >> 8);
    let few = |pages: u32| u8::try_from(pages).unwrap_or(u8::MAX);
    for op in ops {
        let (tag, small, number, size) = match *op {
            Op::Alloc { bytes, align, stream } => (0, align, stream, u32::try_from(bytes).unwrap_or(u32::MAX)),
            Op::Fill { bytes, beside, stream, count, spread } => {
                let beside = u8::try_from(beside.checked_ilog2().unwrap_or(0)).unwrap_or(0);
                let size = u32::try_from(bytes & 0xf_ffff).unwrap_or(0) | u32::from(count) << 20;
                (40, beside | u8::from(spread) << 7, stream, size)
            }
            Op::AllocRest { less, stream } => (42, low(less), stream, 0),
            Op::Thin { every, kept } => (41, low(every), kept, 0),
            Op::AllocAgain { address, stream } => (39, low(stream), address, high(stream)),
            Op::Free { block } => (2, 0, block, 0),
            Op::Record { block, stream } => (3, low(stream), block, high(stream)),
            Op::Write { block, stream } => (4, low(stream), block, high(stream)),
            Op::Read { block, stream } => (5, low(stream), block, high(stream)),
            Op::Hold { stream } => (6, 0, stream, 0),
            Op::Complete { stream } => (7, 0, stream, 0),
            Op::Resume { stream } => (8, 0, stream, 0),
            Op::Trim { keep } => (9, few(keep), 0, 0),
            Op::Budget { pages } => (10, few(pages), 0, 0),
            Op::External { pages } => (11, few(pages), 0, 0),
            Op::Fail { nth, kind } => {
                let kind = Failure::ALL.iter().position(|other| *other == kind).unwrap_or(0);
                (12, nth, 0, u32::try_from(kind).unwrap_or(0))
            }
            Op::Thread { thread } => (13, thread, 0, 0),
            Op::Bad { misuse, block } => {
                let number = Misuse::ALL.iter().position(|other| *other == misuse).unwrap_or(0);
                (14, u8::try_from(number).unwrap_or(0), block, 0)
            }
            Op::ReserveRange { pages } => (15, pages, 0, 0),
            Op::GrowRange { range, pages, stream } => (16, pages, pair(stream, range), high(stream) << 8),
            Op::ShrinkRange { range, pages } => (17, pages, pair(0, range), 0),
            Op::TakeRange { to, from, pages, stream } => {
                (18, pages, pair(stream, to), high(stream) << 8 | u32::from(from))
            }
            Op::WriteRange { range, stream } => (19, 0, pair(stream, range), high(stream) << 8),
            Op::ReadRange { range, stream } => (20, 0, pair(stream, range), high(stream) << 8),
            Op::DropRange { range } => (21, 0, pair(0, range), 0),
            Op::CopyHandle => (22, 0, 0, 0),
            Op::DropHandle { handle } => (23, handle, 0, 0),
            Op::CloseHandle => (24, 0, 0, 0),
            Op::OpenAllocator => (25, 0, 0, 0),
            Op::UseAllocator { allocator } => (26, allocator, 0, 0),
            Op::Renew { stream } => (27, 0, stream, 0),
            Op::BeginCapture { stream } => (29, 0, stream, 0),
            Op::EndCapture { stream } => (31, 0, stream, 0),
            Op::Watch { stream } => (36, 0, stream, 0),
            Op::ForeignUse { block, stream } => (38, low(stream), block, high(stream)),
            Op::AddPeer { peer } => (43, peer, 0, 0),
            Op::RemovePeer { peer } => (44, peer, 0, 0),
            Op::Pin { block } => (45, 0, block, 0),
            Op::Expose { pin } => (45, 1, pin.into(), 0),
            Op::Unpin { pin } => (46, pin, 0, 0),
            Op::AllocRegistered { pages, stream } => (47, pages, stream, 0),
            Op::FreeRegistered { block } => (48, block, 0, 0),
            Op::CaptureAs { mode, elsewhere } => {
                let number = CaptureMode::ALL.iter().position(|other| *other == mode).unwrap_or(0);
                (50, u8::try_from(number * 2).unwrap_or(0) | u8::from(elsewhere), 0, 0)
            }
            Op::SetContext { context } => {
                let number = CurrentContext::ALL.iter().position(|other| *other == context).unwrap_or(0);
                (49, u8::try_from(number).unwrap_or(0), 0, 0)
            }
            Op::Reset => (51, 0, 0, 0),
            Op::Sleep { backup } => {
                let number = BACKUPS.iter().position(|other| *other == backup).unwrap_or(0);
                (52, u8::try_from(number).unwrap_or(0), 0, 0)
            }
            Op::Wake { retain } => (53, u8::from(retain), 0, 0),
            Op::SleepInPart { backup, unmaps } => {
                let number = BACKUPS.iter().position(|other| *other == backup).unwrap_or(0);
                (52, 4 | u8::try_from(number).unwrap_or(0) | u8::from(unmaps) << 3, 0, 0)
            }
            Op::WakeInPart { copies } => (53, 2 | u8::from(copies) << 2, 0, 0),
            Op::OpenPool => (32, 0, 0, 0),
            Op::Replay { graph, stream } => (33, graph, stream, 0),
        };
        bytes.extend([tag, small]);
        bytes.extend(number.to_le_bytes());
        bytes.extend(u32::to_le_bytes(size));
        bytes.extend([0, 0]);
    }
    bytes
}

fn low(stream: u16) -> u8 {
    stream.to_le_bytes()[0]
}

#[cfg(all(test, feature = "properties"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encoded_sequences_decode_to_the_same() {
        proptest!(|(ops in prop::collection::vec(crate::op(64 << 10), 0..50))| {
            let (world, back) = decode(&encode(9, 1, 3, &ops), Extra::Ignored).unwrap();
            prop_assert_eq!((world.pages, world.chunk_pages, world.streams), (9, 2, 3));
            // Large sizes and failures are truncated to fit in a record; the rest is the same.
            for (op, back) in ops.iter().zip(&back) {
                let cut = matches!(op, Op::Alloc { bytes, .. } if *bytes >= 2 << 20);
                prop_assert!(cut || op == back, "{op:?} was decoded as {back:?}");
            }
        });
    }
}
