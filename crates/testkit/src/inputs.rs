//! Strategies for random worlds and operations, with their weights.

use crate::device::{Device, SMALL_REGION, World};
use crate::op::{CaptureMode, CurrentContext, Failure, Misuse, Op};
use gapless::allocator::Backup;
use proptest::prelude::*;

/// Worlds so small that every resource runs out: 4 to 24 pages of `page_bytes` bytes, or a few more pages with regions
/// smaller than the device.
pub fn world(page_bytes: u64) -> impl Strategy<Value = World> {
    (
        4_u64..24,
        prop::sample::select(vec![1_u64, 1, 1, 2, 4, 0]),
        1_usize..=4,
        prop::sample::select(vec![0_u32, 0, 10, 50]),
        prop::sample::select(vec![400_000, 400_000, 400_000, 12]),
        prop::sample::select(vec![u32::MAX, u32::MAX, 4]),
        prop::sample::select(vec![0, 0, 0, SMALL_REGION]),
        (any::<bool>(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.3)),
        prop::bool::weighted(0.3),
    )
        .prop_map(
            move |(
                pages,
                chunk_pages,
                streams,
                slack_percent,
                mapping_limit,
                epoch_limit,
                region_pages,
                (kept, own_streams, green_streams, blocking_streams),
                whole_blocks,
            )| World {
                pages: pages + region_pages,
                page_bytes,
                chunk_pages,
                streams,
                slack_percent,
                mapping_limit,
                region_pages,
                epoch_limit,
                kept,
                own_streams,
                green_streams,
                blocking_streams,
                whole_blocks,
            },
        )
}

fn bytes(page: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => 0_u64..2000,
        2 => 2000_u64..page,
        3 => (1_u64..5).prop_map(move |pages| pages * page),
        4 => page..6 * page,
        1 => 6 * page..24 * page,
    ]
}

fn align() -> impl Strategy<Value = u8> {
    prop_oneof![8 => Just(9_u8), 1 => 0_u8..21]
}

/// Operations on blocks without misuse and without changes of the world.
pub fn steady_op(page_bytes: u64) -> impl Strategy<Value = Op> {
    prop_oneof![
        14 => (bytes(page_bytes), align(), any::<u16>()).prop_map(|(bytes, align, stream)| Op::Alloc { bytes, align, stream }),
        1 => (0_u16..3, any::<u16>()).prop_map(|(less, stream)| Op::AllocRest { less, stream }),
        10 => any::<u16>().prop_map(|block| Op::Free { block }),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(block, stream)| Op::Record { block, stream }),
        2 => (any::<u16>(), any::<u16>()).prop_map(|(block, stream)| Op::Write { block, stream }),
        2 => (any::<u16>(), any::<u16>()).prop_map(|(block, stream)| Op::Read { block, stream }),
        2 => any::<u16>().prop_map(|stream| Op::Hold { stream }),
        2 => any::<u16>().prop_map(|stream| Op::Complete { stream }),
        1 => any::<u16>().prop_map(|stream| Op::Resume { stream }),
        1 => any::<u16>().prop_map(|stream| Op::Renew { stream }),
        1 => (0_u32..24).prop_map(|keep| Op::Trim { keep }),
    ]
}

/// Operations on growable ranges.
pub fn range_op() -> impl Strategy<Value = Op> {
    let (few, any_range, any_stream) = (0_u8..9, any::<u8>(), any::<u16>());
    prop_oneof![
        3 => (0_u8..48).prop_map(|pages| Op::ReserveRange { pages }),
        5 => (any_range, few.clone(), any_stream)
            .prop_map(|(range, pages, stream)| Op::GrowRange { range, pages, stream }),
        3 => (any_range, few.clone()).prop_map(|(range, pages)| Op::ShrinkRange { range, pages }),
        4 => (any_range, any_range, few, any_stream)
            .prop_map(|(to, from, pages, stream)| Op::TakeRange { to, from, pages, stream }),
        2 => (any_range, any_stream).prop_map(|(range, stream)| Op::WriteRange { range, stream }),
        2 => (any_range, any_stream).prop_map(|(range, stream)| Op::ReadRange { range, stream }),
        2 => any_range.prop_map(|range| Op::DropRange { range }),
    ]
}

