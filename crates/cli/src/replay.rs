//! `gapless replay`: replays recorded allocations and compares the policies.

use super::destination::Destination;
use super::table;
use super::{Failure, Outcome, gpu, progress};
use clap::{Args, ValueEnum};
use gapless::driver::cuda::{CudaDriver, OpenError};
use gapless::driver::{CostTable, DriverError, WorkDriver};
use gapless::{ByteSize, ChunkPolicy, StreamId};
use gapless_report::page::{self, Contents};
use gapless_report::printable;
use gapless_trace::advice::{AdviceOptions, PolicyOutcome, Setting, advise};
use gapless_trace::caching::CachingSettings;
use gapless_trace::timeline::Subject;
use gapless_trace::{
    Ballast, BallastError, Device, GaplessSettings, PolicyError, PolicyKind, ReadErrorKind, ReplayError, ReplayOptions,
    ReplayResult, Search, Touch, Trace, replay,
};
use indicatif::ProgressBar;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Arguments of `gapless replay`.
#[derive(Debug, Args)]
pub(super) struct ReplayArguments {
    /// Recordings to replay, plain or gzip: traces, PyTorch memory snapshots (_dump_snapshot), RMM logs; - for standard input
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// Where to replay: on a simulated device (model), in memory of this machine with the content of every block
    /// checked (host), or on a GPU (cuda)
    #[arg(long, value_enum, default_value_t = DriverKind::Model)]
    driver: DriverKind,

    /// With --driver cuda: the GPU, counted from 0
    #[arg(long, default_value_t = 0, value_name = "N")]
    device: u32,

    /// With --driver cuda: use this driver library instead of the installed one
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// With --driver cuda: write every block when it is allocated and check it before it is freed, the whole block or
    /// only its edges
    #[arg(long, value_enum, value_name = "whole|edges", num_args = 0..=1, default_missing_value = "whole")]
    verify: Option<VerifyArgument>,

    /// Memory of the device, such as 24GiB [default: the size in the trace's header, else 1.05 x its peak of live
    /// bytes]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteSize>,

    /// Multiply all sizes in the trace by this, and those in its header too: the same program on a larger or smaller device.
    /// A --capacity is taken as it is
    #[arg(long, value_name = "FACTOR", value_parser = scale)]
    scale: Option<f64>,

    /// Allocators to replay through
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values_t = [PolicyKind::Gapless, PolicyKind::Caching])]
    policy: Vec<PolicyKind>,

    /// How much memory gapless may hold, as a multiple of the peak of live bytes, before it moves free pages instead of
    /// creating new ones
    #[arg(long, value_name = "FACTOR", value_parser = slack)]
    slack: Option<f64>,

    /// Size of gapless's physical chunks: auto, or a fixed size such as 2MiB
    #[arg(long, value_name = "auto|SIZE", default_value = "auto")]
    chunk: ChunkArgument,

    /// With --json: also find the smallest device on which the replay survives (the table always includes it)
    #[arg(long)]
    search_capacity: bool,

    /// Put all memory to sleep at the end of each step, with a backup on the host, and wake it again
    #[arg(long)]
    sleep_between_steps: bool,

    /// Ops after which work queued on a stream of the simulated device completes
    #[arg(long, value_name = "OPS", default_value_t = 0)]
    lag: u64,

    /// Costs of driver calls that the modelled driver time follows: the literature's, or those measured on an H100
    #[arg(long, value_enum, default_value_t = CostsArgument::Literature)]
    costs: CostsArgument,

    /// Also write a page to look at, of the same policies on a simulated device: memory over time, the address space. One
    /// file, which needs no network. - for standard output, in place of the text
    #[arg(long, value_name = "OUT.html")]
    html: Option<Destination>,

    /// Print one JSON object per trace and policy, each on a line of its own
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DriverKind {
    Model,
    Host,
    Cuda,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum VerifyArgument {
    Whole,
    Edges,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CostsArgument {
    Literature,
    H100,
}

impl CostsArgument {
    fn table(self) -> CostTable {
        match self {
            Self::Literature => CostTable::default(),
            Self::H100 => CostTable::h100(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct ChunkArgument(ChunkPolicy);

impl FromStr for ChunkArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(Self(ChunkPolicy::Auto));
        }
        match text.parse() {
            Ok(ByteSize(0)) => Err("a chunk has at least one page: use auto, or a size such as 2MiB".into()),
            Ok(ByteSize(bytes)) => Ok(Self(ChunkPolicy::Fixed(bytes))),
            Err(error) => Err(format!("{error}, or auto")),
        }
    }
}

fn slack(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(slack) if slack >= 1.0 => Ok(slack),
        _ => Err("give a factor of at least 1, such as 1.10, or inf".into()),
    }
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale) if f64::is_finite(scale) && scale > 0.0 => Ok(scale),
        _ => Err("give a factor above 0, such as 2.5".into()),
    }
}

