//! Measures, on recorded traces, the figures that the allocator is held to. Every figure is a ratio within one run, and all of it
//! is deterministic: the program that tests build prints the same as an optimised one.

use crate::failure::Failure;
use crate::workspace::Workspace;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

#[derive(Debug, clap::Args)]
pub struct FiguresArguments {
    /// Recorded traces
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Print gapless beside the caching allocator, for docs/results/figures.md, instead
    #[arg(long)]
    table: bool,
    /// Print what a sleep copies and a wake maps at the ends of the steps, beside those that take whole segments, instead
    #[arg(long, conflicts_with = "table")]
    sleep: bool,
    /// Run the program that `cargo build` makes, not that of `cargo build --release`
    #[arg(long)]
    debug: bool,
}

pub fn run(workspace: &Workspace, arguments: &FiguresArguments) -> Result<(), Failure> {
    let (program, build) =
        if arguments.debug { ("debug/gapless", "cargo build") } else { ("release/gapless", "cargo build --release") };
    let program = workspace.target(program);
    if !program.exists() {
        return Err(Failure::new(format!("{} is missing: {build}", program.display())));
    }
    let replays = Replays { program };
    match (arguments.table, arguments.sleep) {
        (true, _) => replays.print_table(&arguments.traces),
        (_, true) => replays.print_sleeps(&arguments.traces),
        _ => Figures::check(&replays, &arguments.traces),
    }
}

/// The exit code of a replay whose program survives, and of one that runs out of memory.
const SURVIVED: i32 = 0;
const OUT_OF_MEMORY: i32 = 3;

/// Replays of traces by the command line.
struct Replays {
    program: PathBuf,
}

impl Replays {
    /// Replays one trace, and returns the report.
    fn one(&self, policy: &str, trace: &Path, options: &[String]) -> Result<Value, Failure> {
        let about = |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", trace.display()));
        let mut command = Command::new(&self.program);
        // The program is started where the user is, whose paths these are.
        command.args(["replay", "--policy", policy, "--json"]).args(options).arg(trace);
        let output = command.output().map_err(|error| about(&error))?;
        if !matches!(output.status.code(), Some(SURVIVED | OUT_OF_MEMORY)) {
            return Err(about(&String::from_utf8_lossy(&output.stderr)));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| about(&error))
    }

    /// Replays traces with options for each, as many at a time as there are processors. The reports come in the order of the
    /// traces.
    fn each(&self, policy: &str, calls: &[(&Path, Vec<String>)]) -> Result<Vec<Value>, Failure> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some((trace, options)) = calls.get(number) else { return done };
                done.push((number, self.one(policy, trace, options)));
            }
        };
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let mut done: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("a worker does not panic")).collect()
        });
        done.sort_unstable_by_key(|(number, _)| *number);
        done.into_iter().map(|(_, report)| report).collect()
    }

    /// The same with the same options for all.
    fn all(&self, policy: &str, traces: &[PathBuf], options: &[&str]) -> Result<Vec<Value>, Failure> {
        let options: Vec<String> = options.iter().copied().map(str::to_owned).collect();
        let calls: Vec<_> = traces.iter().map(|trace| (trace.as_path(), options.clone())).collect();
        self.each(policy, &calls)
    }

    /// Replays traces whose programs sleep and wake at the end of each step, on a device with room.
    fn asleep_between_steps(&self, policy: &str, traces: &[PathBuf]) -> Result<Vec<Value>, Failure> {
        self.all(policy, traces, &[&["--sleep-between-steps"], &ROOM[..]].concat())
    }

    fn print_sleeps(&self, traces: &[PathBuf]) -> Result<(), Failure> {
        println!(
            "| trace | copied / live: gapless | mapped / live: gapless | copied / live: segments | mapped / live: segments |"
        );
        println!("|---|--:|--:|--:|--:|");
        let mut all = [Vec::new(), Vec::new()];
        for trace in traces {
            let mut row = Vec::new();
            for (policy, all) in ["gapless", "caching"].into_iter().zip(&mut all) {
                let reports = self.asleep_between_steps(policy, std::slice::from_ref(trace))?;
                row.push((text(&reports[0], "trace")?.to_owned(), Sleeps::of(&reports)?.cells()));
                all.extend(reports);
            }
            let [(name, gapless), (_, segments)] = &row[..] else { unreachable!() };
            println!("| {name} | {gapless} | {segments} |");
        }
        let [gapless, segments] = [Sleeps::of(&all[0])?.cells(), Sleeps::of(&all[1])?.cells()];
        println!("| all step ends | {gapless} | {segments} |");
        Ok(())
    }

    fn print_table(&self, traces: &[PathBuf]) -> Result<(), Failure> {
        println!(
            "| trace | smallest device / peak live: gapless | caching | reserved / peak live with room: gapless | caching |"
        );
        println!("|---|--:|--:|--:|--:|");
        for trace in traces {
            let trace = std::slice::from_ref(trace);
            let mut row = Vec::new();
            for policy in ["gapless", "caching"] {
                let found = &self.all(policy, trace, &["--search-capacity"])?[0];
                let roomy = &self.all(policy, trace, &["--capacity", "1TiB"])?[0];
                let ratios = (ratio(found, "safe_capacity_bytes")?, ratio(roomy, "peak_reserved_bytes")?);
                row.push((text(found, "trace")?.to_owned(), ratios.0, ratios.1));
            }
            let [(name, gapless, gapless_roomy), (_, caching, caching_roomy)] = &row[..] else { unreachable!() };
            println!("| {name} | {gapless:.4} | {caching:.4} | {gapless_roomy:.3} | {caching_roomy:.3} |");
        }
        Ok(())
    }
}

