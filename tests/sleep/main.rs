//! Sleep and wake: memory goes back to the device and comes again, at the same addresses, with the same bytes.

mod backups;
mod failures;
mod kept;
mod steps;
mod unpinned;

use gapless::allocator::{AllocAgainError, Allocator, Backup, ChunkPolicy, FreeError};
use gapless::driver::{
    CheckedDriver, DriverCall, DriverErrorKind, Fault, FaultDriver, HostConfig, HostDriver, ModelConfig, ModelDriver,
    WorkDriver,
};
use gapless::{DeviceAddr, StreamId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PAGE: u64 = 2 << 20;
const KIB: u64 = 1 << 10;
const MAIN: StreamId = StreamId::DEFAULT;
const NOW: Duration = Duration::ZERO;

fn model(pages: u64) -> (Arc<ModelDriver>, Allocator<ModelDriver>) {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() }));
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    (driver, allocator)
}

fn host(pages: u64) -> (Arc<HostDriver>, Allocator<HostDriver>) {
    let config = HostConfig { capacity_bytes: pages * PAGE, ..HostConfig::default() };
    let driver = Arc::new(HostDriver::new(config).unwrap());
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    (driver, allocator)
}

/// Allocates blocks of these sizes and fills each with its number.
fn fill<D: CheckedDriver + WorkDriver>(allocator: &Allocator<D>, sizes: &[u64]) -> Vec<(DeviceAddr, u64, u64)> {
    let block = |(seed, bytes): (usize, &u64)| {
        let addr = allocator.alloc_raw(*bytes, MAIN).unwrap();
        allocator.driver().fill(MAIN, addr, *bytes, seed as u64).unwrap();
        (addr, *bytes, seed as u64)
    };
    sizes.iter().enumerate().map(block).collect()
}

fn verify<D: CheckedDriver + WorkDriver>(allocator: &Allocator<D>, blocks: &[(DeviceAddr, u64, u64)]) {
    for (addr, bytes, seed) in blocks {
        allocator.driver().verify(MAIN, *addr, *bytes, *seed).unwrap();
    }
    allocator.driver().synchronize(MAIN).unwrap();
    assert_eq!(allocator.driver().take_mismatches(), []);
}

fn free_bytes<D: CheckedDriver>(allocator: &Allocator<D>) -> u64 {
    allocator.driver().memory_info().unwrap().free
}

const SIZES: [u64; 9] = [100, 3 * KIB, 700 * KIB, PAGE, 3 * PAGE + 512, 5 * KIB, 9 * PAGE, 512, PAGE / 2];

#[test]
fn what_sleeps_comes_back_with_its_bytes() {
    let (driver, allocator) = host(64);
    let mut blocks = fill(&allocator, &SIZES);
    let gone = blocks.remove(3);
    allocator.free(gone.0).unwrap();
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    allocator.check();
    assert_eq!((free_bytes(&allocator), allocator.reserved_bytes()), (64 * PAGE, 0), "{slept:?}");
    let live = allocator.stats().live_block_bytes;
    assert_eq!((slept.live_bytes, slept.copied_bytes), (live, live));
    assert_eq!(allocator.stats().asleep_bytes, slept.asleep_bytes);
    let woken = allocator.wake(NOW).unwrap();
    allocator.check();
    assert_eq!((woken.mapped_bytes, woken.copied_bytes), (slept.asleep_bytes, live));
    assert_eq!(allocator.reserved_bytes(), slept.asleep_bytes);
    verify(&allocator, &blocks);
    assert_eq!(driver.take_violations(), []);
    assert_eq!(driver.usage().host_memory, 0, "the backup is no longer needed");
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.check();
    allocator.close().unwrap();
    assert!(driver.usage().is_empty());
}

/// Without a backup nothing is copied, and the addresses have memory again.
#[test]
fn what_is_discarded_is_not_copied() {
    let (driver, allocator) = model(64);
    let blocks = fill(&allocator, &SIZES);
    let slept = allocator.sleep(Backup::Discard).unwrap();
    assert_eq!((slept.copied_bytes, allocator.reserved_bytes(), driver.usage().host_memory), (0, 0, 0));
    assert_eq!(allocator.wake(NOW).unwrap().copied_bytes, 0);
    blocks.iter().for_each(|(addr, bytes, seed)| driver.fill(MAIN, *addr, *bytes, *seed).unwrap());
    allocator.check();
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
    assert!(driver.usage().is_empty());
}

