//! The PTX that is checked in is what the compiler makes of the sources.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the compiler has been installed by `cargo xtask build-kernels`, it still builds the same PTX.
#[test]
fn the_compiler_builds_what_is_checked_in() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = ["GAPLESS_TARGET_DIR", "CARGO_TARGET_DIR"].iter().find_map(std::env::var_os);
    let target = target.map_or_else(|| root.join("target"), PathBuf::from);
    let installed = std::fs::read_dir(target.join("cuda-venv/lib")).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.path().join("site-packages/nvidia/cu13/bin/nvcc").exists())
    });
    if !installed {
        eprintln!("skipped: the CUDA compiler is not installed (cargo xtask build-kernels installs it)");
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).args(["build-kernels", "--check"]).output().unwrap();
    assert!(
        output.status.success(),
        "run cargo xtask build-kernels:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
