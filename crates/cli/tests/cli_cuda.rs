//! Commands that use a GPU, through the simulated driver library.

#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use simulated::{library, library_without};

fn gapless(arguments: &[&str], library: &Path, settings: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(arguments)
        .arg("--library")
        .arg(library)
        .envs(settings.iter().copied())
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn doctor_finds_a_device_that_works() {
    let output = gapless(&["doctor"], &library(), &[("GAPLESS_SIM_DEVICES", "2")]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for expected in ["CUDA 13.0", "Simulated GPU 1", "2 MiB", "0 wrong bytes", "gapless works on 2 GPUs"] {
        assert!(text.contains(expected), "'{expected}' is not in:\n{text}");
    }
}

#[test]
fn doctor_tells_as_json() {
    let output = gapless(&["doctor", "--json"], &library(), &[]);
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(findings["works"], true);
    assert_eq!(findings["library"]["cuda"], 13_000);
    assert_eq!(findings["devices"][0]["granularity"], 2 << 20);
    assert_eq!(findings["devices"][0]["cycle"]["wrong_bytes"], 0);
}

#[test]
fn doctor_finds_the_library_where_the_loader_does() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(library(), folder.path().join("libcuda.so.1")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_gapless"))
        .arg("doctor")
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output).contains(folder.path().to_str().unwrap()), "{}", text(&output));
}

/// Runs doctor, which has to end with 4 and to say every one of `expected`.
fn doctor_fails(library: &Path, settings: &[(&str, &str)], expected: &[&str]) {
    let output = gapless(&["doctor"], library, settings);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    for expected in expected.iter().chain(&["no GPU that gapless can use"]) {
        assert!(text.contains(expected), "'{expected}' is not in:\n{text}");
    }
    let output = gapless(&["doctor", "--json"], library, settings);
    assert_eq!(output.status.code(), Some(4));
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(findings["works"], false);
}

#[test]
fn doctor_says_what_to_do_without_a_library() {
    doctor_fails(Path::new("/nonexistent/libcuda.so.1"), &[], &["could not be loaded", "Install the NVIDIA driver"]);
}

#[test]
fn doctor_says_which_function_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    doctor_fails(&library_without("cuMemSetAccess", folder.path()), &[], &["cuMemSetAccess", "Update the driver"]);
}

#[test]
fn doctor_says_what_to_do_without_devices() {
    let settings = [("GAPLESS_SIM_DEVICES", "0"), ("GAPLESS_SIM_VERSION", "12040")];
    let expected = ["finds no GPU", "CUDA_VISIBLE_DEVICES", "driver     CUDA 12.4, /", "libgapless_sim_libcuda.so"];
    doctor_fails(&library(), &settings, &expected);
    let output = gapless(&["doctor", "--json"], &library(), &settings);
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(findings["library"]["cuda"], 12_040);
    assert!(findings["library"]["file"].as_str().unwrap().ends_with("libgapless_sim_libcuda.so"), "{findings}");
}

#[test]
fn doctor_says_which_library_does_not_start() {
    let expected = ["driver     CUDA 13.0, /", "803", "nvidia-smi"];
    doctor_fails(&library(), &[("GAPLESS_SIM_FAIL", "cuInit:*:803")], &expected);
    let expected = ["driver     CUDA 11.4, /", "gapless needs 12.0"];
    doctor_fails(&library(), &[("GAPLESS_SIM_VERSION", "11040")], &expected);
}

/// A device that is too old for the kernels (209), or a driver that cannot compile them, can be allocated on.
#[test]
fn doctor_finds_a_device_usable_that_cannot_load_the_kernels() {
    for code in ["209", "218", "221", "222"] {
        let fault = format!("cuModuleLoadData:*:{code}");
        let settings = [("GAPLESS_SIM_FAIL", fault.as_str())];
        let output = gapless(&["doctor"], &library(), &settings);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        // The function that failed is named, and none that was never called.
        let kernels = format!("kernels  cannot be loaded: cuModuleLoadData failed with result {code} ({code})");
        let expected = ["gapless works on 1 GPU", &kernels, "needs none", "replay --driver cuda", "bytes not checked"];
        for expected in expected {
            assert!(text.contains(expected), "'{expected}' is not in:\n{text}");
        }
        assert!(!text.contains("problem"), "{text}");
        let output = gapless(&["doctor", "--json"], &library(), &settings);
        let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
        let device = &findings["devices"][0];
        assert_eq!(findings["works"], true);
        assert!(device["problem"].is_null() && device["cycle"]["wrong_bytes"].is_null());
        assert!(device["kernels_problem"].as_str().unwrap().contains(code), "{device}");
        assert!(device["cycle"]["unmap_us"].as_f64().unwrap() >= 0.0);
    }
}

#[test]
fn doctor_does_not_take_a_lost_device_for_one_without_kernels() {
    doctor_fails(&library(), &[("GAPLESS_SIM_FAIL", "cuModuleLoadData:*:700")], &["problem", "700"]);
}

