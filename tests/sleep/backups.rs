//! Backups as others see them: the bytes of what is asleep, and of what has woken and retains them.

use super::kept::{end_kept, kept, use_kept};
use super::{KIB, MAIN, NOW, PAGE, SIZES, fill, host, model, verify};
use gapless::DeviceAddr;
use gapless::allocator::{AllocError, Allocator, Backup, BackupError, ChunkPolicy, HostBudget, SleepError, Wake};
use gapless::driver::{
    Driver, DriverCall, DriverErrorKind, Fault, FaultDriver, HostConfig, HostDriver, WorkDriver, pattern_byte,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const RETAINING: Wake = Wake { wait: Duration::ZERO, retain: true };

/// The bytes of a backup, and their address.
fn shown<D: Driver>(allocator: &Allocator<D>, addr: DeviceAddr, bytes: u64) -> Option<(Vec<u8>, usize)> {
    let read = |shown: &[u8]| (shown.to_vec(), shown.as_ptr().addr());
    allocator.backup_at(addr, bytes, read).unwrap()
}

/// The address of the backup of a filled block, whose bytes it has.
fn backup_of<D: Driver>(allocator: &Allocator<D>, (addr, bytes, seed): (DeviceAddr, u64, u64)) -> usize {
    let (found, at) = shown(allocator, addr, bytes).unwrap_or_else(|| panic!("a backup of {addr}"));
    assert!((0..).zip(&found).all(|(offset, byte)| *byte == pattern_byte(seed, offset)), "the bytes of {addr}");
    at
}

fn have_backups<D: Driver>(allocator: &Allocator<D>, blocks: &[(DeviceAddr, u64, u64)]) {
    for block in blocks {
        backup_of(allocator, *block);
    }
}

fn is_gone<D: Driver>(allocator: &Allocator<D>, addr: DeviceAddr) -> bool {
    shown(allocator, addr, 1).is_none()
}

/// Backups share a budget, which those have back that are over. A sleep that needs more changes nothing, and so do failures.
#[test]
fn backups_keep_to_a_budget() {
    let budget = Arc::new(HostBudget::new(6 * PAGE));
    let config = HostConfig { capacity_bytes: 64 * PAGE, ..HostConfig::default() };
    let driver = Arc::new(FaultDriver::new(HostDriver::new(config).unwrap()));
    let build = || Allocator::builder(Arc::clone(&driver)).host_budget(Arc::clone(&budget)).build().unwrap();
    let [first, second] = [build(), build()];
    let blocks = [fill(&first, &[3 * PAGE]), fill(&second, &[PAGE, 3 * PAGE])];
    first.sleep(Backup::Pinned).unwrap();
    assert_eq!((budget.taken(), budget.bytes()), (3 * PAGE, 6 * PAGE));
    let used = || (driver.inner().usage().bytes, driver.inner().usage().mappings, driver.inner().usage().host_memory);
    let before = used();
    let refused = second.sleep(Backup::Pinned).unwrap_err();
    let expected = SleepError::HostMemory { bytes: 4 * PAGE, left: 3 * PAGE };
    assert_eq!(refused.to_string(), expected.to_string());
    assert_eq!((used(), budget.taken(), second.stats().asleep_bytes), (before, 3 * PAGE, 0));
    verify(&second, &blocks[1]);
    second.sleep(Backup::Discard).unwrap();
    second.wake(NOW).unwrap();
    first.wake(RETAINING).unwrap();
    assert_eq!(budget.taken(), 3 * PAGE, "what is retained is there");
    first.sleep(Backup::Pinned).unwrap();
    assert_eq!(budget.taken(), 3 * PAGE, "in the same place");
    first.wake(NOW).unwrap();
    assert_eq!(budget.taken(), 0);
    driver.arm(Fault::nth(0, DriverErrorKind::OutOfMemory).only([DriverCall::HostAlloc]));
    assert!(matches!(second.sleep(Backup::Pinned), Err(SleepError::Alloc(AllocError::Driver(_)))));
    driver.disarm();
    assert_eq!(budget.taken(), 0, "nothing was had");
    second.sleep(Backup::Pinned).unwrap();
    driver.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::HostFree]));
    second.wake(NOW).unwrap();
    driver.disarm();
    assert_eq!(budget.taken(), 4 * PAGE, "the driver has not taken it back");
    for (allocator, blocks) in [(first, &blocks[0]), (second, &blocks[1])] {
        blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
        allocator.close().unwrap();
    }
    assert_eq!(budget.taken(), 0);
}

