//! The model checkers: `src/sync` puts their locks and atomics in the place of the ordinary ones.

use crate::failure::Failure;
use crate::process;
use crate::workspace::Workspace;

#[derive(Debug, clap::Args)]
#[command(after_help = "GAPLESS_PROOF_SCALE=20 goes through twenty times as many schedules with shuttle.")]
pub struct ModelCheckArguments {
    /// The checkers to run
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
    let mut command = workspace.instrumented("gapless-instrumented");
    command.args(["--test", test]).env("RUSTFLAGS", format!("--cfg {name}"));
    if matches!(checker, Checker::Loom) {
        // Its tests take less than a second, however slow.
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_TEST_OPT_LEVEL", "0");
    }
    if let Some(scale) = scale {
        command.env("GAPLESS_PROOF_SCALE", scale);
    }
    process::run(&mut command)
}
