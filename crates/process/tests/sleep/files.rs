//! Backups in files, in the directory that the configuration names, and files that fail.

use super::world::{Filled, World};
use super::{CACHE, MORE_WEIGHTS, NOW, WEIGHTS, is_short};
use gapless::allocator::{Backup, BackupError, BackupFileError, SleepError};
use gapless::driver::DriverCall;
use gapless::units::MIB;
use gapless_process::{Error, PoolKind};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A file of a process that is something else for a while.
struct Broken {
    number: RawFd,
    before: OwnedFd,
}

impl Broken {
    /// Has another file stand for the first one in a directory that has no name.
    fn new(directory: &Path, instead: &File) -> Option<Self> {
        let number = unnamed(directory)?;
        // SAFETY: the number is of an open file, whose owner does not close it meanwhile.
        let before = unsafe { libc::dup(number) };
        // SAFETY: as above; the owner sees another file.
        assert_eq!(unsafe { libc::dup2(instead.as_raw_fd(), number) }, number);
        // SAFETY: the number is new.
        Some(Self { number, before: unsafe { OwnedFd::from_raw_fd(before) } })
    }

    /// Makes the file what it was.
    fn mend(self) {
        // SAFETY: the owner has the number still.
        assert_eq!(unsafe { libc::dup2(self.before.as_raw_fd(), self.number) }, self.number);
    }
}

/// The number of an open file in a directory that has no name there.
fn unnamed(directory: &Path) -> Option<RawFd> {
    let mut open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let found = open.find(|entry| {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        target.starts_with(directory) && target.to_string_lossy().ends_with("(deleted)")
    })?;
    found.file_name().to_str()?.parse().ok()
}

/// A process whose files are in a directory of their own, with filled blocks in two pools of a tag, another one, and the main
/// memory.
fn world() -> (World, tempfile::TempDir, PathBuf, Vec<Filled>) {
    let outer = tempfile::tempdir().unwrap();
    let directory = outer.path().join("backups");
    let world = World::new(&format!("backups:{},host:24MiB", directory.display()));
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(CACHE, PoolKind::Graph, "graphs");
    let pools = [Some(WEIGHTS), Some(MORE_WEIGHTS), Some(CACHE), None];
    let blocks = (5..).zip(pools).map(|(mib, pool)| world.filled(pool, mib, mib)).collect();
    (world, outer, directory, blocks)
}

/// Whether the bytes are in files of the directory, which are gone once they are not needed.
#[test]
fn all_pools_sleep_in_the_directory_of_the_configuration() {
    let (world, _outer, directory, blocks) = world();
    let device = world.device();
    let slept = device.sleep(None, Backup::File).unwrap();
    assert!(slept.copied_bytes >= 26 * MIB && world.reserved() == 0, "{slept:?}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    assert!(unnamed(&directory).is_some());
    let refused = device.backup_at(blocks[0].addr, 1, |_| ()).unwrap_err();
    assert!(matches!(refused, Error::Backup(BackupError::InFile { .. })), "{refused}");
    device.wake(None, NOW).unwrap();
    world.expect(&blocks);
    world.check();
    assert_eq!(unnamed(&directory), None);
    assert_eq!(device.allocator().host_budget().taken(), 0);
}

/// A wake that is undone for lack of memory keeps the kind of the backups.
#[test]
fn an_undone_wake_writes_files_again() {
    let (world, _outer, directory, blocks) = world();
    let device = world.device();
    for backup in [Backup::File, Backup::Pageable] {
        device.sleep(Some("weights"), backup).unwrap();
        world.driver.inner().inner().set_external(super::CAPACITY - 26 * MIB);
        assert!(is_short(&device.wake(Some("weights"), NOW)));
        assert_eq!((world.asleep(), unnamed(&directory).is_some()), (12, backup == Backup::File));
        let in_memory = if backup == Backup::File { 0 } else { 11 * MIB };
        assert_eq!(device.allocator().host_budget().taken(), in_memory);
        world.driver.inner().inner().set_external(0);
        device.wake(Some("weights"), NOW).unwrap();
        world.expect(&blocks);
        world.check();
    }
}

/// A file system that is full although it had the room, from some driver call of the copies on: everything is awake, unless all was
/// written by then.
#[test]
fn a_write_that_fails_leaves_everything_awake() {
    let outer = tempfile::tempdir().unwrap();
    let directory = outer.path().join("backups");
    let world = World::new(&format!("backups:{}", directory.display()));
    let device = world.device();
    let blocks = [world.filled(None, 9, 1), world.filled(None, 3, 2)];
    for failures in 0.. {
        let (broken, at) = (Arc::new(Mutex::new(None)), directory.clone());
        let (kept, mut calls) = (Arc::clone(&broken), 0);
        let fill_up = move |call| {
            calls += u64::from(calls > 0 || call == DriverCall::CopyOut);
            if calls > failures && kept.lock().unwrap().is_none() {
                let full = File::options().write(true).open("/dev/full").unwrap();
                *kept.lock().unwrap() = Broken::new(&at, &full);
            }
        };
        let before = world.reserved();
        let outcome = world.meanwhile(fill_up, || device.sleep(None, Backup::File));
        let broken = broken.lock().unwrap().take();
        let Err(refused) = outcome else {
            broken.into_iter().for_each(Broken::mend);
            assert!(failures >= 4, "{failures}");
            break;
        };
        // With what the file was before.
        drop(broken);
        let is_full = matches!(&refused, Error::Sleep(SleepError::BackupFile(BackupFileError::NoSpace { .. })));
        assert!(is_full, "{refused}");
        assert_eq!((world.asleep(), world.reserved(), unnamed(&directory)), (0, before, None));
        assert_eq!(device.allocator().host_budget().taken(), 0);
        world.expect(&blocks);
        world.check();
    }
    device.wake(None, NOW).unwrap();
    world.expect(&blocks);
    world.check();
}

/// A file that cannot be read leaves everything asleep, and the wake works once it can.
#[test]
fn a_read_that_fails_leaves_everything_asleep() {
    let (world, _outer, directory, blocks) = world();
    let device = world.device();
    device.sleep(None, Backup::File).unwrap();
    let asleep = world.asleep();
    let broken = Broken::new(&directory, &tempfile::tempfile().unwrap()).unwrap();
    let refused = device.wake(None, NOW).unwrap_err();
    let is_unread =
        matches!(&refused, Error::Sleep(SleepError::BackupFile(BackupFileError::Io { action: "read", .. })));
    assert!(is_unread, "{refused}");
    world.check();
    assert_eq!((world.asleep(), world.reserved()), (asleep, 0));
    broken.mend();
    device.wake(None, NOW).unwrap();
    world.expect(&blocks);
    world.check();
    assert_eq!(unnamed(&directory), None);
}
