//! What is said beside an out-of-memory error, for programs that do not run the command line.

use crate::abi::{json_options, text};
use crate::last_error::guard;
use crate::out::write_json;
use crate::status::{Answer, Failure, GAPLESS_ERROR_INTERNAL, gapless_status};
use gapless_report::result::{FileResult, Found};
use gapless_report::{device_for, page, summary, write};
use gapless_trace::advice::{AdviceOptions, Setting, advise};
use gapless_trace::{PolicyError, ReplayError, Trace};
use serde::{Deserialize, Serialize};
use std::ffi::c_char;
use std::num::NonZero;
use std::path::{Path, PathBuf};

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Options {
    snapshot_device: Option<usize>,
    threads: Option<NonZero<usize>>,
    json: Option<PathBuf>,
    html: Option<PathBuf>,
}

/// What is written into the caller's buffer.
#[derive(Serialize)]
struct Explanation {
    lines: Vec<String>,
    /// Why files could not be written.
    problems: Vec<String>,
}

/// Advises on a recording as gapless advise does, and writes a JSON object into buffer, as gapless_stats_json does: lines has a
/// summary in at most ten lines, problems says which files could not be written. The object has less than 64 KiB.
///
/// options is NULL or a JSON object with any of json (where to write the line of gapless advise --json), html (where to write its
/// page), snapshot_device (of a snapshot with several devices, the one that is meant) and threads (how many replay at the same
/// time; by default one). A file is written whole or not at all.
///
/// # Safety
/// path is a NUL-terminated string, options is one or NULL; the rest is as in gapless_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_explain_json(
    path: *const c_char,
    options: *const c_char,
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let path = unsafe { text(path, "path") }?;
        // SAFETY: the function's contract.
        let options: Options = unsafe { json_options(options) }?;
        let explanation = explain(Path::new(&path), &options)?;
        // SAFETY: the same contract.
        unsafe { write_json(&explanation, buffer, capacity, needed) }
    })
}

fn explain(path: &Path, options: &Options) -> Answer<Explanation> {
    let bad = |error: &dyn std::fmt::Display| Failure::argument(format!("{}: {error}", path.display()));
    let stop = |error| match error {
        ReplayError::Settings(_) | ReplayError::Policy { cause: PolicyError::Limit(_), .. } => bad(&error),
        error => Failure::new(GAPLESS_ERROR_INTERNAL, format!("{}: {error}", path.display())),
    };
    let trace = Trace::open_device(path, options.snapshot_device).map_err(|error| bad(&error))?;
    let device = device_for(&trace, None).map_err(|error| bad(&error))?;
    let settings = Setting::usual(&trace);
    let threads = options.threads.unwrap_or(NonZero::<usize>::MIN);
    let asked = AdviceOptions { device, settings: settings.clone(), threads, progress: None, known: None };
    let advice = advise(&trace, &asked).map_err(stop)?;
    let mut problems = Vec::new();
    let mut put = |file: &Path, content: &str| {
        if let Err((what, error)) = write::whole(file, content.as_bytes()) {
            problems.push(format!("{}: {what}: {error}", file.display()));
        }
    };
    let lines = summary::lines(&advice);
    if let Some(file) = &options.html {
        put(file, &page::of_advice(&trace, &device, &advice, &settings).map_err(stop)?);
    }
    if let Some(file) = &options.json {
        let line = serde_json::to_string(&FileResult::new(path, Found::Advice(Box::new(advice))))?;
        put(file, &(line + "\n"));
    }
    Ok(Explanation { lines, problems })
}
