//! The Python source distribution: what a wheel is built from where there is none for a machine. Installing it takes Rust, a C++
//! compiler and minutes.

use super::python_package;
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python};

/// The beginnings of the paths that the package is built from: tests, documents and traces stay here. Benchmarks and examples are
/// targets of the manifests, without which these cannot be read.
const CARRIED: [&str; 12] = [
    "Cargo.",
    "LICENSE-",
    "README.md",
    "benches/",
    "crates/",
    "examples/",
    "include/",
    "kernels/",
    "python/README.md",
    "python/gapless/",
    "python/src/",
    "src/",
];
/// The folder of the distribution that they are in. `setup.py` builds there.
const SOURCE: &str = "source";

pub fn run(workspace: &Workspace) -> Result<(), Failure> {
    let python = python::interpreter()?;
    python_package::require_build_tools(workspace, &python)?;
    let folder = files::temporary_folder()?;
    python_package::copy_project(workspace, folder.path())?;
    files::copy(&workspace.path("python/MANIFEST.in"), &folder.path().join("MANIFEST.in"))?;
    python_package::copy_modules(workspace, &folder.path().join("gapless"))?;
    let listed = process::output(workspace.command("git").args(["ls-files", "-z"]))?;
    for file in listed.split('\0').filter(|file| CARRIED.iter().any(|beginning| file.starts_with(beginning))) {
        let copy = folder.path().join(SOURCE).join(file);
        files::create_folder(copy.parent().expect("a file is in a folder"))?;
        files::copy(&workspace.path(file), &copy)?;
    }
    let dist = workspace.path("dist");
    files::create_folder(&dist)?;
    let mut build = workspace.command(&python);
    build.current_dir(folder.path()).args(["-c", BUILD]).arg(&dist);
    println!("{}", files::shown(&dist.join(process::output(&mut build)?.lines().last().unwrap_or_default())));
    Ok(())
}

/// The Python program of an installer: its argument is the folder for the archive, whose name it prints.
const BUILD: &str = "\
import sys
from setuptools import build_meta
print(build_meta.build_sdist(sys.argv[1]))";
