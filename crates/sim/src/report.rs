//! What `--report` writes.

use crate::Failure;
use crate::program::{Ending, Ran};
use gapless_sim_libcuda::broken::Broken;
use gapless_sim_libcuda::held::Held;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

/// The report on a program that was run once.
#[derive(Serialize)]
pub struct Report {
    program: Vec<String>,
    settings: BTreeMap<String, String>,
    ended: Ending,
    seconds: f64,
    /// Null where the program called no function of the driver, or ended without its handlers.
    calls: Option<BTreeMap<String, u64>>,
    held_bytes: Option<u64>,
    /// With `--strict` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    broken: Option<Vec<Broken>>,
    /// With `--leaks` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Vec<Held>>,
}

/// What a program was to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Nothing,
    Broken,
    BrokenAndHeld,
}

impl Report {
    pub fn of(program: &[OsString], settings: BTreeMap<String, String>, ran: &Ran, wanted: Wanted) -> Self {
        Self {
            program: words(program),
            settings,
            ended: ran.ending,
            seconds: ran.time.as_secs_f64(),
            calls: ran.record.as_ref().map(|record| record.calls.clone()),
            held_bytes: ran.record.as_ref().map(|record| record.held_bytes),
            broken: (wanted != Wanted::Nothing).then(|| ran.told.broken.clone()),
            held: (wanted == Wanted::BrokenAndHeld).then(|| ran.told.held.clone()),
        }
    }
}

/// The words of a command as text.
pub fn words(program: &[OsString]) -> Vec<String> {
    program.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Whether a file is to have the rules that were broken alone, as SARIF.
pub fn is_sarif(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "sarif")
}

/// Writes a report as JSON.
pub fn write(file: &Path, report: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report).map_err(io::Error::from)?;
    fs::write(file, text + "\n").map_err(|error| Failure::Bad(format!("{}: {error}", file.display())))
}
