//! Finds the simulated driver library, and runs the body of a test with its own settings.

#![allow(dead_code, reason = "every test binary uses a part of this module")]

use gapless::StreamId;
use gapless::driver::MemoryDriver;
use gapless::driver::cuda::{CudaBuilder, CudaDriver, OpenError};
use gapless::units::DeviceAddr;
use std::path::PathBuf;
use std::process::Command;

/// Returns the path of the simulated `libcuda.so.1`: that in `GAPLESS_SIM_LIBCUDA`, or else the one that cargo built
/// beside the test binary.
pub fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("GAPLESS_SIM_LIBCUDA") {
        return path.into();
    }
    let binary = std::env::current_exe().expect("the test binary has a path");
    let folder = binary.parent().expect("the test binary is in a folder");
    let path = folder.join("libgapless_sim_libcuda.so");
    assert!(path.exists(), "{} is missing: cargo build -p gapless-sim-libcuda", path.display());
    path
}

/// Returns the settings of a device of the simulated library.
pub fn builder() -> CudaBuilder {
    // SAFETY: it is a driver library.
    unsafe { CudaDriver::builder().library(library()) }
}

/// Opens a device of the simulated library.
pub fn open(builder: CudaBuilder) -> Result<CudaDriver, OpenError> {
    // SAFETY: the simulated library looks at what it gets.
    unsafe { builder.open() }
}

/// Returns the stream that has a handle, or none.
pub const fn stream(handle: u64) -> StreamId {
    // SAFETY: the simulated library looks at what it gets.
    unsafe { StreamId::from_raw(handle) }
}

/// Runs `body` in a separate process with `settings` in its environment, because the simulated library reads its
/// settings once per process: the test named `test` runs itself again.
pub fn with_settings(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    const INNER: &str = "GAPLESS_TEST_INNER";
    if std::env::var_os(INNER).is_some() {
        body();
        return;
    }
    let output = Command::new(std::env::current_exe().expect("the test binary has a path"))
        .args(["--exact", test, "--nocapture"])
        .envs(settings.iter().copied())
        .env(INNER, "1")
        .output()
        .expect("the test binary can be run");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "in a process with {settings:?}: {}\n{text}", output.status);
    assert!(text.contains("1 passed"), "no test is called {test}:\n{text}");
}

/// Maps a new chunk of `bytes` bytes with access in its own reservation.
pub fn mapped(driver: &impl MemoryDriver, bytes: u64) -> DeviceAddr {
    let addr = driver.reserve(bytes, driver.granularity()).unwrap();
    let chunk = driver.create(bytes).unwrap();
    driver.map(addr, bytes, chunk).unwrap();
    driver.set_access(addr, bytes).unwrap();
    driver.release(chunk).unwrap();
    addr
}

/// Creates a copy of the simulated library without the exported function `name`, and returns its path.
pub fn library_without(name: &str, folder: &std::path::Path) -> PathBuf {
    let mut bytes = std::fs::read(library()).expect("the simulated library can be read");
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
    std::fs::write(&path, bytes).expect("the copy can be written");
    path
}