#[test]
fn doctor_says_what_to_do_without_virtual_memory_management() {
    doctor_fails(&library(), &[("GAPLESS_SIM_NO_VMM", "1")], &["no virtual memory management", "plain mode"]);
}

#[test]
fn doctor_prints_the_number_of_an_unknown_code() {
    doctor_fails(&library(), &[("GAPLESS_SIM_FAIL", "cuMemMap:*:98765")], &["cuMemMap", "98765"]);
    doctor_fails(&library(), &[("GAPLESS_SIM_FAIL", "cuInit:1:98765")], &["cuInit", "98765"]);
}

#[test]
fn doctor_sees_a_broken_device_beside_a_good_one() {
    // The first device opened fails its whole check: three cycles, one for each set of features.
    let faults = "cuMemMap:1:999,cuMemMap:2:999,cuMemMap:3:999";
    let output = gapless(&["doctor"], &library(), &[("GAPLESS_SIM_DEVICES", "2"), ("GAPLESS_SIM_FAIL", faults)]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("problem") && text.contains("gapless works on 1 GPU"), "{text}");
    assert!(text.contains("failed the trial") && !text.contains("no virtual memory management"), "{text}");
}

#[test]
fn probe_answers_every_question() {
    let output = gapless(&["probe", "--json", "--rounds", "100"], &library(), &[("GAPLESS_SIM_CAPACITY", "256MiB")]);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["device"]["name"], "Simulated GPU 0");
    let answers = report["answers"].as_object().unwrap();
    assert_eq!(answers.len(), gapless_probe::Question::ALL.len());
    for (id, answer) in answers {
        assert!(answer["error"].is_null() && !answer["value"].is_null(), "{id}: {answer}");
    }
    assert_eq!(answers["sub_size_map"]["value"]["code"], 801);
    assert_eq!(answers["unmap_two"]["value"]["left_mapped"], 0);
    assert_eq!(answers["unmap_in_use"]["value"]["synchronize"]["code"], 700);
    assert_eq!(answers["graph_remap"]["value"]["new_chunk_was_written"], true);
    for copies in ["over_all", "over_one"] {
        let copies = &answers["copy_over_mappings"]["value"][copies];
        assert_eq!((&copies["wrong_on_host"], &copies["wrong_on_device"]), (&0.into(), &0.into()), "{copies}");
    }
    assert_eq!(answers["host_memory"]["value"].as_array().unwrap().len(), 4);
    assert_eq!(answers["capture_wait"]["value"]["call"]["code"], 905);
    // Each call has a capture of its own: the first that is refused does not spoil the others.
    for question in ["capture_same_thread", "capture_other_thread"] {
        for call in ["reserve", "create", "map", "set_access", "unmap", "release", "address_free"] {
            let outcome = &answers[question]["value"][call];
            assert_eq!((&outcome["call"]["code"], &outcome["capture"]["code"]), (&900.into(), &901.into()), "{call}");
        }
        let allowed = json!({ "call": "ok", "capture": "ok" });
        assert_eq!(answers[question]["value"]["is_capturing_of_another_stream"], allowed, "{question}");
    }
    let guarded = answers["capture_guarded"]["value"].as_object().unwrap();
    assert_eq!(guarded.len(), 20);
    for (call, outcome) in guarded {
        assert_eq!(*outcome, json!({ "call": "ok", "capture": "ok" }), "{call}");
    }
    let requests = answers["capture_request"]["value"].as_object().unwrap();
    assert_eq!(requests.len(), 6);
    for (mode, outcome) in requests {
        assert_eq!(*outcome, json!({ "request": "ok", "capture": "ok" }), "{mode}");
    }
    assert_eq!(answers["capture_synchronize"]["value"]["context_by_another_thread"]["capture"]["code"], 901);
    assert_eq!(answers["captured_event"]["value"]["query_in_relaxed_mode"]["call"]["code"], 907);
    assert_eq!(answers["captured_event"]["value"]["none"]["capture"], "ok");
    assert_eq!(answers["stream_values"]["value"]["idle"]["rounds"], 32);
    assert_eq!(answers["events_without_context"]["value"]["event_record"]["code"], 201);
    assert_eq!(answers["graph_drop"]["value"]["replay_wrote_everything"], true);
    assert_eq!(answers["graph_drop"]["value"]["replay_finished_after_wait"], true);
    assert!(answers["reserve_4_tib"]["value"]["virtual_bytes_after"].as_u64().unwrap() > 4 << 40);
    assert_eq!(answers["busy"]["value"]["calls"].as_object().unwrap().len(), 10);
    for edge in ["stream", "event", "graph", "programmatic_dependent_launch"] {
        let found = &answers["alias_coherence"]["value"][edge];
        assert!(found["rounds"].as_u64().unwrap() >= 100 && found["wrong"] == 0, "{edge}: {found}");
    }
    assert_eq!(answers["peer_descriptor"]["value"]["skipped"], "the driver has one device");
    // The simulated library ends a process that uses a dead handle. Every call was asked in one of its own.
    let dead = answers["dead_stream"]["value"].as_object().unwrap();
    assert_eq!(dead.len(), 8);
    for (call, outcome) in dead {
        assert_eq!(outcome["signal"], 6, "{call}: {outcome}");
        assert!(outcome["error"].as_str().unwrap().contains("without an answer"), "{call}: {outcome}");
    }
    assert_eq!(answers["stream_values"]["value"]["with_work_in_flight"]["same_value"], 8);
    assert_eq!(answers["stream_values"]["value"]["with_work_in_flight"]["same_value_and_id"], 0);
    let ids = &answers["stream_ids"]["value"];
    assert_ne!(ids["one_thread"]["2"], ids["another_thread"]["2"]);
    assert_eq!(ids["one_thread"]["created"], ids["another_thread"]["created"]);
    let captures = ids["during_captures"].as_array().unwrap();
    assert_eq!(captures.len(), 10);
    assert_eq!((&captures[0]["asked"], &captures[0]["id"]["code"]), (&"created".into(), &900.into()));
    let other = captures.iter().find(|row| row["asked"] == "2" && row["thread"] == "another").unwrap();
    assert!(other["id"].is_number() && other["capture"] == "ok", "{other}");
}

