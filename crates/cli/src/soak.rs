//! `gapless soak`: threads use one allocator for as long as requested while driver calls fail.
//!
//! Every round has a new device and a new allocator, so that closing is tested as well. Any error is a panic; the
//! figures are printed at the end, and when the user ends the run with Ctrl-C.

use super::{Failure, Outcome, gpu, progress};
use clap::{Args, ValueEnum};
use gapless::allocator::Stats;
use gapless::units::ByteSize;
use gapless_report::count::count;
use gapless_testkit::{Cuda, Device, End, Faults, Host, Model, Progress, Stress, World, run_stress};
use indicatif::ProgressBar;
use signal_hook::consts::SIGINT;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Arguments of `gapless soak`.
#[derive(Args, Debug)]
pub(super) struct SoakArguments {
    /// How long to run
    #[arg(long, default_value_t = 1.0, value_parser = minutes)]
    minutes: f64,

    /// Number of threads that use the allocator at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,

    /// Number of streams that they use
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    streams: u16,

    /// Driver that the allocator runs on
    #[arg(long, value_enum, default_value_t = Driver::Host)]
    driver: Driver,

    /// With --driver cuda: the GPU, counted from 0
    #[arg(long, default_value_t = 0, value_name = "N")]
    device: u32,

    /// With --driver cuda: use this driver library instead of the installed one
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Number of pages of the device; few, so that memory runs out often
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(8..=65536))]
    pages: u64,

    /// Let no driver call fail
    #[arg(long)]
    no_faults: bool,

    /// Seed of the random numbers [default: taken from the clock]
    #[arg(long)]
    seed: Option<u64>,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if f64::is_finite(minutes) && (0.0..=MOST_MINUTES).contains(&minutes) => Ok(minutes),
        _ => Err("give a number of minutes, such as 10 or 0.5".into()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Driver {
    /// A simulated device: state only, no bytes.
    Model,
    /// Real memory of this machine, every byte verified.
    Host,
    /// A small part of a GPU, every byte written and verified by kernels.
    Cuda,
}

impl Driver {
    fn page_bytes(self) -> u64 {
        match self {
            Self::Model => Model::PAGE_BYTES,
            Self::Host => Host::PAGE_BYTES,
            Self::Cuda => Cuda::PAGE_BYTES,
        }
    }

    /// Whether its memory has bytes.
    const fn has_bytes(self) -> bool {
        !matches!(self, Self::Model)
    }
}

/// Runs rounds until the time is over and prints the figures.
///
/// # Panics
/// When a check fails: the panic's message is the finding.
pub(super) fn run(arguments: &SoakArguments) -> Result<Outcome, Failure> {
    if arguments.driver == Driver::Cuda {
        let builder = gpu::builder(arguments.device, arguments.library.as_deref());
        if let Err(error) = Cuda::open_device(builder) {
            eprintln!("error: {error}\nRun gapless doctor for details");
            return Ok(Outcome::NoDevice);
        }
    }
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seed = arguments.seed.unwrap_or(clock);
    eprintln!("seed {seed}");
    let length = Duration::from_secs_f64(arguments.minutes * 60.0);
    let end = Instant::now() + length;
    let bar = progress::of_time(length);
    let interrupted = interrupted()?;
    let mut sum = Sum::default();
    for round in 0.. {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || interrupted.load(Ordering::Relaxed) {
            break;
        }
        let world = World {
            pages: arguments.pages,
            page_bytes: arguments.driver.page_bytes(),
            streams: usize::from(arguments.streams),
            chunk_pages: 1 << (round % 3),
            mapping_limit: if round % 4 == 3 { 200 } else { 400_000 },
            region_pages: if round % 5 == 4 { 32 } else { 0 },
            kept: round % 4 < 2,
            // On a GPU, a wait for the device ends a capture that nobody can be asked about.
            own_streams: round % 3 == 1 && (round % 2 == 0 || arguments.driver != Driver::Cuda),
            green_streams: round % 4 > 1,
            ..World::default()
        };
        let faults = if arguments.no_faults { Faults::None } else { Faults::Some };
        let stress = Stress {
            threads: arguments.threads,
            ops: u64::MAX,
            seed: seed.wrapping_add(round),
            faults,
            graphs: round % 2 == 1,
            sleeps: round % 3 == 2,
            end: if round % 4 == 0 { End::Reset } else { End::Close },
        };
        let length = left.min(Duration::from_secs(ROUND));
        let round = Round { length, interrupted: &interrupted, has_bytes: arguments.driver.has_bytes(), bar: &bar };
        match arguments.driver {
            Driver::Model => sum.round::<Model>(&world, stress, &round),
            Driver::Host => sum.round::<Host>(&world, stress, &round),
            Driver::Cuda => sum.round::<Cuda>(&world, stress, &round),
        }
    }
    bar.finish_and_clear();
    if interrupted.load(Ordering::Relaxed) {
        eprintln!("interrupted: these are the figures so far");
    }
    sum.print(&mut io::stdout().lock(), arguments.driver.has_bytes())?;
    Ok(Outcome::Success)
}

/// Returns a flag that Ctrl-C sets. A second one ends the program at once.
fn interrupted() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register_conditional_default(SIGINT, Arc::clone(&flag))?;
    signal_hook::flag::register(SIGINT, Arc::clone(&flag))?;
    Ok(flag)
}