/// The bytes of what is asleep, of all of a block and of a part, and of nothing else.
#[test]
fn a_backup_shows_what_is_asleep() {
    let (driver, allocator) = host(64);
    let blocks = fill(&allocator, &SIZES);
    assert!(is_gone(&allocator, blocks[0].0), "nothing has slept");
    allocator.sleep(Backup::Pinned).unwrap();
    let awake = allocator.alloc_raw(PAGE, MAIN).unwrap();
    have_backups(&allocator, &blocks);
    let (addr, bytes, seed) = blocks[4];
    let part = shown(&allocator, addr.offset(PAGE + 3), 1000).unwrap().0;
    assert!((PAGE + 3..).zip(&part).all(|(offset, byte)| *byte == pattern_byte(seed, offset)));
    assert_eq!(shown(&allocator, addr, 0).unwrap().0, []);
    let beyond = allocator.backup_at(addr, 64 * PAGE, |_| ()).unwrap_err();
    assert!(matches!(beyond, BackupError::InParts { addr: at, .. } if at == addr), "{beyond}");
    assert!(beyond.to_string().contains("no backup has all of the 128 MiB"), "{beyond}");
    assert!(is_gone(&allocator, awake) && is_gone(&allocator, DeviceAddr(1)));
    // What is freed asleep has no bytes any more, though its memory may be in the host still.
    allocator.free(addr).unwrap();
    assert!(is_gone(&allocator, addr) && is_gone(&allocator, addr.offset(bytes - 1)));
    allocator.wake(NOW).unwrap();
    assert!(blocks.iter().all(|(addr, ..)| is_gone(&allocator, *addr)), "nothing is asleep");
    allocator.sleep(Backup::Discard).unwrap();
    assert!(blocks.iter().all(|(addr, ..)| is_gone(&allocator, *addr)), "nothing was copied");
    allocator.free(awake).unwrap();
    blocks.iter().filter(|block| block.0 != addr).for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
    assert_eq!((driver.take_violations(), driver.usage().host_memory), (vec![], 0));
}

/// Chunks that sleep whole have the bytes of their blocks, and retain none.
#[test]
fn a_backup_shows_what_sleeps_whole() {
    let (driver, _) = host(64);
    let allocator = kept(Arc::clone(&driver));
    let used = use_kept(&allocator);
    allocator.sleep(Backup::Pinned).unwrap();
    for (addr, bytes, seed, is_live) in &used {
        if *is_live {
            backup_of(&allocator, (*addr, *bytes, *seed));
        }
    }
    let (freed, ..) = used[5];
    assert!(is_gone(&allocator, freed), "no block is there");
    allocator.wake(RETAINING).unwrap();
    allocator.check();
    assert!(used.iter().all(|(addr, ..)| is_gone(&allocator, *addr)));
    assert_eq!(driver.usage().host_memory, 0);
    end_kept(allocator, &used);
}

/// Of a block of which a part stayed awake, or slept in its turn, no backup has all bytes.
#[test]
fn a_backup_in_parts_is_refused() {
    let (driver, _) = host(64);
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let blocks = fill(&allocator, &[PAGE / 2, PAGE + PAGE / 2, PAGE]);
    let pin = allocator.pin(blocks[0].0).unwrap();
    allocator.sleep(Backup::Pinned).unwrap();
    let (addr, bytes, _) = blocks[1];
    let in_parts = |allocator: &Allocator<_>| {
        let refused = allocator.backup_at(addr, bytes, |_| ()).unwrap_err();
        matches!(refused, BackupError::InParts { addr: at, bytes: of } if (at, of) == (addr, bytes))
    };
    assert!(in_parts(&allocator));
    let (asleep, _) = shown(&allocator, addr.offset(PAGE / 2), PAGE).unwrap();
    assert!((PAGE / 2..).zip(&asleep).all(|(offset, byte)| *byte == pattern_byte(1, offset)));
    drop(pin);
    allocator.sleep(Backup::Pinned).unwrap();
    assert!(in_parts(&allocator), "two backups");
    allocator.wake(RETAINING).unwrap();
    allocator.check();
    assert!(in_parts(&allocator), "two retained backups");
    allocator.sleep(Backup::Pinned).unwrap();
    allocator.check();
    // It sleeps as one part, which is in neither.
    backup_of(&allocator, blocks[1]);
    allocator.wake(NOW).unwrap();
    verify(&allocator, &blocks);
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
    assert_eq!(driver.usage().host_memory, 0);
}

