//! What somebody was given to keep goes back to the driver once it is freed, and nobody's bytes come there any more.

use gapless::allocator::{Backup, Pin};
use gapless::driver::{DriverCall, DriverErrorKind, Fault, FaultDriver, ModelConfig, ModelDriver, WorkDriver};
use gapless::{Allocator, ChunkPolicy, DeviceAddr, StreamId};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

type Device = FaultDriver<ModelDriver>;

fn device(pages: u64) -> Arc<Device> {
    let model = ModelDriver::new(ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() });
    Arc::new(FaultDriver::new(model))
}

fn allocator(device: &Arc<Device>) -> Allocator<Device> {
    Allocator::builder(Arc::clone(device)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap()
}

fn chunks_of(pin: &Pin<Device>) -> HashSet<u64> {
    pin.chunks().unwrap().iter().map(|chunk| chunk.handle.0).collect()
}

/// Exposes a block to somebody who keeps its chunks: returns these. They have closed it again.
fn expose(allocator: &Allocator<Device>, block: DeviceAddr) -> HashSet<u64> {
    let pin = allocator.pin(block).unwrap();
    pin.expose();
    chunks_of(&pin)
}

/// The chunks that live blocks, free blocks and whatever else there is of the allocator lie in.
fn held(allocator: &Allocator<Device>) -> HashSet<u64> {
    allocator.snapshot().chunks.iter().map(|chunk| chunk.handle).collect()
}

#[test]
fn an_exposed_chunk_is_never_used_again() {
    let device = device(8);
    let allocator = allocator(&device);
    let block = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    let kept = expose(&allocator, block);
    assert_eq!(kept.len(), 4);
    allocator.free(block).unwrap();
    allocator.check();
    let stats = allocator.stats();
    assert_eq!((stats.pending_bytes, stats.cached_bytes, stats.open_elsewhere_bytes), (4 * PAGE, 0, 0));
    // All of the device: what was freed is obtained, and it is other memory.
    let all = allocator.alloc_raw(8 * PAGE, MAIN).unwrap();
    allocator.check();
    assert!(kept.is_disjoint(&chunks_of(&allocator.pin(all).unwrap())));
    assert_eq!(allocator.stats().pending_bytes, 0);
    allocator.free(all).unwrap();
    let again = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    assert_eq!(allocator.stats().driver_calls[DriverCall::Release], 4, "what was not exposed is cached");
    allocator.free(again).unwrap();
    allocator.close().unwrap();
}

#[test]
fn a_trim_gives_exposed_memory_back() {
    let device = device(8);
    let allocator = allocator(&device);
    let block = allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
    expose(&allocator, block);
    allocator.free(block).unwrap();
    // As much as may be kept.
    allocator.trim(3 * PAGE).unwrap();
    allocator.check();
    assert_eq!((allocator.reserved_bytes(), allocator.stats().pending_bytes), (0, 0));
    allocator.close().unwrap();
}

/// The block's own stream, and another one, are not done with it.
#[test]
fn what_uses_exposed_memory_is_waited_for() {
    for users in 0..4 {
        let device = device(8);
        let allocator = allocator(&device);
        let [home, other] = [(); 2].map(|()| device.create_stream().unwrap());
        [home, other].iter().for_each(|stream| allocator.keep_stream(*stream).unwrap());
        let block = allocator.alloc_raw(2 * PAGE, home).unwrap();
        let pin = allocator.pin(block).unwrap();
        pin.expose();
        let busy: Vec<StreamId> =
            [home, other].into_iter().enumerate().filter(|(at, _)| users >> at & 1 == 1).map(|it| it.1).collect();
        for stream in &busy {
            device.inner().hold(*stream);
            allocator.record_stream(block, *stream).unwrap();
            device.fill(*stream, block, 2 * PAGE, 1).unwrap();
        }
        allocator.free(block).unwrap();
        drop(pin);
        let beside = allocator.alloc_raw(PAGE, MAIN).unwrap();
        allocator.check();
        let waits = if busy.is_empty() { 0 } else { 2 * PAGE };
        assert_eq!(allocator.stats().pending_bytes, waits, "used by {busy:?}");
        busy.iter().for_each(|stream| device.inner().resume(*stream));
        allocator.trim(u64::MAX - 1).unwrap();
        let all = allocator.alloc_raw(7 * PAGE, MAIN).unwrap();
        allocator.check();
        [beside, all].iter().for_each(|block| allocator.free(*block).unwrap());
        allocator.close().unwrap();
    }
}

/// Somebody is given a block that has been freed meanwhile: its own stream is waited for all the same.
#[test]
fn a_block_that_is_freed_before_it_is_exposed_is_waited_for() {
    let device = device(8);
    let allocator = allocator(&device);
    let home = device.create_stream().unwrap();
    allocator.keep_stream(home).unwrap();
    let block = allocator.alloc_raw(2 * PAGE, home).unwrap();
    let pin = allocator.pin(block).unwrap();
    device.inner().hold(home);
    device.fill(home, block, 2 * PAGE, 1).unwrap();
    allocator.free(block).unwrap();
    (0..2).for_each(|_| pin.expose());
    let kept = chunks_of(&pin);
    drop(pin);
    let beside = allocator.alloc_raw(PAGE, MAIN).unwrap();
    allocator.check();
    assert_eq!(allocator.stats().pending_bytes, 2 * PAGE);
    device.inner().resume(home);
    let all = allocator.alloc_raw(7 * PAGE, MAIN).unwrap();
    allocator.check();
    assert!(kept.is_disjoint(&held(&allocator)));
    [beside, all].iter().for_each(|block| allocator.free(*block).unwrap());
    allocator.close().unwrap();
}

/// Beside live blocks, in a chunk that both have a part of: that part is free memory as ever.
#[test]
fn what_shares_a_chunk_stays() {
    let device = device(8);
    let builder = Allocator::builder(Arc::clone(&device)).chunk_policy(ChunkPolicy::Fixed(PAGE));
    let allocator = builder.build().unwrap();
    let [before, block, behind] = [PAGE / 2, 2 * PAGE, PAGE / 2].map(|bytes| allocator.alloc_raw(bytes, MAIN).unwrap());
    let kept = expose(&allocator, block);
    allocator.free(block).unwrap();
    allocator.trim(u64::MAX - 1).unwrap();
    allocator.check();
    let others: HashSet<u64> =
        [before, behind].iter().flat_map(|block| chunks_of(&allocator.pin(*block).unwrap())).collect();
    allocator.alloc_raw(PAGE, MAIN).unwrap();
    allocator.check();
    assert!(kept.intersection(&held(&allocator)).all(|chunk| others.contains(chunk)), "{kept:?}, {others:?}");
    assert_eq!(allocator.stats().pending_bytes, 0);
}

/// Where mappings are kept, for replays of graphs, nothing may be unmapped.
#[test]
fn exposed_memory_is_out_of_use_where_mappings_are_kept() {
    let device = device(8);
    let builder = Allocator::builder(Arc::clone(&device)).chunk_policy(ChunkPolicy::Fixed(PAGE));
    let allocator = builder.keep_mappings().build().unwrap();
    let block = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    let kept = expose(&allocator, block);
    allocator.free(block).unwrap();
    let next = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    allocator.check();
    assert!(kept.is_disjoint(&chunks_of(&allocator.pin(next).unwrap())));
    allocator.free(next).unwrap();
    allocator.close().unwrap();
}

#[test]
fn exposed_memory_is_gone_before_a_sleep() {
    let device = device(8);
    let allocator = allocator(&device);
    let [block, other] = [(); 2].map(|()| allocator.alloc_raw(2 * PAGE, MAIN).unwrap());
    let kept = expose(&allocator, block);
    allocator.free(block).unwrap();
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    allocator.check();
    assert_eq!((slept.asleep_bytes, allocator.reserved_bytes()), (2 * PAGE, 0), "{slept:?}");
    allocator.wake(Duration::ZERO).unwrap();
    assert!(kept.is_disjoint(&held(&allocator)));
    allocator.free(other).unwrap();
    allocator.close().unwrap();
}

/// A live block that sleeps and wakes is exposed still, and its new memory goes back as well; one that is freed asleep has none.
#[test]
fn an_exposed_block_may_sleep() {
    for frees_asleep in [false, true] {
        let device = device(8);
        let allocator = allocator(&device);
        let block = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
        expose(&allocator, block);
        allocator.sleep(Backup::Pinned).unwrap();
        if frees_asleep {
            allocator.free(block).unwrap();
        }
        allocator.wake(Duration::ZERO).unwrap();
        let kept = held(&allocator);
        if !frees_asleep {
            allocator.free(block).unwrap();
        }
        let all = allocator.alloc_raw(8 * PAGE, MAIN).unwrap();
        allocator.check();
        assert!(kept.is_disjoint(&held(&allocator)));
        allocator.free(all).unwrap();
        allocator.close().unwrap();
    }
}

/// Each call that a request makes to have exposed memory gone fails once: it has other memory, and the next one has all of it.
#[test]
fn a_failure_leaves_exposed_memory_out_of_use() {
    for call in [DriverCall::Unmap, DriverCall::Release] {
        for nth in 0..3 {
            let device = device(8);
            let allocator = allocator(&device);
            let block = allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
            let kept = expose(&allocator, block);
            allocator.free(block).unwrap();
            device.arm(Fault::nth(nth, DriverErrorKind::Other).only([call]));
            let first = allocator.alloc_raw(PAGE, MAIN).unwrap();
            allocator.check();
            assert_eq!(device.fired(), 1, "{call:?} {nth}");
            assert!(kept.is_disjoint(&chunks_of(&allocator.pin(first).unwrap())), "{call:?} {nth}");
            let all = allocator.alloc_raw(7 * PAGE, MAIN).unwrap();
            allocator.check();
            assert!(kept.is_disjoint(&held(&allocator)), "{call:?} {nth}");
            [all, first].iter().for_each(|block| allocator.free(*block).unwrap());
            allocator.close().unwrap();
            assert!(device.inner().usage().is_empty());
        }
    }
}
