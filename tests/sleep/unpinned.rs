//! Backups in pageable memory and in files, which pass through slots of pinned memory.

use super::kept::{end_kept, keeping, use_kept, verify_kept};
use super::{KIB, MAIN, NOW, PAGE, SIZES, fill, model, verify};
use gapless::DeviceAddr;
use gapless::allocator::{
    AllocError, Allocator, Asleep, Backup, BackupError, BackupFileError, Builder, HostBudget, SleepError, Wake,
};
use gapless::driver::{Driver, HostConfig, HostDriver, pattern_byte};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const KINDS: [Backup; 2] = [Backup::Pageable, Backup::File];
const RETAINING: Wake = Wake { wait: Duration::ZERO, retain: true };

struct World {
    driver: Arc<HostDriver>,
    budget: Arc<HostBudget>,
    directory: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let config = HostConfig { capacity_bytes: 64 * PAGE, ..HostConfig::default() };
        let (driver, directory) = (Arc::new(HostDriver::new(config).unwrap()), tempfile::tempdir().unwrap());
        Self { driver, budget: Arc::default(), directory }
    }

    fn builder(&self, slot_bytes: u64) -> Builder<HostDriver> {
        let builder = Allocator::builder(Arc::clone(&self.driver)).host_budget(Arc::clone(&self.budget));
        builder.backup_directory(self.directory.path()).copy_slot_bytes(slot_bytes)
    }

    /// Frees the blocks, and checks that nothing is left.
    fn end(&self, allocator: Allocator<HostDriver>, blocks: &[(DeviceAddr, u64, u64)]) {
        blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
        allocator.check();
        allocator.close().unwrap();
        assert_eq!(self.driver.take_violations(), []);
        assert!(self.driver.usage().is_empty(), "{:?}", self.driver.usage());
        assert_eq!(self.budget.taken(), 0);
        assert!(is_empty(self.directory.path()));
    }
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

/// The address of the backup of a filled block, whose bytes it has.
fn backup_of<D: Driver>(allocator: &Allocator<D>, (addr, bytes, seed): (DeviceAddr, u64, u64)) -> Option<usize> {
    let read = |shown: &[u8]| {
        assert!((0..).zip(shown).all(|(offset, byte)| *byte == pattern_byte(seed, offset)), "the bytes of {addr}");
        shown.as_ptr().addr()
    };
    allocator.backup_at(addr, bytes, read).unwrap()
}

/// Slots smaller than a block, of a few blocks, and of all: bytes come back, block by block and load by load.
#[test]
fn bytes_pass_through_slots_of_any_size() {
    let small: Vec<u64> = (0..1500).map(|number| 512 + number % 7 * 512).collect();
    for (kind, slot_bytes) in
        KINDS.into_iter().flat_map(|kind| [1000, 700 * KIB, 3 * PAGE, 64 * PAGE].map(|slot| (kind, slot)))
    {
        let world = World::new();
        let allocator = world.builder(slot_bytes).build().unwrap();
        // With slots of a few bytes, of little.
        let sizes = if slot_bytes < KIB { &small[..40] } else { &[&SIZES[..], &small].concat() };
        let mut blocks = fill(&allocator, sizes);
        // Gaps, so that there are many spans.
        let mut number = 0;
        blocks.retain(|(addr, ..)| {
            number += 1;
            number % 5 > 0 || allocator.free(*addr).is_err()
        });
        for _ in 0..2 {
            let slept = allocator.sleep(kind).unwrap();
            allocator.check();
            let live = allocator.stats().live_block_bytes;
            assert_eq!((slept.live_bytes, slept.copied_bytes, allocator.reserved_bytes()), (live, live, 0), "{kind:?}");
            let Asleep { backup_bytes, file_bytes, .. } = allocator.asleep();
            let expected = if kind == Backup::File { (0, live) } else { (live, 0) };
            assert_eq!((backup_bytes, file_bytes), expected, "{kind:?}");
            assert_eq!(world.budget.taken(), expected.0, "files count not");
            assert_eq!(world.driver.usage().host_memory, 0, "the slots are not needed any more");
            assert!(is_empty(world.directory.path()));
            let woken = allocator.wake(NOW).unwrap();
            allocator.check();
            assert_eq!(woken.copied_bytes, live);
            verify(&allocator, &blocks);
            let held = (world.driver.usage().host_memory, world.budget.taken(), allocator.asleep().file_bytes);
            assert_eq!(held, (0, 0, 0));
        }
        world.end(allocator, &blocks);
    }
}

