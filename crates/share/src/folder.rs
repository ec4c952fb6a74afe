//! The folder of the sockets: of the user, and nobody else's to look into.

use crate::error::ShareError;
use crate::peer::stands_for_all;
use rustix::fs::{FileType, Mode, lstat, mkdir};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::env;
use std::path::PathBuf;

/// The environment variable that names the folder. Default: `/tmp/gapless-UID`.
pub const FOLDER: &str = "GAPLESS_SHARE_DIR";

/// The folder, made now if there is none.
pub fn folder() -> Result<PathBuf, ShareError> {
    let path = match env::var_os(FOLDER).filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(format!("/tmp/gapless-{}", geteuid().as_raw())),
    };
    let wrong = |what: String| ShareError::Folder { path: path.clone(), what };
    match mkdir(&path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(wrong(format!("cannot be made: {error}"))),
    }
    // Not `stat`: somebody else could have put a link there.
    let found = lstat(&path).map_err(|error| wrong(format!("cannot be looked at: {error}")))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Err(wrong("is no folder".to_owned()));
    }
    if found.st_uid != geteuid().as_raw() {
        return Err(wrong(format!("is of user {}", found.st_uid)));
    }
    if stands_for_all(found.st_uid) {
        return Err(wrong(
            "cannot be told from that of a stranger: this user is the one that stands for all others here".to_owned(),
        ));
    }
    let mode = found.st_mode & 0o777;
    if mode & 0o077 != 0 {
        return Err(wrong(format!("is open to other users (mode {mode:o}; 700 is needed)")));
    }
    Ok(path)
}
