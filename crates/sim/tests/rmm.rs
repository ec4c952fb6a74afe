//! What RMM does over the simulated driver where one call fails, as `docs/using/sim.md` says it: its headers of 25.4, the last that
//! need no library of theirs, and the same program on gapless. Its headers of 26.10 are compiled with gapless's resource; their
//! library has the CUDA runtime in it, and does not run here. Skipped unless `GAPLESS_TORCH_ENV` names an environment with CUDA's
//! headers, as PyTorch brings them, and `GAPLESS_TORCH_MODULES` a folder with what is in the wheels of RMM and rapids-logger;
//! `cargo xtask torch-without-gpu --modules` has both.

mod world;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use world::pytorch::PyTorch;
use world::{Ended, beside, module};

/// The program, compiled with RMM, and the stand-ins that it runs on.
struct Rmm {
    pytorch: PyTorch,
    program: PathBuf,
    logger: PathBuf,
}

impl Rmm {
    fn find(on_gapless: bool) -> Option<Self> {
        let (rmm, logger) = (module("librmm-cu12==25.4.0")?, module("rapids-logger==0.1.19")?);
        let gapless = if on_gapless { Some(library()?) } else { None };
        let pytorch = PyTorch::find()?;
        let world = &pytorch.world;
        let program = world.path("rmm_buffers");
        let mut compiler = compiler(&pytorch, &rmm, &logger);
        compiler.args(["-std=c++17", "-O1", "-g", "-DNDEBUG", "-pthread"]);
        compiler.arg("-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE");
        compiler.arg(source("rmm_buffers.cpp")).arg("-o").arg(&program);
        let logger = logger.join("rapids_logger/lib64");
        compiler.arg(world.path("lib/libcudart-standin.so")).arg("-L").arg(world.path("lib"));
        compiler.arg("-L").arg(&logger).args(["-lrapids_logger", "-lcuda", "-ldl"]);
        if let Some(library) = gapless {
            for name in ["libgapless.so", include_str!("../../capi/soname.txt").trim_ascii()] {
                symlink(&library, world.path("lib").join(name)).unwrap();
            }
            compiler.args(["-DON_GAPLESS", "-lgapless"]);
        }
        let output = compiler.output().expect("a C++ compiler called c++");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self { program, logger, pytorch })
    }

    fn run(&self, arguments: &[&str], resource: &str) -> Ended {
        let common = ["--runtime", "--strict", "--capacity", "256MiB"];
        let program = [self.program.as_path(), Path::new(resource)];
        let mut command = self.pytorch.world.command(&[&common[..], arguments].concat(), &program);
        Ended::of(command.env("LD_LIBRARY_PATH", &self.logger).output().unwrap())
    }

    fn with_fault(&self, fault: &str, resource: &str) -> Ended {
        self.run(&["--fail", fault], resource)
    }
}

/// The compiler with the headers of a version of RMM, of what it logs with, of CUDA and of gapless.
fn compiler(pytorch: &PyTorch, rmm: &Path, logger: &Path) -> Command {
    let include = rmm.join("librmm/include");
    let mut compiler = Command::new("c++");
    compiler.args(["-Wall", "-Wextra", "-Werror"]);
    for folder in ["", "rapids", "rapids/libcudacxx"] {
        compiler.arg("-isystem").arg(include.join(folder));
    }
    compiler.arg("-isystem").arg(logger.join("rapids_logger/include")).arg("-isystem").arg(pytorch.cuda_headers());
    compiler.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include"));
    compiler
}

fn source(program: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(program)
}

fn library() -> Option<PathBuf> {
    let library = beside("libgapless_capi.so");
    if library.is_none() {
        println!("skipped: libgapless_capi.so was not built");
    }
    library
}

#[test]
fn a_buffer_whose_copy_fails_is_nobodys() {
    let Some(rmm) = Rmm::find(false) else { return };
    for resource in ["cuda", "pool", "arena"] {
        assert_eq!(rmm.run(&[], resource).code, Some(0), "{resource}");
    }
    // It is there when the process ends, or missing in the pool.
    let ended = rmm.run(&["--sweep", "--only", "cuMemcpyHtoDAsync"], "cuda");
    assert!(ended.code == Some(1) && ended.rows().iter().all(|row| row[5] == "held memory"), "{ended:?}");
    for resource in ["pool", "arena"] {
        let ended = rmm.with_fault("cuMemcpyHtoDAsync:1", resource);
        assert!(ended.code == Some(1) && ended.stdout.contains("\nmost: "), "{ended:?}");
    }
}

#[test]
fn a_pool_loses_what_it_could_not_wait_for() {
    let Some(rmm) = Rmm::find(false) else { return };
    // It had 96 MiB, and has not 4 of them.
    let ended = rmm.with_fault("cuStreamWaitEvent:1", "pool");
    assert!(ended.code == Some(1) && ended.stdout.contains("(failed to allocate 4.000000 MiB)"), "{ended:?}");
}

#[test]
fn a_pool_serves_nothing_after_an_event_that_it_could_not_have() {
    let Some(rmm) = Rmm::find(false) else { return };
    let ended = rmm.with_fault("cuEventCreate:1", "pool");
    assert!(ended.code == Some(1) && ended.stdout.contains("fails twice: CUDA error"), "{ended:?}");
    assert!(ended.stdout.contains("invalid resource handle"), "{ended:?}");
}

#[test]
fn memory_under_work_is_given_to_another_stream() {
    let Some(rmm) = Rmm::find(false) else { return };
    for (fault, resource) in [("cuEventRecord:8", "pool"), ("cuStreamSynchronize:8", "arena")] {
        let ended = rmm.with_fault(fault, resource);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), "fails twice: bytes are lost\n"), "{ended:?}");
    }
}

#[test]
fn the_memory_resource_is_one_of_rmm_of_today() {
    let (rmm, logger) = (module("librmm-cu13==26.10.0"), module("rapids-logger==0.1.19"));
    let (Some(rmm), Some(logger), Some(pytorch)) = (rmm, logger, PyTorch::find()) else { return };
    for standard in ["-std=c++17", "-std=c++20"] {
        let mut compiler = compiler(&pytorch, &rmm, &logger);
        compiler.args([standard, "-Wpedantic", "-fsyntax-only"]).arg(source("rmm_resource.cpp"));
        let output = compiler.output().expect("a C++ compiler called c++");
        assert!(output.status.success(), "{standard}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The copies are left out, after which RMM itself loses a buffer.
#[test]
fn on_gapless_all_of_it_works_again() {
    let Some(rmm) = Rmm::find(true) else { return };
    for resource in ["gapless", "gapless_pool", "gapless_tracked", "gapless_spilling"] {
        let ended = rmm.run(&[], resource);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{resource}: {ended:?}");
    }
    let ended = rmm.run(&["--sweep", "--every", "12", "--only", OF_GAPLESS], "gapless");
    assert!(ended.code == Some(0) && ended.rows().iter().all(|row| row[3] == "exit status 0"), "{ended:?}");
}

const OF_GAPLESS: &str = "cuCtxSynchronize,cuEventCreate,cuEventQuery,cuEventRecord,cuMemAddressFree,\
                          cuMemAddressReserve,cuMemCreate,cuMemMap,cuMemRelease,cuMemSetAccess,cuMemUnmap,cuMemsetD8Async,\
                          cuStreamSynchronize";
