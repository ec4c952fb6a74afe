//! Allocators that keep their mappings, as pools of graphs do: their chunks sleep whole.

use super::{KIB, MAIN, NOW, PAGE, free_bytes, host, is_refused_a_byte_less, model, verify};
use gapless::DeviceAddr;
use gapless::allocator::{Allocator, Backup, Builder, ChunkPolicy};
use gapless::driver::{CheckedDriver, Driver, HoldStreams, WorkDriver};
use std::sync::Arc;

/// An allocator that keeps its mappings, with chunks of a page, which it moves rather than create more.
pub fn kept<D: Driver>(driver: Arc<D>) -> Allocator<D> {
    keeping(Allocator::builder(driver)).build().unwrap()
}

/// The settings of such an allocator.
pub fn keeping<D: Driver>(builder: Builder<D>) -> Builder<D> {
    builder.chunk_policy(ChunkPolicy::Fixed(PAGE)).slack(1.0).keep_mappings()
}

/// What graphs that were captured use: a block over two pages, the two addresses where these pages were before, and a block
/// that was freed. Each with its bytes and their seed, and whether it is a live block.
pub type Used = Vec<(DeviceAddr, u64, u64, bool)>;

pub fn use_kept<D: CheckedDriver + WorkDriver>(allocator: &Allocator<D>) -> Used {
    let page = || allocator.alloc_raw(PAGE, MAIN).unwrap();
    let [first, between, second, behind] = [page(), page(), page(), page()];
    [first, second].iter().for_each(|addr| allocator.free(*addr).unwrap());
    let block = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    assert_eq!(allocator.stats().harvested_chunks, 2, "the pages have moved");
    let small = allocator.alloc_raw(3 * KIB, MAIN).unwrap();
    let freed = page();
    allocator.free(freed).unwrap();
    let driver = allocator.driver();
    driver.fill(MAIN, block, PAGE, 1).unwrap();
    driver.fill(MAIN, block.offset(PAGE), PAGE, 2).unwrap();
    driver.fill(MAIN, small, 3 * KIB, 3).unwrap();
    driver.fill(MAIN, freed, PAGE, 4).unwrap();
    driver.fill(MAIN, between, PAGE, 5).unwrap();
    driver.fill(MAIN, behind, PAGE, 6).unwrap();
    vec![
        (block, PAGE, 1, true),
        (block.offset(PAGE), PAGE, 2, false),
        (second, PAGE, 1, false),
        (first, PAGE, 2, false),
        (small, 3 * KIB, 3, true),
        (freed, PAGE, 4, false),
        (between, PAGE, 5, true),
        (behind, PAGE, 6, true),
    ]
}

pub fn verify_kept<D: CheckedDriver + WorkDriver>(allocator: &Allocator<D>, used: &Used) {
    verify(allocator, &used.iter().map(|(addr, bytes, seed, _)| (*addr, *bytes, *seed)).collect::<Vec<_>>());
}

pub fn end_kept<D: Driver>(allocator: Allocator<D>, used: &Used) {
    used.iter().filter(|(.., is_live)| *is_live).for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.check();
    allocator.close().unwrap();
}

/// An allocator that keeps its mappings, since work uses them that it does not see, sleeps by chunks: stale addresses and freed
/// memory are as before after the wake.
#[test]
fn kept_chunks_wake_at_all_their_addresses() {
    let (driver, _) = host(64);
    let allocator = kept(Arc::clone(&driver));
    let used = use_kept(&allocator);
    verify_kept(&allocator, &used);
    let held = allocator.reserved_bytes();
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    allocator.check();
    assert_eq!((slept.asleep_bytes, slept.copied_bytes, allocator.reserved_bytes()), (held, held, 0), "{slept:?}");
    assert_eq!((slept.live_bytes, free_bytes(&allocator)), (4 * PAGE + 3 * KIB, 64 * PAGE));
    let woken = allocator.wake(NOW).unwrap();
    allocator.check();
    assert_eq!((woken.mapped_bytes, woken.copied_bytes, allocator.reserved_bytes()), (held, held, held));
    verify_kept(&allocator, &used);
    // The addresses are those of the same memory: what is written at one is read at the other.
    driver.fill(MAIN, used[2].0, PAGE, 7).unwrap();
    verify(&allocator, &[(used[0].0, PAGE, 7)]);
    assert_eq!((driver.take_violations(), driver.usage().host_memory), (vec![], 0));
    end_kept(allocator, &used);
    assert!(driver.usage().is_empty());
}