#[test]
fn sleeping_twice_and_waking_twice_do_nothing_more() {
    let (_, allocator) = host(64);
    assert_eq!(allocator.wake(NOW).unwrap().mapped_bytes, 0, "nothing has slept yet");
    let blocks = fill(&allocator, &SIZES);
    let first = allocator.sleep(Backup::Pinned).unwrap();
    let second = allocator.sleep(Backup::Discard).unwrap();
    assert_eq!((second.asleep_bytes, second.released_bytes), (0, 0));
    assert_eq!(allocator.wake(NOW).unwrap().mapped_bytes, first.asleep_bytes);
    assert_eq!(allocator.wake(NOW).unwrap().mapped_bytes, 0);
    verify(&allocator, &blocks);
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// New allocations get memory of their own, which a second sleep puts to sleep as well.
#[test]
fn what_is_allocated_meanwhile_has_memory_of_its_own() {
    let (_, allocator) = host(64);
    let mut blocks = fill(&allocator, &SIZES);
    allocator.sleep(Backup::Pinned).unwrap();
    let fresh = fill(&allocator, &SIZES);
    allocator.check();
    verify(&allocator, &fresh);
    blocks.extend(fresh);
    allocator.sleep(Backup::Pinned).unwrap();
    allocator.check();
    assert_eq!(allocator.reserved_bytes(), 0);
    allocator.wake(NOW).unwrap();
    allocator.check();
    verify(&allocator, &blocks);
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// What is freed while it is asleep is not mapped again where nothing else is in its pages.
#[test]
fn what_is_freed_meanwhile_takes_no_memory() {
    let (_, allocator) = host(64);
    let mut blocks = fill(&allocator, &SIZES);
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    let (large, ..) = blocks.remove(6);
    allocator.free(large).unwrap();
    let (small, ..) = blocks.remove(0);
    allocator.free(small).unwrap();
    allocator.check();
    assert!(allocator.free(large).is_err(), "freed twice");
    let woken = allocator.wake(NOW).unwrap();
    allocator.check();
    assert!(woken.mapped_bytes <= slept.asleep_bytes - 8 * PAGE, "{woken:?} of {slept:?}");
    verify(&allocator, &blocks);
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.check();
    assert_eq!(allocator.trim(0).unwrap().held_bytes, 0);
    allocator.close().unwrap();
}

/// Pinned blocks stay awake, with all that shares a chunk with them; a block that is asleep cannot be pinned.
#[test]
fn what_is_pinned_stays_awake() {
    let (_, allocator) = host(64);
    let blocks = fill(&allocator, &SIZES);
    let pin = allocator.pin(blocks[4].0).unwrap();
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    allocator.check();
    assert!(slept.left_awake.pinned_bytes >= 4 * PAGE, "{slept:?}");
    assert_eq!(allocator.reserved_bytes(), slept.left_awake.pinned_bytes);
    verify(&allocator, &blocks[4..5]);
    let Err(refused) = allocator.pin(blocks[6].0) else { panic!("pinned") };
    assert_eq!(refused.to_string(), format!("the allocation at {} is asleep: wake it first", blocks[6].0));
    allocator.wake(NOW).unwrap();
    verify(&allocator, &blocks);
    drop(allocator.pin(blocks[6].0).unwrap());
    drop(pin);
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.check();
    allocator.close().unwrap();
}

/// Of a block of which a part is asleep, beside a pinned one, the rest is handed out again once it is freed. What is allocated
/// there sleeps in its turn, and the part that was freed stays gone.
#[test]
fn what_begins_where_a_freed_sleeper_did_is_another_block() {
    let (driver, allocator) = host(64);
    drop(allocator);
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let blocks = fill(&allocator, &[PAGE / 2, PAGE + PAGE / 2, PAGE]);
    let pin = allocator.pin(blocks[0].0).unwrap();
    allocator.sleep(Backup::Pinned).unwrap();
    allocator.free(blocks[1].0).unwrap();
    let (again, ..) = fill(&allocator, &[PAGE / 2])[0];
    assert_eq!(again, blocks[1].0);
    drop(pin);
    allocator.sleep(Backup::Pinned).unwrap();
    allocator.check();
    assert_eq!(allocator.wake(NOW).unwrap().mapped_bytes, 2 * PAGE);
    allocator.check();
    verify(&allocator, &[blocks[0], (again, PAGE / 2, 0), blocks[2]]);
    [blocks[0].0, again, blocks[2].0].iter().for_each(|addr| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// Chunks are marked a few at a time. A block over some of both is put to sleep whole, also while others allocate and free there.
#[test]
fn blocks_over_many_chunks_sleep_whole() {
    const SMALL_PAGE: u64 = 64 * KIB;
    let config = HostConfig { capacity_bytes: 400 * SMALL_PAGE, granularity: SMALL_PAGE, ..HostConfig::default() };
    let driver = Arc::new(HostDriver::new(config).unwrap());
    let allocator =
        Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(SMALL_PAGE)).build().unwrap();
    // Every border between two chunks but each third lies in a block.
    let mut sizes = vec![SMALL_PAGE + SMALL_PAGE / 2; 80];
    sizes.push(90 * SMALL_PAGE + 512);
    let kept = fill(&allocator, &sizes);
    let done = AtomicBool::new(false);
    let others = || {
        let mut mine: Vec<DeviceAddr> = Vec::new();
        for turn in 0.. {
            if done.load(Ordering::Relaxed) {
                break;
            }
            mine.push(allocator.alloc_raw([SMALL_PAGE + SMALL_PAGE / 2, 700, 3 * SMALL_PAGE][turn % 3], MAIN).unwrap());
            if mine.len() > 20 {
                allocator.free(mine.swap_remove(turn % 20)).unwrap();
            }
        }
        mine.iter().for_each(|addr| allocator.free(*addr).unwrap());
    };
    std::thread::scope(|scope| {
        scope.spawn(others);
        let turns = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..20 {
                let slept = allocator.sleep(Backup::Pinned).unwrap();
                assert!(slept.live_bytes >= sizes.iter().sum(), "{slept:?}");
                assert_eq!(slept.left_awake, Default::default());
                allocator.wake(Duration::from_secs(60)).unwrap();
                verify(&allocator, &kept);
            }
        }));
        done.store(true, Ordering::Relaxed);
        turns.unwrap();
    });
    allocator.check();
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    allocator.check();
    assert_eq!((slept.live_bytes, allocator.reserved_bytes()), (sizes.iter().sum(), 0));
    allocator.wake(NOW).unwrap();
    verify(&allocator, &kept);
    assert_eq!(driver.take_violations(), []);
    kept.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// What is asleep can be asked for, and is in the report on a request that fails.
#[test]
fn what_is_asleep_is_counted() {
    let (_, allocator) = model(32);
    assert_eq!(allocator.asleep(), Default::default());
    let blocks = [3 * PAGE, PAGE / 2].map(|bytes| allocator.alloc_raw(bytes, MAIN).unwrap());
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    let asleep = allocator.asleep();
    assert_eq!((asleep.asleep_bytes, asleep.live_bytes), (slept.asleep_bytes, 3 * PAGE + PAGE / 2));
    assert_eq!((asleep.backup_bytes, slept.copied_bytes), (slept.copied_bytes, 3 * PAGE + PAGE / 2));
    let other = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let named = allocator.live().into_iter().filter(|live| live.asleep).map(|live| live.addr).collect::<Vec<_>>();
    assert_eq!(named, blocks);
    allocator.free(other).unwrap();
    let error = allocator.alloc_raw(40 * PAGE, MAIN).unwrap_err();
    let report = error.report().unwrap();
    assert_eq!((report.asleep_bytes, report.live_asleep_bytes), (slept.asleep_bytes, 3 * PAGE + PAGE / 2));
    assert!(error.to_string().contains("7 MiB of these are asleep and need 8 MiB to wake"), "{error}");
    // What is freed meanwhile is no more to be copied; its backup goes with the rest of it.
    allocator.free(blocks[0]).unwrap();
    assert_eq!(allocator.asleep().live_bytes, PAGE / 2);
    allocator.wake(NOW).unwrap();
    assert_eq!(allocator.asleep(), Default::default());
    assert!(!allocator.alloc_raw(40 * PAGE, MAIN).unwrap_err().to_string().contains("asleep"));
    allocator.free(blocks[1]).unwrap();
    allocator.close().unwrap();
}

/// What is asleep can be neither named for others nor allocated again.
#[test]
fn what_is_asleep_is_refused_by_name() {
    let (_, allocator) = model(32);
    let allocator = {
        let driver = Arc::clone(allocator.driver());
        drop(allocator);
        Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap()
    };
    let [block, beside] = [PAGE / 2, PAGE / 2].map(|bytes| allocator.alloc_raw(bytes, MAIN).unwrap());
    let ticket = allocator.ticket(beside).unwrap();
    assert_eq!(ticket.sleeps(), 0);
    allocator.sleep(Backup::Pinned).unwrap();
    assert!(ticket.is_live() && ticket.pin().is_none() && ticket.sleeps() == 1);
    let refused = allocator.ticket(block).unwrap_err();
    assert!(matches!(refused, FreeError::Asleep { addr } if addr == block), "{refused}");
    let refused = allocator.alloc_again(block, PAGE / 2).unwrap_err();
    assert!(matches!(refused, AllocAgainError::NotFree { .. }), "{refused}");
    allocator.free(block).unwrap();
    let refused = allocator.alloc_again(block, PAGE / 2).unwrap_err();
    assert!(matches!(refused, AllocAgainError::Asleep { addr, .. } if addr == block), "{refused}");
    allocator.wake(NOW).unwrap();
    allocator.alloc_again(block, PAGE / 2).unwrap();
    drop(ticket.pin().unwrap());
    allocator.check();
    [block, beside].iter().for_each(|block| allocator.free(*block).unwrap());
    allocator.close().unwrap();
}

/// Of a device of 32 pages, so many bytes but one are left, which is too little for a wake: it changes nothing.
fn is_refused_a_byte_less(driver: &ModelDriver, allocator: &Allocator<ModelDriver>, asleep: u64) {
    driver.set_external(32 * PAGE - asleep + 1);
    let before = driver.usage();
    let refused = allocator.wake(NOW).unwrap_err();
    assert_eq!(refused.report().map(|report| report.requested_bytes), Some(asleep), "{refused}");
    allocator.check();
    assert_eq!((driver.usage(), allocator.reserved_bytes()), (before, 0));
    assert_eq!(allocator.stats().failed_allocs, 0, "nobody asked for an allocation");
}

/// A wake that finds too little memory changes nothing, and waits for more if it is told to.
#[test]
fn a_wake_that_is_short_changes_nothing() {
    let (driver, allocator) = model(32);
    let blocks = fill(&allocator, &SIZES);
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    is_refused_a_byte_less(&driver, &allocator, slept.asleep_bytes);
    let others = {
        let driver = Arc::clone(&driver);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            driver.set_external(0);
        })
    };
    assert_eq!(allocator.wake(Duration::from_secs(60)).unwrap().mapped_bytes, slept.asleep_bytes);
    others.join().unwrap();
    allocator.check();
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// A wake takes what is free elsewhere in the allocator: it succeeds whenever headroom and free chunks cover the pages.
#[test]
fn a_wake_takes_free_chunks() {
    let (_, allocator) = model(32);
    let blocks = fill(&allocator, &[6 * PAGE, 5 * PAGE, 300 * KIB]);
    let slept = allocator.sleep(Backup::Discard).unwrap();
    let others: Vec<_> = (0..32).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
    let needed = slept.asleep_bytes / PAGE;
    others.iter().step_by(2).take(needed as usize - 1).for_each(|addr| allocator.free(*addr).unwrap());
    allocator.wake(NOW).unwrap_err();
    allocator.check();
    allocator.free(others[31]).unwrap();
    allocator.wake(NOW).unwrap();
    allocator.check();
    assert_eq!(free_bytes(&allocator), 0);
    let rest = others.iter().enumerate().filter(|(at, _)| at % 2 == 1 || at / 2 >= needed as usize - 1);
    rest.filter(|(at, _)| *at != 31).for_each(|(_, addr)| allocator.free(*addr).unwrap());
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// The host waits once in a sleep, for the allocator's own stream, and never for the device.
#[test]
fn a_sleep_waits_once() {
    let (driver, allocator) = model(256);
    let streams: Vec<_> = (0..4).map(|_| driver.create_stream().unwrap()).collect();
    streams.iter().for_each(|stream| allocator.keep_stream(*stream).unwrap());
    let mut blocks = Vec::new();
    for stream in &streams {
        for bytes in [3 * PAGE, 40 * KIB] {
            let addr = allocator.alloc_raw(bytes, *stream).unwrap();
            driver.hold(*stream);
            driver.fill(*stream, addr, bytes, 1).unwrap();
            blocks.push(addr);
        }
        let freed = allocator.alloc_raw(2 * PAGE, *stream).unwrap();
        driver.fill(*stream, freed, 2 * PAGE, 1).unwrap();
        allocator.record_stream(freed, MAIN).unwrap();
        allocator.free(freed).unwrap();
    }
    for backup in [Backup::Pinned, Backup::Discard] {
        let (before, synchronized) = (driver.host_waits(), driver.calls());
        let slept = allocator.sleep(backup).unwrap();
        assert_eq!(slept.left_awake, Default::default());
        assert_eq!(allocator.reserved_bytes(), 0);
        let waits = driver.host_waits() - before;
        assert!(waits <= 1, "{waits} waits");
        assert_eq!(driver.calls()[DriverCall::Synchronize], synchronized[DriverCall::Synchronize]);
        allocator.wake(NOW).unwrap();
        allocator.check();
        for (at, stream) in streams.iter().enumerate() {
            driver.fill(*stream, blocks[2 * at], 3 * PAGE, 2).unwrap();
        }
    }
    streams.iter().for_each(|stream| driver.resume(*stream));
    blocks.iter().for_each(|addr| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// Other threads allocate, pin, use and free meanwhile. What they have pinned stays awake, with the work that they queue; what
/// they have not cannot be pinned before the wake.
#[test]
fn other_threads_go_on() {
    let (driver, allocator) = host(128);
    let kept = fill(&allocator, &SIZES);
    let streams: Vec<_> = (0..3).map(|_| driver.create_stream().unwrap()).collect();
    streams.iter().for_each(|stream| allocator.keep_stream(*stream).unwrap());
    let done = AtomicBool::new(false);
    let (used, asleep) = (AtomicU64::new(0), AtomicU64::new(0));
    let others = |stream: StreamId| {
        let mut seed = stream.as_raw();
        while !done.load(Ordering::Relaxed) {
            seed += 1;
            let bytes = [300, 40 * KIB, PAGE / 2, 2 * PAGE + 512][seed as usize % 4];
            let addr = allocator.alloc_raw(bytes, stream).unwrap();
            match allocator.pin(addr) {
                Ok(pin) => {
                    driver.fill(stream, addr, bytes, seed).unwrap();
                    driver.verify(stream, addr, bytes, seed).unwrap();
                    drop(pin);
                    // Else they would queue more than their streams do.
                    if seed.is_multiple_of(16) {
                        driver.synchronize(stream).unwrap();
                    }
                    used.fetch_add(1, Ordering::Relaxed);
                }
                Err(FreeError::Asleep { .. }) => {
                    asleep.fetch_add(1, Ordering::Relaxed);
                }
                Err(other) => panic!("{other}"),
            }
            allocator.free(addr).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| others(*stream));
        }
        // What a panic here keeps from ending would not end.
        let turns = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for turn in 0..60 {
                allocator.sleep(if turn % 4 == 3 { Backup::Discard } else { Backup::Pinned }).unwrap();
                allocator.wake(Duration::from_secs(60)).unwrap();
                if turn % 4 == 3 {
                    kept.iter().for_each(|(addr, bytes, seed)| driver.fill(MAIN, *addr, *bytes, *seed).unwrap());
                }
                verify(&allocator, &kept);
            }
        }));
        done.store(true, Ordering::Relaxed);
        turns.unwrap();
    });
    streams.iter().for_each(|stream| driver.synchronize(*stream).unwrap());
    assert_eq!((driver.take_violations(), driver.take_mismatches()), (vec![], vec![]));
    allocator.check();
    println!("{used:?} blocks were used meanwhile, {asleep:?} were asleep before they could be");
    assert!(used.into_inner() > 0);
    kept.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// After a sleep that failed, nobody can say whether its copies are over: what they read stays mapped until somebody can.