/// Replays every trace. A bad file is reported and does not stop the others.
pub(super) fn run(arguments: &ReplayArguments) -> Result<Outcome, Failure> {
    let mut policies = Vec::new();
    for &policy in &arguments.policy {
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    if arguments.capacity == Some(ByteSize(0)) {
        return Err(Failure::BadArguments("--capacity 0 leaves no memory: give a size such as 24GiB".into()));
    }
    if arguments.html.is_some() && arguments.traces.len() > 1 {
        return Err(Failure::BadArguments("--html writes the page of one TRACE: give one at a time".into()));
    }
    if arguments.json && arguments.html == Some(Destination::Stdout) {
        return Err(Failure::BadArguments("--json and --html - both write to standard output: name a file".into()));
    }
    let mut outcome = Outcome::Success;
    for path in &arguments.traces {
        let bad = |text: &dyn std::fmt::Display| {
            eprintln!("error: {}: {text}", printable(&path.to_string_lossy()));
            Outcome::BadInput
        };
        let opened = if path.as_os_str() == "-" { Trace::read("stdin", io::stdin()) } else { Trace::open(path) };
        let trace = match opened {
            Ok(trace) if trace.ops().is_empty() => {
                outcome = bad(&"holds no ops: give a trace with 'a' and 'f' lines");
                continue;
            }
            Ok(trace) => trace,
            Err(error) => {
                outcome = bad(&error);
                continue;
            }
        };
        if let Some(warning) = trace.warning() {
            eprintln!("warning: {}: {warning}", printable(&path.to_string_lossy()));
        }
        let trace = match scaled(trace, arguments.scale) {
            Ok(trace) if arguments.sleep_between_steps => trace.asleep_between_steps(),
            Ok(trace) => trace,
            Err(error) => {
                outcome = bad(&error);
                continue;
            }
        };
        let device = match arguments.capacity {
            Some(ByteSize(bytes)) => Device::of(bytes),
            None => match Device::for_trace(&trace) {
                Ok(device) => device,
                Err(error) => {
                    outcome = bad(&format_args!("{error} (--capacity)"));
                    continue;
                }
            },
        };
        let place = match arguments.driver {
            DriverKind::Model => Place::Model,
            DriverKind::Host => Place::Host,
            DriverKind::Cuda => match Gpu::open(arguments, device.capacity_bytes) {
                Ok(gpu) => Place::Gpu(gpu),
                Err(error @ GpuError::Open(_)) => {
                    eprintln!("error: {error}");
                    return Ok(Outcome::NoDevice);
                }
                Err(error) => {
                    outcome = bad(&error);
                    continue;
                }
            },
        };
        let job = Job { arguments, trace: &trace, device: Device { lag_ops: arguments.lag, ..device }, place };
        let results = job.replay_all(&policies)?;
        if let Some(out) = &arguments.html {
            out.write(&job.page(&results)?)?;
        }
        // Several policies are compared, and the comparison was carried out.
        if let [result] = &results[..]
            && result.oom.is_some()
            && outcome == Outcome::Success
        {
            outcome = Outcome::OutOfMemory;
        }
    }
    Ok(outcome)
}

fn scaled(trace: Trace, factor: Option<f64>) -> Result<Trace, ReadErrorKind> {
    match factor {
        Some(factor) => trace.scaled(factor),
        None => Ok(trace),
    }
}

/// One trace to be replayed on one device.
struct Job<'a> {
    arguments: &'a ReplayArguments,
    trace: &'a Trace,
    device: Device,
    place: Place,
}

