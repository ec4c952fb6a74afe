//! Compiling PyTorch's allocator object: one shared library for each minor of PyTorch, from that minor's own headers. Parts of
//! wheels from PyPI.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::path::{Path, PathBuf};

/// Where PyTorch's headers and libraries are, and CUDA's headers.
#[derive(Debug)]
pub struct Headers {
    /// The folder `torch` of an installed or unpacked wheel.
    pub torch: PathBuf,
    /// CUDA's headers.
    pub cuda: PathBuf,
}

/// A version of PyTorch: 2.15.0 of `2.15.0+cu132`.
#[derive(Debug, PartialEq, Eq)]
pub struct Version {
    major: u32,
    minor: u32,
    text: String,
}

impl Version {
    pub fn of(text: &str) -> Result<Self, Failure> {
        let released = text.trim().split('+').next().unwrap_or_default();
        let mut numbers = released.split('.').map(|number| number.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self { major, minor, text: released.to_owned() }),
            _ => Err(Failure::new(format!("{text} is no version of PyTorch"))),
        }
    }

    /// The name that the Python package looks for.
    pub fn file_name(&self) -> String {
        format!("_torch_object_{}_{}.so", self.major, self.minor)
    }

    /// What the sources compare: 215 for 2.15.
    fn number(&self) -> u32 {
        self.major * 100 + self.minor
    }
}

/// Compiles the object for a version into `folder`, under the name that the Python package looks for.
pub fn compile(workspace: &Workspace, version: &Version, headers: &Headers, folder: &Path) -> Result<(), Failure> {
    let compiler = process::compiler("CXX", "c++");
    let mut command = workspace.command(&compiler[0]);
    command.args(&compiler[1..]);
    // Functions that are alike keep names of their own: the proof of the layout compares them.
    command.args(["-std=c++20", "-O2", "-fPIC", "-shared", "-fno-ipa-icf", "-Wall", "-Wextra", "-Werror"]);
    command.arg("-Wno-unused-parameter").arg(format!("-DGAPLESS_TORCH={}", version.number()));
    command.arg(format!("-DGAPLESS_TORCH_VERSION=\"{}\"", version.text)).arg("-Iinclude");
    command.arg("-isystem").arg(headers.torch.join("include")).arg("-isystem").arg(&headers.cuda);
    command.args(files::with_ending(&workspace.path("python/src/allocator_object"), "cpp")?);
    command.arg("-o").arg(folder.join(version.file_name()));
    // CUDA's runtime is found through PyTorch's library: its version is PyTorch's business.
    command.arg("-L").arg(headers.torch.join("lib")).args(["-lc10", "-lc10_cuda", "-ldl"]);
    process::run(command.arg("-Wl,--allow-shlib-undefined"))
}

/// Downloads a package's wheel where `folder` is not there yet, and unpacks some of its files into it.
pub fn unpacked(workspace: &Workspace, package: &str, folder: &Path, beginnings: &[&str]) -> Result<(), Failure> {
    if folder.exists() {
        return Ok(());
    }
    let python = python::interpreter()?;
    let downloads = files::temporary_folder()?;
    let mut pip = workspace.command(&python);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]);
    // Headers do not depend on the version of Python, but not every release has wheels for every one.
    pip.args(["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"]);
    process::run(pip.arg("--dest").arg(downloads.path()).arg(package))?;
    let wheel = files::with_ending(downloads.path(), "whl")?;
    let wheel = wheel.first().ok_or_else(|| Failure::new(format!("PyPI has no wheel of {package}")))?;
    // Beside its place at first: what is interrupted is begun anew.
    let beside = folder.with_extension("part");
    process::run(workspace.command(&python).args(["-c", UNPACK]).arg(wheel).arg(&beside).args(beginnings))?;
    std::fs::rename(&beside, folder).map_err(|error| Failure::new(format!("{}: {error}", folder.display())))
}

/// Unpacks a wheel's files whose names begin in one of these ways: `WHEEL FOLDER BEGINNING...`.
const UNPACK: &str = "\
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.startswith(tuple(sys.argv[3:]))])";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_name_files_and_numbers() {
        let version = Version::of("2.15.0+cu132\n").unwrap();
        assert_eq!((version.file_name().as_str(), version.number()), ("_torch_object_2_15.so", 215));
        assert_eq!(version.text, "2.15.0");
        assert_eq!(Version::of("2.9.1").unwrap().number(), 209);
        assert!(Version::of("newest").is_err());
    }
}
