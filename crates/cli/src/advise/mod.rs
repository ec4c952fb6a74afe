//! `gapless advise`: what to do about a program that ran out of memory.

mod against;
mod many;
mod merge;
mod names;
mod ranks;
mod setting;
mod text;
mod tolerance;

use super::destination::Destination;
use super::progress::Bars;
use super::{Failure, Outcome};
use clap::Args;
use gapless::ByteSize;
use gapless_report::result::{FileResult, Found};
use gapless_report::{device_for, page, printable};
use gapless_trace::advice::{Advice, AdviceOptions, Gpu, KnownReplays, Setting, advise};
use gapless_trace::{Device, Extent, PolicyError, ReadError, ReadErrorKind, ReplayError, Trace};
use setting::SettingArgument;
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use tolerance::Tolerance;

/// Arguments of `gapless advise`.
#[derive(Debug, Args)]
pub(super) struct AdviseArguments {
    /// Recordings, plain or gzip: traces, PyTorch memory snapshots (_dump_snapshot), RMM logs; - for standard input. Several
    /// are the ranks of one job: they get a line each, and one verdict
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print one JSON object per file, each on a line of its own, and for several files one more for all of them
    #[arg(long)]
    json: bool,

    /// Take results that --json printed anywhere in place of recordings, and put them together
    #[arg(long, conflicts_with_all = ["device", "gpu", "settings", "snapshot_device"])]
    merge: bool,

    /// Compare FILE with an older recording of the same program, or with what --json printed for that: peak, reserved memory, and
    /// what holds more
    #[arg(long, value_name = "OLD", conflicts_with_all = ["merge", "html", "device", "gpu", "settings"])]
    against: Option<PathBuf>,

    /// By how much the peak may grow from OLD to FILE, in percent [default: 2]
    #[arg(long, value_name = "PERCENT", requires = "against")]
    tolerance: Option<Tolerance>,

    /// Also write a page to look at: memory over time, the address space, the table; for several files the table, with a row to
    /// open for each. One file, which needs no network. - for standard output, in place of the text
    #[arg(long, value_name = "OUT.html")]
    html: Option<Destination>,

    /// Memory that the allocator may hold on the device, such as 23GiB on a card of 24 GB [default: the recorded size, else
    /// 1.05 x the peak of live bytes, and at least what was held]
    #[arg(long, value_name = "SIZE", conflicts_with = "gpu")]
    device: Option<ByteSize>,

    /// Take the memory of this GPU, less a CUDA context: "RTX 4090", or as drivers print it, such as "A100-SXM4-80GB"
    #[arg(long, value_name = "NAME", value_parser = gpu)]
    gpu: Option<Gpu>,

    /// Replay just this policy, which may be given more than once: native, settings as in PYTORCH_CUDA_ALLOC_CONF such as
    /// expandable_segments:True, or gapless, with settings as in GAPLESS_CONF: gapless,slack:1.2,chunk:2MiB
    #[arg(long = "setting", value_name = "SETTING")]
    settings: Vec<SettingArgument>,

    /// Of a snapshot with several devices, this one, counted from 0 [default: the one that ran out of memory]
    #[arg(long, value_name = "N")]
    snapshot_device: Option<usize>,

    /// Of the source files of the program, show names alone: without it, what --html and --json write has their folders, too
    #[arg(long, conflicts_with = "merge")]
    strip_paths: bool,
}

