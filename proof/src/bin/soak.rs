//! Soak: threads use one allocator for as long as wished, with driver failures, on a simulated device; a fresh device
//! and allocator every round, so that closing is soaked as well. Anything wrong is a panic; the figures come at the end.

use clap::{Parser, ValueEnum};
use gapless::allocator::Stats;
use gapless::units::ByteSize;
use gapless_proof::{Device, Faults, Host, Model, Progress, Stress, World, run_stress};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Soak an allocator on a simulated device and print what it came to.
#[derive(Parser, Debug)]
struct Arguments {
    /// How long.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Threads.
    #[arg(long, default_value_t = 4)]
    threads: u64,
    /// Streams.
    #[arg(long, default_value_t = 4)]
    streams: usize,
    /// Device.
    #[arg(long, value_enum, default_value_t = Driver::Host)]
    driver: Driver,
    /// Pages of the device, 64 KiB each.
    #[arg(long, default_value_t = 64)]
    pages: u64,
    /// No driver call fails.
    #[arg(long)]
    no_faults: bool,
    /// Where the random numbers start; default: the clock.
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Driver {
    /// State only.
    Model,
    /// Real bytes, all of them verified.
    Host,
}

/// Seconds of a round.
const ROUND: u64 = 15;

fn main() {
    let arguments = Arguments::parse();
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seed = arguments.seed.unwrap_or(clock);
    eprintln!("seed {seed}");
    let end = Instant::now() + Duration::from_secs_f64(arguments.minutes * 60.0);
    let bar = ProgressBar::new(Duration::from_secs_f64(arguments.minutes * 60.0).as_secs());
    let style = ProgressStyle::with_template("{elapsed_precise} {wide_bar} {msg}").expect("a template");
    bar.set_style(style);
    let mut sum = Sum::default();
    for round in 0.. {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let world = World {
            pages: arguments.pages,
            streams: arguments.streams,
            chunk_pages: 1 << (round % 3),
            mapping_limit: if round % 4 == 3 { 200 } else { 400_000 },
            ..World::default()
        };
        let faults = if arguments.no_faults { Faults::None } else { Faults::Some };
        let stress = Stress { threads: arguments.threads, ops: u64::MAX, seed: seed.wrapping_add(round), faults };
        let length = left.min(Duration::from_secs(ROUND));
        match arguments.driver {
            Driver::Model => sum.round::<Model>(&world, stress, length, &bar),
            Driver::Host => sum.round::<Host>(&world, stress, length, &bar),
        }
    }
    bar.finish_and_clear();
    sum.print();
}

#[derive(Default)]
struct Sum {
    rounds: u64,
    ops: u64,
    verified: u64,
    failed: u64,
    faults: u64,
    calls: u64,
    harvested: u64,
    reused: u64,
    borrowed: u64,
    waits: u64,
    peak_metadata: u64,
}

impl Sum {
    fn round<D: Device>(&mut self, world: &World, stress: Stress, length: Duration, bar: &ProgressBar) {
        let progress = Progress::default();
        let stats = std::thread::scope(|scope| {
            let run = scope.spawn(|| run_stress::<D>(world, stress, &progress));
            let start = Instant::now();
            while start.elapsed() < length && !run.is_finished() {
                std::thread::sleep(Duration::from_millis(200));
                let ops = self.ops + progress.ops.load(Ordering::Relaxed);
                let verified = self.verified + progress.verified_bytes.load(Ordering::Relaxed);
                bar.set_position(bar.elapsed().as_secs());
                bar.set_message(format!("round {}: {ops} ops, {} verified", self.rounds, ByteSize(verified)));
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
        self.harvested += stats.harvested_chunks;
        self.reused += stats.reused_views;
        self.borrowed += stats.borrowed;
        self.waits += stats.host_waits;
        self.peak_metadata = self.peak_metadata.max(stats.metadata_bytes);
    }

    fn print(&self) {
        println!("rounds (device, allocator, close)  {}", self.rounds);
        println!("operations                         {}", self.ops);
        println!("driver calls                       {}", self.calls);
        println!(
            "remaps: chunks moved               {}, {} of them without a driver call",
            self.harvested, self.reused
        );
        println!("blocks borrowed between streams    {}", self.borrowed);
        println!("host waits                         {}", self.waits);
        println!("allocations refused                {}", self.failed);
        println!("injected failures survived         {}", self.faults);
        println!("bytes verified                     {}", ByteSize(self.verified));
        println!("largest metadata                   {}", ByteSize(self.peak_metadata));
    }
}
