//! `gapless-sim`: runs a program over the simulated driver, and lets each of its driver calls fail in turn.
//!
//! What a sweep has found goes to stdout, notes and progress to stderr. A program that is run once has all three streams.

mod device;
mod driver;
mod environment;
mod libraries;
mod loader;
mod many;
mod program;
mod race;
mod report;
mod run;
mod sarif;
mod sweep;

use clap::{Parser, Subcommand};
use std::io;
use std::process::ExitCode;

/// Run programs over a simulated CUDA driver: no GPU is needed, and each call of the driver can be made to fail.
#[derive(Debug, Parser)]
#[command(name = "gapless-sim", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program, once or once for each of its driver calls
    #[command(after_help = run::after_help())]
    Run(run::RunArguments),
}

/// Why the command could not do its work.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// An argument, an environment variable or a folder is not what it has to be.
    #[error("{0}")]
    Bad(String),
    #[error("cannot write the result: {0}")]
    Output(#[from] io::Error),
}

fn main() -> ExitCode {
    let Command::Run(arguments) = Arguments::parse().command;
    match run::run(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(BAD)
        }
    }
}

/// Exit code for bad arguments, the same as clap's, and for whatever else keeps the program from being run.
const BAD: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }
}
