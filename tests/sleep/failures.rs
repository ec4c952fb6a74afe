//! Driver calls that fail.

use super::kept::{Used, end_kept, keeping, use_kept, verify_kept};
use super::{KIB, NOW, PAGE, fill};
use gapless::allocator::{Allocator, Backup, Builder, HostBudget};
use gapless::driver::{DriverErrorKind, Fault, FaultDriver, HostConfig, HostDriver};
use std::sync::Arc;

/// The n-th driver call of a sleep or a wake fails, for every n, once or from then on: everything is as before, and the next
/// attempt works. Where the driver does not even take back what was done, what has no memory is asleep, and wakes with its
/// bytes.
#[test]
fn whatever_call_fails_nothing_is_lost() {
    fail_each_call(
        Backup::Pinned,
        |builder| builder,
        |allocator| {
            let filled = fill(allocator, &[3 * PAGE + 512, 700 * KIB, 100, PAGE]);
            filled.into_iter().map(|(addr, bytes, seed)| (addr, bytes, seed, true)).collect()
        },
    );
}

/// The same of backups that pass through slots, in several loads.
#[test]
fn whatever_call_fails_nothing_is_lost_of_what_passes_through() {
    let directory = tempfile::tempdir().unwrap();
    for backup in [Backup::Pageable, Backup::File] {
        fail_each_call(
            backup,
            |builder| builder.copy_slot_bytes(PAGE + 4096).backup_directory(directory.path()),
            |allocator| {
                let filled = fill(allocator, &[3 * PAGE + 512, 700 * KIB, 100, PAGE]);
                filled.into_iter().map(|(addr, bytes, seed)| (addr, bytes, seed, true)).collect()
            },
        );
    }
}

/// The same, of an allocator that keeps its mappings.
#[test]
fn whatever_call_fails_nothing_is_lost_of_what_is_kept() {
    fail_each_call(Backup::Pinned, keeping, use_kept);
    fail_each_call(Backup::Pageable, |builder| keeping(builder).copy_slot_bytes(3 * PAGE), use_kept);
}

type Faulty = FaultDriver<HostDriver>;

fn fail_each_call(
    backup: Backup,
    set: impl Fn(Builder<Faulty>) -> Builder<Faulty>,
    fill: impl Fn(&Allocator<Faulty>) -> Used,
) {
    for (waking, lasts) in [(false, false), (true, false), (false, true), (true, true)] {
        fail_each_call_of(backup, waking, lasts, &set, &fill);
    }
}

fn fail_each_call_of(
    backup: Backup,
    waking: bool,
    lasts: bool,
    set: impl Fn(Builder<Faulty>) -> Builder<Faulty>,
    fill: impl Fn(&Allocator<Faulty>) -> Used,
) {
    for nth in 0.. {
        let config = HostConfig { capacity_bytes: 64 * PAGE, ..HostConfig::default() };
        let driver = Arc::new(FaultDriver::new(HostDriver::new(config).unwrap()));
        let budget = Arc::new(HostBudget::default());
        let builder = Allocator::builder(Arc::clone(&driver)).host_budget(Arc::clone(&budget));
        let allocator = set(builder).build().unwrap();
        let used = fill(&allocator);
        if waking {
            allocator.sleep(backup).unwrap();
        }
        let before = (allocator.reserved_bytes(), allocator.stats().asleep_bytes);
        let fault = Fault::nth(nth, DriverErrorKind::Other);
        driver.arm(if lasts { fault.from_then_on() } else { fault });
        let result = match waking {
            false => allocator.sleep(backup).map(drop),
            true => allocator.wake(NOW).map(drop),
        };
        let fired = driver.fired() > 0;
        driver.disarm();
        allocator.check();
        if result.is_err() && !lasts {
            let now = (allocator.reserved_bytes(), allocator.stats().asleep_bytes);
            assert_eq!(now, before, "waking: {waking}, call {nth}");
        }
        let then = match waking {
            false => allocator.sleep(backup).map(drop).and_then(|()| allocator.wake(NOW)),
            true => allocator.wake(NOW),
        };
        then.unwrap_or_else(|error| panic!("waking: {waking}, call {nth}, lasts: {lasts}: {error}"));
        allocator.check();
        verify_kept(&allocator, &used);
        end_kept(allocator, &used);
        assert_eq!(driver.inner().take_violations(), []);
        assert!(driver.inner().usage().is_empty(), "{:?}", driver.inner().usage());
        assert_eq!(budget.taken(), 0, "{backup:?}, waking: {waking}, call {nth}, lasts: {lasts}");
        if !fired {
            assert!(nth > 10, "{nth} calls");
            break;
        }
    }
}
