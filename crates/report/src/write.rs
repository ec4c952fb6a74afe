//! Files that are written under a temporary name beside their own and then renamed: what was there stays until they are complete.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file as a whole or not at all.
///
/// # Errors
/// Returns what failed, in words, and the error.
pub fn whole(path: &Path, content: &[u8]) -> Result<(), (&'static str, io::Error)> {
    // A link stays a link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&path).is_ok_and(|data| !data.is_file() && !data.is_dir()) {
        // A device or a pipe.
        let mut file = OpenOptions::new().write(true).open(&path).map_err(|error| ("it cannot be opened", error))?;
        return file.write_all(content).map_err(|error| ("the content cannot be written", error));
    }
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut file = File::create_new(&temporary).map_err(|error| ("no file can be made in its folder", error))?;
    let written = file
        .write_all(content)
        .and_then(|()| file.sync_all())
        .map_err(|error| ("the content cannot be written, and what was there is as it was", error))
        .and_then(|()| fs::rename(&temporary, &path).map_err(|error| ("the finished file cannot be put there", error)));
    if written.is_err() {
        // The error above is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        for content in ["one", "two"] {
            whole(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let link = folder.path().join("link.html");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        whole(&link, b"three").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        whole(Path::new("/dev/null"), b"four").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_folder_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (what, _) = whole(folder.path(), b"page").unwrap_err();
        assert!(what.contains("cannot be put there"), "{what}");
    }
}
