//! A sweep: the program is run once for each driver call that it makes, and that call fails.
//!
//! Which calls there are is counted in two runs without a fault. Where they differ, a fault may hit another call than it did in
//! another sweep, or none: the result says which.

mod results;
mod table;

use crate::Failure;
use crate::environment::Environment;
use crate::many::{self, ManyArguments};
use crate::program::{self, Stderr, Stop};
use crate::report::{self, words};
use crate::sarif;
use clap::Args;
use gapless_sim_libcuda::faults::Fault;
use gapless_sim_libcuda::functions::{self, Function};
use results::{Case, MayHold, Plain, Results};
use std::ffi::OsString;
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
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
}

fn function(name: &str) -> Result<Function, String> {
    functions::find(name)
        .ok_or_else(|| format!("no such function can fail; the nearest is {}", functions::nearest(name)))
}

/// Runs the program again and again, and returns the exit code.
pub fn run(
    arguments: &SweepArguments,
    many: &ManyArguments,
    program: &[OsString],
    environment: &Environment,
    file: Option<&Path>,
    stop: &Stop,
) -> Result<u8, Failure> {
    if environment.get("GAPLESS_SIM_FAIL").is_some() {
        return Err(Failure::Bad("GAPLESS_SIM_FAIL is set, and a sweep has faults of its own".into()));
    }
    let first = many::plain("a fault", program, environment, many.given_limit(), Stderr::Shown, stop)?;
    let second = many::plain("a fault", program, environment, many.given_limit(), Stderr::Dropped, stop)?;
    let plain = Plain::of([&first.1, &second.1], first.0.time.max(second.0.time), first.0.told);
    let faults = faults(arguments, &plain.calls)?;
    let limit = many.limit(plain.time, Duration::ZERO);
    let may_hold = if arguments.may_give_up { MayHold::WhereItGaveUp } else { MayHold::Never };
    let cases = many::each(&faults, many.jobs.get(), &|fault: &Fault| {
        let mut environment = environment.clone();
        environment.set("GAPLESS_SIM_FAIL", fault.to_string());
        let ran = program::run_alone(program, &environment, Some(limit), Stderr::Dropped, stop)?;
        Ok(if stop.wanted() { None } else { Some(Case::of(fault, &ran, &plain, may_hold)) })
    })?;
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
