//! AddressSanitizer and ThreadSanitizer over the tests that move real bytes.
//!
//! Works with a stable toolchain and without its sources: what std does inside is not instrumented, so code under
//! ThreadSanitizer uses parking_lot, and what std's own reference counts and channels raise is suppressed.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};
use std::process::Command;

#[derive(Debug, clap::Args)]
pub struct SanitizeArguments {
    /// The sanitizers to run
    #[arg(value_enum, default_values = ["address", "thread"])]
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Part {
    /// AddressSanitizer
    Address,
    /// ThreadSanitizer
    Thread,
    /// A part of both, in a few minutes
    Quick,
}

pub fn run(workspace: &Workspace, arguments: &SanitizeArguments) -> Result<(), Failure> {
    run_parts(workspace, &arguments.parts)
}

pub fn run_parts(workspace: &Workspace, parts: &[Part]) -> Result<(), Failure> {
    for part in parts {
        match part {
            Part::Address => {
                eprintln!("== address");
                address(workspace, "gapless", "--test conformance host")?;
                address(workspace, "gapless-testkit", "--lib --test properties host")?;
                address(workspace, "gapless-instrumented", "--test stress --test faults host")?;
            }
            Part::Thread => {
                eprintln!("== thread");
                thread(workspace, "gapless", "--test conformance on_host -- --test-threads=1")?;
                thread(workspace, "gapless-instrumented", "--test stress -- --test-threads=1")?;
            }
            Part::Quick => {
                eprintln!("== quick");
                address_beside_fuzzing(workspace, "--test stress --test faults host")?;
                thread(workspace, "gapless-instrumented", "--test stress -- --test-threads=1")?;
            }
        }
    }
    println!("sanitizers found nothing");
    Ok(())
}

fn address(workspace: &Workspace, package: &str, tests: &str) -> Result<(), Failure> {
    let mut command = test(workspace, package, tests);
    process::run(command.env("RUSTFLAGS", "-Zsanitizer=address").env("ASAN_OPTIONS", "detect_leaks=1"))
}

/// On what is built for the fuzz targets where they are built without optimisation, as `.ci/run` does.
fn address_beside_fuzzing(workspace: &Workspace, tests: &str) -> Result<(), Failure> {
    let flags = files::read(&workspace.path("fuzz/rustflags"))?;
    let flags: Vec<&str> = flags.lines().filter(|line| !line.starts_with('#')).collect();
    let mut command = workspace.cargo(["test", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    command.args(["--target", "x86_64-unknown-linux-gnu", "--target-dir"]).arg(workspace.target("fuzz"));
    command.args(tests.split(' ')).env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    command.env("RUSTFLAGS", flags.join(" ")).env("RUSTC_BOOTSTRAP", "1").env("RUSTUP_TOOLCHAIN", "stable");
    process::run(command.env("RUST_BACKTRACE", "0").env("ASAN_OPTIONS", "detect_leaks=1"))
}

fn thread(workspace: &Workspace, package: &str, tests: &str) -> Result<(), Failure> {
    let suppressions = workspace.path("crates/xtask/tsan.supp");
    let mut command = test(workspace, package, tests);
    // The suppressions name functions with their paths, which less does not have.
    command.env("CARGO_PROFILE_DEV_DEBUG", "full");
    command.env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer");
    process::run(command.env("TSAN_OPTIONS", format!("suppressions={} halt_on_error=1", suppressions.display())))
}

fn test(workspace: &Workspace, package: &str, tests: &str) -> Command {
    let mut command = workspace.instrumented(package);
    command.args(tests.split(' ')).env("RUSTUP_TOOLCHAIN", "stable");
    command.env("RUST_BACKTRACE", "0");
    command
}
