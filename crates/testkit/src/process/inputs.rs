//! Strategies for random operations of a process, with their weights.

use super::device::TwoDevices;
use super::op::ProcessOp;
use crate::op::Failure;
use gapless::units::{KIB, MIB};
use proptest::prelude::*;

/// Devices so small that memory and budgets run out: with single pages of 2 MiB, or pages of 64 KiB and chunks of the allocators'
/// choice. `memory` says whether pages have real memory: then they are small.
pub fn two_devices(memory: bool) -> impl Strategy<Value = TwoDevices> {
    let pages = (4_u64..24, prop::bool::weighted(if memory { 0.0 } else { 0.7 }));
    let settings = (1_usize..=2, prop::sample::select(vec![0_u64, 0, 50, 90]), prop::bool::weighted(0.8));
    (pages, settings, prop::bool::weighted(0.2), any::<bool>()).prop_map(
        |((pages, single_pages), (streams, budget_percent, peers), private, kept)| {
            let page_bytes = if single_pages { 2 * MIB } else { 64 * KIB };
            TwoDevices { pages, page_bytes, streams, single_pages, budget_percent, peers, private, kept }
        },
    )
}

fn bytes(page: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => 0_u64..2000,
        2 => 2000_u64..page,
        3 => (1_u64..4).prop_map(move |pages| pages * page),
        2 => page..5 * page,
        1 => 5 * page..24 * page,
    ]
}

fn op(page: u64) -> impl Strategy<Value = ProcessOp> {
    let fail = (0_u8..12, 0_usize..3);
    prop_oneof![
        8 => (0_u8..2, bytes(page), any::<u8>())
            .prop_map(|(device, bytes, stream)| ProcessOp::Alloc { device, bytes, stream }),
        4 => (0_u8..2, 0_u8..3, bytes(page), any::<u8>())
            .prop_map(|(device, pool, bytes, stream)| ProcessOp::AllocInPool { device, pool, bytes, stream }),
        3 => (0_u8..2, bytes(page), any::<u8>())
            .prop_map(|(device, bytes, stream)| ProcessOp::AllocInMain { device, bytes, stream }),
        9 => any::<u16>().prop_map(|block| ProcessOp::Free { block }),
        2 => (any::<u16>(), any::<u8>()).prop_map(|(block, stream)| ProcessOp::FreeOn { block, stream }),
        6 => (any::<u16>(), any::<u8>()).prop_map(|(block, stream)| ProcessOp::Use { block, stream }),
        3 => any::<u8>().prop_map(|stream| ProcessOp::Hold { stream }),
        2 => any::<u8>().prop_map(|stream| ProcessOp::Resume { stream }),
        3 => (0_u8..2, 0_u8..3).prop_map(|(device, pool)| ProcessOp::Begin { device, pool }),
        3 => (0_u8..2, 0_u8..3).prop_map(|(device, pool)| ProcessOp::End { device, pool }),
        1 => (0_u8..2, 0_u8..3).prop_map(|(device, pool)| ProcessOp::AddUser { device, pool }),
        3 => (0_u8..2, 0_u8..3).prop_map(|(device, pool)| ProcessOp::Release { device, pool }),
        2 => (0_u8..2, 0_u8..3, prop::bool::weighted(0.8))
            .prop_map(|(device, pool, lends)| ProcessOp::Lend { device, pool, lends }),
        1 => (0_u8..2, any::<u8>()).prop_map(|(device, pages)| ProcessOp::Budget { device, pages }),
        2 => (0_u8..2, 0_u8..8).prop_map(|(device, keep)| ProcessOp::Trim { device, keep }),
        1 => (0_u8..2).prop_map(|device| ProcessOp::CloseReleased { device }),
        2 => (0_u8..2, 0_u8..3, any::<bool>())
            .prop_map(|(device, pool, ordinary)| ProcessOp::Declare { device, pool, ordinary }),
        3 => (0_u8..2, prop::option::of(0_u8..3)).prop_map(|(device, tag)| ProcessOp::Nap { device, tag }),
        1 => (0_u8..2, fail).prop_map(|(device, (nth, kind))| ProcessOp::Fail { device, nth, kind: Failure::ALL[kind] }),
    ]
}

/// Two devices and a sequence of fewer than `most` operations.
pub fn process_ops(memory: bool, most: usize) -> impl Strategy<Value = (TwoDevices, Vec<ProcessOp>)> {
    two_devices(memory)
        .prop_flat_map(move |devices| (Just(devices), prop::collection::vec(op(devices.page_bytes), 1..most)))
}
