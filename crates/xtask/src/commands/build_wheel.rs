//! The Python wheel. Building it takes a C++ compiler, Python with setuptools, and PyTorch's allocator objects, which
//! `build-torch-objects` builds; installing it takes none of these.
//!
//! The wheel runs where the C library is as new as its tag says: `OLDEST_GLIBC` where zig is installed, which links against that,
//! else that of the machine that builds it.

use super::build_torch_objects;
use super::python_package::{self, Needed};
use crate::failure::Failure;
use crate::old_systems::{self, OLDEST_GLIBC};
use crate::workspace::Workspace;
use crate::{files, python};

#[derive(Debug, Default, clap::Args)]
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
    let built = old_systems::build(workspace, &["--release"], "release", &["gapless-capi", "gapless-cli"])?;

    let folder = files::temporary_folder()?;
    python_package::copy_project(workspace, folder.path())?;
    let package = folder.path().join("gapless");
    python_package::complete(workspace, &package, &built)?;
    if !arguments.without_objects {
        python_package::add_torch_objects(workspace, &package)?;
    }
    python_package::write_shared_files(workspace, &folder.path().join("share"), &built.join("gapless"))?;
    let mut binaries = files::with_ending(&package, "so")?;
    binaries.push(package.join("bin/gapless"));
    let newer = python_package::newer(workspace, &binaries, &[("GLIBC_", OLDEST_GLIBC), ("GLIBCXX_", OLDEST_GLIBCXX)])?;
    for Needed { file, library, version } in &newer {
        eprintln!("{file} asks for {library}{version}");
    }
    if !newer.is_empty() {
        eprintln!(
            "so this wheel does not run everywhere from glibc {OLDEST_GLIBC} on. {python} -m pip install ziglang, and \
             build the allocator objects with it as well"
        );
    }
    python_package::build_wheel(workspace, &python, folder.path(), &newer, "gapless-")
}

/// The C++ library of manylinux_2_28, as auditwheel has it.
const OLDEST_GLIBCXX: &str = "3.4.24";
