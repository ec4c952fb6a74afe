//! The interpreters of Python that this machine has.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Those of CPython from 3.8 on that `GAPLESS_SIM_PYTHONS` names, a list with colons, and those that `PATH` has by name.
pub fn interpreters() -> Vec<PathBuf> {
    let listed = env::var_os("GAPLESS_SIM_PYTHONS").unwrap_or_default();
    let listed = env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect::<Vec<_>>();
    let named = (8..=14).map(|minor| PathBuf::from(format!("python3.{minor}")));
    let all = [PathBuf::from("python3")].into_iter().chain(named).chain(listed);
    let mut known = BTreeSet::new();
    all.filter_map(|name| itself(&name)).filter(|path| known.insert(path.canonicalize().ok())).collect()
}

/// Where an interpreter is that can be used; its name may be that of a script which finds one.
fn itself(name: &Path) -> Option<PathBuf> {
    let text = "import ctypes, sys; assert sys.version_info >= (3, 8) and sys.implementation.name == 'cpython'; \
                print(sys.executable)";
    let output = Command::new(name).args(["-c", text]).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(path.trim_end()))
}
