//! The Python package as an installation from source builds it: for this machine, without zig.

use super::python_package;
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct BuildPythonPackageArguments {
    /// Where the package goes
    folder: PathBuf,
}

pub fn run(workspace: &Workspace, arguments: &BuildPythonPackageArguments) -> Result<(), Failure> {
    python_package::require_tools()?;
    let packages = ["--release", "--package", "gapless-capi", "--package", "gapless-cli"];
    process::run(workspace.cargo(["build", "--locked"]).args(packages))?;
    python_package::complete(workspace, &files::given(&arguments.folder)?, &workspace.target("release"))
}