/// What is freed asleep keeps its memory and its bytes, since graphs may use both; what is allocated asleep gets other memory, at
/// addresses that nothing else had.
#[test]
fn kept_memory_that_is_freed_asleep_wakes_as_well() {
    let (driver, _) = host(64);
    let allocator = kept(Arc::clone(&driver));
    let mut used = use_kept(&allocator);
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    allocator.free(used[0].0).unwrap();
    used[0].3 = false;
    allocator.check();
    let fresh = [PAGE, 3 * PAGE, 5 * KIB].map(|bytes| (allocator.alloc_raw(bytes, MAIN).unwrap(), bytes));
    for (seed, (addr, bytes)) in fresh.iter().enumerate() {
        driver.fill(MAIN, *addr, *bytes, seed as u64 + 10).unwrap();
        let is_apart =
            |(other, its, ..): &(DeviceAddr, u64, u64, bool)| other.0 + its <= addr.0 || addr.0 + bytes <= other.0;
        assert!(used.iter().all(is_apart), "{addr} is an address that graphs use: {used:?}");
        used.push((*addr, *bytes, seed as u64 + 10, true));
    }
    allocator.check();
    let again = allocator.sleep(Backup::Pinned).unwrap();
    allocator.check();
    assert_eq!(allocator.reserved_bytes(), 0);
    assert_eq!(allocator.wake(NOW).unwrap().mapped_bytes, slept.asleep_bytes + again.asleep_bytes);
    allocator.check();
    verify_kept(&allocator, &used);
    // What was freed asleep is handed out again.
    let held = allocator.reserved_bytes();
    assert_eq!(allocator.alloc_raw(2 * PAGE, MAIN).unwrap(), used[0].0);
    assert_eq!(allocator.reserved_bytes(), held);
    used[0].3 = true;
    end_kept(allocator, &used);
}

/// A replay that is in flight, on a stream that the allocator has never seen, has completed before its memory goes.
#[test]
fn a_sleep_of_kept_mappings_waits_for_replays() {
    let (driver, _) = host(64);
    let allocator = kept(Arc::clone(&driver));
    let mut used = use_kept(&allocator);
    for backup in [Backup::Pinned, Backup::Discard] {
        let unseen = driver.create_stream().unwrap();
        driver.synchronize(MAIN).unwrap();
        driver.hold(unseen);
        for (addr, bytes, seed, _) in used.iter_mut().filter(|(_, bytes, ..)| *bytes == PAGE) {
            *seed += 10;
            driver.fill(unseen, *addr, *bytes, *seed).unwrap();
        }
        allocator.sleep(backup).unwrap();
        driver.resume(unseen);
        allocator.wake(NOW).unwrap();
        if backup == Backup::Pinned {
            verify_kept(&allocator, &used);
        }
        driver.destroy_stream(unseen).unwrap();
        assert_eq!(driver.take_violations(), []);
    }
    end_kept(allocator, &used);
}

/// What another process has open stays awake, and what cannot be named for a capture keeps everything awake.
#[test]
fn kept_mappings_that_cannot_sleep_stay_awake() {
    let (driver, _) = model(64);
    let allocator = kept(Arc::clone(&driver));
    let used = use_kept(&allocator);
    let unseen = driver.create_stream().unwrap();
    driver.begin_capture(unseen);
    let refused = allocator.sleep(Backup::Pinned).unwrap_err();
    assert!(refused.to_string().contains("cannot be waited for now"), "{refused}");
    allocator.check();
    driver.end_capture(unseen);
    let pin = allocator.pin(used[0].0).unwrap();
    let slept = allocator.sleep(Backup::Discard).unwrap();
    allocator.check();
    assert_eq!((slept.left_awake.pinned_bytes, allocator.reserved_bytes()), (2 * PAGE, 2 * PAGE), "{slept:?}");
    driver.fill(MAIN, used[2].0, PAGE, 1).unwrap();
    drop(pin);
    allocator.wake(NOW).unwrap();
    end_kept(allocator, &used);
}

/// A wake of chunks needs as many bytes as they had, whatever size is idle.
#[test]
fn a_wake_of_kept_chunks_that_is_short_changes_nothing() {
    let (driver, _) = model(32);
    let allocator = Allocator::builder(Arc::clone(&driver)).keep_mappings().build().unwrap();
    let blocks = [7 * PAGE, 3 * PAGE, 40 * KIB].map(|bytes| allocator.alloc_raw(bytes, MAIN).unwrap());
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    is_refused_a_byte_less(&driver, &allocator, slept.asleep_bytes);
    driver.set_external(32 * PAGE - slept.asleep_bytes);
    // Idle chunks, of other sizes than those that slept.
    let mut range = allocator.reserve_range(8 * PAGE).unwrap();
    range.grow(8 * PAGE, MAIN).unwrap();
    range.shrink(8 * PAGE).unwrap();
    assert!(allocator.stats().idle_bytes > 0);
    assert_eq!(allocator.wake(NOW).unwrap().mapped_bytes, slept.asleep_bytes);
    allocator.check();
    drop(range);
    blocks.iter().for_each(|addr| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}