/// Advises on the file, on several together, or on what has changed since another one.
pub(super) fn run(arguments: &AdviseArguments) -> Result<Outcome, Failure> {
    if arguments.device == Some(ByteSize(0)) {
        return Err(Failure::BadArguments("--device 0 leaves no memory: give a size such as 24GiB".into()));
    }
    if arguments.json && arguments.html == Some(Destination::Stdout) {
        return Err(Failure::BadArguments("--json and --html - both write to standard output: name a file".into()));
    }
    many::refuse_repeated(arguments.files.iter().chain(&arguments.against))?;
    for note in arguments.settings.iter().flat_map(|argument| &argument.notes) {
        eprintln!("note: {}", printable(note));
    }
    match (&arguments.against, &*arguments.files) {
        (Some(old), [new]) => {
            let (old, new) = match (to_compare(arguments, old), to_compare(arguments, new)) {
                (Ok(old), Ok(new)) => (old, new),
                (old, new) => {
                    for message in [old.err(), new.err()].into_iter().flatten() {
                        eprintln!("error: {message}");
                    }
                    return Ok(Outcome::BadInput);
                }
            };
            against::show(arguments, &old, &new)
        }
        (Some(_), _) => Err(Failure::BadArguments("--against compares one FILE with an older one: give one".into())),
        (None, [path]) if !arguments.merge => on_one(arguments, path),
        (None, paths) if arguments.merge => ranks::show(arguments, merge::read(paths)),
        (None, paths) => {
            let known = KnownReplays::default();
            let advise = |path: &Path, threads| {
                let work = Work { threads, bars: Bars::Hidden, known: Some(&known) };
                match one(arguments, path, &work) {
                    Ok((_, _, advice)) => Found::Advice(Box::new(advice)),
                    Err(stop) => Found::Error { error: stop.to_string() },
                }
            };
            ranks::show(arguments, many::on_each(paths, threads(), advise))
        }
    }
}

/// Advises on one file in full.
fn on_one(arguments: &AdviseArguments, path: &Path) -> Result<Outcome, Failure> {
    let name = printable(&path.to_string_lossy());
    let (trace, device, advice) = match one(arguments, path, &Work::alone()) {
        Ok(found) => found,
        Err(Stop::BadFile(message)) => {
            eprintln!("error: {name}: {message}");
            if arguments.json {
                print(&FileResult::new(path, Found::Error { error: message }))?;
            }
            return Ok(Outcome::BadInput);
        }
        Err(Stop::Failed(failure)) => return Err(failure),
    };
    if let Some(note) = note(&advice) {
        eprintln!("note: {name}: {note}");
    }
    let page = match arguments.html {
        Some(_) => Some(
            page::of_advice(&trace, &device, &advice, &settings(arguments, &trace, &device))
                .map_err(|error| Failure::Internal(format!("{name}: {error}")))?,
        ),
        None => None,
    };
    let outcome = match &advice {
        advice if advice.policies.is_empty() => Outcome::BadInput,
        advice if advice.survivors().is_empty() => Outcome::OutOfMemory,
        _ => Outcome::Success,
    };
    if arguments.json {
        print(&FileResult::new(path, Found::Advice(Box::new(advice))))?;
    } else if arguments.html != Some(Destination::Stdout) {
        text::write(&mut io::stdout().lock(), &advice)?;
    }
    if let (Some(out), Some(page)) = (&arguments.html, page) {
        out.write(&page)?;
        if trace.has_paths() {
            eprintln!("note: the page has the folders of the program's source files: --strip-paths leaves them out");
        }
    }
    Ok(outcome)
}

/// Returns the result for a recording, or the one that is in a file of `--json`.
fn to_compare(arguments: &AdviseArguments, path: &Path) -> Result<FileResult, String> {
    let name = printable(&path.to_string_lossy());
    if merge::is_json(path) {
        let mut results = merge::of_file(path).map_err(|error| format!("{name}: {error}"))?;
        return match results.pop() {
            Some(result) if results.is_empty() => Ok(result),
            _ => Err(format!("{name}: has results for several files: give one")),
        };
    }
    match one(arguments, path, &Work::alone()) {
        Ok((_, _, advice)) => Ok(FileResult::new(path, Found::Advice(Box::new(advice)))),
        Err(stop) => Err(format!("{name}: {stop}")),
    }
}

/// Why there is no advice on a file.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("{0}")]
    BadFile(String),
    #[error(transparent)]
    Failed(Failure),
}

/// How a file is worked on.
struct Work<'a> {
    /// Number of threads that replay at the same time.
    threads: NonZero<usize>,
    bars: Bars,
    /// The outcomes for other files.
    known: Option<&'a KnownReplays>,
}

impl Work<'_> {
    /// One file alone.
    fn alone() -> Self {
        Self { threads: threads(), bars: Bars::Shown, known: None }
    }
}

