//! Files and folders. Every failure names the path that it is about.

use crate::failure::Failure;
use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub fn create_folder(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|error| about(path, &error))
}

pub fn temporary_folder() -> Result<tempfile::TempDir, Failure> {
    tempfile::tempdir().map_err(|error| about(&env::temp_dir(), &error))
}

/// Copies a file with its permissions.
pub fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to)
        .map(drop)
        .map_err(|error| Failure::new(format!("{} to {}: {error}", from.display(), to.display())))
}

/// Copies those files below a folder that `is_wanted` says, with their folders.
pub fn copy_below(from: &Path, to: &Path, is_wanted: impl Fn(&Path) -> bool) -> Result<(), Failure> {
    for file in below(from)?.iter().filter(|file| is_wanted(file)) {
        let copied = to.join(file.strip_prefix(from).expect("it is below the folder"));
        create_folder(copied.parent().expect("a file is in a folder"))?;
        copy(file, &copied)?;
    }
    Ok(())
}

/// Copies a file and sets its permissions.
pub fn install(from: &Path, to: &Path, mode: u32) -> Result<(), Failure> {
    copy(from, to)?;
    set_permissions(to, mode)
}

pub fn set_permissions(path: &Path, mode: u32) -> Result<(), Failure> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| about(path, &error))
}

/// Makes a symbolic link, in place of one of that name.
pub fn link(target: &str, link: &Path) -> Result<(), Failure> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(about(link, &error)),
        _ => {}
    }
    symlink(target, link).map_err(|error| about(link, &error))
}

pub fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| about(path, &error))
}

/// When a file was written last.
pub fn modified(path: &Path) -> Result<SystemTime, Failure> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).map_err(|error| about(path, &error))
}

pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| about(path, &error))
}

pub fn remove(path: &Path) -> Result<(), Failure> {
    fs::remove_file(path).map_err(|error| about(path, &error))
}

pub fn remove_folder(path: &Path) -> Result<(), Failure> {
    fs::remove_dir_all(path).map_err(|error| about(path, &error))
}

/// Returns the entries of a folder, in the order of their names.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let listed =
        fs::read_dir(folder).and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
    let mut paths: Vec<PathBuf> = listed.map_err(|error| about(folder, &error))?;
    paths.sort();
    Ok(paths)
}

/// The files of a folder whose names end so, in the order of the names.
pub fn with_ending(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = entries(folder)?;
    paths.retain(|path| path.extension().is_some_and(|found| found == ending));
    Ok(paths)
}

/// Every file below a folder.
pub fn below(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in entries(folder)? {
        if path.is_dir() {
            files.extend(below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// The last part of a path, as text.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A path that a person gave, who meant it from where the command was started.
pub fn given(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| about(path, &error))
}

/// A path as short as it can be said from where the command was started.
pub fn shown(path: &Path) -> String {
    let here = env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

fn about(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}