#[test]
fn what_copies_may_still_read_stays_mapped() {
    let config = ModelConfig { capacity_bytes: 64 * PAGE, lag_ops: 1000, ..ModelConfig::default() };
    let allocator = Allocator::builder(Arc::new(FaultDriver::new(ModelDriver::new(config)))).build().unwrap();
    let driver = Arc::clone(allocator.driver());
    let blocks = fill(&allocator, &[3 * PAGE, PAGE]);
    let held = allocator.reserved_bytes();
    let refuse = |calls: &[DriverCall]| {
        driver.arm(Fault::nth(0, DriverErrorKind::Other).only(calls.iter().copied()).from_then_on());
    };
    refuse(&[DriverCall::EventRecord]);
    allocator.sleep(Backup::Pinned).unwrap_err();
    refuse(&[DriverCall::EventRecord, DriverCall::Synchronize]);
    allocator.check();
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.trim(0).unwrap_err();
    assert_eq!((allocator.reserved_bytes(), driver.inner().usage().host_memory), (held, 1));
    driver.disarm();
    assert_eq!(allocator.trim(0).unwrap().held_bytes, 0);
    allocator.check();
    assert_eq!(driver.inner().usage().host_memory, 0);
    allocator.close().unwrap();
    assert!(driver.inner().usage().is_empty());
}