/// Where a job is replayed.
enum Place {
    Model,
    Host,
    Gpu(Gpu),
}

/// A GPU on which as much memory is free as the trace's device has.
struct Gpu {
    driver: Arc<CudaDriver>,
    _ballast: Ballast,
}

/// Why there is no such GPU.
#[derive(Debug, thiserror::Error)]
enum GpuError {
    #[error("{0}\nRun gapless doctor for details")]
    Open(#[from] OpenError),
    #[error("{0}{option}", option = option_for(.0))]
    Ballast(#[from] BallastError),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// The option that helps, for the end of the text.
fn option_for(error: &BallastError) -> &'static str {
    if matches!(error, BallastError::TooSmall { .. }) { " (--capacity)" } else { "" }
}

impl Gpu {
    fn open(arguments: &ReplayArguments, capacity_bytes: u64) -> Result<Self, GpuError> {
        let driver = Arc::new(gpu::open(gpu::builder(arguments.device, arguments.library.as_deref()))?);
        // Loads the kernels now: their memory is not part of the trace's device.
        driver.delay(StreamId::DEFAULT, Duration::from_micros(1))?;
        driver.synchronize(StreamId::DEFAULT)?;
        let ballast = Ballast::leave(&driver, capacity_bytes)?;
        Ok(Self { driver, _ballast: ballast })
    }
}

impl Job<'_> {
    /// Replays the trace through each policy and prints the results.
    fn replay_all(&self, policies: &[PolicyKind]) -> Result<Vec<ReplayResult>, Failure> {
        let search = self.arguments.search_capacity || !self.arguments.json;
        let bar = self.progress_bar(policies.len() as u64, search);
        let mut results = Vec::new();
        for &policy in policies {
            bar.set_message(format!("{} · {policy} · replay", self.name()));
            let mut result = self.replay_one(policy, &bar).map_err(|error| self.failure(policy, &error))?;
            if search {
                bar.set_message(format!("{} · {policy} · smallest device", self.name()));
                result.search = Some(self.search(policy, &bar).map_err(|error| self.failure(policy, &error))?);
            }
            if self.arguments.json {
                let line = serde_json::to_string(&result).map_err(io::Error::from)?;
                writeln!(io::stdout(), "{line}")?;
            }
            if let Some(oom) = &result.oom
                && let Some(origin) = self.trace.origin(oom.op_index)
            {
                bar.suspend(|| eprintln!("note: {policy} ran out of memory in {}", printable(origin)));
            }
            results.push(result);
        }
        bar.finish_and_clear();
        if !self.arguments.json && self.arguments.html != Some(Destination::Stdout) {
            table::write(&mut io::stdout().lock(), &results)?;
        }
        Ok(results)
    }

    /// The page of the policies. What it says beside them, such as the largest holders, is of the native policy.
    fn page(&self, results: &[ReplayResult]) -> Result<String, Failure> {
        let (trace, device) = (self.trace, &self.device);
        let setting = |policy: PolicyKind| match policy {
            PolicyKind::Gapless => Setting::Gapless(self.settings()),
            PolicyKind::Caching => Setting::Caching(CachingSettings::default()),
        };
        let outcome = |result: &ReplayResult| PolicyOutcome {
            setting: result.policy.to_string(),
            as_recorded: false,
            not_replayed: None,
            oom_op: result.oom.as_ref().map(|oom| oom.op_index),
            smallest_device_bytes: result.search.and_then(|found| found.min_capacity_bytes),
            driver_calls: result.driver_calls.total(),
            host_waits: result.host_waits,
        };
        let subject =
            |result: &ReplayResult| Subject { name: result.policy.to_string(), ..setting(result.policy).into() };
        let policies: Vec<PolicyOutcome> = results.iter().map(outcome).collect();
        let subjects: Vec<Subject> = results.iter().map(subject).collect();
        let options = AdviceOptions {
            device: self.device,
            settings: Vec::new(),
            threads: NonZero::<usize>::MIN,
            progress: None,
            known: None,
        };
        let page = advise(trace, &options).and_then(|advice| {
            let (policies, subjects, advice) = (&policies, &subjects, &advice);
            let gives_advice = false;
            page::render(&Contents { title: "replay", trace, device, advice, policies, gives_advice, subjects })
        });
        page.map_err(|error| Failure::Internal(format!("the page of {}: {error}", self.name())))
    }

    fn replay_one(&self, policy: PolicyKind, bar: &ProgressBar) -> Result<ReplayResult, ReplayError> {
        let progress = |ops| bar.inc(ops);
        let options = ReplayOptions {
            policy,
            gapless: self.settings(),
            caching: CachingSettings::default(),
            capacity_bytes: self.device.capacity_bytes,
            touch: match self.arguments.driver {
                DriverKind::Model => Touch::for_model(self.device.lag_ops),
                DriverKind::Host => Touch::Edges,
                DriverKind::Cuda => match self.arguments.verify {
                    None => Touch::Nothing,
                    Some(VerifyArgument::Whole) => Touch::Whole,
                    Some(VerifyArgument::Edges) => Touch::Edges,
                },
            },
            progress: Some(&progress),
        };
        match &self.place {
            Place::Model => {
                let model = self.device.model_with_costs(self.arguments.costs.table());
                replay(self.trace, Arc::new(model), &options)
            }
            Place::Host => replay(self.trace, Arc::new(self.device.host()?), &options),
            Place::Gpu(gpu) => replay(self.trace, Arc::clone(&gpu.driver), &options),
        }
    }

    /// Finds the smallest device, always with simulated ones: the result is the same, and real memory is slow.
    fn search(&self, policy: PolicyKind, bar: &ProgressBar) -> Result<gapless_trace::SearchResult, ReplayError> {
        let progress = || bar.inc(self.trace.ops().len() as u64);
        Search {
            trace: self.trace,
            policy,
            gapless: self.settings(),
            caching: CachingSettings::default(),
            lag_ops: self.device.lag_ops,
            threads: std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN).min(MOST_THREADS),
            progress: Some(&progress),
        }
        .run()
    }

