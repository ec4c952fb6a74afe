//! The Python package as it is installed: the modules, the C library and the C++ helper for PyTorch.

use super::build_torch_objects;
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};
use std::path::Path;

/// Fails where a program is missing that [`assemble`] needs.
pub fn require_tools() -> Result<(), Failure> {
    process::require(&[&process::compiler("CXX", "c++")[0], "strip", "objdump"])
}

/// Writes the package into `folder`. `library` is the C library as cargo built it.
pub fn assemble(workspace: &Workspace, folder: &Path, library: &Path) -> Result<(), Failure> {
    files::create_folder(folder)?;
    for module in files::with_ending(&workspace.path("python/gapless"), "py")? {
        files::copy(&module, &folder.join(files::name(&module)))?;
    }
    files::copy(&workspace.path("python/gapless/py.typed"), &folder.join("py.typed"))?;
    let installed = folder.join("libgapless.so");
    files::install(library, &installed, 0o755)?;
    process::run(workspace.command("strip").arg("--strip-debug").arg(&installed))?;
    build_torch_throw(workspace, &folder.join("_torch_throw.so"))?;
    let objects = build_torch_objects::objects(workspace);
    for object in if objects.is_dir() { files::with_ending(&objects, "so")? } else { Vec::new() } {
        let installed = folder.join(files::name(&object));
        files::install(&object, &installed, 0o755)?;
        process::run(workspace.command("strip").arg("--strip-debug").arg(&installed))?;
    }
    Ok(())
}

/// Adds the command line to the package in `folder`, which [`assemble`] has written.
pub fn add_program(workspace: &Workspace, folder: &Path, program: &Path) -> Result<(), Failure> {
    files::create_folder(&folder.join("bin"))?;
    let installed = folder.join("bin/gapless");
    files::install(program, &installed, 0o755)?;
    process::run(workspace.command("strip").arg(&installed))
}

/// Compiles the helper that raises PyTorch's own exception.
pub fn build_torch_throw(workspace: &Workspace, out: &Path) -> Result<(), Failure> {
    let compiler = process::compiler("CXX", "c++");
    let mut command = workspace.command(&compiler[0]);
    command.args(&compiler[1..]).args(["-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]);
    process::run(command.arg("python/src/torch_throw.cpp").arg("-o").arg(out).arg("-ldl"))
}

/// The newest version of glibc that a file of the package in `folder` asks for: at least `oldest`.
pub fn glibc(workspace: &Workspace, folder: &Path, oldest: &str) -> Result<String, Failure> {
    let mut newest = oldest.to_owned();
    let mut binaries = files::with_ending(folder, "so")?;
    binaries.push(folder.join("bin/gapless"));
    for file in binaries {
        let symbols = process::output(workspace.command("objdump").arg("-T").arg(&file))?;
        if let Some(needed) = newest_glibc(&symbols)
            && numbers(needed) > numbers(&newest)
        {
            needed.clone_into(&mut newest);
        }
    }
    Ok(newest)
}

/// The newest version of glibc among the symbols that `objdump -T` lists.
fn newest_glibc(symbols: &str) -> Option<&str> {
    let versions = symbols.split("GLIBC_").skip(1);
    let versions =
        versions.map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len())]);
    versions.max_by_key(|version| numbers(version))
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let symbols = "f (GLIBC_2.2.5) memcpy\nf (GLIBC_2.14) memcpy\nf (GLIBC_2.9) x\nf (GLIBC_PRIVATE) y\n";
        assert_eq!(newest_glibc(symbols), Some("2.14"));
        assert_eq!(newest_glibc("no symbols"), None);
        assert!(numbers("2.34") > numbers("2.4") && numbers("2.34.1") > numbers("2.34"));
    }
}
