//! Parts of wheels from PyPI.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::env::consts::ARCH;
use std::path::Path;

/// What wheels of a release are compiled against: a requirement with hashes a line.
const RECORDED: &str = include_str!("wheels.txt");

/// The requirement of a package such as `torch==2.15.0`, with the hashes of its wheels if they are recorded.
pub fn requirement(package: &str) -> &str {
    RECORDED.lines().find(|line| line.split(' ').next() == Some(package)).unwrap_or(package)
}

/// Downloads a package's wheel, one with its recorded hash if there is one, and unpacks some of its files into `folder`, unless
/// files of each beginning are there.
pub fn unpacked(workspace: &Workspace, package: &str, folder: &Path, beginnings: &[&str]) -> Result<(), Failure> {
    if folder.exists() {
        let found = files::below(folder)?;
        let names = || found.iter().filter_map(|path| path.strip_prefix(folder).ok()?.to_str());
        if beginnings.iter().all(|beginning| names().any(|name| name.starts_with(beginning))) {
            return Ok(());
        }
        std::fs::remove_dir_all(folder).map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
    }
    let python = python::interpreter()?;
    let downloads = files::temporary_folder()?;
    let mut pip = workspace.command(&python);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]);
    // Headers do not depend on the version of Python, but not every release has wheels for every one.
    pip.args(["--python-version", "3.11"]);
    pip.args(["manylinux_2_28", "manylinux2014"].map(|system| format!("--platform={system}_{ARCH}")));
    // A hash has no place on the command line.
    let requirements = downloads.path().join("requirements.txt");
    files::write(&requirements, requirement(package))?;
    process::run(pip.arg("--dest").arg(downloads.path()).arg("--requirement").arg(&requirements))?;
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