/// A retained backup has the bytes as of the last sleep, at one address from sleep to sleep, beside what is allocated and freed
/// meanwhile.
#[test]
fn a_retained_backup_stays_where_it_is() {
    let (driver, allocator) = host(64);
    let mut blocks = fill(&allocator, &SIZES);
    allocator.sleep(Backup::Pinned).unwrap();
    let places: Vec<usize> = blocks.iter().map(|block| backup_of(&allocator, *block)).collect();
    allocator.wake(RETAINING).unwrap();
    allocator.check();
    verify(&allocator, &blocks);
    let (small, ..) = blocks.remove(0);
    allocator.free(small).unwrap();
    let fresh = fill(&allocator, &[PAGE, 300]);
    for round in 0..3 {
        for (block, place) in blocks.iter_mut().zip(&places[1..]) {
            assert_eq!(backup_of(&allocator, *block), *place, "round {round}: awake");
            block.2 += 100;
            driver.fill(MAIN, block.0, block.1, block.2).unwrap();
        }
        let slept = allocator.sleep(Backup::Pinned).unwrap();
        allocator.check();
        assert_eq!(slept.copied_bytes, slept.live_bytes);
        for (block, place) in blocks.iter().zip(&places[1..]) {
            assert_eq!(backup_of(&allocator, *block), *place, "round {round}: asleep");
        }
        have_backups(&allocator, &fresh);
        let woken = allocator.wake(if round < 2 { RETAINING } else { NOW.into() }).unwrap();
        allocator.check();
        assert_eq!(woken.copied_bytes, slept.live_bytes);
        verify(&allocator, &blocks);
        verify(&allocator, &fresh);
    }
    assert!(blocks.iter().chain(&fresh).all(|(addr, ..)| is_gone(&allocator, *addr)), "the last wake retained nothing");
    assert_eq!((driver.usage().host_memory, allocator.asleep().backup_bytes), (0, 0));
    blocks.iter().chain(&fresh).for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
    assert_eq!(driver.take_violations(), []);
}

/// A retained backup ends with its block; its memory goes with the last block, at the next trim at the latest. What is allocated at
/// its address afterwards has none.
#[test]
fn a_retained_backup_ends_with_its_block() {
    let (driver, allocator) = host(64);
    let blocks = fill(&allocator, &[3 * PAGE, PAGE]);
    allocator.sleep(Backup::Pinned).unwrap();
    allocator.wake(RETAINING).unwrap();
    assert_eq!((driver.usage().host_memory, allocator.asleep().backup_bytes), (1, 4 * PAGE));
    allocator.free(blocks[0].0).unwrap();
    allocator.check();
    assert!(is_gone(&allocator, blocks[0].0));
    let again = allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
    assert_eq!(again, blocks[0].0);
    assert!(is_gone(&allocator, again));
    backup_of(&allocator, blocks[1]);
    // Pinned when it is freed.
    let pin = allocator.pin(blocks[1].0).unwrap();
    allocator.free(blocks[1].0).unwrap();
    assert!(is_gone(&allocator, blocks[1].0));
    allocator.check();
    drop(pin);
    allocator.trim(0).unwrap();
    allocator.check();
    assert_eq!((driver.usage().host_memory, allocator.asleep().backup_bytes), (0, 0));
    allocator.free(again).unwrap();
    allocator.close().unwrap();
}

