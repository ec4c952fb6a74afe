//! The file of an exporter's socket: how it appears, and which files of others are removed.
//!
//! A name is `BOOT-PROCESS-RANDOM.sock`: what begins with another boot is of another host, or from before a restart. The file
//! appears under that name when the socket already listens, so that one that refuses connections is of a process that has ended.
//! Until then its name ends with `.new`.

use crate::error::ShareError;
use crate::folder::folder;
use crate::handle::{random, socket_path};
use crate::sockets;
use rustix::fd::OwnedFd;
use rustix::fs::lstat;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Digits of the boot, and of the random number.
const BOOT_DIGITS: usize = 12;
const RANDOM_DIGITS: usize = 16;
/// How old a socket is that still has a name of its beginning, and is removed: far older than any that is going to listen.
const ABANDONED: Duration = Duration::from_secs(60);
/// How often a socket is made that somebody removes before it has its name.
const TRIES: usize = 3;

/// A socket in the folder.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// A new file in the folder, with the socket that listens behind it. Those that processes have left are removed before.
    pub fn new() -> Result<(Self, OwnedFd), ShareError> {
        let folder = folder()?;
        let boot = boot();
        if let Some(boot) = &boot {
            remove_stale(&folder, boot);
        }
        let random: String =
            random()?.bytes().iter().map(|byte| format!("{byte:02x}")).take(RANDOM_DIGITS / 2).collect();
        let boot = boot.unwrap_or_else(|| "0".repeat(BOOT_DIGITS));
        let path = socket_path(&folder, &format!("{boot}-{}-{random}.sock", std::process::id()))?;
        let (identity, listener) = appear(&path)?;
        Ok((Self { path, identity }, listener))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is there still, and is this one.
    pub fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|found| found == self.identity)
    }

    /// Makes the file again, with another socket that listens behind it.
    pub fn make_again(&mut self) -> Result<OwnedFd, ShareError> {
        // Makes the folder, too.
        folder()?;
        let (identity, listener) = appear(&self.path)?;
        self.identity = identity;
        Ok(listener)
    }

    /// Removes the file, so that nobody connects any more.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Makes a socket that listens, under a name of its beginning first.
fn appear(path: &Path) -> Result<((u64, u64), OwnedFd), ShareError> {
    let beginning = path.with_extension("new");
    let failed = |cause| ShareError::System { what: "the file of the socket for other processes", cause };
    for _ in 0..TRIES {
        let listener = sockets::listening(&beginning)?;
        let named = identity(&beginning).and_then(|found| std::fs::rename(&beginning, path).map(|()| found));
        match named {
            Ok(found) => return Ok((found, listener)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let _ = std::fs::remove_file(&beginning);
                return Err(failed(error));
            }
        }
    }
    Err(failed(io::ErrorKind::NotFound.into()))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = lstat(path)?;
    Ok((found.st_dev, found.st_ino))
}

/// Names the time since this host was started. `None` where the system does not say.
fn boot() -> Option<String> {
    let found = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = found.chars().filter(char::is_ascii_hexdigit).take(BOOT_DIGITS).collect();
    (digits.len() == BOOT_DIGITS).then_some(digits)
}

/// Removes the sockets of processes of this boot that have ended.
fn remove_stale(folder: &Path, boot: &str) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_stale = match ending(&path, boot) {
            Some(Ending::Listens) => sockets::is_abandoned(&path),
            Some(Ending::Begins) => is_old(&path),
            None => false,
        };
        if is_stale {
            // Another process may have removed it meanwhile.
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// The ending of the name of a socket of this boot.
enum Ending {
    Listens,
    Begins,
}

/// `None` for any other name.
fn ending(path: &Path, boot: &str) -> Option<Ending> {
    let mut parts = path.file_stem()?.to_str()?.split('-');
    let (its_boot, process, random) = (parts.next()?, parts.next()?, parts.next()?);
    let is_own = its_boot == boot
        && process.parse::<u32>().is_ok()
        && random.len() == RANDOM_DIGITS
        && random.bytes().all(|digit| digit.is_ascii_hexdigit())
        && parts.next().is_none();
    match path.extension()?.to_str()? {
        "sock" if is_own => Some(Ending::Listens),
        "new" if is_own => Some(Ending::Begins),
        _ => None,
    }
}

/// Whether a file was made long ago.
fn is_old(path: &Path) -> bool {
    let made = path.symlink_metadata().and_then(|found| found.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > ABANDONED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_boot() {
        let boot = "0123456789ab";
        let is_own = |name: &str| ending(Path::new(name), boot).is_some();
        assert!(is_own("0123456789ab-17-0123456789abcdef.sock") && is_own("0123456789ab-17-0123456789abcdef.new"));
        for other in [
            "1123456789ab-17-0123456789abcdef.sock",
            "1123456789ab-17-0123456789abcdef.new",
            "0123456789ab-x-0123456789abcdef.sock",
            "0123456789ab-17-0123456789abcde.sock",
            "0123456789ab-17-0123456789abcdeg.sock",
            "0123456789ab-17-0123456789abcdef-1.sock",
            "0123456789ab-17-0123456789abcdef.txt",
            "0123456789ab-17-0123456789abcdef",
            "wayland-0.sock",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }

    /// Where the name is taken by what cannot be replaced, nothing is left.
    #[test]
    fn a_name_that_cannot_be_had() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("name.sock");
        std::fs::create_dir(&path).unwrap();
        match appear(&path) {
            Err(ShareError::System { what, .. }) => assert_eq!(what, "the file of the socket for other processes"),
            other => panic!("{other:?}"),
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
