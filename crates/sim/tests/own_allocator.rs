//! Sweeps over programs on gapless: the example for C, on the library that was built beside this test, and one in Rust.

#[path = "programs/on_gapless.rs"]
mod on_gapless;
mod world;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use world::{Ended, World, beside};

/// The example for C, which ends with status 1 where it is told of an error, and leaves its memory to the end of the process then.
/// None where the gapless of it was not built.
fn example(world: &World) -> Option<PathBuf> {
    let Some(library) = beside("libgapless_capi.so") else {
        println!("skipped: libgapless_capi.so was not built");
        return None;
    };
    for name in ["libgapless.so", include_str!("../../capi/soname.txt").trim_ascii()] {
        symlink(&library, world.path(name)).unwrap();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Some(world.compile_with(&root.join("examples/c/allocate.c"), "allocate", |cc| {
        cc.arg("-I").arg(root.join("include")).arg("-L").arg(world.path("")).arg("-lgapless");
    }))
}

fn run(world: &World, arguments: &[&str], program: &Path) -> Ended {
    let mut command = world.command(&[&["--capacity", "256MiB", "--strict"], arguments].concat(), &[program]);
    Ended::of(command.env("LD_LIBRARY_PATH", world.path("")).output().unwrap())
}

/// Left out is `cuThreadExchangeStreamCaptureMode`, of which there are hundreds of calls; of those that make a context current,
/// every tenth is looked at.
#[test]
fn no_call_that_fails_crashes_gapless_leaves_memory_or_breaks_a_rule() {
    let world = World::new();
    let Some(program) = example(&world) else { return };
    let sweep = |arguments: &[&str]| run(&world, &[&["--sweep", "--may-give-up"], arguments].concat(), &program);
    let ended = sweep(&["--only", MEMORY]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let ended = sweep(&["--every", "10", "--only", "cuCtxGetCurrent,cuCtxSetCurrent"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn gapless_gives_back_all_that_it_has_made() {
    let world = World::new();
    let Some(program) = example(&world) else { return };
    let ended = run(&world, &["--leaks"], &program);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.stdout.contains("bytes released"), "{ended:?}");
}

/// Also memory that is shared and memory that sleeps. What fails works when it is asked for again: no other status than 0.
#[test]
fn a_program_in_rust_goes_on_after_each_call_that_fails() {
    let this = std::env::current_exe().unwrap();
    let program = [this.as_path(), Path::new("--ignored"), Path::new("--exact"), Path::new("program_in_rust")];
    let world = World::new();
    let arguments = ["--capacity", "256MiB", "--sweep", "--strict", "--every", "12", "--only", GIVEN];
    let ended = world.run(&arguments, &program);
    let other = ended.rows().into_iter().find(|row| row[3] != "exit status 0");
    assert_eq!((ended.code, other), (Some(0), None), "{ended:?}");
}

#[test]
#[ignore = "what the sweep runs, over the simulated driver"]
fn program_in_rust() {
    on_gapless::main().unwrap();
}

const GIVEN: &str = "cuCtxSynchronize,cuDevicePrimaryCtxRetain,cuEventCreate,cuEventQuery,cuEventRecord,cuMemAddressFree,\
                     cuMemAddressReserve,cuMemAllocHost,cuMemCreate,cuMemExportToShareableHandle,cuMemFreeHost,\
                     cuMemImportFromShareableHandle,cuMemMap,cuMemRelease,cuMemSetAccess,cuMemUnmap,cuMemcpyDtoHAsync,\
                     cuMemcpyHtoDAsync,cuStreamCreate,cuStreamSynchronize";

/// What the example calls, but for contexts and modes.
const MEMORY: &str = "cuCtxGetId,cuDeviceGet,cuDeviceGetAttribute,cuDeviceGetCount,cuDeviceGetName,cuDevicePrimaryCtxRetain,\
                      cuDeviceTotalMem,cuEventCreate,cuEventDestroy,cuEventQuery,cuEventRecord,cuInit,cuMemAddressFree,\
                      cuMemAddressReserve,cuMemCreate,cuMemGetAllocationGranularity,cuMemGetInfo,cuMemMap,cuMemRelease,\
                      cuMemSetAccess,cuMemUnmap,cuStreamIsCapturing";
