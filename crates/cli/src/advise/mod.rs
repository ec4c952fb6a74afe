//! `gapless advise`: what to do about a program that ran out of memory.

mod setting;
mod text;

use super::page::{self, Contents, Destination};
use super::{Failure, Outcome, printable, progress};
use clap::Args;
use gapless::ByteSize;
use gapless_trace::advice::{Advice, AdviceOptions, Gpu, Setting, advise};
use gapless_trace::timeline::Subject;
use gapless_trace::{Device, Extent, PolicyError, ReadError, ReadErrorKind, ReplayError, Trace};
use setting::SettingArgument;
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};

/// Arguments of `gapless advise`.
#[derive(Debug, Args)]
pub(super) struct AdviseArguments {
    /// Recordings, plain or gzip: traces, PyTorch memory snapshots (_dump_snapshot), RMM logs; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print one JSON object per file, each on a line of its own
    #[arg(long)]
    json: bool,

    /// Also write a page to look at: memory over time, the address space, the table. One file, which needs no network. - for
    /// standard output, in place of the text
    #[arg(long, value_name = "OUT.html")]
    html: Option<Destination>,

    /// Memory that the allocator may hold on the device, such as 23GiB on a card of 24 GB [default: the recorded size, else
    /// 1.05 x the peak of live bytes, and at least what was held]
    #[arg(long, value_name = "SIZE", conflicts_with = "gpu")]
    device: Option<ByteSize>,

    /// Take the memory of this GPU, less a CUDA context: "RTX 4090", or as drivers print it, such as "A100-SXM4-80GB"
    #[arg(long, value_name = "NAME")]
    gpu: Option<Gpu>,

    /// Replay just this policy, which may be given more than once: native, settings as in PYTORCH_CUDA_ALLOC_CONF such as
    /// expandable_segments:True, or gapless, with settings as in GAPLESS_CONF: gapless,slack:1.2,chunk:2MiB
    #[arg(long = "setting", value_name = "SETTING")]
    settings: Vec<SettingArgument>,

    /// Of a snapshot with several devices, this one, counted from 0 [default: the one that ran out of memory]
    #[arg(long, value_name = "N")]
    snapshot_device: Option<usize>,
}

/// Advises on every file. A bad file is reported and does not stop the others.
pub(super) fn run(arguments: &AdviseArguments) -> Result<Outcome, Failure> {
    if arguments.device == Some(ByteSize(0)) {
        return Err(Failure::BadArguments("--device 0 leaves no memory: give a size such as 24GiB".into()));
    }
    if arguments.html.is_some() && arguments.files.len() > 1 {
        return Err(Failure::BadArguments("--html writes the page of one FILE: give one at a time".into()));
    }
    if arguments.json && arguments.html == Some(Destination::Stdout) {
        return Err(Failure::BadArguments("--json and --html - both write to standard output: name a file".into()));
    }
    for note in arguments.settings.iter().flat_map(|argument| &argument.notes) {
        eprintln!("note: {}", printable(note));
    }
    let mut outcome = Outcome::Success;
    for path in &arguments.files {
        let name = printable(&path.to_string_lossy());
        match one(arguments, path, &name) {
            Ok((advice, page)) => {
                if arguments.html != Some(Destination::Stdout) {
                    print(arguments, &advice)?;
                }
                if let (Some(out), Some(page)) = (&arguments.html, page) {
                    out.write(&page)?;
                }
                if advice.policies.is_empty() {
                    outcome = Outcome::BadInput;
                } else if advice.survivors().is_empty() && outcome == Outcome::Success {
                    outcome = Outcome::OutOfMemory;
                }
            }
            Err(Stop::BadFile(message)) => {
                eprintln!("error: {name}: {message}");
                outcome = Outcome::BadInput;
            }
            Err(Stop::Failed(failure)) => return Err(failure),
        }
    }
    Ok(outcome)
}

/// Why there is no advice on a file.
enum Stop {
    BadFile(String),
    Failed(Failure),
}