#[test]
fn probe_finds_out_what_a_peer_costs() {
    let settings = [("GAPLESS_SIM_DEVICES", "2"), ("GAPLESS_SIM_CAPACITY", "256MiB")];
    let output = gapless(&["probe", "--json", "--only", "peer_descriptor"], &library(), &settings);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = &report["answers"]["peer_descriptor"]["value"];
    assert_eq!(found["reachable_peers"], json!([1]), "{found}");
    let costs = found["costs"].as_array().unwrap();
    assert_eq!(costs.iter().map(|row| row["peers"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
    assert!(costs[1]["set_access_1_us"].as_f64().unwrap() > 0.0, "{found}");
}

#[test]
fn probe_goes_on_past_a_question_that_fails() {
    let settings = [("GAPLESS_SIM_FAIL", "cuStreamCreate:1:98765")];
    let output = gapless(&["probe", "--json", "--only", "busy,unmap_two"], &library(), &settings);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["answers"]["busy"]["error"].as_str().unwrap().contains("98765"));
    assert_eq!(report["answers"]["unmap_two"]["value"]["answer"], "ok");
}

#[test]
fn probe_keeps_to_its_time() {
    let arguments = ["probe", "--json", "--only", "busy,mappings", "--total", "0"];
    let report: Value = serde_json::from_slice(&gapless(&arguments, &library(), &[]).stdout).unwrap();
    assert!(report["answers"]["mappings"]["error"].as_str().unwrap().contains("not asked"));
}

#[test]
fn probe_ends_without_a_device() {
    let output = gapless(&["probe", "--json"], &library(), &[("GAPLESS_SIM_DEVICES", "0")]);
    assert_eq!(output.status.code(), Some(4));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["problem"].as_str().unwrap().contains("no GPU"));
}

#[test]
fn probe_knows_its_questions() {
    let output = gapless(&["probe", "--only", "nonsense"], &library(), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("unmap_two"));
}

#[test]
fn replay_runs_on_the_device_and_checks_bytes() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/oom/oom_04.trace.gz");
    let arguments = ["replay", "--driver", "cuda", "--verify", "--json", trace];
    // Every byte of every block goes through the simulated device: a small trace.
    let output = gapless(&arguments, &library(), &[("GAPLESS_SIM_CAPACITY", "2GiB")]);
    let lines: Vec<Value> = text(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(lines.iter().all(|line| line["driver"] == "cuda"));
    let model = Command::new(env!("CARGO_BIN_EXE_gapless")).args(["replay", "--json", trace]).output().unwrap();
    for (line, model) in lines.iter().zip(text(&model).lines()) {
        let model: Value = serde_json::from_str(model).unwrap();
        for field in ["policy", "peak_reserved_bytes", "driver_calls"] {
            assert_eq!(line[field], model[field], "{field}");
        }
        assert_eq!(line["oom"]["op_index"], model["oom"]["op_index"]);
    }
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn replay_on_the_device_says_when_there_is_none_or_it_is_too_small() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/oom/oom_04.trace.gz");
    let arguments = ["replay", "--driver", "cuda", "--json", trace];
    let output = gapless(&arguments, &library(), &[("GAPLESS_SIM_DEVICES", "0")]);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("gapless doctor"));
    let output = gapless(&arguments, &library(), &[("GAPLESS_SIM_CAPACITY", "64MiB")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--capacity"));
}

#[test]
fn soak_runs_on_the_device_and_says_when_there_is_none() {
    let arguments = ["soak", "--driver", "cuda", "--minutes", "0.02", "--threads", "2", "--pages", "16", "--seed", "3"];
    let output = gapless(&arguments, &library(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text(&output).contains("bytes verified") && !text(&output).contains("verified                     0 B"));
    let output = gapless(&arguments, &library(), &[("GAPLESS_SIM_DEVICES", "0")]);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("gapless doctor"));
    assert!(output.stdout.is_empty());
}
