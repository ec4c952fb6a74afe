//! The Python package as it is installed: the modules, the C library and the C++ helper for PyTorch.

use super::build_torch_objects;
use crate::cxx::Library;
use crate::failure::Failure;
use crate::old_systems::{self, OLDEST_GLIBC};
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::path::{Path, PathBuf};

/// Checks for the tools that `python/setup.py` and `python/pyproject.toml` require.
const BUILD_TOOLS: &str = "\
from setuptools import build_meta, __version__
from setuptools.command.bdist_wheel import bdist_wheel
assert int(__version__.split('.')[0]) >= 77
import pip";

/// Fails where an interpreter lacks what builds Python packages.
pub fn require_build_tools(workspace: &Workspace, python: &str) -> Result<(), Failure> {
    if python::can_run(workspace, python, BUILD_TOOLS) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{python} lacks what builds packages: {python} -m pip install 'setuptools>=77'; PYTHON names another interpreter"
    )))
}

/// Copies what describes the package into the folder that it is built in.
pub fn copy_project(workspace: &Workspace, folder: &Path) -> Result<(), Failure> {
    for file in ["setup.py", "pyproject.toml", "README.md", "gapless_start.pth"] {
        files::copy(&workspace.path("python").join(file), &folder.join(file))?;
    }
    copy_licences(workspace, folder)
}

/// Copies the licences, which each package has.
pub fn copy_licences(workspace: &Workspace, folder: &Path) -> Result<(), Failure> {
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        files::copy(&workspace.path(licence), &folder.join(licence))?;
    }
    Ok(())
}

/// Copies the modules, with those of packages inside the package.
pub fn copy_modules(workspace: &Workspace, folder: &Path) -> Result<(), Failure> {
    let package = workspace.path("python/gapless");
    files::copy_below(&package, folder, |file| {
        file.extension().is_some_and(|ending| ending == "py" || ending == "typed")
    })
}

/// Fails where a program is missing that [`assemble`] needs.
pub fn require_tools() -> Result<(), Failure> {
    old_systems::require_cxx()?;
    process::require(&["strip", "objdump"])
}

/// Writes the whole package into `folder`. `built` is the folder of the C library and the command line as cargo built them.
pub fn complete(workspace: &Workspace, folder: &Path, built: &Path) -> Result<(), Failure> {
    assemble(workspace, folder, &built.join("libgapless_capi.so"))?;
    add_program(workspace, folder, &built.join("gapless"))?;
    require_shared_unwinding(workspace, folder)
}

/// Writes the package into `folder`, without the command line and PyTorch's allocator objects. `library` is the C library as cargo
/// built it.
pub fn assemble(workspace: &Workspace, folder: &Path, library: &Path) -> Result<(), Failure> {
    copy_modules(workspace, folder)?;
    let installed = folder.join("libgapless.so");
    files::install(library, &installed, 0o755)?;
    process::run(workspace.command("strip").arg("--strip-debug").arg(&installed))?;
    build_torch_throw(workspace, &folder.join("_torch_throw.so"))
}

/// Adds PyTorch's allocator objects, as many as were built, to the package in `folder`.
pub fn add_torch_objects(workspace: &Workspace, folder: &Path) -> Result<(), Failure> {
    for object in files::with_ending(&build_torch_objects::objects(workspace), "so")? {
        let installed = folder.join(files::name(&object));
        files::install(&object, &installed, 0o755)?;
        process::run(workspace.command("strip").arg("--strip-debug").arg(&installed))?;
    }
    Ok(())
}

/// Adds the command line to the package in `folder`, which [`assemble`] has written.
fn add_program(workspace: &Workspace, folder: &Path, program: &Path) -> Result<(), Failure> {
    files::create_folder(&folder.join("bin"))?;
    let installed = folder.join("bin/gapless");
    files::install(program, &installed, 0o755)?;
    process::run(workspace.command("strip").arg(&installed))
}

/// Writes what shells and `man` know of the command line, as `program` prints it, into the folders below `share` where they look.
pub fn write_shared_files(workspace: &Workspace, share: &Path, program: &Path) -> Result<(), Failure> {
    for (arguments, file) in [
        (&["completions", "bash"][..], "bash-completion/completions/gapless"),
        (&["completions", "zsh"], "zsh/site-functions/_gapless"),
        (&["completions", "fish"], "fish/vendor_completions.d/gapless.fish"),
        (&["man"], "man/man1/gapless.1"),
        (&["man", "advise"], "man/man1/gapless-advise.1"),
        (&["man", "replay"], "man/man1/gapless-replay.1"),
        (&["man", "doctor"], "man/man1/gapless-doctor.1"),
        (&["man", "probe"], "man/man1/gapless-probe.1"),
        (&["man", "soak"], "man/man1/gapless-soak.1"),
    ] {
        let text = process::output(workspace.command(program).args(arguments))?;
        let file = share.join(file);
        files::create_folder(file.parent().expect("a file is in a folder"))?;
        files::write(&file, &text)?;
    }
    Ok(())
}

