//! The worked example of docs/internals/design.md, with its driver calls.

use gapless::allocator::Stats;
use gapless::driver::{DriverCall, ModelConfig, ModelDriver};
use gapless::{Allocator, StreamId};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Calls of reserve, create, map, set_access and unmap since `before`, and the times the host waited.
fn calls_since(allocator: &Allocator<ModelDriver>, before: &Stats) -> ([u64; 5], u64) {
    use DriverCall as C;
    let now = allocator.stats();
    let since = now.driver_calls.since(&before.driver_calls);
    (
        [C::Reserve, C::Create, C::Map, C::SetAccess, C::Unmap].map(|call| since[call]),
        now.host_waits - before.host_waits,
    )
}

#[test]
fn four_blocks_two_gaps_and_one_request() {
    let config = ModelConfig { capacity_bytes: 32 * MIB, ..ModelConfig::default() };
    let allocator = Allocator::builder(Arc::new(ModelDriver::new(config))).build().unwrap();
    let stream = StreamId::DEFAULT;

    let start = allocator.stats();
    let [a, b, c, d] = [(); 4].map(|()| allocator.alloc_raw(8 * MIB, stream).unwrap());
    assert_eq!(calls_since(&allocator, &start), ([1, 16, 16, 4, 0], 0), "batch 1");
    assert_eq!([b, c, d].map(|addr| addr.offset_from(a)), [Some(8 * MIB), Some(16 * MIB), Some(24 * MIB)]);

    let start = allocator.stats();
    allocator.free(a).unwrap();
    allocator.free(c).unwrap();
    assert_eq!(calls_since(&allocator, &start), ([0; 5], 0), "batch 2");

    let start = allocator.stats();
    let e = allocator.alloc_raw(16 * MIB, stream).unwrap();
    assert_eq!(e.offset_from(a), Some(32 * MIB));
    assert_eq!(calls_since(&allocator, &start), ([0, 0, 8, 1, 0], 0), "batch 3");
    assert_eq!((allocator.stats().mappings, allocator.stats().chunks), (24, 16));

    let start = allocator.stats();
    allocator.free(b).unwrap();
    allocator.free(e).unwrap();
    let f = allocator.alloc_raw(24 * MIB, stream).unwrap();
    assert_eq!(f, a);
    assert_eq!(calls_since(&allocator, &start), ([0; 5], 0), "batch 4");
    assert_eq!(allocator.stats().reused_views - start.reused_views, 8);
    allocator.check();
    allocator.free(d).unwrap();
    allocator.free(f).unwrap();
    allocator.close().unwrap();
}