/// What sleeps at the ends of steps copy and wakes map, over the requested bytes that were live.
#[derive(Default)]
struct Sleeps {
    copied: Vec<f64>,
    /// Where more than [`MUCH`] was live: else what one page has is much of it.
    mapped: Vec<f64>,
}

/// More than 1 GiB: then what is mapped counts.
const MUCH: f64 = (1u64 << 30) as f64;
/// A device with room, on which the segments of a caching allocator fit as well.
const ROOM: [&str; 2] = ["--capacity", "1TiB"];

impl Sleeps {
    /// The sleeps of replays.
    fn of(reports: &[Value]) -> Result<Self, Failure> {
        let mut found = Self::default();
        for phase in reports.iter().filter_map(|report| report["phases"].as_array()).flatten() {
            let live = number(phase, "live_bytes")?;
            match text(phase, "kind")? {
                _ if live == 0.0 => {}
                "sleep" => found.copied.push(number(phase, "copied_bytes")? / live),
                _ if live > MUCH => found.mapped.push(number(phase, "mapped_bytes")? / live),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Means and most of both, as cells of a table.
    fn cells(&self) -> String {
        let cell = |ratios: &[f64]| match ratios {
            [] => "-".to_owned(),
            _ => format!("{:.4}, at most {:.4}", mean(ratios), most(ratios)),
        };
        format!("{} | {}", cell(&self.copied), cell(&self.mapped))
    }
}

/// The checks, and how many of them failed.
struct Figures<'a> {
    replays: &'a Replays,
    traces: &'a [PathBuf],
    /// The peak of live bytes in each trace, which [`smallest`](Self::smallest) finds out.
    peaks: Vec<f64>,
    missed: usize,
}

impl<'a> Figures<'a> {
    /// Measures everything, and prints whether it holds.
    fn check(replays: &'a Replays, traces: &'a [PathBuf]) -> Result<(), Failure> {
        let mut this = Self { replays, traces, peaks: Vec::new(), missed: 0 };
        this.smallest(1.005, &["--chunk", "2MiB"])?;
        this.smallest(1.0075, &[])?;
        this.smallest(1.03, &["--lag", "200"])?;
        for costs in ["literature", "h100"] {
            this.driver_time(1.02, costs, 0.6)?;
            this.driver_time(2.0, costs, 0.25)?;
        }
        this.quiet_steps(1.03)?;
        this.slack(1.1)?;
        this.sleep(1.01, 1.03)?;
        if this.missed == 0 { Ok(()) } else { Err(Failure::new(format!("{} figures are missed", this.missed))) }
    }

    fn say(&mut self, holds: bool, text: &str) {
        self.missed += usize::from(!holds);
        println!("{}{text}", if holds { "ok      " } else { "MISSED  " });
    }

    /// Replays each trace on a device of a multiple of its peak.
    fn at(&self, multiple: f64, options: &[&str]) -> Result<Vec<Value>, Failure> {
        let with_capacity = |(trace, peak): (&'a PathBuf, &f64)| {
            let capacity = format!("{:.0}", (peak * multiple).floor());
            let options = ["--capacity", &capacity].iter().chain(options).copied().map(str::to_owned).collect();
            (trace.as_path(), options)
        };
        let calls: Vec<_> = self.traces.iter().zip(&self.peaks).map(with_capacity).collect();
        self.replays.each("gapless", &calls)
    }

    /// The smallest device from which on a program survives.
    fn smallest(&mut self, bound: f64, options: &[&str]) -> Result<(), Failure> {
        let reports = self.replays.all("gapless", self.traces, &[&["--search-capacity"], options].concat())?;
        self.peaks = reports.iter().map(|report| number(report, "peak_live_bytes")).collect::<Result<_, _>>()?;
        let ratios = ratios(&reports, "safe_capacity_bytes")?;
        let each: Vec<_> = ratios.iter().map(|ratio| format!("{ratio:.4}")).collect();
        let (most, options, each) = (most(&ratios), options.join(" "), each.join(" "));
        self.say(most <= bound, &format!("safe capacity / peak live <= {bound} {options}: {most:.4} ({each})"));
        Ok(())
    }

    /// The driver time with the default chunks, against that with chunks of one page, by a table of costs.
    fn driver_time(&mut self, multiple: f64, costs: &str, bound: f64) -> Result<(), Failure> {
        let seconds = |options: &[&str]| -> Result<f64, Failure> {
            let reports = self.at(multiple, &[&["--costs", costs], options].concat())?;
            reports.iter().map(|report| number(report, "modelled_driver_seconds")).sum()
        };
        let (auto, pages) = (seconds(&[])?, seconds(&["--chunk", "2MiB"])?);
        let time = format!("modelled driver time with the costs {costs} at {multiple} x peak live");
        let text = format!("{time}, auto over single pages <= {bound}: {:.4}", auto / pages);
        self.say(auto <= bound * pages, &text);
        Ok(())
    }

    /// Steps after the first two that make no driver call, and waits of the host.
    fn quiet_steps(&mut self, multiple: f64) -> Result<(), Failure> {
        let reports = self.at(multiple, &[])?;
        let mut steps: Vec<Vec<bool>> = Vec::new();
        for report in &reports {
            let calls = report["driver_calls_per_step"].as_array().ok_or_else(|| lacks("driver_calls_per_step"))?;
            steps.push(calls.iter().skip(2).map(|calls| calls.as_u64() == Some(0)).collect());
        }
        let part = |steps: &[bool]| steps.iter().filter(|is_quiet| **is_quiet).count() as f64 / steps.len() as f64;
        let parts: Vec<f64> = steps.iter().filter(|steps| !steps.is_empty()).map(|steps| part(steps)).collect();
        let (least, overall) = (parts.iter().copied().fold(1.0, f64::min), part(&steps.concat()));
        let figure = format!("steps without a driver call at {multiple}");
        let text = format!("{figure}: at least {least:.2} on each trace, {overall:.3} over all");
        self.say(least >= 0.5 && overall >= 0.75, &text);

        let mut is_quiet = true;
        for report in &reports {
            is_quiet &= report["oom"].is_null() && number(report, "host_waits")? == 0.0;
        }
        self.say(is_quiet, "no host wait and no failure there");

        let mut waits = Vec::new();
        for report in &self.at(multiple, &["--lag", "200"])? {
            let releases = number(&report["driver_calls"], "release")?;
            waits.push((number(report, "host_waits")? as u64, releases as u64));
        }
        let holds = waits.iter().all(|(waits, releases)| *waits == 0 || *releases > 0);
        self.say(holds, &format!("host waits with --lag 200 only where memory went back: {waits:?}"));
        Ok(())
    }

    /// What a sleep of everything copies and a wake maps, at the ends of all steps.
    fn sleep(&mut self, copied: f64, mapped: f64) -> Result<(), Failure> {
        let sleeps = Sleeps::of(&self.replays.asleep_between_steps("gapless", self.traces)?)?;
        let (most_copied, most_mapped) = (most(&sleeps.copied), most(&sleeps.mapped));
        self.say(most_copied <= copied, &format!("copied / live <= {copied} in a sleep: {most_copied:.4}"));
        let text = format!("mapped / live <= {mapped} in a wake of over 1 GiB: {most_mapped:.4}");
        self.say(most_mapped <= mapped, &text);
        Ok(())
    }

    /// Held bytes on a device without bounds.
    fn slack(&mut self, bound: f64) -> Result<(), Failure> {
        let options = ["--capacity", "10TiB", "--slack", &format!("{bound:.2}")];
        let reports = self.replays.all("gapless", self.traces, &options)?;
        let most = most(&ratios(&reports, "peak_reserved_bytes")?);
        let text = format!("peak reserved / peak live <= {bound:.2} on an unlimited device: {most:.5}");
        self.say(most <= bound, &text);
        Ok(())
    }
}

/// A figure in bytes of each report, over the peak of bytes that are live and not asleep.
fn ratios(reports: &[Value], key: &str) -> Result<Vec<f64>, Failure> {
    reports.iter().map(|report| ratio(report, key)).collect()
}

fn ratio(report: &Value, key: &str) -> Result<f64, Failure> {
    Ok(number(report, key)? / number(report, "peak_awake_bytes")?)
}

fn mean(ratios: &[f64]) -> f64 {
    ratios.iter().sum::<f64>() / ratios.len() as f64
}

fn most(ratios: &[f64]) -> f64 {
    ratios.iter().copied().fold(0.0, f64::max)
}

fn number(report: &Value, key: &str) -> Result<f64, Failure> {
    report[key].as_f64().ok_or_else(|| lacks(key))
}

fn text<'a>(report: &'a Value, key: &str) -> Result<&'a str, Failure> {
    report[key].as_str().ok_or_else(|| lacks(key))
}

fn lacks(key: &str) -> Failure {
    Failure::new(format!("a report of gapless replay lacks {key}"))
}