/// Operations on memory that stays as it is.
pub fn kept_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => any::<u16>().prop_map(|block| Op::Pin { block }),
        2 => any::<u8>().prop_map(|pin| Op::Unpin { pin }),
        1 => any::<u8>().prop_map(|pin| Op::Expose { pin }),
        2 => (0_u8..9, any::<u16>()).prop_map(|(pages, stream)| Op::AllocRegistered { pages, stream }),
        2 => any::<u8>().prop_map(|block| Op::FreeRegistered { block }),
    ]
}

/// What becomes of the bytes of what sleeps.
fn backup() -> impl Strategy<Value = Backup> {
    prop_oneof![
        3 => Just(Backup::Discard),
        3 => Just(Backup::Pinned),
        2 => Just(Backup::Pageable),
        1 => Just(Backup::File),
    ]
}

/// Operations that put to sleep and wake.
pub fn sleep_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => backup().prop_map(|backup| Op::Sleep { backup }),
        3 => any::<bool>().prop_map(|retain| Op::Wake { retain }),
        1 => (backup(), any::<bool>()).prop_map(|(backup, unmaps)| Op::SleepInPart { backup, unmaps }),
        1 => any::<bool>().prop_map(|copies| Op::WakeInPart { copies }),
    ]
}

/// Operations on handles of allocators.
pub fn handle_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::CopyHandle),
        3 => any::<u8>().prop_map(|handle| Op::DropHandle { handle }),
        2 => Just(Op::CloseHandle),
        1 => Just(Op::OpenAllocator),
        2 => any::<u8>().prop_map(|allocator| Op::UseAllocator { allocator }),
    ]
}

/// Operations that begin and end captures.
pub fn capture_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => any::<u16>().prop_map(|stream| Op::BeginCapture { stream }),
        2 => any::<u16>().prop_map(|stream| Op::EndCapture { stream }),
        1 => (prop::sample::select(&CaptureMode::ALL[..]), any::<bool>())
            .prop_map(|(mode, elsewhere)| Op::CaptureAs { mode, elsewhere }),
    ]
}

/// Operations that open pools, capture graphs and replay them.
pub fn graph_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => Just(Op::OpenPool),
        3 => any::<u16>().prop_map(|stream| Op::BeginCapture { stream }),
        3 => any::<u16>().prop_map(|stream| Op::EndCapture { stream }),
        4 => (any::<u8>(), any::<u16>()).prop_map(|(graph, stream)| Op::Replay { graph, stream }),
    ]
}

/// Operations that change what the program has current.
pub fn context_op() -> impl Strategy<Value = Op> {
    prop::sample::select(&CurrentContext::ALL[..]).prop_map(|context| Op::SetContext { context })
}

/// All operations, in a world with pages of `page_bytes` bytes.
pub fn op(page_bytes: u64) -> impl Strategy<Value = Op> {
    let failure = prop_oneof![
        3 => Just(Failure::NoMemory),
        2 => Just(Failure::Unsupported),
        2 => Just(Failure::Invalid),
    ];
    let misuse = prop::sample::select(&Misuse::ALL[..]);
    prop_oneof![
        35 => steady_op(page_bytes),
        8 => range_op(),
        3 => kept_op(),
        2 => handle_op(),
        1 => capture_op(),
        2 => graph_op(),
        1 => sleep_op(),
        1 => any::<u16>().prop_map(|stream| Op::Watch { stream }),
        3 => (any::<u16>(), any::<u16>()).prop_map(|(address, stream)| Op::AllocAgain { address, stream }),
        2 => (any::<u16>(), any::<u16>()).prop_map(|(block, stream)| Op::ForeignUse { block, stream }),
        1 => any::<u8>().prop_map(|peer| Op::AddPeer { peer }),
        1 => any::<u8>().prop_map(|peer| Op::RemovePeer { peer }),
        1 => (0_u32..48).prop_map(|pages| Op::Budget { pages }),
        1 => (0_u32..24).prop_map(|pages| Op::External { pages }),
        2 => (0_u8..12, failure).prop_map(|(nth, kind)| Op::Fail { nth, kind }),
        1 => prop_oneof![7 => context_op(), 1 => Just(Op::Reset)],
        1 => (misuse, any::<u16>()).prop_map(|(misuse, block)| Op::Bad { misuse, block }),
        2 => any::<u8>().prop_map(|thread| Op::Thread { thread }),
    ]
}

/// A world of the device and up to `most` operations.
pub fn ops<D: Device>(most: usize) -> impl Strategy<Value = (World, Vec<Op>)> {
    (world(D::PAGE_BYTES), prop::collection::vec(op(D::PAGE_BYTES), 1..most))
}