/// Returns the advice on a recording, with the recording and the device that it was replayed on.
fn one(arguments: &AdviseArguments, path: &Path, work: &Work<'_>) -> Result<(Trace, Device, Advice), Stop> {
    let name = &printable(&path.to_string_lossy());
    let bad = |error: &dyn std::fmt::Display| Stop::BadFile(error.to_string());
    if path.is_dir() {
        return Err(bad(&"is a folder: name the files in it, such as DIR/*.pickle"));
    }
    let trace = open(path, name, arguments.snapshot_device, work.bars).map_err(|error| bad(&error))?;
    if let Some(warning) = trace.warning() {
        eprintln!("warning: {name}: {warning}");
    }
    let chosen = arguments.device.map(|ByteSize(bytes)| bytes).or_else(|| arguments.gpu.map(|gpu| gpu.usable_bytes()));
    let trace = if arguments.strip_paths { trace.strip_paths() } else { trace };
    let device = device_for(&trace, chosen).map_err(Stop::BadFile)?;
    let settings = settings(arguments, &trace, &device);
    let stop = |error| match error {
        // The device is smaller than a page, or the trace has too many streams for an allocator.
        ReplayError::Settings(_) | ReplayError::Policy { cause: PolicyError::Limit(_), .. } => bad(&error),
        error => Stop::Failed(Failure::Internal(format!("{name}: {error}"))),
    };
    let mut options = AdviceOptions { device, settings, threads: work.threads, progress: None, known: work.known };
    let bar = work.bars.of_steps(options.expected_replays(), name.to_owned());
    let step = || bar.inc(1);
    options.progress = Some(&step);
    let advice = advise(&trace, &options).map_err(stop);
    bar.finish_and_clear();
    let advice = advice?;
    Ok((trace, device, advice))
}

/// The settings that are tried.
fn settings(arguments: &AdviseArguments, trace: &Trace, device: &Device) -> Vec<Setting> {
    match &arguments.settings {
        // What is compared does not depend on a policy.
        _ if arguments.against.is_some() => Vec::new(),
        settings if settings.is_empty() => Setting::usual(trace),
        settings => settings.iter().map(|argument| argument.on(device)).collect(),
    }
}

/// Prints an object on a line of its own.
fn print(object: &impl serde::Serialize) -> io::Result<()> {
    let line = serde_json::to_string(object).map_err(io::Error::from)?;
    writeln!(io::stdout().lock(), "{line}")
}

/// Number of threads that replay at the same time.
fn threads() -> NonZero<usize> {
    std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN).min(MOST_THREADS)
}

fn gpu(name: &str) -> Result<Gpu, String> {
    name.parse().map_err(|error| format!("{error} (--device)"))
}

fn open(path: &Path, name: &str, device: Option<usize>, bars: Bars) -> Result<Trace, ReadError> {
    if path.as_os_str() == "-" {
        return Trace::read_device("stdin", io::stdin(), device);
    }
    let file = File::open(path).map_err(|error| ReadError { line: 0, kind: ReadErrorKind::Io(error) })?;
    let bar = bars.of_bytes(file.metadata().map_or(0, |data| data.len()), name.to_owned());
    let trace = Trace::read_device(&Trace::name_of(path), bar.wrap_read(file), device);
    bar.finish_and_clear();
    trace
}

/// Says what is not known of a run whose history begins in the middle.
fn note(advice: &Advice) -> Option<String> {
    let live = ByteSize(advice.history.live_at_start_bytes);
    match advice.history.extent {
        Extent::Whole => None,
        Extent::LaterPart => Some(format!(
            "the history begins in the middle of the run, when {live} were live and {} were held. Where they lay is not \
             known: no device smaller than what was held is said to be enough for PyTorch's allocator",
            ByteSize(advice.history.held_at_start_bytes.unwrap_or(0)),
        )),
        Extent::Unknown => Some(format!(
            "the history begins in the middle of the run, when at least {live} were live, and the file does not list the \
             others: no verdict. Record from the start of the program"
        )),
    }
}

/// Most threads: each has the whole state of a replay in memory.
const MOST_THREADS: NonZero<usize> = NonZero::new(8).expect("not zero");

/// Shown below the list of options.
pub(super) const AFTER_HELP: &str = "\
Exit code: 0 if a policy survives, 3 if none does, 2 for bad arguments, bad input, or input that allows no verdict, 1 for other
failures. Of several files, one policy has to survive on all, and 2 says that one of them was bad: its row says why. With --against:
0 if the peak did not grow by more than the tolerance, 3 if it did or if FILE alone ran out of memory.

Example: gapless advise traces/oom/oom_01.trace.gz";
