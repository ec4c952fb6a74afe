//! The wheel beside other versions of PyTorch, as PyPI has them: what passes natively passes with the gapless that is installed.
//!
//! Each version gets an environment of its own, which is removed before the next one is made.

use super::build_torch_objects::VERSIONS;
use super::torch_object::Version;
use super::torch_stand_ins::StandIns;
use crate::failure::Failure;
use crate::parts::Parts;
use crate::python::NUMPY;
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::path::{Path, PathBuf};

/// The oldest version that gapless serves. It takes the plug-in.
const OLDEST: &str = "2.4.0";

#[derive(Debug, clap::Args)]
#[command(after_help = "PYTHON names an interpreter that these versions have wheels for, such as 3.11.\n\
                        The wheel is the newest one in dist/: cargo xtask build-wheel.")]
pub struct ReleasesArguments {
    /// Leave the environments where they are, in torch-releases in the target folder
    #[arg(long)]
    keep: bool,
    /// Versions of PyTorch, such as 2.8.0 (default: the oldest that is served, and all that have an allocator object)
    versions: Vec<String>,
}

pub fn run(workspace: &Workspace, arguments: &ReleasesArguments) -> Result<(), Failure> {
    let wheel = newest_wheel(&workspace.path("dist"))?;
    let all = || std::iter::once(OLDEST).chain(VERSIONS).map(str::to_owned).collect();
    let versions = if arguments.versions.is_empty() { all() } else { arguments.versions.clone() };
    let mut parts = Parts::default();
    for version in &versions {
        let folder = workspace.installed("torch-releases").join(version);
        parts.step(version, || test(workspace, version, &wheel, &folder));
        if !arguments.keep && folder.exists() {
            files::remove_folder(&folder)?;
        }
    }
    parts.finish()
}

fn test(workspace: &Workspace, version: &str, wheel: &Path, folder: &Path) -> Result<(), Failure> {
    let own = python::environment(workspace, folder)?;
    python::install(workspace, &own, &[&format!("torch=={version}"), NUMPY])?;
    python::install(workspace, &own, &["--no-deps", "--force-reinstall", &wheel.to_string_lossy()])?;
    let stand_ins = StandIns::around(workspace, own)?;
    let mut script = stand_ins.python_as_installed(workspace);
    script.env("PYTHONPATH", workspace.path("python/tests/shared"));
    let way = if Version::of(version)?.has_object() { "object" } else { "plug-in" };
    println!("PyTorch {version}:");
    process::run(script.args(["python/tests/native/installed.py", way]))
}

/// The newest wheel of gapless in a folder.
fn newest_wheel(dist: &Path) -> Result<PathBuf, Failure> {
    let mut newest = None;
    for wheel in if dist.is_dir() { files::with_ending(dist, "whl")? } else { Vec::new() } {
        if files::name(&wheel).starts_with("gapless-") {
            newest = newest.max(Some((files::modified(&wheel)?, wheel)));
        }
    }
    let (_, wheel) = newest.ok_or_else(|| Failure::new("there is no wheel in dist/: cargo xtask build-wheel"))?;
    Ok(wheel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    #[test]
    fn the_newest_wheel_is_taken() {
        let dist = tempfile::tempdir().unwrap();
        assert!(newest_wheel(dist.path()).unwrap_err().to_string().contains("cargo xtask build-wheel"));
        for (seconds, name) in [(2, "gapless-0.3.0-a.whl"), (9, "gapless-0.2.0-a.whl"), (11, "other-1.whl")] {
            let wheel = File::create(dist.path().join(name)).unwrap();
            wheel.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        }
        assert_eq!(files::name(&newest_wheel(dist.path()).unwrap()), "gapless-0.2.0-a.whl");
    }
}
