//! The Python wheel. Building it takes a C++ compiler and Python with setuptools; installing it takes neither.

use super::python_package;
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python};

/// What `python/setup.py` and `python/pyproject.toml` ask for.
const BUILD_TOOLS: &str = "\
from setuptools import Distribution, build_meta
try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel
import pip";

pub fn run(workspace: &Workspace) -> Result<(), Failure> {
    let python = python::interpreter()?;
    if !python::can_run(workspace, &python, BUILD_TOOLS) {
        return Err(Failure::new(format!(
            "{python} lacks what builds wheels: {python} -m pip install 'setuptools>=68' wheel; PYTHON names another \
             interpreter"
        )));
    }
    python_package::require_tools()?;
    process::run(&mut workspace.cargo(["build", "--release", "--package", "gapless-capi"]))?;

    let folder = files::temporary_folder()?;
    for file in ["setup.py", "pyproject.toml", "README.md"] {
        files::copy(&workspace.path("python").join(file), &folder.path().join(file))?;
    }
    let library = workspace.target("release/libgapless_capi.so");
    python_package::assemble(workspace, &folder.path().join("gapless"), &library)?;

    let dist = workspace.path("dist");
    files::create_folder(&dist)?;
    let mut pip = workspace.command(&python);
    pip.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]);
    process::run(pip.arg(&dist).arg(folder.path()))?;
    for wheel in files::with_ending(&dist, "whl")? {
        if files::name(&wheel).starts_with("gapless-") {
            println!("{}", files::shown(&wheel));
        }
    }
    Ok(())
}
