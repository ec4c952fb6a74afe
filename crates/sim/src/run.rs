//! `gapless-sim run`: the arguments, and a program that is run once.

use crate::device::{self, KnownDevice};
use crate::driver::KnownDriver;
use crate::environment::Environment;
use crate::libraries::Libraries;
use crate::loader;
use crate::many::ManyArguments;
use crate::program::{self, Ending, Stop, Told};
use crate::race;
use crate::report::{self, Report, Wanted};
use crate::sarif;
use crate::sweep::{self, SweepArguments};
use crate::{BAD, Failure};
use clap::{ArgGroup, Args};
use gapless::ByteSize;
use gapless_sim_libcuda::faults::Fault;
use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// Arguments of `gapless-sim run`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("many").args(["sweep", "race"])))]
pub struct RunArguments {
    /// Device whose memory to simulate, such as 'H100 80GiB'
    #[arg(long, value_name = "NAME", conflicts_with = "capacity")]
    device: Option<KnownDevice>,

    /// Memory of each device, as in 512MiB [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteSize>,

    /// Number of devices [default: 1]
    #[arg(long, value_name = "N")]
    devices: Option<u32>,

    /// Driver whose version and functions to have [default: all functions, as version 13.0]
    #[arg(long, value_name = "BRANCH")]
    driver: Option<KnownDriver>,

    /// Let a call of a function fail, as in cuMemMap:3 for its third one, or cuMemMap:*:2 for all, with code 2
    #[arg(long = "fail", value_name = "FUNCTION:CALL[:CODE]", conflicts_with = "sweep")]
    faults: Vec<Fault>,

    /// Name each function on stderr that the program looks up and that is not there
    #[arg(long)]
    missing: bool,

    /// Tell each call that breaks a rule of the driver, with its stack, and end with code 1 where there was one
    #[arg(long)]
    strict: bool,

    /// Tell at the end what the program has not given back and which calls made it, and end with code 1 where there is something
    #[arg(long, requires = "strict")]
    leaks: bool,

    /// Put the stand-in for the CUDA runtime before the program's own, for programs with kernels, none of which runs
    #[arg(long)]
    runtime: bool,

    /// Folder with libcuda.so.1 [default: that which was built with this program, or GAPLESS_SIM_LIBRARIES]
    #[arg(long, value_name = "FOLDER")]
    libraries: Option<PathBuf>,

    /// Run the program once for each of its driver calls, which fails, and say how it ended
    #[arg(long)]
    sweep: bool,

    #[command(flatten)]
    how: SweepArguments,

    /// Run the program N times, with pauses before its calls and its queued work, and say how it ended
    #[arg(long, value_name = "N")]
    race: Option<NonZeroU64>,

    #[command(flatten)]
    many: ManyArguments,

    /// Write what was found as JSON, or as SARIF to a FILE whose name ends with .sarif
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// The program and its arguments, after `--`
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Shown below the arguments.
pub fn after_help() -> String {
    format!(
        "Known devices: {}.\n\n\
         Exit codes: those of the program, or 128 and the number of the signal that ended it; 2 for bad arguments, or if it \
         cannot be started. With --strict, 1 in the place of 0 if a rule was broken, and with --leaks if something was held. \
         With --sweep 0, or 1 if a run crashed, ran into the time limit, held memory or broke a rule. With --race 0, or 1 if \
         a run ended otherwise than the one without pauses.\n\n\
         The environment variables GAPLESS_SIM_* have more settings: docs/using/sim.md lists them.",
        device::all_names()
    )
}

/// Runs the program, and returns the exit code.
pub fn run(arguments: &RunArguments) -> Result<u8, Failure> {
    let lacks = arguments.driver.map(KnownDriver::lacks).unwrap_or_default();
    let environment = environment(arguments);
    environment.check()?;
    let libraries = Libraries::find(arguments.libraries.as_deref(), &lacks, arguments.runtime)?;
    let mut environment = environment;
    for (name, value) in libraries.variables() {
        environment.set(name, value);
    }
    if let Some((name, value)) = libraries.named_runtime()
        && loader::misses_runtime(&arguments.program[0], &environment)
    {
        environment.set(name, value);
    }
    let file = arguments.report.as_deref();
    if let Some(folder) =
        file.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
    {
        return Err(Failure::Bad(format!("there is no folder {}", folder.display())));
    }
    if file.is_some_and(report::is_sarif) && !arguments.strict {
        return Err(Failure::Bad("SARIF has the rules that were broken, which --strict asks for".into()));
    }
    let stop = Stop::on_signals()?;
    if arguments.sweep {
        return sweep::run(&arguments.how, &arguments.many, &arguments.program, &environment, file, &stop);
    }
    if let Some(runs) = arguments.race {
        return race::run(runs, &arguments.many, &arguments.program, &environment, file, &stop);
    }
    let ran = program::run_with_streams(&arguments.program, &environment, &stop)?;
    match file {
        Some(file) if report::is_sarif(file) => report::write(file, &sarif::log(&ran.told.broken, &ran.told.held))?,
        Some(file) => {
            let wanted = match (arguments.strict, arguments.leaks) {
                (_, true) => Wanted::BrokenAndHeld,
                (true, false) => Wanted::Broken,
                (false, false) => Wanted::Nothing,
            };
            let report = Report::of(&arguments.program, environment.settings(), &ran, wanted);
            report::write(file, &report)?;
        }
        None => {}
    }
    let Told { broken, held } = &ran.told;
    if !broken.is_empty() {
        eprintln!("gapless-sim: broken {}", sarif::rules(broken));
    }
    Ok(match ran.ending {
        Ending::Exit(0) => u8::from(!broken.is_empty() || !held.is_empty()),
        Ending::Exit(status) => u8::try_from(status).unwrap_or(BAD),
        Ending::Signal(number) => u8::try_from(128 + number).unwrap_or(BAD),
        Ending::TimeLimit => BAD,
    })
}

/// The simulation that the arguments ask for.
fn environment(arguments: &RunArguments) -> Environment {
    let mut environment = Environment::default();
    let capacity = arguments.device.map(KnownDevice::memory).or(arguments.capacity);
    if let Some(ByteSize(bytes)) = capacity {
        environment.set("GAPLESS_SIM_CAPACITY", bytes.to_string());
    }
    if let Some(devices) = arguments.devices {
        environment.set("GAPLESS_SIM_DEVICES", devices.to_string());
    }
    if let Some(driver) = arguments.driver {
        environment.set("GAPLESS_SIM_VERSION", driver.version().to_string());
    }
    if !arguments.faults.is_empty() {
        let faults: Vec<String> = arguments.faults.iter().map(ToString::to_string).collect();
        environment.set("GAPLESS_SIM_FAIL", faults.join(","));
    }
    if arguments.missing {
        environment.set("GAPLESS_SIM_MISSING", "1");
    }
    if arguments.strict {
        environment.set("GAPLESS_SIM_STRICT", "1");
    }
    if arguments.leaks {
        environment.set("GAPLESS_SIM_LEAKS", "1");
    }
    environment
}
