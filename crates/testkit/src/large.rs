//! Strategies for worlds of every size: up to 1,000 streams, and devices of up to 1 TiB in pages of both sizes and chunks of
//! any. Sizes are drawn by their logarithms, so that large ones are as likely as small ones.

use crate::device::World;
use crate::inputs::{handle_op, range_op};
use crate::op::{Failure, Op};
use gapless::units::{GIB, KIB, MIB};
use proptest::prelude::*;

/// Most streams of a world.
pub const MOST_STREAMS: u64 = 1000;
/// Bytes of the largest device.
pub const LARGEST_DEVICE: u64 = 1024 * GIB;
/// Bytes of the smallest.
const SMALLEST_DEVICE: u64 = 8 * MIB;
/// Most chunks of a fixed size that a device is cut into: every check looks at all of them.
const MOST_CHUNKS: u64 = 1000;

/// A number between two others, both included: each doubling is as likely as another, and the largest number occurs by itself.
pub fn by_logarithm(least: u64, most: u64) -> impl Strategy<Value = u64> {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a random number"
    )]
    let between = move |part: f64| (least as f64 * (most as f64 / least as f64).powf(part)).round() as u64;
    prop_oneof![9 => (0.0..1.0).prop_map(between), 1 => Just(most)]
}

/// Worlds of every size.
pub fn large_world() -> impl Strategy<Value = World> {
    let page_bytes = prop::sample::select(vec![2 * MIB, 64 * KIB]);
    let chunk_pages = prop_oneof![1 => Just(0), 1 => by_logarithm(1, 512)];
    let slack_percent = prop::sample::select(vec![0_u32, 0, 10, 50]);
    let mapping_limit = prop::sample::select(vec![400_000, 400_000, 4000]);
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.3));
    let device = by_logarithm(SMALLEST_DEVICE, LARGEST_DEVICE);
    (device, page_bytes, chunk_pages, by_logarithm(1, MOST_STREAMS), slack_percent, mapping_limit, flags).prop_map(
        |(device, page_bytes, chunk_pages, streams, slack_percent, mapping_limit, flags)| {
            let (kept, own_streams, whole_blocks) = flags;
            let pages = device / page_bytes;
            World {
                pages,
                page_bytes,
                chunk_pages: if chunk_pages == 0 { 0 } else { chunk_pages.max(pages.div_ceil(MOST_CHUNKS)) },
                streams: usize::try_from(streams).expect("few streams"),
                slack_percent,
                mapping_limit,
                kept,
                own_streams,
                whole_blocks,
                ..World::default()
            }
        },
    )
}

/// Operations whose sizes are of any order up to that of the world.
pub fn large_op(world: &World) -> impl Strategy<Value = Op> + use<> {
    let World { pages, page_bytes, .. } = *world;
    let bytes = || by_logarithm(1, pages * page_bytes);
    let part = || by_logarithm(512, pages * page_bytes / 4);
    let some_pages = || by_logarithm(1, pages).prop_map(|pages| u32::try_from(pages).expect("at most 1 TiB in pages"));
    let count = || by_logarithm(1, MOST_STREAMS).prop_map(|count| u16::try_from(count).expect("few"));
    let beside = || prop_oneof![1 => Just(0), 1 => by_logarithm(512, 4 * MIB)];
    let (block, stream) = (any::<u16>, any::<u16>);
    let fill = (part(), beside(), stream(), count(), any::<bool>());
    let failure = prop::sample::select(vec![Failure::NoMemory, Failure::Unsupported, Failure::Invalid]);
    prop_oneof![
        10 => (bytes(), stream()).prop_map(|(bytes, stream)| Op::Alloc { bytes, align: 9, stream }),
        4 => (0_u16..3, stream()).prop_map(|(less, stream)| Op::AllocRest { less, stream }),
        8 => fill.prop_map(|(bytes, beside, stream, count, spread)| Op::Fill { bytes, beside, stream, count, spread }),
        5 => (0_u16..9, block()).prop_map(|(every, kept)| Op::Thin { every, kept }),
        6 => block().prop_map(|block| Op::Free { block }),
        3 => (block(), stream()).prop_map(|(block, stream)| Op::Write { block, stream }),
        3 => stream().prop_map(|stream| Op::Hold { stream }),
        2 => stream().prop_map(|stream| Op::Complete { stream }),
        1 => stream().prop_map(|stream| Op::Resume { stream }),
        3 => stream().prop_map(|stream| Op::Renew { stream }),
        2 => some_pages().prop_map(|keep| Op::Trim { keep }),
        2 => some_pages().prop_map(|pages| Op::Budget { pages }),
        1 => some_pages().prop_map(|pages| Op::External { pages }),
        4 => range_op(),
        2 => handle_op(),
        1 => (block(), stream()).prop_map(|(block, stream)| Op::ForeignUse { block, stream }),
        2 => (0_u8..60, failure).prop_map(|(nth, kind)| Op::Fail { nth, kind }),
        1 => any::<u8>().prop_map(|thread| Op::Thread { thread }),
    ]
}

/// A world of any size and up to `most` operations.
pub fn large_ops(most: usize) -> impl Strategy<Value = (World, Vec<Op>)> {
    large_world().prop_flat_map(move |world| (Just(world), prop::collection::vec(large_op(&world), 1..most)))
}
