//! The file of a recording. It tells every size that a program allocates, and a folder that everybody writes to may be named.

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file that is empty, that only this user can read if it is new, and that no other recording is written to as long as
/// it is open.
///
/// # Errors
/// The system's, and what else is at the path: a symbolic link, anything but a regular file, a file of another user, or one that a
/// recording is being written to. That stays as it is.
pub fn open(path: &Path) -> io::Result<File> {
    // Without NONBLOCK, a FIFO would wait for somebody who reads.
    let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits().cast_signed());
    let file = options.open(path).map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::LOOP) => refused("a symbolic link is there"),
        Some(Errno::NXIO) => refused(NOT_REGULAR),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(refused(NOT_REGULAR));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(refused("the file there is another user's"));
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(io::Error::new(
                ErrorKind::ResourceBusy,
                "another recording is being written to it; with %p in its name each process has a file of its own",
            ));
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    file.set_len(0)?;
    Ok(file)
}

const NOT_REGULAR: &str = "what is there is no regular file";

fn refused(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::Write;

    fn reason(path: &Path) -> String {
        open(path).unwrap_err().to_string()
    }

    #[test]
    fn a_new_file_is_for_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        open(&path).unwrap().write_all(b"x").unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_is_emptied_once_its_recording_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("again");
        let mut first = open(&path).unwrap();
        first.write_all(b"first").unwrap();
        assert!(reason(&path).contains("%p"));
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        drop(first);
        drop(open(&path).unwrap());
        assert_eq!(path.metadata().unwrap().len(), 0);
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (aim, link) = (folder.path().join("aim"), folder.path().join("link"));
        std::fs::write(&aim, b"kept").unwrap();
        std::os::unix::fs::symlink(&aim, &link).unwrap();
        assert_eq!(reason(&link), "a symbolic link is there");
        assert_eq!(std::fs::read(&aim).unwrap(), b"kept");
    }

    /// Neither without a reader, where opening would wait, nor with one, who would get the recording.
    #[test]
    fn a_fifo_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(reason(&path), NOT_REGULAR);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let _reader = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        assert_eq!(reason(&path), NOT_REGULAR);
    }

    #[test]
    fn a_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open(folder.path()).is_err());
    }
}
