//! Files with the bytes of what sleeps. None has a name, so that nothing is left of one when the process ends, in whatever way.

use crate::units::ByteSize;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, fallocate, fstat, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Resource, geteuid, getrlimit};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why the bytes of what sleeps cannot be in a file, or not be read back.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupFileError {
    /// No directory was set.
    #[error("no directory for backups in files is set: name one, as GAPLESS_CONF=backups:/scratch/me does")]
    NoDirectory,
    /// The directory cannot be used.
    #[error("backups cannot be in the directory {}: {reason}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The file system, a quota or a limit of the process leaves no room.
    #[error("there is no room for a backup of {} in {}: {cause}", ByteSize(*bytes), directory.display())]
    NoSpace {
        /// The directory.
        directory: PathBuf,
        /// Bytes of the backup.
        bytes: u64,
        /// The system's answer.
        cause: Arc<io::Error>,
    },
    /// The system refused to make, to write or to read a file.
    #[error("a backup in {} could not be {action}: {cause}", directory.display())]
    Io {
        /// The directory.
        directory: PathBuf,
        /// What was refused: `made`, `written` or `read`.
        action: &'static str,
        /// The system's answer.
        cause: Arc<io::Error>,
    },
}

/// A file of one backup.
#[derive(Debug)]
pub struct BackupFile {
    file: File,
    directory: PathBuf,
    bytes: u64,
}

impl BackupFile {
    /// Makes a file of so many bytes in a directory, which is made if there is none. Its room is allocated at once, where the file
    /// system can do so.
    ///
    /// # Errors
    /// [`BackupFileError`]; no file is left.
    pub fn new(directory: &Path, bytes: u64) -> Result<Self, BackupFileError> {
        let at = open_directory(directory)?;
        let failed = |cause| failure(directory, bytes, "made", cause);
        let file = without_name(&at).map_err(failed)?;
        allocate(&file, bytes).map_err(failed)?;
        Ok(Self { file: file.into(), directory: directory.to_owned(), bytes })
    }

    /// Writes bytes to a place.
    ///
    /// # Errors
    /// [`BackupFileError::NoSpace`], [`BackupFileError::Io`].
    pub fn write(&self, place: u64, bytes: &[u8]) -> Result<(), BackupFileError> {
        self.file.write_all_at(bytes, place).map_err(|cause| failure(&self.directory, self.bytes, "written", cause))
    }

    /// Reads bytes that were written.
    ///
    /// # Errors
    /// [`BackupFileError::Io`].
    pub fn read(&self, place: u64, bytes: &mut [u8]) -> Result<(), BackupFileError> {
        self.file.read_exact_at(bytes, place).map_err(|cause| failure(&self.directory, self.bytes, "read", cause))
    }
}

/// The error for an answer of the system.
fn failure(directory: &Path, bytes: u64, action: &'static str, cause: impl Into<io::Error>) -> BackupFileError {
    let (directory, cause) = (directory.to_owned(), Arc::new(cause.into()));
    match Errno::from_io_error(&cause) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => BackupFileError::NoSpace { directory, bytes, cause },
        _ => BackupFileError::Io { directory, action, cause },
    }
}

/// Opens a directory, made for this user alone if there is none. What others could put there or take away is refused.
fn open_directory(path: &Path) -> Result<OwnedFd, BackupFileError> {
    let refused = |reason: String| BackupFileError::Directory { directory: path.to_owned(), reason };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(refused(error.to_string())),
        Ok(()) | Err(_) => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty()).map_err(|error| refused(error.to_string()))?;
    // Of what was opened: what the path leads to may change.
    let found = fstat(&directory).map_err(|error| refused(error.to_string()))?;
    if found.st_uid != geteuid().as_raw() {
        return Err(refused("it belongs to another user".to_owned()));
    }
    if Mode::from_raw_mode(found.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
        return Err(refused("others may write to it".to_owned()));
    }
    Ok(directory)
}

const READ_WRITE: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);
const OURS: Mode = Mode::RUSR.union(Mode::WUSR);

/// Makes a file that has no name.
fn without_name(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    // With EXCL, it can get no name later either.
    match openat(directory, ".", READ_WRITE | OFlags::TMPFILE | OFlags::EXCL, OURS) {
        // What systems say that have no such files.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => named_for_a_moment(directory),
        made => made,
    }
}

