//! Arrays of numba-cuda 0.30.4 over the simulated driver, with its own memory and with gapless's. Skipped unless
//! `GAPLESS_NUMBA_ENV` names an environment with it; `cargo xtask torch-without-gpu --modules` has one.

mod world;

use std::path::{Path, PathBuf};
use std::process::Command;
use world::{Ended, World, beside};

struct Numba {
    world: World,
    python: PathBuf,
}

impl Numba {
    fn find() -> Option<Self> {
        let environment = std::env::var_os("GAPLESS_NUMBA_ENV").filter(|folder| !folder.is_empty());
        let Some(environment) = environment else {
            println!("skipped: GAPLESS_NUMBA_ENV names no environment with numba-cuda");
            return None;
        };
        Some(Self { world: World::new(), python: Path::new(&environment).join("bin/python") })
    }

    /// A sweep of every so many calls of `functions`.
    fn sweep(&self, every: &str, functions: &str, set: impl FnOnce(&mut Command)) -> Ended {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/numba_arrays.py");
        let arguments = ["--strict", "--capacity", "256MiB", "--sweep", "--every", every, "--only", functions];
        let mut command = self.world.command(&arguments, &[&self.python, &program]);
        set(command.env_remove("NUMBA_CUDA_MEMORY_MANAGER").env_remove("PYTHONPATH"));
        Ended::of(command.output().unwrap())
    }
}

/// No run crashes, leaves memory, breaks a rule, or has something that fails twice.
fn expect_clean(ended: &Ended) {
    let other = ended.rows().into_iter().find(|row| row[3] != "exit status 0");
    assert_eq!((ended.code, other), (Some(0), None), "{ended:?}");
}

#[test]
fn numba_goes_on_after_each_call_that_fails() {
    let Some(numba) = Numba::find() else { return };
    expect_clean(&numba.sweep(
        "4",
        "cuCtxSynchronize,cuMemAlloc,cuMemFree,cuMemcpyDtoHAsync,cuMemcpyHtoDAsync",
        |_| (),
    ));
}

#[test]
fn numba_on_gapless_goes_on_after_each_call_that_fails() {
    let Some(numba) = Numba::find() else { return };
    let Some(library) = beside("libgapless_capi.so") else {
        println!("skipped: libgapless_capi.so was not built");
        return;
    };
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    for (every, functions) in [("1", "cuCtxSynchronize"), ("24", MEMORY)] {
        expect_clean(&numba.sweep(every, functions, |command| {
            command.env("NUMBA_CUDA_MEMORY_MANAGER", "gapless.numba").env("PYTHONPATH", &package);
            command.env("GAPLESS_LIBRARY", &library);
        }));
    }
}

const MEMORY: &str = "cuMemAddressFree,cuMemAddressReserve,cuMemCreate,cuMemMap,cuMemRelease,cuMemSetAccess,cuMemUnmap";
