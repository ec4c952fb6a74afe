//! Python interpreters and virtual environments.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};
use std::env;
use std::path::{Path, PathBuf};

/// The interpreter that `PYTHON` names, or `python3`.
pub fn interpreter() -> Result<String, Failure> {
    let name = env::var("PYTHON").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "python3".to_owned());
    match process::find(&name) {
        // Programs are started in the root of the repository; the path was meant from here.
        Some(path) if name.contains('/') => Ok(files::given(&path)?.to_string_lossy().into_owned()),
        Some(_) => Ok(name),
        None => Err(Failure::new(format!("there is no {name}; PYTHON names another interpreter"))),
    }
}

/// Whether an interpreter can run a piece of Python, such as imports of what is needed.
pub fn can_run(workspace: &Workspace, python: &str, code: &str) -> bool {
    process::succeeds(workspace.command(python).args(["-c", code]))
}

/// Creates a virtual environment where there is none, and returns its interpreter.
pub fn environment(workspace: &Workspace, folder: &Path) -> Result<String, Failure> {
    let own = folder.join("bin/python");
    if !own.exists() {
        process::run(workspace.command(interpreter()?).args(["-m", "venv"]).arg(folder))?;
    }
    Ok(own.to_string_lossy().into_owned())
}

/// Installs packages with an interpreter, each at the version that it is named with.
pub fn install(workspace: &Workspace, python: &str, packages: &[&str]) -> Result<(), Failure> {
    if let Some(package) = packages.iter().find(|package| !is_pinned(package)) {
        return Err(Failure::new(format!("{package} is to be named with its version: {package}==1.2.3")));
    }
    let mut pip = workspace.command(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    process::run(pip.args(packages))
}

/// Whether a package is named as `NAME==VERSION`, or as an option or a file.
fn is_pinned(package: &str) -> bool {
    package.starts_with('-') || package.contains('/') || package.split_once("==").is_some_and(|(_, v)| !v.is_empty())
}

/// What PyTorch's tests take: it serves all versions of PyTorch that are tried.
pub const NUMPY: &str = "numpy==2.4.6";

/// A file of packages from PyPI, which are installed into a virtual environment where they are not yet.
pub fn packaged(workspace: &Workspace, folder: &Path, packages: &[&str], file: &str) -> Result<PathBuf, Failure> {
    if installed(folder, file).is_none() {
        install(workspace, &environment(workspace, folder)?, packages)?;
    }
    installed(folder, file).ok_or_else(|| Failure::new(format!("the packages held no {file}")))
}

/// A file of a package that is installed in a virtual environment, such as `nvidia/cu13/bin/nvcc`.
pub fn installed(environment: &Path, file: &str) -> Option<PathBuf> {
    let versions = files::entries(&environment.join("lib")).ok()?;
    versions.iter().map(|version| version.join("site-packages").join(file)).find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_versions() {
        for package in ["torch==2.15.0", "nvidia-cuda-crt==13.2.*", "--no-deps", "/tmp/gapless-0.3.0.whl"] {
            assert!(is_pinned(package), "{package}");
        }
        for package in ["torch", "torch==", "numpy<3", "setuptools>=77"] {
            assert!(!is_pinned(package), "{package}");
        }
        let workspace = Workspace::find().expect("a workspace");
        let failure = install(&workspace, "no-such-python", &["numpy==2.4.6", "torch"]).unwrap_err();
        assert!(failure.to_string().starts_with("torch is to be named with its version"), "{failure}");
    }
}
