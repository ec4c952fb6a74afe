//! Pinned blocks stay where they are, also once they are freed, until the last pin is gone.

use gapless::allocator::{AddressFacts, AllocAgainError, AllocError, CloseError, FreeError, RangeError};
use gapless::driver::{ModelConfig, ModelDriver, WorkDriver};
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

fn device(pages: u64) -> Arc<ModelDriver> {
    Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() }))
}

fn allocator(device: &Arc<ModelDriver>) -> Allocator<ModelDriver> {
    Allocator::builder(Arc::clone(device)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap()
}

/// The chunks that are mapped at a run of addresses.
fn chunks_at(allocator: &Allocator<ModelDriver>, addr: gapless::DeviceAddr, pages: u64) -> Vec<u64> {
    let chunks = allocator.snapshot().chunks;
    let at = |addr| chunks.iter().find(|chunk| chunk.active == Some(addr)).expect("mapped").handle;
    (0..pages).map(|page| at(addr.offset(page * PAGE))).collect()
}

#[test]
fn a_pinned_block_stays_until_its_last_pin_is_gone() {
    let device = device(8);
    let allocator = allocator(&device);
    let block = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    let before = chunks_at(&allocator, block, 4);
    let (one, two) = (allocator.pin(block).unwrap(), allocator.pin(block).unwrap());
    assert_eq!((one.addr(), one.bytes()), (block, 4 * PAGE));
    allocator.free(block).unwrap();
    allocator.check();
    let stats = allocator.stats();
    assert_eq!((stats.live_bytes, stats.pending_bytes, stats.open_elsewhere_bytes), (0, 4 * PAGE, 4 * PAGE));
    let snapshot = allocator.snapshot();
    let pinned = snapshot.regions.iter().flat_map(|region| &region.blocks).find(|found| found.addr == block).unwrap();
    assert_eq!(pinned.pins, 2);
    for (round, pin) in [one, two].into_iter().enumerate() {
        // Nothing takes it, whatever is short: not a block, not a range, not a trim, not a wait.
        allocator.trim(0).unwrap();
        assert_eq!(allocator.stats().reserved_bytes, 4 * PAGE, "round {round}");
        match allocator.alloc_raw(5 * PAGE, MAIN) {
            Err(AllocError::OutOfMemory(report)) => {
                assert_eq!((report.pending_bytes, report.open_elsewhere_bytes), (4 * PAGE, 4 * PAGE));
                let text = report.to_string();
                assert!(text.contains("8 MiB were freed and are open in another process, or pinned"), "{text}");
                assert!(!text.contains("wait for streams"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            allocator.reserve_range(8 * PAGE).unwrap().grow(5 * PAGE, MAIN),
            Err(RangeError::Alloc(AllocError::OutOfMemory(_)))
        ));
        assert!(matches!(allocator.alloc_again(block, PAGE), Err(AllocAgainError::NotFree { .. })));
        let other = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
        assert!(other >= block.offset(4 * PAGE) || other.offset(4 * PAGE) <= block);
        allocator.free(other).unwrap();
        assert_eq!(chunks_at(&allocator, block, 4), before);
        match allocator.free(block) {
            Err(FreeError::NotAllocated { facts: AddressFacts::Freed { pending: true }, .. }) => {}
            again => panic!("{again:?}"),
        }
        assert!(allocator.pin(block).is_err(), "only what is live is pinned");
        allocator.check();
        drop(pin);
    }
    allocator.check();
    assert_eq!((allocator.stats().pending_bytes, allocator.stats().open_elsewhere_bytes), (0, 0));
    allocator.alloc_raw(8 * PAGE, MAIN).unwrap();
}

#[test]
fn a_block_whose_pins_went_first_is_ordinary() {
    let device = device(4);
    let allocator = allocator(&device);
    let block = allocator.alloc_raw(512, MAIN).unwrap();
    drop(allocator.pin(block).unwrap());
    allocator.check();
    allocator.free(block).unwrap();
    assert_eq!(allocator.stats().pending_bytes, 0, "free at once");
    assert_eq!(allocator.alloc_raw(512, MAIN).unwrap(), block);
    allocator.check();
    assert!(allocator.pin(block.offset(512)).is_err() && allocator.pin(gapless::DeviceAddr(64)).is_err());
}

/// After its pins, a freed block waits for the streams that it was recorded on.
#[test]
fn streams_are_waited_for_after_the_pins() {
    let device = device(4);
    let allocator = allocator(&device);
    let other = device.create_stream().unwrap();
    allocator.keep_stream(other).unwrap();
    let block = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    allocator.record_stream(block, other).unwrap();
    let pin = allocator.pin(block).unwrap();
    device.hold(other);
    device.fill(other, block, 4 * PAGE, 1).unwrap();
    allocator.free(block).unwrap();
    drop(pin);
    allocator.check();
    assert_eq!(allocator.stats().pending_bytes, 4 * PAGE);
    let waits = device.host_waits();
    // The model panics where memory in use is unmapped.
    allocator.alloc_raw(4 * PAGE, other).unwrap();
    assert!(device.host_waits() > waits);
    allocator.check();
}

/// Beside a pinned block, in its chunk, memory is handed out as ever; the chunk does not move.
#[test]
fn a_chunk_with_a_pinned_block_does_not_move() {
    let device = device(4);
    let allocator = allocator(&device);
    let block = allocator.alloc_raw(PAGE / 2 + 512, MAIN).unwrap();
    let pin = allocator.pin(block).unwrap();
    let rest = allocator.alloc_raw(PAGE - PAGE / 2 - 512, MAIN).unwrap();
    assert_eq!(rest, block.offset(PAGE / 2 + 512));
    allocator.free(block).unwrap();
    allocator.free(rest).unwrap();
    let before = chunks_at(&allocator, block, 1);
    assert!(allocator.alloc_raw(4 * PAGE, MAIN).is_err());
    assert_eq!(allocator.alloc_raw(PAGE - PAGE / 2 - 512, MAIN).unwrap(), rest);
    allocator.free(rest).unwrap();
    allocator.trim(0).unwrap();
    assert_eq!(chunks_at(&allocator, block, 1), before);
    drop(pin);
    assert_eq!(allocator.trim(0).unwrap().held_bytes, 0);
}

#[test]
fn a_pin_keeps_its_allocator() {
    let device = device(4);
    let allocator = allocator(&device);
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let pin = allocator.pin(block).unwrap();
    allocator.free(block).unwrap();
    let clone = allocator.clone();
    assert!(matches!(clone.close(), Err(CloseError::InUse(2))));
    match allocator.close() {
        Err(error @ CloseError::Pinned(1)) => assert!(error.to_string().contains("open in another process"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(device.usage().mappings, 1);
    pin.allocator().check();
    drop(pin);
    assert!(device.usage().is_empty());
}
