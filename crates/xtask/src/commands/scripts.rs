//! The programs in `scripts/`: they take this process's place, with the arguments that it was given.

use crate::failure::Failure;
use crate::process;
use crate::workspace::Workspace;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Arguments that are not looked at here, `--help` among them.
#[derive(Debug, clap::Args)]
pub struct PassedOn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Starts a program of `scripts/`. It goes on in the folder where the user is, whose paths it may be given.
pub fn start(workspace: &Workspace, name: &str, arguments: &PassedOn) -> Result<(), Failure> {
    process::require(&["python3"])?;
    become_program(workspace.command(workspace.path("scripts").join(name)), arguments)
}

/// Starts `scripts/gpu-run` where it works: as `run` in the bundle.
pub fn start_bundle(workspace: &Workspace, arguments: &PassedOn) -> Result<(), Failure> {
    let program = workspace.target("gpu-bundle/run");
    if !program.exists() {
        return Err(Failure::new("there is no bundle: cargo xtask gpu-bundle builds it"));
    }
    become_program(workspace.command(program), arguments)
}

/// For ci-full, which goes on afterwards.
pub fn run(workspace: &Workspace, name: &str, arguments: &[&str]) -> Result<(), Failure> {
    process::run(workspace.command(workspace.path("scripts").join(name)).args(arguments))
}

fn become_program(mut command: Command, arguments: &PassedOn) -> Result<(), Failure> {
    let here = env::current_dir().map_err(|error| Failure::new(format!("the current folder: {error}")))?;
    let error = command.args(&arguments.arguments).current_dir(here).exec();
    Err(Failure::new(format!("{} cannot be started: {error}", command.get_program().to_string_lossy())))
}