/// Makes a file, where there is none of its name and no link, and takes its name away.
fn named_for_a_moment(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    for number in 0.. {
        let name = format!(".gapless-{}-{number}", std::process::id());
        match openat(directory, &*name, READ_WRITE | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, OURS) {
            Err(Errno::EXIST) if number < MOST_NAMES => {}
            made => {
                let made = made?;
                return unlinkat(directory, &*name, AtFlags::empty()).map(|()| made);
            }
        }
    }
    Err(Errno::EXIST)
}

/// Names that are tried: other threads, and processes of other machines, may have some for a moment.
const MOST_NAMES: u32 = 1000;

/// Has the file system allocate the room of a file. Where it cannot do so, writing may run out of it.
fn allocate(file: &OwnedFd, bytes: u64) -> Result<(), Errno> {
    if bytes == 0 {
        return Ok(());
    }
    // A signal would end the process that goes beyond.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| bytes > most) {
        return Err(Errno::FBIG);
    }
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            allocated => return allocated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn is_empty(directory: &Path) -> bool {
        fs::read_dir(directory).unwrap().next().is_none()
    }

    #[test]
    fn a_file_keeps_bytes_and_has_no_name() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("backups");
        let file = BackupFile::new(&directory, 1000).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        file.write(300, &[3; 700]).unwrap();
        file.write(0, &[1; 300]).unwrap();
        let mut read = [0; 500];
        file.read(200, &mut read).unwrap();
        assert_eq!(read[..], [[1; 100].as_slice(), &[3; 400]].concat());
        assert!(is_empty(&directory));
        let found = file.file.metadata().unwrap();
        assert_eq!((found.permissions().mode() & 0o777, found.len()), (0o600, 1000));
        assert!(matches!(file.read(900, &mut read), Err(BackupFileError::Io { action: "read", .. })), "too far");
    }

    #[test]
    fn without_such_files_the_name_is_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let at = open_directory(directory.path()).unwrap();
        let beside = directory.path().join("beside");
        let name = |number: u32| directory.path().join(format!(".gapless-{}-{number}", std::process::id()));
        symlink(&beside, name(0)).unwrap();
        fs::write(name(1), "of another").unwrap();
        let file = File::from(named_for_a_moment(&at).unwrap());
        file.write_all_at(b"bytes", 0).unwrap();
        assert_eq!((beside.exists(), fs::read(name(1)).unwrap()), (false, b"of another".to_vec()));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn directories_of_others_are_refused() {
        let outer = tempfile::tempdir().unwrap();
        let refused = |directory: &Path, words: &str| {
            let error = BackupFile::new(directory, 1000).unwrap_err();
            assert!(matches!(error, BackupFileError::Directory { .. }) && error.to_string().contains(words), "{error}");
        };
        let [open, group, file] = ["open", "group", "file"].map(|name| outer.path().join(name));
        for (directory, mode) in [(&open, 0o777), (&group, 0o770)] {
            fs::create_dir(directory).unwrap();
            fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
            refused(directory, "others may write to it");
            assert!(is_empty(directory));
        }
        fs::write(&file, "").unwrap();
        refused(&file, "Not a directory");
        refused(&outer.path().join("none/such"), "No such file");
        if geteuid().as_raw() == 0 {
            let other = outer.path().join("other");
            fs::create_dir(&other).unwrap();
            std::os::unix::fs::chown(&other, Some(1), Some(1)).unwrap();
            refused(&other, "it belongs to another user");
        }
    }

    /// More than any file system has is refused at once.
    #[test]
    fn room_is_allocated_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let error = BackupFile::new(directory.path(), 1 << 62).unwrap_err();
        assert!(matches!(error, BackupFileError::NoSpace { bytes, .. } if bytes == 1 << 62), "{error}");
        let file = BackupFile::new(directory.path(), 1 << 20).unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&file.file.metadata().unwrap());
        assert!(blocks * 512 >= 1 << 20, "{blocks} blocks");
    }

    #[test]
    fn a_full_file_system_is_named() {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = BackupFile { file: full, directory: "/some/where".into(), bytes: 1000 };
        let error = file.write(0, &[1; 10]).unwrap_err();
        assert!(matches!(error, BackupFileError::NoSpace { .. }), "{error}");
        assert!(error.to_string().contains("no room for a backup of 1000 B in /some/where"), "{error}");
    }
}