/// Batches of all kinds are asleep together.
#[test]
fn batches_of_all_kinds_wake_together() {
    let world = World::new();
    let allocator = world.builder(PAGE + 512).build().unwrap();
    let mut blocks = Vec::new();
    for kind in [Backup::File, Backup::Pinned, Backup::Pageable, Backup::File, Backup::Pageable] {
        blocks.extend(fill(&allocator, &SIZES[..6]));
        allocator.sleep(kind).unwrap();
        allocator.check();
    }
    let lost = fill(&allocator, &[PAGE]);
    allocator.sleep(Backup::Discard).unwrap();
    allocator.wake(NOW).unwrap();
    allocator.check();
    verify(&allocator, &blocks);
    blocks.extend(lost);
    world.end(allocator, &blocks);
}

/// What keeps its mappings has its freed bytes in the backup as well.
#[test]
fn chunks_that_sleep_whole_pass_through() {
    for kind in KINDS {
        let world = World::new();
        let allocator = keeping(world.builder(PAGE / 2 + 512)).build().unwrap();
        let used = use_kept(&allocator);
        allocator.sleep(kind).unwrap();
        allocator.check();
        allocator.wake(NOW).unwrap();
        allocator.check();
        verify_kept(&allocator, &used);
        end_kept(allocator, &used);
        assert_eq!((world.driver.take_violations(), world.budget.taken()), (vec![], 0));
        assert!(world.driver.usage().is_empty());
    }
}

/// Pageable backups are shown, and retained at one address, by one kind of backup; files are neither.
#[test]
fn pageable_backups_are_retained_and_files_are_not() {
    let world = World::new();
    let allocator = world.builder(PAGE).build().unwrap();
    let mut blocks = fill(&allocator, &SIZES);
    let shown = |blocks: &[(DeviceAddr, u64, u64)]| -> Vec<Option<usize>> {
        blocks.iter().map(|block| backup_of(&allocator, *block)).collect()
    };
    allocator.sleep(Backup::Pageable).unwrap();
    let before = shown(&blocks);
    assert!(before.iter().all(Option::is_some));
    allocator.wake(RETAINING).unwrap();
    allocator.check();
    // A block that is new is in another store.
    allocator.free(blocks.remove(5).0).unwrap();
    let same: Vec<Option<usize>> =
        before.iter().enumerate().filter(|(number, _)| *number != 5).map(|(_, at)| *at).collect();
    blocks.extend(fill(&allocator, &[PAGE]));
    let new = blocks.len() - 1;
    allocator.sleep(Backup::Pageable).unwrap();
    allocator.check();
    assert_eq!(shown(&blocks)[..new], same);
    assert!(shown(&blocks)[new].is_some());
    allocator.wake(RETAINING).unwrap();
    verify(&allocator, &blocks);
    assert_eq!(shown(&blocks)[..new], same);
    // Another kind is in other memory, which may have the addresses of the former.
    for (kind, is_another) in [(Backup::Pinned, true), (Backup::Pinned, false), (Backup::Pageable, true)] {
        let before = shown(&blocks);
        allocator.sleep(kind).unwrap();
        allocator.check();
        assert!(is_another || shown(&blocks) == before, "{kind:?}");
        assert_eq!(world.driver.usage().host_memory > 0, kind == Backup::Pinned, "{kind:?}");
        allocator.wake(RETAINING).unwrap();
        verify(&allocator, &blocks);
    }
    allocator.sleep(Backup::File).unwrap();
    allocator.check();
    let (addr, bytes, _) = blocks[0];
    let refused = allocator.backup_at(addr, bytes, |_| ()).unwrap_err();
    assert!(matches!(refused, BackupError::InFile { .. }), "{refused}");
    assert_eq!(world.budget.taken(), 0, "nothing is retained of before");
    allocator.wake(RETAINING).unwrap();
    allocator.check();
    assert_eq!((shown(&blocks), allocator.asleep().file_bytes), (vec![None; blocks.len()], 0));
    verify(&allocator, &blocks);
    world.end(allocator, &blocks);
}

