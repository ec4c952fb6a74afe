//! The checks that have to pass: those that take minutes, and those that take hours.

use super::model_check::{self, Checker};
use super::sanitize::{self, Part};
use super::scripts;
use super::test_interop;
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{process, tools};
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub struct FullArguments {
    /// Minutes of fuzzing on each driver, and of each soak
    #[arg(long, value_name = "M", default_value_t = 30.0)]
    minutes: f64,
}

/// Formatting, lints and tests.
pub fn check(workspace: &Workspace) -> Result<(), Failure> {
    process::run(&mut workspace.cargo(["fmt", "--all", "--check"]))?;
    process::run(&mut workspace.cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    process::run(&mut workspace.cargo(["test", "--workspace"]))
}

pub fn short(workspace: &Workspace) -> Result<(), Failure> {
    process::run(&mut workspace.command(workspace.path(".ci/run")))
}

/// Takes what [`short`] installs, and cargo-mutants.
pub fn full(workspace: &Workspace, arguments: &FullArguments) -> Result<(), Failure> {
    let minutes = &arguments.minutes.to_string();
    let steps = Steps { start: Instant::now() };
    if process::find("cargo-mutants").is_none() {
        steps.begin("cargo-mutants, which the last step takes");
        let mutants = tools::of_cargo(workspace, "cargo-mutants")?;
        process::run(&mut workspace.cargo(["install", "--quiet", "--locked", &mutants]))?;
    }

    steps.begin("what every change has to pass");
    short(workspace)?;

    steps.begin("each optional feature by itself");
    for feature in test_interop::FEATURES.into_iter().chain(["testing", "internals"]) {
        let library = ["clippy", "--package", "gapless", "--lib", "--features", feature, "--", "-D", "warnings"];
        process::run(&mut workspace.cargo(library))?;
    }

    steps.begin("coverage");
    scripts::run(workspace, "coverage", &["all"])?;

    steps.begin("twenty times the property tests, stress and schedules, every sequence of six operations");
    let mut tests =
        workspace.cargo(["test", "--release", "--package", "gapless-testkit", "--package", "gapless-instrumented"]);
    process::run(tests.env("GAPLESS_PROOF_SCALE", "20").env("GAPLESS_PROOF_LENGTH", "6"))?;
    let mut hostile = workspace.cargo(["test", "--release", "--package", "gapless-share", "--test", "random"]);
    process::run(hostile.env("GAPLESS_PROOF_SCALE", "20"))?;
    model_check::check(workspace, Checker::Shuttle, Some("20"))?;

    steps.begin("sanitizers");
    sanitize::run_parts(workspace, &[Part::Address, Part::Thread])?;

    for driver in ["model", "host"] {
        steps.begin(&format!("fuzzing and soak on {driver}"));
        let out = workspace.target(format!("fuzz-campaign-{driver}"));
        let out = out.to_string_lossy();
        let campaign = ["--minutes", minutes, "--jobs", "2", "--driver", driver, "--out", &out];
        scripts::run(workspace, "fuzz-campaign", &campaign)?;
        let mut soak = workspace.command(workspace.target("release/gapless"));
        soak.args(["soak", "--minutes", minutes, "--threads", "4", "--streams", "4", "--driver", driver]);
        process::run(&mut soak)?;
    }

    steps.begin("planted bugs");
    scripts::run(workspace, "planted-bugs", &[])?;

    steps.begin("mutation testing");
    // In the environment that `short` has made.
    let python = workspace.target("python-tests/bin/python");
    process::run(workspace.command(&python).arg(workspace.path("scripts/mutants")))?;
    steps.begin("done");
    Ok(())
}

/// Says what is about to be done, and how long everything before it took.
struct Steps {
    start: Instant,
}

impl Steps {
    fn begin(&self, what: &str) {
        println!("\n== {what} ({} s so far)", self.start.elapsed().as_secs());
    }
}