/// A sleep that discards ends the backup, as one does whose bytes nobody needs.
#[test]
fn a_retained_backup_ends_with_the_next_sleep() {
    let (driver, allocator) = host(64);
    let blocks = fill(&allocator, &[3 * PAGE, PAGE]);
    allocator.sleep(Backup::Pinned).unwrap();
    allocator.wake(RETAINING).unwrap();
    let pin = allocator.pin(blocks[1].0).unwrap();
    allocator.sleep(Backup::Discard).unwrap();
    allocator.check();
    assert!(is_gone(&allocator, blocks[0].0));
    backup_of(&allocator, blocks[1]);
    drop(pin);
    allocator.wake(RETAINING).unwrap();
    assert!(is_gone(&allocator, blocks[0].0), "nothing was copied");
    assert_eq!(driver.usage().host_memory, 1, "of what stayed awake");
    allocator.sleep(Backup::Discard).unwrap();
    assert_eq!(driver.usage().host_memory, 0);
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// Memory that was retained for blocks of which most are gone is not kept for the rest: what is retained is at most twice what
/// lives.
#[test]
fn retained_memory_is_bounded() {
    let (_, allocator) = host(64);
    let mut kept = Vec::new();
    for seed in 0..12 {
        let large = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
        let small = allocator.alloc_raw(5 * KIB, MAIN).unwrap();
        allocator.driver().fill(MAIN, small, 5 * KIB, seed).unwrap();
        kept.push((small, 5 * KIB, seed));
        allocator.sleep(Backup::Pinned).unwrap();
        allocator.wake(RETAINING).unwrap();
        allocator.free(large).unwrap();
        allocator.trim(0).unwrap();
        allocator.check();
        let live = 4 * PAGE + allocator.stats().live_block_bytes;
        assert!(allocator.asleep().backup_bytes <= 2 * live, "{:?} of {live}", allocator.asleep());
        have_backups(&allocator, &kept);
    }
    verify(&allocator, &kept);
    kept.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// The n-th driver call of a sleep over a retained backup fails, for every n: a backup is as of a sleep or gone, and the next
/// attempt works.
#[test]
fn whatever_call_fails_no_backup_is_wrong() {
    for nth in 0.. {
        let config = HostConfig { capacity_bytes: 64 * PAGE, ..HostConfig::default() };
        let driver = Arc::new(FaultDriver::new(HostDriver::new(config).unwrap()));
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let mut blocks = fill(&allocator, &[3 * PAGE, 700 * KIB, 300]);
        allocator.sleep(Backup::Pinned).unwrap();
        allocator.wake(RETAINING).unwrap();
        blocks.extend(fill(&allocator, &[PAGE]));
        for block in &mut blocks {
            block.2 += 10;
            driver.fill(MAIN, block.0, block.1, block.2).unwrap();
        }
        driver.arm(Fault::nth(nth, DriverErrorKind::Other));
        let result = allocator.sleep(Backup::Pinned);
        let has_failed = driver.fired() > 0 && result.is_err();
        driver.disarm();
        allocator.check();
        for block in &blocks {
            if !(has_failed && is_gone(&allocator, block.0)) {
                backup_of(&allocator, if has_failed { (block.0, block.1, block.2 - 10) } else { *block });
            }
        }
        allocator.sleep(Backup::Pinned).unwrap();
        allocator.wake(RETAINING).unwrap();
        allocator.check();
        have_backups(&allocator, &blocks);
        verify(&allocator, &blocks);
        blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
        allocator.close().unwrap();
        assert_eq!(driver.inner().take_violations(), []);
        assert!(driver.inner().usage().is_empty());
        if !has_failed && result.is_ok() && nth > 10 {
            break;
        }
    }
}

/// Memory that the driver refuses to take back goes at the end.
#[test]
fn memory_that_is_not_taken_back_goes_at_the_end() {
    let config = HostConfig { capacity_bytes: 64 * PAGE, ..HostConfig::default() };
    let driver = Arc::new(FaultDriver::new(HostDriver::new(config).unwrap()));
    let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
    let blocks = fill(&allocator, &[PAGE]);
    allocator.sleep(Backup::Pinned).unwrap();
    allocator.wake(RETAINING).unwrap();
    allocator.free(blocks[0].0).unwrap();
    driver.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::HostFree]).from_then_on());
    allocator.trim(0).unwrap();
    driver.disarm();
    allocator.check();
    assert_eq!((driver.inner().usage().host_memory, allocator.asleep().backup_bytes), (1, 0));
    allocator.close().unwrap();
    assert!(driver.inner().usage().is_empty());
}

/// Others read backups while they come and go.
#[test]
fn backups_are_read_beside_sleeps() {
    let (driver, allocator) = host(64);
    let blocks = fill(&allocator, &SIZES);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut found = 0;
            while !done.load(Ordering::Relaxed) || found == 0 {
                for block in &blocks {
                    if !is_gone(&allocator, block.0) {
                        // It may have gone since.
                        let right =
                            |shown: &[u8]| (0..).zip(shown).all(|(at, byte)| *byte == pattern_byte(block.2, at));
                        assert_ne!(allocator.backup_at(block.0, block.1, right).unwrap(), Some(false));
                        found += 1;
                    }
                }
                allocator.trim(0).unwrap();
            }
        });
        let turns = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for turn in 0..60 {
                allocator.sleep(Backup::Pinned).unwrap();
                allocator.wake(Wake { wait: NOW, retain: turn % 3 > 0 }).unwrap();
            }
            allocator.sleep(Backup::Pinned).unwrap();
        }));
        done.store(true, Ordering::Relaxed);
        turns.unwrap();
    });
    allocator.wake(NOW).unwrap();
    verify(&allocator, &blocks);
    assert_eq!(driver.take_violations(), []);
    blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
    allocator.close().unwrap();
}

/// A driver whose copies have no bytes says so.
#[test]
fn copies_without_bytes_are_not_shown() {
    let (_, allocator) = model(64);
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    assert_eq!(allocator.backup_at(block, PAGE, |_| ()).unwrap(), None);
    allocator.sleep(Backup::Pinned).unwrap();
    let refused = allocator.backup_at(block, PAGE, |_| ()).unwrap_err();
    assert!(
        matches!(&refused, BackupError::Alloc(AllocError::Driver(error)) if error.kind == DriverErrorKind::NotSupported),
        "{refused}"
    );
    allocator.wake(NOW).unwrap();
    allocator.free(block).unwrap();
    allocator.close().unwrap();
}
