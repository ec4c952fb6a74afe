//! Linking for systems older than this one: zig as the linker, which knows the symbols of older C libraries, with the libraries of
//! this machine's C++ compiler.
//!
//! cargo-zigbuild, which links Rust in such a way, takes another library for unwinding than the system's. Exceptions of PyTorch
//! pass through functions of this project, and a process has to have one such library.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest C library that wheels are built for: that of manylinux_2_28, which PyTorch's own wheels need.
pub const OLDEST_GLIBC: &str = "2.28";

/// Writes a linker into `folder`, to be called as a compiler is, or returns `None` where zig is not installed.
pub fn linker(workspace: &Workspace, folder: &Path) -> Result<Option<PathBuf>, Failure> {
    let Some(zig) = zig(workspace)? else {
        return Ok(None);
    };
    let library = |name: &str| {
        let path = process::output(cxx(workspace).arg(format!("-print-file-name={name}")))?;
        Ok::<_, Failure>(path.trim().to_owned())
    };
    let script = format!(
        "#!/bin/sh\n\
         for argument do\n\
             shift\n\
             case $argument in\n\
                 -lgcc_s) argument='{}' ;;\n\
                 -lstdc++) argument='{}' ;;\n\
             esac\n\
             set -- \"$@\" \"$argument\"\n\
         done\n\
         exec {zig} cc -target {ARCH}-linux-gnu.{OLDEST_GLIBC} -Wl,--allow-shlib-undefined \"$@\"\n",
        library("libgcc_s.so.1")?,
        library("libstdc++.so")?,
    );
    let path = folder.join("link-for-old-systems");
    files::write(&path, &script)?;
    files::set_permissions(&path, 0o755)?;
    Ok(Some(path))
}

/// Builds packages with a profile, such as `--release`. Returns the folder that they are in, which is `folder` of the target folder
/// where zig is not installed.
pub fn build(workspace: &Workspace, profile: &[&str], folder: &str, packages: &[&str]) -> Result<PathBuf, Failure> {
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    let linkers = files::temporary_folder()?;
    let Some(linker) = linker(workspace, linkers.path())? else {
        process::run(workspace.cargo(["build"]).args(profile).args(packages))?;
        return Ok(workspace.target(folder));
    };
    let target = format!("{ARCH}-unknown-linux-gnu");
    let variable = format!("CARGO_TARGET_{}_LINKER", target.replace('-', "_").to_uppercase());
    let mut cargo = workspace.cargo(["build", "--target", &target]);
    process::run(cargo.args(profile).args(packages).env(variable, linker))?;
    Ok(workspace.target(target).join(folder))
}

/// zig as the shell calls it: on the path, or as PyPI has it.
fn zig(workspace: &Workspace) -> Result<Option<String>, Failure> {
    if process::find("zig").is_some() {
        return Ok(Some("zig".to_owned()));
    }
    let python = python::interpreter()?;
    let installed = python::can_run(workspace, &python, "import ziglang");
    Ok(installed.then(|| format!("'{python}' -m ziglang")))
}

/// The C++ compiler.
pub fn cxx(workspace: &Workspace) -> Command {
    let words = process::compiler("CXX", "c++");
    let mut command = workspace.command(&words[0]);
    command.args(&words[1..]);
    command
}

/// Fails where there is no C++ compiler.
pub fn require_cxx() -> Result<(), Failure> {
    process::require(&[&process::compiler("CXX", "c++")[0]])
}