/// In a capture nothing sleeps and nothing wakes.
#[test]
fn a_capture_forbids_both() {
    let (driver, allocator) = model(64);
    let captured = driver.create_stream().unwrap();
    allocator.keep_stream(captured).unwrap();
    let block = allocator.alloc_raw(3 * PAGE, captured).unwrap();
    driver.begin_capture(captured);
    let refused = allocator.sleep(Backup::Pinned).unwrap_err();
    assert!(refused.to_string().contains("being captured"), "{refused}");
    driver.end_capture(captured);
    allocator.sleep(Backup::Pinned).unwrap();
    driver.begin_capture(captured);
    let refused = allocator.wake(NOW).unwrap_err();
    assert!(refused.to_string().contains("being captured"), "{refused}");
    driver.end_capture(captured);
    allocator.wake(NOW).unwrap();
    allocator.check();
    allocator.free(block).unwrap();
    allocator.close().unwrap();
}

/// Blocks that keep large chunks from being moved do so no more after a sleep.
#[test]
fn a_wake_undoes_what_large_chunks_had_pinned() {
    let (_, allocator) = model(64);
    let allocator = {
        drop(allocator);
        let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 64 * PAGE, ..ModelConfig::default() }));
        Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(8 * PAGE)).build().unwrap()
    };
    // One growth in chunks of eight pages, which blocks of a page take their parts of.
    allocator.free(allocator.alloc_raw(64 * PAGE, MAIN).unwrap()).unwrap();
    let blocks: Vec<_> = (0..64).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
    let (kept, freed): (Vec<_>, Vec<_>) = blocks.iter().enumerate().partition(|(at, _)| at % 8 == 0);
    freed.iter().for_each(|(_, addr)| allocator.free(**addr).unwrap());
    assert!(allocator.alloc_raw(16 * PAGE, MAIN).is_err(), "each chunk has a live block");
    allocator.sleep(Backup::Pinned).unwrap();
    let woken = allocator.wake(NOW).unwrap();
    assert_eq!(woken.mapped_bytes, 8 * PAGE);
    let large = allocator.alloc_raw(48 * PAGE, MAIN).unwrap();
    allocator.check();
    allocator.free(large).unwrap();
    kept.iter().for_each(|(_, addr)| allocator.free(**addr).unwrap());
    allocator.close().unwrap();
}
