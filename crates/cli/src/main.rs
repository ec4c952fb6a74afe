//! The command line: turns arguments into library calls, and their results into output and an exit code.
//!
//! Data goes to stdout, notes and progress to stderr. A closed pipe is success: the reader has seen enough.

mod advise;
mod destination;
mod doctor;
mod gpu;
mod manual;
mod probe;
mod progress;
mod replay;
mod soak;
mod table;

use clap::{CommandFactory, Parser, Subcommand};
use std::io;
use std::process::ExitCode;

/// A GPU memory allocator on CUDA virtual memory management: if the bytes are free, the allocation succeeds.
#[derive(Debug, Parser)]
#[command(name = "gapless", version, arg_required_else_help = true, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replay recorded allocations through gapless and a PyTorch-style caching allocator, side by side
    #[command(after_help = replay::AFTER_HELP)]
    Replay(replay::ReplayArguments),
    /// Say what held the memory of a program that ran out of it, and which setting or device would have helped
    #[command(after_help = advise::AFTER_HELP)]
    Advise(advise::AdviseArguments),
    /// Check for a usable GPU: list the devices, test gapless on each, and explain what to do where it fails
    #[command(after_help = doctor::AFTER_HELP)]
    Doctor(doctor::DoctorArguments),
    /// Measure how this GPU and driver behave where their documentation does not say (takes a minute or two)
    #[command(after_help = probe::AFTER_HELP)]
    Probe(probe::ProbeArguments),
    /// Stress an allocator with many threads and failing driver calls, checking every result
    #[command(after_help = soak::AFTER_HELP)]
    Soak(soak::SoakArguments),
    /// Print what completes the command line in a shell
    #[command(after_help = manual::COMPLETIONS_AFTER_HELP)]
    Completions(manual::CompletionsArguments),
    /// Print the manual page
    #[command(after_help = manual::MAN_AFTER_HELP)]
    Man(manual::ManArguments),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Success,
    /// The one policy of a replay ran out of memory; with advice, all of them did.
    OutOfMemory,
    /// At least one input was bad; a message named it.
    BadInput,
    /// There is no GPU that gapless can use; the output said why.
    NoDevice,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    BadArguments(String),
    #[error("cannot write the result: {0}")]
    Output(#[from] io::Error),
    /// The page could not be written.
    #[error("{0}")]
    Page(String),
    /// The driver or the machine failed.
    #[error("{0}")]
    Driver(String),
    /// A bug in this program.
    #[error("{0}\nThis is a bug in gapless, not in the trace: please report it with the trace.")]
    Internal(String),
}

/// Parses the arguments, runs the command and returns its exit code.
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Advise(arguments) => advise::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments, Arguments::command()),
        Command::Man(arguments) => manual::man(&arguments, Arguments::command()),
    };
    match outcome {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::OutOfMemory) => ExitCode::from(OUT_OF_MEMORY),
        Ok(Outcome::BadInput) => ExitCode::from(BAD_INPUT),
        Ok(Outcome::NoDevice) => ExitCode::from(NO_DEVICE),
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            match failure {
                Failure::BadArguments(_) => ExitCode::from(BAD_INPUT),
                Failure::Output(_) | Failure::Page(_) | Failure::Driver(_) | Failure::Internal(_) => ExitCode::FAILURE,
            }
        }
    }
}

/// Shown below the list of commands.
const AFTER_HELP: &str = "\
Exit codes: 0 for success, 1 for a failure of the machine, the driver or this program, 2 for bad arguments or bad input, 3 where
memory ran out (replay with one policy, advise), 4 where there is no GPU that can be used. Each command has its own in its --help.";

/// Exit code for bad arguments and bad input, the same as clap's.
const BAD_INPUT: u8 = 2;
/// Exit code when memory ran out in a replay.
const OUT_OF_MEMORY: u8 = 3;
/// Exit code when there is no GPU that gapless can use.
const NO_DEVICE: u8 = 4;
