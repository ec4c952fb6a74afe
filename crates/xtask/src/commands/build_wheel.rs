//! The Python wheel. Building it takes a C++ compiler, Python with setuptools, and PyTorch's allocator objects, which
//! `build-torch-objects` builds; installing it takes none of these.
//!
//! The wheel runs where the C library is as new as its tag says: `OLDEST_GLIBC` where zig is installed, which links against that,
//! else that of the machine that builds it.

use super::build_torch_objects;
use super::python_package::{self, Needed, version_order};
use crate::failure::Failure;
use crate::old_systems::{self, OLDEST_GLIBC};
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::env::consts::ARCH;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "PYTHON names the interpreter whose setuptools build it: 77 or newer.")]
pub struct WheelArguments {
    /// Build it without PyTorch's allocator objects: PyTorch takes the plug-in, which lacks much
    #[arg(long)]
    without_objects: bool,
}

pub fn run(workspace: &Workspace, arguments: &WheelArguments) -> Result<(), Failure> {
    let python = python::interpreter()?;
    python_package::require_build_tools(workspace, &python)?;
    python_package::require_tools()?;
    if !arguments.without_objects {
        build_torch_objects::require_all(workspace)?;
    }
    let built = build(workspace)?;

    let folder = files::temporary_folder()?;
    python_package::copy_project(workspace, folder.path())?;
    let package = folder.path().join("gapless");
    python_package::complete(workspace, &package, &built)?;
    if !arguments.without_objects {
        python_package::add_torch_objects(workspace, &package)?;
    }
    python_package::write_shared_files(workspace, &folder.path().join("share"), &built.join("gapless"))?;
    let newer = python_package::newer(workspace, &package, &[("GLIBC_", OLDEST_GLIBC), ("GLIBCXX_", OLDEST_GLIBCXX)])?;
    for Needed { file, library, version } in &newer {
        eprintln!("{file} asks for {library}{version}");
    }
    if !newer.is_empty() {
        eprintln!(
            "so this wheel does not run everywhere from glibc {OLDEST_GLIBC} on. {python} -m pip install ziglang, and \
             build the allocator objects with it as well"
        );
    }
    let glibc = newer.iter().filter(|needed| needed.library == "GLIBC_").map(|needed| needed.version.as_str());
    let glibc = glibc.max_by_key(|version| version_order(version)).unwrap_or(OLDEST_GLIBC);

    let dist = workspace.path("dist");
    files::create_folder(&dist)?;
    let mut pip = workspace.command(&python);
    pip.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]);
    process::run(pip.arg(&dist).arg(folder.path()).env("GAPLESS_WHEEL_GLIBC", glibc))?;
    for wheel in files::with_ending(&dist, "whl")? {
        if files::name(&wheel).starts_with("gapless-") {
            println!("{}", files::shown(&wheel));
        }
    }
    Ok(())
}

/// Builds the library and the program. Returns the folder that they are in.
fn build(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let packages = ["--release", "--package", "gapless-capi", "--package", "gapless-cli"];
    let folder = files::temporary_folder()?;
    let Some(linker) = old_systems::linker(workspace, folder.path())? else {
        process::run(workspace.cargo(["build"]).args(packages))?;
        return Ok(workspace.target("release"));
    };
    let target = format!("{ARCH}-unknown-linux-gnu");
    let variable = format!("CARGO_TARGET_{}_LINKER", target.replace('-', "_").to_uppercase());
    process::run(workspace.cargo(["build", "--target", &target]).args(packages).env(variable, linker))?;
    Ok(workspace.target(target).join("release"))
}

/// The C++ library of manylinux_2_28, as auditwheel has it.
const OLDEST_GLIBCXX: &str = "3.4.24";