/// How a round is run.
struct Round<'a> {
    length: Duration,
    interrupted: &'a AtomicBool,
    has_bytes: bool,
    bar: &'a ProgressBar,
}

#[derive(Default)]
struct Sum {
    rounds: u64,
    ops: u64,
    verified: u64,
    failed: u64,
    faults: u64,
    calls: u64,
    remapped: u64,
    reused: u64,
    across_streams: u64,
    waits: u64,
    peak_metadata: u64,
}

impl Sum {
    fn round<D: Device>(&mut self, world: &World, stress: Stress, round: &Round<'_>) {
        let (bar, progress) = (round.bar, Progress::default());
        let stats = std::thread::scope(|scope| {
            let run = scope.spawn(|| run_stress::<D>(world, stress, &progress));
            let start = Instant::now();
            let goes_on = || start.elapsed() < round.length && !round.interrupted.load(Ordering::Relaxed);
            while goes_on() && !run.is_finished() {
                std::thread::sleep(Duration::from_millis(200));
                let ops = self.ops + progress.ops.load(Ordering::Relaxed);
                let verified = self.verified + progress.verified_bytes.load(Ordering::Relaxed);
                bar.set_position(bar.elapsed().as_secs());
                let verified =
                    if round.has_bytes { format!(", {} verified", ByteSize(verified)) } else { String::new() };
                bar.set_message(format!("round {}: {}{verified}", self.rounds, count(ops, "op")));
            }
            progress.stop.store(true, Ordering::Relaxed);
            run.join().expect("the soak failed; see above")
        });
        self.add(&stats, &progress);
    }

    fn add(&mut self, stats: &Stats, progress: &Progress) {
        self.rounds += 1;
        self.ops += progress.ops.load(Ordering::Relaxed);
        self.verified += progress.verified_bytes.load(Ordering::Relaxed);
        self.failed += progress.failed.load(Ordering::Relaxed);
        self.faults += progress.faults.load(Ordering::Relaxed);
        self.calls += stats.driver_calls.total();
        self.remapped += stats.harvested_chunks;
        self.reused += stats.reused_views;
        self.across_streams += stats.borrowed;
        self.waits += stats.host_waits;
        self.peak_metadata = self.peak_metadata.max(stats.metadata_bytes);
    }

    fn print(&self, out: &mut impl Write, has_bytes: bool) -> io::Result<()> {
        writeln!(out, "rounds (device, allocator, close)  {}", self.rounds)?;
        writeln!(out, "operations                         {}", self.ops)?;
        writeln!(out, "driver calls                       {}", self.calls)?;
        let (moved, reused) = (self.remapped, self.reused);
        writeln!(out, "remaps: chunks moved               {moved}, {reused} of them without a driver call")?;
        writeln!(out, "blocks reused across streams       {}", self.across_streams)?;
        writeln!(out, "host waits                         {}", self.waits)?;
        writeln!(out, "allocations refused                {}", self.failed)?;
        writeln!(out, "injected failures survived         {}", self.faults)?;
        if has_bytes {
            writeln!(out, "bytes verified                     {}", ByteSize(self.verified))?;
        }
        writeln!(out, "largest metadata                   {}", ByteSize(self.peak_metadata))
    }
}

/// Longest duration of a round, in seconds.
const ROUND: u64 = 15;
/// Minutes of a year.
const MOST_MINUTES: f64 = 525_600.0;

/// Shown below the list of options.
pub(super) const AFTER_HELP: &str = "\
A failed check ends the run with a message and exit code 101; otherwise the figures are printed at the end, and so they are after
Ctrl-C, with exit code 0. Bad arguments are 2, and --driver cuda without a usable GPU is 4.

Example: gapless soak --minutes 10 --threads 4 --streams 4 --driver host";
