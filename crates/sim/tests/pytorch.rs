//! PyTorch over the simulation: a training, and what expandable segments do where one call of the driver fails, as
//! `docs/using/sim.md` says it. Skipped unless `GAPLESS_TORCH_ENV` names an environment with PyTorch's CUDA build and the headers
//! of CUDA's runtime.

mod world;

use serde_json::Value;
use world::Ended;
use world::pytorch::PyTorch;

/// Runs the program with one fault, and returns how it ended and the memory that it held.
fn with_fault(pytorch: &PyTorch, fault: &str) -> (Ended, u64) {
    let report = pytorch.world.path("report.json");
    let arguments = ["--capacity", "4GiB", "--fail", fault, "--report", report.to_str().expect("a path in ASCII")];
    let ended = pytorch.run_expandable(&arguments, "expandable.py");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    (ended, report["held_bytes"].as_u64().unwrap_or(0))
}

/// pytorch#188008.
#[test]
fn expandable_segments_serve_nothing_after_one_call_that_failed() {
    let Some(pytorch) = PyTorch::find() else { return };
    for fault in ["cuMemMap:1", "cuMemSetAccess:1"] {
        let (ended, held) = with_fault(&pytorch, fault);
        assert_eq!((ended.code, held), (Some(1), 300 << 20), "{fault}: {ended:?}");
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert!(lines[0].contains("out of memory"), "{ended:?}");
        assert!(lines[1..4].iter().all(|line| line.contains("!handles_.at(i)")), "{ended:?}");
        assert_eq!(lines[4], "last request refused, 0 MiB reserved");
    }
    // A chunk that cannot be had is handled.
    let (ended, held) = with_fault(&pytorch, "cuMemCreate:1");
    assert_eq!((ended.code, held), (Some(0), 0), "{ended:?}");
}

#[test]
fn addresses_that_cannot_be_freed_end_the_process() {
    let Some(pytorch) = PyTorch::find() else { return };
    let (ended, _) = with_fault(&pytorch, "cuMemAddressFree:1");
    assert_eq!(ended.code, Some(128 + 6), "{ended:?}");
}

/// Its kernels and products compute nothing, and what it allocates is what a training allocates.
#[test]
fn a_training_runs_to_its_end() {
    let Some(pytorch) = PyTorch::find() else { return };
    let ended = Ended::of(pytorch.command(&["--strict"], "training.py", &["cuda"]).output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.ends_with(" ms a step on cuda\n"), "{ended:?}");
}
