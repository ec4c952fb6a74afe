//! A sweep: the program is run once for each driver call that it makes, and that call fails.
//!
//! Which calls there are is counted in two runs without a fault. Where they differ, a fault may hit another call than it did in
//! another sweep, or none: the result says which.

mod results;
mod table;

use crate::Failure;
use crate::environment::Environment;
use crate::program::{self, Ending, Ran, Stderr, Stop};
use crate::report::{self, words};
use crate::sarif;
use clap::Args;
use gapless_sim_libcuda::faults::Fault;
use gapless_sim_libcuda::functions::{self, Function};
use gapless_sim_libcuda::record::Record;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use results::{Case, MayHold, Plain, Results};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Arguments of `--sweep`.
#[derive(Args, Debug)]
pub struct SweepArguments {
    /// Let calls of these functions fail only
    #[arg(long, value_name = "FUNCTIONS", value_delimiter = ',', requires = "sweep", value_parser = function)]
    only: Vec<Function>,

    /// Let each N-th call of a function fail only
    #[arg(long, value_name = "N", default_value = "1", requires = "sweep")]
    every: NonZeroU64,

    /// Code of the errors [default: 2 of functions that take memory, 999 of all others]
    #[arg(long, value_name = "CODE", requires = "sweep", value_parser = clap::value_parser!(u32).range(1..))]
    code: Option<u32>,

    /// Take it for right that a program that ends with another status than 0 holds memory
    #[arg(long, requires = "sweep")]
    may_give_up: bool,

    /// Programs that run at once
    #[arg(long, value_name = "N", default_value = "2", requires = "sweep")]
    jobs: NonZeroUsize,

    /// Time that each run may take [default: ten times that of the run without a fault, and at least 10]
    #[arg(long, value_name = "SECONDS", requires = "sweep")]
    limit: Option<NonZeroU64>,
}

/// The shortest time limit of a run, where none is given.
const SHORTEST_LIMIT: Duration = Duration::from_secs(10);

fn function(name: &str) -> Result<Function, String> {
    functions::find(name)
        .ok_or_else(|| format!("no such function can fail; the nearest is {}", functions::nearest(name)))
}

/// Runs the program again and again, and returns the exit code.
pub fn run(
    arguments: &SweepArguments,
    program: &[OsString],
    environment: &Environment,
    file: Option<&Path>,
    stop: &Stop,
) -> Result<u8, Failure> {
    if environment.get("GAPLESS_SIM_FAIL").is_some() {
        return Err(Failure::Bad("GAPLESS_SIM_FAIL is set, and a sweep has faults of its own".into()));
    }
    let limit = arguments.limit.map(|seconds| Duration::from_secs(seconds.get()));
    let first = without_fault(program, environment, limit, Stderr::Shown, stop)?;
    let second = without_fault(program, environment, limit, Stderr::Dropped, stop)?;
    let plain = Plain::of([&first.1, &second.1], first.0.time.max(second.0.time), first.0.told);
    let faults = faults(arguments, &plain.calls)?;
    let limit = limit.unwrap_or_else(|| (10 * plain.time).max(SHORTEST_LIMIT));
    let may_hold = if arguments.may_give_up { MayHold::WhereItGaveUp } else { MayHold::Never };
    let bar = bar(faults.len() as u64);
    let cases = each(&faults, arguments.jobs.get(), &|fault: &Fault| {
        let mut environment = environment.clone();
        environment.set("GAPLESS_SIM_FAIL", fault.to_string());
        let ran = program::run_alone(program, &environment, Some(limit), Stderr::Dropped, stop)?;
        bar.inc(1);
        Ok(if stop.wanted() { None } else { Some(Case::of(fault, &ran, &plain, may_hold)) })
    })?;
    bar.finish_and_clear();
    let results = Results {
        program: words(program),
        settings: environment.settings(),
        plain,
        cases,
        runs: faults.len(),
        every: arguments.every.get(),
    };
    table::write(&mut io::stdout().lock(), &results)?;
    match file {
        Some(file) if report::is_sarif(file) => report::write(file, &sarif::log(&results.broken(), &results.held()))?,
        Some(file) => report::write(file, &results.report())?,
        None => {}
    }
    if stop.wanted() {
        return Err(Failure::Bad("interrupted: the table has the runs that were over".into()));
    }
    Ok(u8::from(results.have_found()))
}

/// Runs the program without a fault.
fn without_fault(
    program: &[OsString],
    environment: &Environment,
    limit: Option<Duration>,
    stderr: Stderr,
    stop: &Stop,
) -> Result<(Ran, Record), Failure> {
    let ran = program::run_alone(program, environment, limit, stderr, stop)?;
    if stop.wanted() {
        return Err(Failure::Bad("interrupted".into()));
    }
    if ran.ending != Ending::Exit(0) {
        let text = "a sweep needs a program that ends well where no call fails";
        return Err(Failure::Bad(format!("the program ended with {} without a fault: {text}", ran.ending)));
    }
    let text = "the program called no function of the simulated driver, or left by _exit: it may be linked with another driver";
    let record = ran.record.clone().filter(|record| !record.calls.is_empty());
    let record = record.ok_or_else(|| Failure::Bad(text.into()))?;
    Ok((ran, record))
}

/// The faults of the sweep, function by function.
fn faults(arguments: &SweepArguments, calls: &[(Function, u64)]) -> Result<Vec<Fault>, Failure> {
    if let Some(unused) = arguments.only.iter().find(|function| calls.iter().all(|(called, _)| called != *function)) {
        return Err(Failure::Bad(format!("the program does not call {}", unused.name)));
    }
    let is_wanted = |function: &Function| arguments.only.is_empty() || arguments.only.contains(function);
    let step = usize::try_from(arguments.every.get()).unwrap_or(usize::MAX);
    let wanted = calls.iter().filter(|(function, _)| is_wanted(function));
    let faults = wanted.flat_map(|&(function, count)| {
        let code = arguments.code.unwrap_or(function.code);
        (1..=count).step_by(step).map(move |call| Fault { function, call: Some(call), code })
    });
    Ok(faults.collect())
}

/// Calls `work` for each item, on `jobs` threads, and returns what it returned, in the order of the items. The first failure ends
/// all of it.
fn each<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    work: &(impl Fn(&T) -> Result<Option<R>, Failure> + Sync),
) -> Result<Vec<R>, Failure> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::default();
    let go_on = || -> Result<(), Failure> {
        while let Some((index, item)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, items.get(at)?)))
        {
            let result = work(item).inspect_err(|_| next.store(items.len(), Ordering::Relaxed))?;
            let Some(result) = result else { break };
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.min(items.len())).map(|_| scope.spawn(go_on)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// The progress over all runs, hidden unless stderr is a terminal.
fn bar(runs: u64) -> ProgressBar {
    let target = if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} runs {eta:>4}");
    ProgressBar::with_draw_target(Some(runs), target).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