    /// The trace's name as a terminal may show it.
    fn name(&self) -> String {
        printable(self.trace.name())
    }

    const fn settings(&self) -> GaplessSettings {
        GaplessSettings { slack: self.arguments.slack, chunk: Some(self.arguments.chunk.0), budget_bytes: None }
    }

    /// Shows the progress over the ops of all replays; hidden unless stderr is a terminal.
    fn progress_bar(&self, policies: u64, search: bool) -> ProgressBar {
        let replays = policies * if search { 1 + Search::EXPECTED_REPLAYS } else { 1 };
        progress::of_steps((self.trace.ops().len() as u64).saturating_mul(replays), String::new())
    }

    fn failure(&self, policy: PolicyKind, error: &ReplayError) -> Failure {
        let text = format!("{} through {policy}: {error}", self.name());
        match error {
            ReplayError::Settings(_) | ReplayError::Policy { cause: PolicyError::Limit(_), .. } => {
                Failure::BadArguments(text)
            }
            ReplayError::Driver(_) | ReplayError::Policy { cause: PolicyError::Driver(_), .. } => {
                let hint = match self.arguments.driver {
                    DriverKind::Model => "",
                    DriverKind::Host => {
                        "; this machine's limits do not allow it: use larger chunks (--chunk 32MiB) or --driver model"
                    }
                    DriverKind::Cuda => "; run gapless doctor to check whether the GPU still works",
                };
                Failure::Driver(format!("{text}{hint}"))
            }
            _ => Failure::Internal(text),
        }
    }
}

/// Most threads of a search: each has the whole state of a replay in memory.
const MOST_THREADS: NonZero<usize> = NonZero::new(8).expect("not zero");

/// Shown below the list of options.
pub(super) const AFTER_HELP: &str = "\
Exit code: 0 if the comparison of several policies was carried out, or the one policy that --policy names survived every trace;
3 if that one ran out of memory; 2 for bad arguments or input; 4 for --driver cuda on a machine without a usable GPU; 1 for other
failures.

Example: gapless replay traces/llama7b_lora_ckpt.trace.gz";
