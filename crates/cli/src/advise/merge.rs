//! Reads results that `--json` printed, on whatever machine.

use gapless_report::result::{FileResult, Found, NoResult};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Why a file has no results.
#[derive(Debug, thiserror::Error)]
pub(super) enum MergeError {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("is a folder: name the files in it, such as DIR/*.json")]
    Folder,
    #[error("is larger than {} MiB, and results are far smaller", MOST_BYTES >> 20)]
    TooLarge,
    #[error("is empty: the program that wrote it may have been killed")]
    Empty,
    #[error("is no JSON: give a recording without --merge, or first to gapless advise --json")]
    NotJson,
    #[error("ends in the middle of a result: the program that wrote it may have been killed")]
    CutShort,
    #[error(transparent)]
    NoResult(#[from] NoResult),
}

/// Reads the results in all files. A file without results becomes a result that says so.
pub(super) fn read(paths: &[PathBuf]) -> Vec<FileResult> {
    let mut all: Vec<(FileResult, &Path)> = Vec::new();
    for path in paths {
        match of_file(path) {
            Ok(results) => all.extend(results.into_iter().map(|result| (result, path.as_path()))),
            Err(error) => all.push((FileResult::new(path, Found::Error { error: error.to_string() }), path)),
        }
    }
    told_apart(all)
}

/// Gives results for files of the same name, which other machines may have, the names of what they were read from beside theirs.
fn told_apart(all: Vec<(FileResult, &Path)>) -> Vec<FileResult> {
    let mut times: HashMap<String, usize> = HashMap::new();
    for (result, _) in &all {
        *times.entry(result.file.clone()).or_default() += 1;
    }
    let mut seen: HashMap<String, usize> = HashMap::new();
    let own_name = |(mut result, path): (FileResult, &Path)| {
        if times[&result.file] == 1 {
            return result;
        }
        let file = format!("{} ({})", result.file, path.to_string_lossy());
        let before = seen.entry(file.clone()).or_default();
        *before += 1;
        result.file = if *before == 1 { file } else { format!("{file} {before}") };
        result
    };
    all.into_iter().map(own_name).collect()
}

/// Reads the results in a file, of which there is at least one.
pub(super) fn of_file(path: &Path) -> Result<Vec<FileResult>, MergeError> {
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        io::stdin().lock().take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    } else if path.is_dir() {
        return Err(MergeError::Folder);
    } else {
        File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    }
    if bytes.len() as u64 > MOST_BYTES {
        return Err(MergeError::TooLarge);
    }
    of_text(&bytes)
}

/// Returns whether a file begins as JSON does, which no recording that can be read does.
pub(super) fn is_json(path: &Path) -> bool {
    let mut first = [0];
    path.is_file() && File::open(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok() && first == *b"{")
}

fn of_text(bytes: &[u8]) -> Result<Vec<FileResult>, MergeError> {
    let mut results = Vec::new();
    for value in serde_json::Deserializer::from_slice(bytes).into_iter() {
        match value {
            Ok(value) => results.extend(FileResult::from_json(value)?),
            Err(error) if error.is_eof() => return Err(MergeError::CutShort),
            Err(_) => return Err(MergeError::NotJson),
        }
    }
    if results.is_empty() { Err(MergeError::Empty) } else { Ok(results) }
}

/// The most that is read of a file, in bytes.
const MOST_BYTES: u64 = 256 << 20;
