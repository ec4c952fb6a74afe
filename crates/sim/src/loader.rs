//! What the dynamic loader does not find for a program, asked of the loader itself, which runs nothing of the program.

use crate::environment::Environment;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Whether a program is linked with a CUDA runtime that is nowhere. `false` for what has no loader, such as a script.
pub fn misses_runtime(program: &OsStr, environment: &Environment) -> bool {
    let Some(path) = find(program) else { return false };
    let Some(loader) = fs::read(&path).ok().and_then(|file| interpreter(&file)) else { return false };
    // Others than glibc's would run the program.
    if !loader.to_string_lossy().contains("/ld-linux") {
        return false;
    }
    let listed = environment.command(&[loader, path.into()]).env("LD_TRACE_LOADED_OBJECTS", "1").output();
    listed.is_ok_and(|listed| {
        let text = String::from_utf8_lossy(&listed.stdout);
        text.lines().any(|line| line.trim_start().starts_with("libcudart.so") && line.ends_with("not found"))
    })
}

/// The file of a program, which is looked for as a command is.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.to_string_lossy().contains('/') {
        return Some(program.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| Path::is_file(file))
}

/// The loader that an ELF file of 64 bits names in its header of type 3.
fn interpreter(file: &[u8]) -> Option<OsString> {
    const HEADERS: usize = 0x20;
    const SIZE_OF_HEADER: usize = 0x36;
    const NUMBER_OF_HEADERS: usize = 0x38;
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let bytes = file.get(at..at.checked_add(bytes)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (first, size) = (number(HEADERS, 8)?, number(SIZE_OF_HEADER, 2)?);
    let header = (0..number(NUMBER_OF_HEADERS, 2)?)
        .filter_map(|index| first.checked_add(index * size))
        .find(|header| number(*header, 4) == Some(3))?;
    let (offset, length) = (number(header.checked_add(8)?, 8)?, number(header.checked_add(32)?, 8)?);
    let name = file.get(offset..offset.checked_add(length)?)?;
    Some(OsString::from_vec(name.strip_suffix(b"\0")?.to_owned()))
}
