//! The Python package's own tests: over the simulated driver, without PyTorch.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::ffi::OsString;

#[derive(Debug, clap::Args)]
pub struct TestPythonArguments {
    /// Arguments of pytest
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn run(workspace: &Workspace, arguments: &TestPythonArguments) -> Result<(), Failure> {
    let python = python::interpreter()?;
    if !python::can_run(workspace, &python, "import pytest") {
        return Err(Failure::new(format!(
            "{python} has no pytest: {python} -m pip install pytest; PYTHON names another interpreter"
        )));
    }
    let folder = files::temporary_folder()?;
    workspace.install_simulated(folder.path())?;
    // The package runs it for advice.
    process::run(&mut workspace.cargo(["build", "--quiet", "--package", "gapless-cli", "--bin", "gapless"]))?;
    let mut pytest = workspace.command(&python);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "python/tests/unit"]).args(&arguments.arguments);
    pytest.env_remove("GAPLESS_CONF");
    pytest.env("LD_LIBRARY_PATH", process::with_library_path(folder.path()));
    // There is no PyTorch to build an allocator object for.
    pytest.env("GAPLESS_TORCH_OBJECTS", "off").env("GAPLESS_LIBRARY", folder.path().join("libgapless.so"));
    pytest.env("GAPLESS_COMMAND", workspace.target("debug/gapless"));
    process::run(pytest.env("PYTHONPATH", "python"))
}
