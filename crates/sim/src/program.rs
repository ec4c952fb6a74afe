//! A program that runs: how it ends, and what it leaves.

use crate::Failure;
use crate::environment::Environment;
use gapless_sim_libcuda::broken::{self, Broken};
use gapless_sim_libcuda::held::{self, Held};
use gapless_sim_libcuda::record::Record;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Names the folder that processes leave their records in.
const RECORD: &str = "GAPLESS_SIM_RECORD";

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// With a status of its own.
    Exit(i32),
    /// By a signal: it crashed, or it was killed.
    Signal(i32),
    /// It ran for longer than it may, and was killed.
    TimeLimit,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(status) => write!(f, "exit status {status}"),
            Self::Signal(number) => match signal_hook::low_level::signal_name(*number) {
                Some(name) => write!(f, "signal {number} ({name})"),
                None => write!(f, "signal {number}"),
            },
            Self::TimeLimit => f.write_str("time limit"),
        }
    }
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        status.code().map(Self::Exit).or_else(|| status.signal().map(Self::Signal)).unwrap_or(Self::Exit(-1))
    }
}

/// What a program did.
#[derive(Clone, Debug)]
pub struct Ran {
    pub ending: Ending,
    pub time: Duration,
    /// What its processes left, or none where each ended without.
    pub record: Option<Record>,
    /// What its processes told on the way.
    pub told: Told,
}

/// What is told where somebody asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Told {
    /// The rules that calls broke.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub broken: Vec<Broken>,
    /// What was held at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Held>,
}

impl Told {
    /// The rules that calls broke, and not at the same place in another run.
    pub fn broken_beyond(&self, other: &Self) -> Vec<Broken> {
        let is_same = |one: &Broken, other: &Broken| {
            one.rule == other.rule && one.call.stack == other.call.stack && one.call.python == other.call.python
        };
        let is_new = |broken: &&Broken| !other.broken.iter().any(|before| is_same(before, broken));
        self.broken.iter().filter(is_new).cloned().collect()
    }
}

/// Where what a program writes to stderr goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stderr {
    Shown,
    Dropped,
}

/// Runs a program with all of its streams ours. A signal to end this process ends the program.
pub fn run_with_streams(program: &[OsString], environment: &Environment, stop: &Stop) -> Result<Ran, Failure> {
    let mut environment = environment.clone();
    // Somebody else may want the records.
    let folder = if environment.get(RECORD).is_none() { Some(tempfile::tempdir()?) } else { None };
    if let Some(folder) = &folder {
        environment.set(RECORD, folder.path());
    }
    let start = Instant::now();
    let mut child = start_program(&mut environment.command(program), program)?;
    let mut told = false;
    let ending = loop {
        if let Some(status) = child.try_wait()? {
            break status.into();
        }
        // An interruption from a terminal reaches the program by itself.
        if stop.terminate.load(Ordering::Relaxed) && !told {
            told = true;
            kill_process(process(&child), Signal::TERM).map_err(io::Error::from)?;
        }
        pause(start);
    };
    let time = start.elapsed();
    let (record, told) = folder.map(|folder| records_in(folder.path())).transpose()?.unwrap_or_default();
    Ok(Ran { ending, time, record, told })
}

/// Runs a program that reads nothing and whose output nobody sees, for `limit` at most. It is a process group of its own, which is
/// killed as a whole.
pub fn run_alone(
    program: &[OsString],
    environment: &Environment,
    limit: Option<Duration>,
    stderr: Stderr,
    stop: &Stop,
) -> Result<Ran, Failure> {
    let mut environment = environment.clone();
    let folder = tempfile::tempdir()?;
    let records = folder.path().join("records");
    fs::create_dir(&records)?;
    environment.set(RECORD, &records);
    // Processes of one run share their devices, and not with those of other runs.
    if environment.get("GAPLESS_SIM_SHARED").is_some() {
        environment.set("GAPLESS_SIM_SHARED", folder.path().join("shared"));
    }
    let mut command = environment.command(program);
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
    if stderr == Stderr::Dropped {
        command.stderr(Stdio::null());
    }
    let start = Instant::now();
    let mut child = start_program(&mut command, program)?;
    let ending = loop {
        if let Some(status) = child.try_wait()? {
            break status.into();
        }
        if stop.wanted() || limit.is_some_and(|limit| start.elapsed() > limit) {
            // The process is not waited for yet, so that the number is still its own.
            kill_process_group(process(&child), Signal::KILL).map_err(io::Error::from)?;
            child.wait()?;
            break Ending::TimeLimit;
        }
        pause(start);
    };
    let time = start.elapsed();
    let (record, told) = records_in(&records)?;
    Ok(Ran { ending, time, record, told })
}

/// Whether somebody wants this process to end.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    interrupt: Arc<AtomicBool>,
    terminate: Arc<AtomicBool>,
}

impl Stop {
    /// Takes note of signals from now on, in the place of ending.
    pub fn on_signals() -> Result<Self, Failure> {
        let stop = Self::default();
        signal_hook::flag::register(signal_hook::consts::SIGINT, stop.interrupt.clone())?;
        signal_hook::flag::register(signal_hook::consts::SIGTERM, stop.terminate.clone())?;
        Ok(stop)
    }

    pub fn wanted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed) || self.terminate.load(Ordering::Relaxed)
    }
}

fn start_program(command: &mut Command, program: &[OsString]) -> Result<Child, Failure> {
    command
        .spawn()
        .map_err(|error| Failure::Bad(format!("{} cannot be started: {error}", program[0].to_string_lossy())))
}

fn process(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Sleeps the shorter the younger the program is, so that many short ones take no longer than they have to.
fn pause(start: Instant) {
    thread::sleep((start.elapsed() / 20).clamp(Duration::from_micros(200), Duration::from_millis(50)));
}

/// The sum of the records of all processes, and what they told.
fn records_in(folder: &Path) -> Result<(Option<Record>, Told), Failure> {
    let mut sum: Option<Record> = None;
    let mut told = Told::default();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let failed = |error: &dyn fmt::Display| Failure::Bad(format!("{}: {error}", path.display()));
        match path.extension() {
            None => {
                let record: Record = fs::read_to_string(&path)?.parse().map_err(|error| failed(&error))?;
                sum.get_or_insert_default().add(&record);
            }
            Some(ending) if ending == broken::ENDING => {
                for line in fs::read_to_string(&path)?.lines() {
                    told.broken.push(serde_json::from_str(line).map_err(|error| failed(&error))?);
                }
            }
            Some(ending) if ending == held::ENDING => {
                for line in fs::read_to_string(&path)?.lines() {
                    told.held.push(serde_json::from_str(line).map_err(|error| failed(&error))?);
                }
            }
            // One that was being written when its process was killed.
            Some(_) => {}
        }
    }
    told.held.sort_by_key(|held| std::cmp::Reverse((held.bytes, held.count)));
    Ok((sum, told))
}
