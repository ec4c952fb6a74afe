//! What PyTorch's expandable segments do where one call of the driver fails, as `docs/using/sim.md` says it. Skipped unless
//! `GAPLESS_TORCH_ENV` names an environment with PyTorch's CUDA build and the headers of CUDA's runtime.

mod world;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use world::{Ended, World};

/// An environment with PyTorch, and the stand-ins that it runs on.
struct PyTorch {
    world: World,
    python: PathBuf,
}

impl PyTorch {
    fn find() -> Option<Self> {
        let environment = std::env::var_os("GAPLESS_TORCH_ENV").filter(|folder| !folder.is_empty());
        let Some(environment) = environment else {
            println!("skipped: GAPLESS_TORCH_ENV names no environment with PyTorch");
            return None;
        };
        let python = Path::new(&environment).join("bin/python");
        let world = World::new();
        let headers = "import nvidia.cu13; print(nvidia.cu13.__path__[0])";
        let output = Command::new(&python).args(["-c", headers]).output().expect("the environment has a Python");
        let headers = Path::new(String::from_utf8(output.stdout).unwrap().trim()).join("include");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/cuda_stand_ins");
        for (source, library) in [("cuda_runtime.c", "lib/libcudart-standin.so"), ("nvml.c", "lib/libnvidia-ml.so.1")] {
            world.compile_with(&sources.join(source), library, |cc| {
                cc.args(["-O1", "-fPIC", "-shared", "-isystem"]).arg(&headers);
                cc.arg("-L").arg(world.path("lib")).args(["-lcuda", "-ldl"]);
            });
        }
        Some(Self { world, python })
    }

    /// Runs the program with one fault, and returns how it ended and the memory that it held.
    fn with_fault(&self, fault: &str) -> (Ended, u64) {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/expandable.py");
        let report = self.world.path("report.json");
        let arguments =
            ["--runtime", "--capacity", "4GiB", "--fail", fault, "--report", report.to_str().expect("a path in ASCII")];
        let mut command = self.world.command(&arguments, &[&self.python, &program]);
        let ended = Ended::of(command.env("PYTORCH_ALLOC_CONF", "expandable_segments:True").output().unwrap());
        let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
        (ended, report["held_bytes"].as_u64().unwrap_or(0))
    }
}

/// pytorch#188008.
#[test]
fn expandable_segments_serve_nothing_after_one_call_that_failed() {
    let Some(pytorch) = PyTorch::find() else { return };
    for fault in ["cuMemMap:1", "cuMemSetAccess:1"] {
        let (ended, held) = pytorch.with_fault(fault);
        assert_eq!((ended.code, held), (Some(1), 300 << 20), "{fault}: {ended:?}");
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert!(lines[0].contains("out of memory"), "{ended:?}");
        assert!(lines[1..4].iter().all(|line| line.contains("!handles_.at(i)")), "{ended:?}");
        assert_eq!(lines[4], "last request refused, 0 MiB reserved");
    }
    // A chunk that cannot be had is handled.
    let (ended, held) = pytorch.with_fault("cuMemCreate:1");
    assert_eq!((ended.code, held), (Some(0), 0), "{ended:?}");
}