/// Returns the advice on a file, and its page if one is wanted.
fn one(arguments: &AdviseArguments, path: &Path, name: &str) -> Result<(Advice, Option<String>), Stop> {
    let bad = |error: &dyn std::fmt::Display| Stop::BadFile(error.to_string());
    let trace = open(path, name, arguments.snapshot_device).map_err(|error| bad(&error))?;
    if trace.ops().is_empty() {
        return Err(bad(&"holds no ops: give a trace with 'a' and 'f' lines"));
    }
    if let Some(warning) = trace.warning() {
        eprintln!("warning: {name}: {warning}");
    }
    let device = match (arguments.device, arguments.gpu) {
        (Some(ByteSize(bytes)), _) => Device::of(bytes),
        (None, Some(gpu)) => Device::of(gpu.usable_bytes()),
        (None, None) => Device::for_trace(&trace).map_err(|error| bad(&error))?,
    };
    let largest = device.capacity_bytes.max(trace.peak_live_bytes());
    if largest > Device::MOST_BYTES {
        let (largest, most) = (ByteSize(largest), ByteSize(Device::MOST_BYTES));
        return Err(bad(&format!("no device has {largest}: the most that is replayed is {most}")));
    }
    let settings = if arguments.settings.is_empty() {
        Setting::usual(&trace)
    } else {
        arguments.settings.iter().map(|argument| argument.on(&device)).collect()
    };
    let threads = std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN).min(MOST_THREADS);
    let stop = |error| match error {
        // The device is smaller than a page, or the trace has too many streams for an allocator.
        ReplayError::Settings(_) | ReplayError::Policy { error: PolicyError::Limit(_), .. } => bad(&error),
        error => Stop::Failed(Failure::Internal(format!("{name}: {error}"))),
    };
    let mut options = AdviceOptions { device, settings, threads, progress: None };
    let bar = progress::of_steps(options.expected_replays(), name.to_owned());
    let step = || bar.inc(1);
    options.progress = Some(&step);
    let advice = advise(&trace, &options).map_err(stop);
    bar.finish_and_clear();
    let advice = advice?;
    if let Some(note) = note(&advice) {
        eprintln!("note: {name}: {note}");
    }
    let page = if arguments.html.is_some() { Some(render(&trace, &device, &advice).map_err(stop)?) } else { None };
    Ok((advice, page))
}

/// The page of the policies that have a verdict.
fn render(trace: &Trace, device: &Device, advice: &Advice) -> Result<String, ReplayError> {
    let replayed = advice.policies.iter().filter(|policy| policy.not_replayed.is_none());
    let subjects: Vec<Subject> = replayed.map(|policy| Subject::from(policy.subject)).collect();
    page::render(&Contents {
        title: "what to do about its memory",
        trace,
        device,
        advice,
        policies: &advice.policies,
        gives_advice: true,
        subjects: &subjects,
    })
}

fn open(path: &Path, name: &str, device: Option<usize>) -> Result<Trace, ReadError> {
    if path.as_os_str() == "-" {
        return Trace::read_device("stdin", io::stdin().lock(), device);
    }
    let file = File::open(path).map_err(|error| ReadError { line: 0, kind: ReadErrorKind::Io(error) })?;
    let bar = progress::of_bytes(file.metadata().map_or(0, |data| data.len()), name.to_owned());
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

fn print(arguments: &AdviseArguments, advice: &Advice) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if arguments.json {
        let line = serde_json::to_string(advice).map_err(io::Error::from)?;
        writeln!(out, "{line}")
    } else {
        text::write(&mut out, advice)
    }
}

/// Most threads: each has the whole state of a replay in memory.
const MOST_THREADS: NonZero<usize> = NonZero::new(8).expect("not zero");

/// Shown below the list of options.
pub(super) const AFTER_HELP: &str = "\
Exit code: 0 if a policy survives, 3 if none does, 2 for bad arguments, bad input, or input that allows no verdict, 1 for other
failures.

Example: gapless advise traces/oom/oom_01.trace.gz";
