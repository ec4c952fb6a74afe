//! What published allocators that sleep do over the simulated driver, as `docs/using/sim.md` says it: torch_memory_saver 0.0.10 and
//! vLLM 0.33.0. Skipped unless `GAPLESS_TORCH_ENV` names an environment with PyTorch and `GAPLESS_TORCH_MODULES` a folder with what
//! is in these wheels; `cargo xtask torch-without-gpu --modules` has both.

mod world;

use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;
use world::pytorch::PyTorch;
use world::{Ended, module};

/// A module of a published package, on PyTorch.
struct Module {
    pytorch: PyTorch,
    /// Where Python finds it.
    path: OsString,
    program: &'static str,
}

impl Module {
    fn find(package: &str, program: &'static str) -> Option<Self> {
        let folder = module(package)?;
        // The rest of vLLM, of which only the allocator is there.
        let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/modules");
        let path = std::env::join_paths([folder, stand_ins]).unwrap();
        Some(Self { pytorch: PyTorch::find()?, path, program })
    }

    /// Runs the program, and returns how it ended and what it did.
    fn run(&self, arguments: &[&str], of_program: &[&str]) -> (Ended, Did) {
        let report = self.pytorch.world.path("report.json");
        let common = ["--strict", "--report", report.to_str().expect("a path in ASCII")];
        let mut command = self.pytorch.command(&[&common[..], arguments].concat(), self.program, of_program);
        let ended = Ended::of(command.env("PYTHONPATH", &self.path).output().unwrap());
        let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
        let broken = report["broken"].as_array().unwrap().clone();
        (ended, Did { broken, held_bytes: report["held_bytes"].as_u64().unwrap_or(0) })
    }
}

struct Did {
    broken: Vec<Value>,
    held_bytes: u64,
}

impl Did {
    /// The names of the rules that it broke.
    fn rules(&self) -> Vec<&str> {
        self.broken.iter().map(|broken| broken["rule"].as_str().unwrap()).collect()
    }
}

const AS_IT_SHOULD_BE: &str = "as it should be\n";

#[test]
fn torch_memory_saver_pauses_under_queued_work() {
    let Some(saver) = Module::find("torch_memory_saver==0.0.10", "saver.py") else { return };
    let (ended, did) = saver.run(&[], &["in_turn"]);
    assert_eq!((ended.code, ended.stdout.as_str(), did.rules().len()), (Some(0), AS_IT_SHOULD_BE, 0), "{ended:?}");
    let (ended, did) = saver.run(&[], &["under_work"]);
    assert!(ended.code == Some(1) && ended.stderr.contains("an illegal memory access was encountered"), "{ended:?}");
    assert_eq!(did.rules(), ["wait_after_unmap"], "{ended:?}");
    // The copy of the program, and the pause.
    let innermost = |call: &str| did.broken[0][call]["python"][0]["function"].clone();
    assert_eq!((innermost("call"), innermost("other")), ("under_work".into(), "pause".into()));
    assert_eq!(did.broken[0]["other"]["function"], "cuMemUnmap");
}

#[test]
fn torch_memory_saver_ends_the_process() {
    let Some(saver) = Module::find("torch_memory_saver==0.0.10", "saver.py") else { return };
    for (case, says) in [
        ("short_of_memory", "cudaError error: 2 (out of memory)"),
        ("paused_twice", "Cannot pause allocation that is not active"),
        ("resumed_awake", "Cannot resume allocation that is not paused"),
        ("allocated_while_paused", "Cannot resume allocation that is not paused"),
    ] {
        let (ended, _) = saver.run(&[], &[case]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{case}: {ended:?}");
        assert!(ended.stderr.contains(says) && !ended.stderr.contains("Traceback"), "{case}: {ended:?}");
    }
}

#[test]
fn vllm_is_half_awake_after_a_wake_that_was_short() {
    let Some(vllm) = Module::find("vllm==0.33.0", "sleep_mode.py") else { return };
    let (ended, did) = vllm.run(&CAPACITY, &[]);
    assert_eq!((ended.code, ended.stdout.as_str(), did.rules().len()), (Some(0), "", 0), "{ended:?}");
    let (ended, _) = vllm.run(&CAPACITY, &["short"]);
    assert!(ended.code == Some(0) && ended.stdout.contains("896 of 1024 MiB are held after it"), "{ended:?}");
}

const CAPACITY: [&str; 2] = ["--capacity", "2GiB"];

/// Found by `--sweep --strict`. The first 16 calls are of allocations, the others of a wake.
#[test]
fn vllm_after_one_call_that_failed() {
    let Some(vllm) = Module::find("vllm==0.33.0", "sleep_mode.py") else { return };
    let with_fault = |fault: &str| vllm.run(&[&CAPACITY[..], &["--fail", fault]].concat(), &[]);
    // The addresses are freed, and a chunk is mapped there still.
    let (ended, did) = with_fault("cuMemSetAccess:1");
    assert_eq!(did.rules(), ["free_mapped"], "{ended:?}");
    // The next wake maps where the first has mapped, so that the memory never wakes.
    let (ended, did) = with_fault("cuMemSetAccess:17");
    assert_eq!((ended.code, did.rules()), (Some(1), vec!["map_over"]), "{ended:?}");
    // A chunk is nobody's, and held to the end.
    let (ended, did) = with_fault("cuMemMap:17");
    assert!(ended.code == Some(0) && ended.stdout.contains("the next wake works"), "{ended:?}");
    assert_eq!(did.held_bytes, vllm.run(&CAPACITY, &[]).1.held_bytes + (64 << 20));
}
