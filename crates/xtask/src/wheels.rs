//! Parts of wheels from PyPI.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::env::consts::ARCH;
use std::path::Path;

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
    pip.args(["--python-version", "3.11"]);
    pip.args(["manylinux_2_28", "manylinux2014"].map(|system| format!("--platform={system}_{ARCH}")));
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
