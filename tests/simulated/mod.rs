//! Where the simulated driver library is, and how to run a test's body with settings of its own.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::path::PathBuf;
use std::process::Command;

/// The simulated `libcuda.so.1`: beside the test binary, where cargo builds it, or where `GAPLESS_SIM_LIBCUDA` says.
pub fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("GAPLESS_SIM_LIBCUDA") {
        return path.into();
    }
    let binary = std::env::current_exe().expect("a path of the test binary");
    let folder = binary.parent().expect("a folder of the test binary");
    let path = folder.join("libgapless_sim_libcuda.so");
    assert!(path.exists(), "{} is missing: cargo build -p gapless-sim-libcuda", path.display());
    path
}

/// Runs `body` in a process of its own, whose environment has `settings`: the test called `test` runs itself again.
/// The simulated library reads its settings once per process.
pub fn with_settings(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    const INNER: &str = "GAPLESS_TEST_INNER";
    if std::env::var_os(INNER).is_some() {
        body();
        return;
    }
    let output = Command::new(std::env::current_exe().expect("a path of the test binary"))
        .args(["--exact", test, "--nocapture"])
        .envs(settings.iter().copied())
        .env(INNER, "1")
        .output()
        .expect("the test binary runs");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "in a process with {settings:?}: {}\n{text}", output.status);
    assert!(text.contains("1 passed"), "no test is called {test}:\n{text}");
}

/// A copy of the simulated library in which the exported function `name` is called something else.
pub fn library_without(name: &str, folder: &std::path::Path) -> PathBuf {
    let mut bytes = std::fs::read(library()).expect("the simulated library");
    let wanted: Vec<u8> = [b"\0", name.as_bytes(), b"\0"].concat();
    let mut replaced = 0;
    for at in 0..bytes.len() - wanted.len() {
        if bytes[at..].starts_with(&wanted) {
            bytes[at + 1] = b'x';
            replaced += 1;
        }
    }
    assert!(replaced > 0, "{name} is not exported");
    let path = folder.join("libcuda.so.1");
    std::fs::write(&path, bytes).expect("a file in a temporary folder");
    path
}
