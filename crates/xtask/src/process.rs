//! Starting programs.

use crate::failure::Failure;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Runs a program to its end. Its output goes where ours goes.
pub fn run(command: &mut Command) -> Result<(), Failure> {
    let status = status(command)?;
    if status.success() { Ok(()) } else { Err(failed(command, status)) }
}

/// Runs a program to its end, and returns how that was. Its output goes where ours goes.
pub fn status(command: &mut Command) -> Result<ExitStatus, Failure> {
    command.status().map_err(|error| not_started(command, &error))
}

/// The failure of a program that has ended so.
pub fn failed(command: &Command, status: ExitStatus) -> Failure {
    Failure::new(format!("{}: {status}", shown(command)))
}

/// Runs a program and returns its output on stdout.
pub fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| not_started(command, &error))?;
    if !output.status.success() {
        return Err(failed(command, output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| Failure::new(format!("{}: {error}", shown(command))))
}

/// Whether a program runs and ends well. Nothing of what it writes is seen.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Where a program is that is started by its name, or `None` where there is none.
pub fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Fails unless every program is there. Called before anything is compiled.
pub fn require(programs: &[&str]) -> Result<(), Failure> {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| find(program).is_none()).collect();
    if missing.is_empty() { Ok(()) } else { Err(Failure::new(format!("not on the PATH: {}", missing.join(", ")))) }
}

/// The words of a compiler's command: those of a variable such as `CXX`, which may hold options too, or `default`.
pub fn compiler(variable: &str, default: &str) -> Vec<String> {
    let named = env::var(variable).unwrap_or_default();
    let words: Vec<String> = named.split_whitespace().map(str::to_owned).collect();
    if words.is_empty() { vec![default.to_owned()] } else { words }
}

/// A list of folders as `LD_LIBRARY_PATH` has them: `first`, then those that the variable holds already.
pub fn with_library_path(first: &Path) -> OsString {
    let mut path = first.as_os_str().to_owned();
    if let Some(rest) = env::var_os("LD_LIBRARY_PATH").filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    path
}

/// A list of paths as variables have them.
pub fn joined(paths: &[&Path]) -> OsString {
    paths.iter().map(|path| path.as_os_str()).collect::<Vec<_>>().join(OsStr::new(":"))
}

fn not_started(command: &Command, error: &std::io::Error) -> Failure {
    Failure::new(format!("{} cannot be started: {error}", command.get_program().to_string_lossy()))
}

/// The program and its first arguments: some have a hundred.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_string_lossy);
    let shown: Vec<_> = words.take(MOST_WORDS_SHOWN).collect();
    let rest = if command.get_args().len() < MOST_WORDS_SHOWN { "" } else { " ..." };
    shown.join(" ") + rest
}

const MOST_WORDS_SHOWN: usize = 12;
