//! The model checkers: `src/sync` puts their locks and atomics in the place of the ordinary ones.
//!
//! Each has a build folder of its own, since its flags would have everything rebuilt every time.

use crate::failure::Failure;
use crate::process;
use crate::workspace::Workspace;

#[derive(Debug, clap::Args)]
#[command(after_help = "GAPLESS_PROOF_SCALE=20 goes through twenty times as many schedules with shuttle.")]
pub struct ModelCheckArguments {
    /// What to run
    #[arg(value_enum, default_values = ["shuttle", "loom"])]
    checkers: Vec<Checker>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Checker {
    /// Weak-memory orders in the small concurrent parts
    Loom,
    /// A whole allocator, with thread switches at every lock and atomic
    Shuttle,
}

pub fn run(workspace: &Workspace, arguments: &ModelCheckArguments) -> Result<(), Failure> {
    arguments.checkers.iter().try_for_each(|checker| check(workspace, *checker, None))
}

/// `scale` multiplies the number of schedules; without it, the caller's `GAPLESS_PROOF_SCALE` counts.
pub fn check(workspace: &Workspace, checker: Checker, scale: Option<&str>) -> Result<(), Failure> {
    let (name, test) = match checker {
        Checker::Loom => ("loom", "loom"),
        Checker::Shuttle => ("shuttle", "schedules"),
    };
    let mut command = workspace.cargo(["test", "--package", "gapless-testkit", "--target-dir"]);
    command.arg(workspace.target(name)).args(["--test", test]).env("RUSTFLAGS", format!("--cfg {name}"));
    if let Some(scale) = scale {
        command.env("GAPLESS_PROOF_SCALE", scale);
    }
    process::run(&mut command)
}