/// Compiles the helper that raises PyTorch's own exception.
pub fn build_torch_throw(workspace: &Workspace, out: &Path) -> Result<(), Failure> {
    let sources = files::with_ending(&workspace.path("python/src/torch_throw"), "cpp")?;
    Library { sources, options: vec!["-std=c++17".into()], links: Vec::new() }.build(workspace, out)
}

/// Fails where the C library of the package in `folder` brings its own functions for unwinding. PyTorch's exceptions pass through
/// it, and with two sets of these functions the process crashes.
fn require_shared_unwinding(workspace: &Workspace, folder: &Path) -> Result<(), Failure> {
    let library = folder.join("libgapless.so");
    let headers = process::output(workspace.command("objdump").arg("-p").arg(&library))?;
    if headers.contains("libgcc_s.so") {
        return Ok(());
    }
    Err(Failure::new("libgapless.so was not linked with libgcc_s.so, which unwinds exceptions"))
}

/// A symbol version that a file of the package asks for.
#[derive(Debug)]
pub struct Needed {
    /// The file's name.
    pub file: String,
    /// The library that is versioned: `GLIBC_` or `GLIBCXX_`.
    pub library: &'static str,
    /// The version, such as 2.34.
    pub version: String,
}

/// Returns the symbol versions that `binaries` require beyond `oldest`, which has pairs of the beginning of a symbol version and
/// the newest version allowed.
pub fn newer(
    workspace: &Workspace,
    binaries: &[PathBuf],
    oldest: &[(&'static str, &str)],
) -> Result<Vec<Needed>, Failure> {
    let mut found = Vec::new();
    for path in binaries {
        let symbols = process::output(workspace.command("objdump").arg("-T").arg(path))?;
        for &(library, oldest) in oldest {
            let newest = newest(&symbols, library).unwrap_or_default();
            if version_order(newest) > version_order(oldest) {
                found.push(Needed { file: files::name(path), library, version: newest.to_owned() });
            }
        }
    }
    Ok(found)
}

/// Builds the wheel of the project in `folder` into `dist`, and prints its path. `newer` says which C library its binaries ask for
/// beyond the oldest one that wheels are built for.
pub fn build_wheel(
    workspace: &Workspace,
    python: &str,
    folder: &Path,
    newer: &[Needed],
    beginning: &str,
) -> Result<(), Failure> {
    let glibc = newer.iter().filter(|needed| needed.library == "GLIBC_").map(|needed| needed.version.as_str());
    let glibc = glibc.max_by_key(|version| version_order(version)).unwrap_or(OLDEST_GLIBC);
    let dist = workspace.path("dist");
    files::create_folder(&dist)?;
    let mut pip = workspace.command(python);
    pip.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]);
    process::run(pip.arg(&dist).arg(folder).env("GAPLESS_WHEEL_GLIBC", glibc))?;
    for wheel in files::with_ending(&dist, "whl")? {
        if files::name(&wheel).starts_with(beginning) {
            println!("{}", files::shown(&wheel));
        }
    }
    Ok(())
}

/// The newest version of a library among the symbols that `objdump -T` lists.
fn newest<'a>(symbols: &'a str, library: &str) -> Option<&'a str> {
    let versions = symbols.split(library).skip(1);
    let versions =
        versions.map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len())]);
    versions.max_by_key(|version| version_order(version))
}

/// The numbers that versions are compared by.
pub fn version_order(version: &str) -> Vec<u32> {
    version.split('.').filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_version_order() {
        let symbols = "f (GLIBC_2.2.5) memcpy\nf (GLIBC_2.14) memcpy\nf (GLIBC_2.9) x\nf (GLIBC_PRIVATE) y\n";
        assert_eq!(newest(symbols, "GLIBC_"), Some("2.14"));
        assert_eq!(newest("no symbols", "GLIBC_"), None);
        assert!(version_order("2.34") > version_order("2.4") && version_order("2.34.1") > version_order("2.34"));
    }
}