/// A directory that is not there to be used is named, and everything is awake.
#[test]
fn files_need_a_directory() {
    let world = World::new();
    let open = world.directory.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let without = Allocator::builder(Arc::clone(&world.driver)).host_budget(Arc::clone(&world.budget));
    for builder in [without, world.builder(PAGE).backup_directory(open)] {
        let allocator = builder.build().unwrap();
        let blocks = fill(&allocator, &SIZES);
        let used = || (world.driver.usage().bytes, world.driver.usage().mappings, world.driver.usage().host_memory);
        let before = used();
        let refused = allocator.sleep(Backup::File).unwrap_err();
        let SleepError::BackupFile(refused) = refused else { panic!("{refused}") };
        let is_named = match allocator.backup_directory() {
            None => matches!(refused, BackupFileError::NoDirectory),
            Some(_) => matches!(refused, BackupFileError::Directory { .. }),
        };
        assert!(is_named, "{refused}");
        allocator.check();
        assert_eq!((used(), allocator.stats().asleep_bytes), (before, 0));
        verify(&allocator, &blocks);
        blocks.iter().for_each(|(addr, ..)| allocator.free(*addr).unwrap());
        allocator.close().unwrap();
    }
}

/// The slots count as well: a sleep that has no room for them changes nothing. A wake has them in any case.
#[test]
fn slots_are_of_the_budget() {
    for (kind, needed) in [(Backup::Pageable, 5 * PAGE), (Backup::File, 2 * PAGE)] {
        for (budget, is_enough) in [(needed, true), (needed - 1, false)] {
            let world = World { budget: Arc::new(HostBudget::new(budget)), ..World::new() };
            let allocator = world.builder(PAGE).build().unwrap();
            let blocks = fill(&allocator, &[3 * PAGE]);
            match allocator.sleep(kind) {
                Ok(_) => {
                    assert!(is_enough);
                    // Another one takes what is left of it.
                    let other = world.builder(PAGE).build().unwrap();
                    let rest = fill(&other, &[budget - world.budget.taken()]);
                    other.sleep(Backup::Pinned).unwrap();
                    assert_eq!(world.budget.taken(), budget);
                    allocator.wake(NOW).unwrap();
                    other.wake(NOW).unwrap();
                    verify(&other, &rest);
                    rest.iter().for_each(|(addr, ..)| other.free(*addr).unwrap());
                    other.close().unwrap();
                }
                Err(refused) => {
                    assert!(!is_enough && matches!(refused, SleepError::HostMemory { .. }), "{refused}");
                    assert_eq!((world.budget.taken(), world.driver.usage().host_memory), (0, 0));
                }
            }
            allocator.check();
            verify(&allocator, &blocks);
            world.end(allocator, &blocks);
        }
    }
}

/// On a driver without bytes, everything else is the same, and nothing is written.
#[test]
fn a_model_keeps_the_books() {
    let (driver, _) = model(64);
    let directory = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let builder = Allocator::builder(Arc::clone(&driver)).copy_slot_bytes(PAGE);
        let allocator = builder.backup_directory(directory.path()).build().unwrap();
        let block = allocator.alloc_raw(5 * PAGE, MAIN).unwrap();
        allocator.sleep(kind).unwrap();
        allocator.check();
        let refused = allocator.backup_at(block, 1, |_| ()).unwrap_err();
        let is_expected = match kind {
            Backup::Pageable => matches!(refused, BackupError::Alloc(AllocError::Driver(_))),
            _ => matches!(refused, BackupError::InFile { .. }),
        };
        assert!(is_expected, "{refused}");
        allocator.wake(NOW).unwrap();
        allocator.check();
        allocator.free(block).unwrap();
        allocator.close().unwrap();
        assert!(driver.usage().is_empty());
    }
}
