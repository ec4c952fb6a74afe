//! A sleep and a wake step by step, as several allocators take them together.

use super::kept::{Used, end_kept, kept, use_kept, verify_kept};
use super::{KIB, MAIN, NOW, PAGE, fill, host, verify};
use gapless::DeviceAddr;
use gapless::allocator::{Allocator, Backup, FallingAsleep, HostBudget, SleepError};
use gapless::driver::{HostDriver, WorkDriver};
use std::sync::Arc;

const SIZES: [u64; 5] = [100, 700 * KIB, PAGE, 3 * PAGE + 512, PAGE / 2];

/// What an allocator holds, and what is asleep of it.
fn held(allocator: &Allocator<HostDriver>) -> (u64, u64) {
    (allocator.reserved_bytes(), allocator.stats().asleep_bytes)
}

/// Up to each step, what is not finished is awake again: with its bytes, also where they were to be discarded.
#[test]
fn a_sleep_that_is_not_finished_leaves_everything_awake() {
    for backup in [Backup::Pinned, Backup::Discard] {
        for unmaps in [false, true] {
            let (driver, allocator) = host(64);
            let blocks = fill(&allocator, &SIZES);
            let before = held(&allocator);
            let mut falling = allocator.begin_sleep(backup).unwrap();
            allocator.check();
            if unmaps {
                falling.unmap().unwrap();
                allocator.check();
            }
            assert_eq!(held(&allocator), before, "the memory is there until the end");
            assert_eq!(driver.usage().mappings == 0, unmaps);
            drop(falling);
            allocator.check();
            assert_eq!((held(&allocator), driver.usage().host_memory), (before, 0));
            verify(&allocator, &blocks);
            blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
            assert_eq!(driver.take_violations(), []);
        }
    }
}

#[test]
fn a_wake_that_is_not_finished_leaves_everything_asleep() {
    for copies in [false, true] {
        let (driver, allocator) = host(64);
        let blocks = fill(&allocator, &SIZES);
        allocator.sleep(Backup::Pinned).unwrap();
        let before = (held(&allocator), allocator.asleep());
        let mut waking = allocator.begin_wake(NOW).unwrap();
        allocator.check();
        if copies {
            waking.copy().unwrap();
        }
        drop(waking);
        allocator.check();
        assert_eq!((held(&allocator), allocator.asleep()), before);
        allocator.begin_wake(NOW).unwrap().finish(false).unwrap();
        verify(&allocator, &blocks);
        assert_eq!(driver.take_violations(), []);
    }
}

/// Finishes a sleep, and wakes; or does not finish it.
fn end(falling: FallingAsleep<'_, HostDriver>, allocator: &Allocator<HostDriver>, finishes: bool) {
    if finishes {
        assert!(falling.finish().unwrap().asleep_bytes > 0);
        allocator.check();
        allocator.wake(NOW).unwrap();
    } else {
        drop(falling);
    }
    allocator.check();
}

/// Between the steps, others free what sleeps and allocate, and what is unmapped is nobody's: neither its addresses nor its chunks.
#[test]
fn others_allocate_and_free_between_the_steps() {
    for finishes in [false, true] {
        let (driver, allocator) = host(16);
        let mut blocks = fill(&allocator, &SIZES);
        let mut falling = allocator.begin_sleep(Backup::Pinned).unwrap();
        let gone = blocks.remove(3);
        allocator.free(gone.0).unwrap();
        falling.unmap().unwrap();
        let also_gone = blocks.remove(1);
        allocator.free(also_gone.0).unwrap();
        allocator.check();
        let fresh: Vec<DeviceAddr> = (0..20).map_while(|_| allocator.alloc_raw(PAGE, MAIN).ok()).collect();
        allocator.check();
        let held = PAGE * (16 - fresh.len() as u64);
        assert!(held >= 6 * PAGE, "what was withheld was handed out");
        for addr in &fresh {
            driver.fill(MAIN, *addr, PAGE, 99).unwrap();
        }
        end(falling, &allocator, finishes);
        verify(&allocator, &blocks);
        verify(&allocator, &fresh.iter().map(|addr| (*addr, PAGE, 99)).collect::<Vec<_>>());
        blocks.iter().map(|(addr, ..)| addr).chain(&fresh).for_each(|addr| allocator.free(*addr).unwrap());
        allocator.check();
        assert_eq!(driver.take_violations(), []);
    }
}

/// Where mappings are kept, nothing is placed at a stale one between the steps, and all of them are there again.
#[test]
fn kept_mappings_are_there_again() {
    for finishes in [false, true] {
        let (driver, _) = host(64);
        let allocator = kept(Arc::clone(&driver));
        let mut used: Used = use_kept(&allocator);
        let mut falling = allocator.begin_sleep(Backup::Pinned).unwrap();
        falling.unmap().unwrap();
        allocator.check();
        for (seed, bytes) in [PAGE, 2 * PAGE, 5 * KIB].into_iter().enumerate() {
            let addr = allocator.alloc_raw(bytes, MAIN).unwrap();
            driver.fill(MAIN, addr, bytes, seed as u64 + 10).unwrap();
            used.push((addr, bytes, seed as u64 + 10, true));
        }
        end(falling, &allocator, finishes);
        verify_kept(&allocator, &used);
        assert_eq!(driver.take_violations(), []);
        end_kept(allocator, &used);
    }
}

/// Two allocators with one budget of the host's memory: where the second one has no room for its backup, the first one is awake.
#[test]
fn several_fall_asleep_together_or_not_at_all() {
    for pages in [10, 20] {
        let (driver, _) = host(64);
        let budget = Arc::new(HostBudget::new(pages * PAGE));
        let both = [(); 2].map(|()| {
            let builder = Allocator::builder(Arc::clone(&driver)).host_budget(Arc::clone(&budget));
            builder.build().unwrap()
        });
        let blocks = [fill(&both[0], &SIZES), fill(&both[1], &[8 * PAGE])];
        let together = || -> Result<u64, SleepError> {
            let mut falling = Vec::new();
            for allocator in &both {
                falling.push(allocator.begin_sleep(Backup::Pinned)?);
            }
            falling.iter_mut().try_for_each(FallingAsleep::unmap)?;
            falling.into_iter().map(|its| Ok(its.finish()?.asleep_bytes)).sum()
        };
        let asleep = together();
        let is_room = pages == 20;
        assert_eq!(asleep.is_ok(), is_room, "{asleep:?}");
        assert_eq!(both.iter().map(|allocator| held(allocator).1).sum::<u64>(), asleep.unwrap_or(0));
        assert_eq!(budget.taken() > 0, is_room);
        let waking = both.iter().map(|allocator| allocator.begin_wake(NOW).unwrap()).collect::<Vec<_>>();
        waking.into_iter().for_each(|its| assert_eq!(its.finish(false).unwrap().mapped_bytes > 0, is_room));
        both.iter().zip(&blocks).for_each(|(allocator, blocks)| verify(allocator, blocks));
    }
}
