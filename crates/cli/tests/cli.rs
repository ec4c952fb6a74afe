//! The command line as another program sees it: exit codes, JSON keys, messages.

use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn gapless(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).args(arguments);
    command
}

fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The results on stdout, one JSON object per line.
fn results(output: &Output) -> Vec<Value> {
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const VIT: &str = "traces/vit_l_multiscale.trace.gz";

#[test]
fn version_and_help_are_there() {
    let version = gapless(&["--version"]);
    assert!(version.status.success());
    assert_eq!(String::from_utf8_lossy(&version.stdout).trim(), concat!("gapless ", env!("CARGO_PKG_VERSION")));
    assert!(gapless(&["replay", "--help"]).status.success());
}

#[test]
fn a_program_that_sleeps_has_its_phases() {
    let arguments = ["replay", "--sleep-between-steps", "--capacity", "40GiB", VIT];
    let output = gapless(&[&arguments[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for result in results(&output) {
        let phases = result["phases"].as_array().unwrap();
        assert_eq!(phases.len() as u64, 2 * result["steps"].as_u64().unwrap());
        let [sleep, wake] = &phases[..2] else { panic!("two phases a step") };
        assert_eq!((&sleep["kind"], &wake["kind"]), (&"sleep".into(), &"wake".into()));
        assert_eq!((&sleep["live_bytes"], &sleep["copied_bytes"]), (&wake["live_bytes"], &wake["copied_bytes"]));
        assert!(sleep["modelled_driver_seconds"].as_f64().unwrap() > 0.1);
    }
    let directory = tempfile::tempdir().unwrap();
    let turns = file(&directory, "turns.trace", "a 1 62914560 0 a\ns a keep\na 2 41943040 1 b\ns b discard\nw a\n");
    let table = String::from_utf8(gapless(&["replay", text(&turns)]).stdout).unwrap();
    for row in [
        "peak awake",
        "60 MiB (1.000 x)",
        "2, 1",
        "copied out / live",
        "mapped again / live",
        "modelled time of a sleep",
    ] {
        assert!(table.contains(row), "{row}: {table}");
    }
}

#[test]
fn json_has_the_keys_that_tools_rely_on() {
    let output = gapless(&["replay", "--policy", "caching", "--capacity", "40GiB", "--json", VIT]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let results = results(&output);
    assert_eq!(results.len(), 1);
    let object = results[0].as_object().unwrap();
    let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "capacity_bytes",
            "costs",
            "driver",
            "driver_calls",
            "driver_calls_per_step",
            "host_waits",
            "modelled_driver_seconds",
            "ns_per_op",
            "oom",
            "ops",
            "peak_awake_bytes",
            "peak_live_bytes",
            "peak_reserved_bytes",
            "policy",
            "steps",
            "trace",
        ]
    );
    assert_eq!(object["trace"], "vit_l_multiscale");
    assert_eq!(object["policy"], "caching");
    assert_eq!(object["driver"], "model");
    assert_eq!(object["costs"], "literature");
    assert_eq!(object["capacity_bytes"], 40_u64 << 30);
    assert_eq!(object["ops"], 72_672);
    assert_eq!(object["peak_live_bytes"], 28_419_688_660_u64);
    assert_eq!(object["oom"], Value::Null);
    assert_eq!(object["steps"], 13);
    let calls = object["driver_calls"].as_object().unwrap();
    let kinds = ["reserve", "create", "map", "set_access", "unmap", "release"];
    assert_eq!(calls.len(), kinds.len() + 1);
    let sum: u64 = kinds.iter().map(|&kind| calls[kind].as_u64().unwrap()).sum();
    assert_eq!(calls["total"], sum);
    let steps: Vec<u64> =
        object["driver_calls_per_step"].as_array().unwrap().iter().map(|step| step.as_u64().unwrap()).collect();
    assert_eq!(steps.len(), 13);
    assert!(steps.iter().sum::<u64>() <= sum);
}

#[test]
fn the_search_adds_its_two_keys() {
    let output = gapless(&["replay", "--policy", "caching", "--capacity", "40GiB", "--json", "--search-capacity", VIT]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let result = &results(&output)[0];
    let (min, safe) = (&result["min_capacity_bytes"], &result["safe_capacity_bytes"]);
    assert!(min.as_u64().unwrap() >= 28_419_688_660, "{min}");
    assert!(safe.as_u64().unwrap() >= min.as_u64().unwrap(), "{safe}");
}

#[test]
fn a_scale_applies_to_the_trace_and_its_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "t.trace", "# capacity_bytes 8388608\na 1 1000001 0\na 2 500000 0\nf 1\n");
    let output = gapless(&["replay", "--policy", "gapless", "--scale", "2.5", "--json", text(&path)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let result = &results(&output)[0];
    assert_eq!((&result["peak_live_bytes"], &result["capacity_bytes"]), (&3_750_003.into(), &20_971_520.into()));
    let output = gapless(&["replay", "--scale", "1e15", "--json", text(&path)]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn running_out_of_memory_is_three_with_a_report() {
    let output = gapless(&["replay", "--policy", "caching", "--json", "traces/oom/oom_10.trace.gz"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let oom = &results(&output)[0]["oom"];
    assert_eq!(oom["op_index"], 1347);
    assert_eq!(oom["requested_bytes"], 2_072_321_536_u64);
    assert_eq!(oom["satisfiable"], true);
    assert!(oom["report"].as_str().unwrap().contains("Tried to allocate 1.93 GiB"), "{oom}");
}

#[test]
fn bad_arguments_are_two_and_say_what_to_do() {
    for (arguments, hint) in [
        (&["replay"][..], "TRACE"),
        (&["replay", "--capacity", "lots", VIT], "24GiB"),
        (&["replay", "--capacity", "0", VIT], "24GiB"),
        (&["replay", "--policy", "greedy", VIT], "gapless or caching"),
        (&["replay", "--slack", "0.5", VIT], "1.10"),
        (&["replay", "--slack", "NaN", VIT], "1.10"),
        (&["replay", "--chunk", "big", VIT], "2MiB"),
        (&["replay", "--chunk", "0", VIT], "2MiB"),
        (&["replay", "--driver", "abacus", VIT], "model"),
        (&["replay", "--lag=-1", VIT], "--lag"),
        (&["replay", "--costs", "free", VIT], "literature"),
        (&["replay", "--scale", "0", VIT], "2.5"),
        (&["replay", "--scale", "inf", VIT], "2.5"),
        (&["replya", VIT], "replay"),
    ] {
        let output = gapless(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(hint), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn bad_traces_are_two_and_the_good_ones_are_replayed_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let twice = file(&folder, "twice.trace", "a 1 100 0\nf 1\nf 1\n");
    let empty = file(&folder, "empty.trace", "");
    let crowded = file(&folder, "crowded.trace", "# capacity_bytes 5\n# external_bytes 6\na 1 1 0\n");
    let good = file(&folder, "good.trace", "a 1 100 0\nf 1\n");
    let output = gapless(&[
        "replay",
        "--policy",
        "caching",
        "--json",
        text(&twice),
        text(&empty),
        text(&crowded),
        "no/such.trace",
        text(&good),
    ]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = stderr(&output);
    for part in [
        "twice.trace: line 3: free of id 1, which was freed before",
        "empty.trace: holds no ops",
        "crowded.trace: the header's device",
        "no/such.trace: cannot be read",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let results = results(&output);
    assert_eq!(results.len(), 1);
    assert_eq!(results[0]["trace"], "good");
}

#[test]
fn the_table_is_for_people() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "small.trace", "a 1 3000000 0\nf 1\nm one\nm two\na 2 100 0\nm three\n");
    let output = gapless(&["replay", "--policy", "caching", "--capacity", "24MiB", text(&trace)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for part in ["small: 6 ops", "device of 24 MiB", "caching", "survives", "smallest device", "host waits", " ns "] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(output.stderr.is_empty(), "no progress bar where stderr is no terminal");
}

#[test]
fn a_dash_stands_for_standard_input() {
    let mut child = command(&["replay", "--policy", "caching", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a 1 100 0\nf 1\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let result = &results(&output)[0];
    assert_eq!((&result["trace"], &result["ops"]), (&"stdin".into(), &2.into()));
}

/// A file may be named so that a terminal that shows the name obeys it.
#[test]
fn names_of_files_reach_no_terminal_as_commands() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(&folder, "\u{1b}]0;title\u{7}good.trace", "# events 9\na 1 100 0\nf 1\n");
    let bad = file(&folder, "\u{1b}[2Jbad.trace", "x\n");
    let output = gapless(&["replay", "--policy", "caching", text(&good), text(&bad), "\u{9b}31mnone.trace"]);
    assert_eq!(output.status.code(), Some(2));
    let (stdout, stderr) = (String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output));
    for part in ["good.trace: the header says", "[2Jbad.trace: line 1", "31mnone.trace: cannot be read"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert!(stdout.contains("good: 2 ops"), "{stdout}");
    for (name, shown) in [("stdout", stdout), ("stderr", stderr)] {
        assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{name}: {shown:?}");
    }
}

#[test]
fn a_closed_pipe_is_success() {
    let mut child = command(&["replay", "--policy", "caching", "--json", "--capacity", "40GiB", VIT])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn both_policies_are_compared_on_the_default_device() {
    let output = gapless(&["replay", "--json", "traces/llama7b_lora_ckpt.trace.gz", VIT]);
    let results = results(&output);
    let names: Vec<_> = results.iter().map(|result| (result["trace"].as_str(), result["policy"].as_str())).collect();
    let expected: Vec<_> = ["llama7b_lora_ckpt", "vit_l_multiscale"]
        .iter()
        .flat_map(|&trace| [(Some(trace), Some("gapless")), (Some(trace), Some("caching"))])
        .collect();
    assert_eq!(names, expected);
    for result in &results {
        let survives = result["policy"] == "gapless";
        assert_eq!(result["oom"].is_null(), survives, "{result}");
        let (peak, capacity) =
            (result["peak_live_bytes"].as_u64().unwrap(), result["capacity_bytes"].as_u64().unwrap());
        assert!(capacity >= peak * 105 / 100 && capacity <= peak * 105 / 100 + (2 << 20), "{result}");
    }
    assert_eq!(output.status.code(), Some(0), "a comparison");
}

#[test]
fn settings_reach_the_allocator() {
    let calls = |arguments: &[&str]| {
        let always = ["replay", "--policy", "gapless", "--json", "--capacity", "60GiB", VIT];
        let output = gapless(&[&always[..], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        results(&output)[0]["driver_calls"]["create"].as_u64().unwrap()
    };
    assert!(calls(&["--chunk", "32MiB"]) < calls(&["--chunk", "2MiB"]) / 4);
    // Never to prefer remapping to new memory is a setting like any other.
    assert!(calls(&["--slack", "inf"]) > 0);
}

#[test]
fn modelled_time_has_the_name_of_its_costs_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "t.trace", "a 1 8388608 0\nf 1\n");
    let replay = |arguments: &[&str]| {
        let output = gapless(&[&["replay", "--policy", "gapless", text(&path)], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        output
    };
    let result = |arguments: &[&str]| results(&replay(&[&["--json"], arguments].concat())).remove(0);
    let (usual, literature, h100) = (result(&[]), result(&["--costs", "literature"]), result(&["--costs", "h100"]));
    assert_eq!((&usual["costs"], &h100["costs"]), (&"literature".into(), &"h100".into()));
    assert_eq!(usual["modelled_driver_seconds"], literature["modelled_driver_seconds"]);
    assert_eq!(h100["driver_calls"], literature["driver_calls"]);
    assert_ne!(h100["modelled_driver_seconds"], literature["modelled_driver_seconds"]);
    let host = result(&["--driver", "host", "--costs", "h100"]);
    assert_eq!((&host["costs"], &host["modelled_driver_seconds"]), (&Value::Null, &Value::Null));
    for costs in ["literature", "h100"] {
        let table = String::from_utf8(replay(&["--costs", costs]).stdout).unwrap();
        let headline = table.lines().next().unwrap();
        assert!(headline.ends_with(&format!(", costs: {costs}")), "{headline}");
    }
}

#[test]
fn devices_below_a_page_and_above_any_address_space_are_no_crash() {
    let output = gapless(&["replay", "--json", "--capacity", "1", VIT]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("less than one page"), "{}", stderr(&output));
    let output = gapless(&["replay", "--json", "--capacity", "8000000TiB", VIT]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_soak_ends_with_its_figures() {
    for driver in ["model", "host"] {
        let output = gapless(&["soak", "--minutes", "0.01", "--threads", "2", "--driver", driver, "--seed", "7"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stderr(&output), "seed 7\n", "no progress line where stderr is no terminal");
        let figures = String::from_utf8(output.stdout).unwrap();
        for figure in ["operations ", "driver calls ", "chunks moved", "host waits ", "failures survived "] {
            assert!(figures.contains(figure), "{figure}: {figures}");
        }
        // A simulated device has no bytes.
        assert_eq!(figures.contains("bytes verified "), driver == "host", "{figures}");
        assert!(!figures.contains("operations                         0\n"), "{figures}");
    }
    for arguments in [["--minutes", "long"], ["--minutes", "-1"], ["--threads", "0"], ["--driver", "abacus"]] {
        assert_eq!(gapless(&[&["soak"][..], &arguments].concat()).status.code(), Some(2), "{arguments:?}");
    }
}

/// Ctrl-C ends a soak with the figures of what was done.
#[test]
fn a_soak_that_is_interrupted_prints_its_figures() {
    let mut soak = command(&["soak", "--minutes", "60", "--threads", "2", "--driver", "model"]);
    let mut soak = soak.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let pid = soak.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut figures = String::new();
    soak.stdout.take().unwrap().read_to_string(&mut figures).unwrap();
    assert_eq!(soak.wait().unwrap().code(), Some(0));
    assert!(
        figures.contains("rounds (device, allocator, close)  1\n")
            && !figures.contains("operations                         0\n"),
        "{figures}"
    );
}

/// Two policies are a comparison, which ends well if it was carried out; one policy is a question.
#[test]
fn a_comparison_ends_with_zero() {
    let trace = "traces/oom/oom_10.trace.gz";
    for (policies, code) in
        [("gapless,caching", 0), ("caching,gapless", 0), ("caching", 3), ("gapless", 0), ("caching,caching", 3)]
    {
        let output = gapless(&["replay", "--json", "--policy", policies, trace]);
        assert_eq!(output.status.code(), Some(code), "{policies}: {}", stderr(&output));
    }
    let folder = tempfile::tempdir().unwrap();
    let bad = file(&folder, "bad.trace", "a 1\n");
    assert_eq!(gapless(&["replay", "--json", trace, text(&bad)]).status.code(), Some(2));
}

/// Every command says how it can end.
#[test]
fn exit_codes_are_in_the_help() {
    let help = |arguments: &[&str]| String::from_utf8(gapless(arguments).stdout).unwrap();
    assert!(help(&["--help"]).contains("Exit codes: 0 for success"));
    for command in ["replay", "advise", "doctor", "probe", "soak"] {
        let text = help(&[command, "--help"]).to_lowercase();
        assert!(text.contains("exit code"), "{command}: {text}");
    }
}

#[test]
fn shells_and_man_know_the_command_line() {
    let of = |arguments: &[&str]| {
        let output = gapless(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    for (shell, part) in [("bash", "complete -F"), ("zsh", "#compdef gapless"), ("fish", "complete -c gapless")] {
        let text = of(&["completions", shell]);
        assert!(text.contains(part) && text.contains("search-capacity"), "{shell}: {text}");
    }
    assert!(of(&["man"]).contains(".TH gapless 1"));
    let page = of(&["man", "advise"]);
    assert!(page.contains(".TH gapless-advise 1") && page.contains("snapshot\\-device"), "{page}");
    assert_eq!(gapless(&["man", "dance"]).status.code(), Some(2));
    assert_eq!(gapless(&["completions", "powershell"]).status.code(), Some(2));
}

/// A terminal of 80 columns shows the comparison of two policies as it is.
#[test]
fn the_comparison_fits_80_columns() {
    let output = gapless(&["replay", VIT]);
    let text = String::from_utf8(output.stdout).unwrap();
    let table: Vec<&str> = text.lines().filter(|line| line.contains(['│', '═'])).collect();
    assert!(table.len() > 10, "{text}");
    for line in table {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// The published reports end as README says.
#[test]
fn five_of_the_published_reports_are_served_and_four_by_nobody() {
    let files: Vec<String> = (1..=10).map(|number| format!("traces/oom/oom_{number:02}.trace.gz")).collect();
    let mut arguments = vec!["replay", "--policy", "gapless", "--json"];
    arguments.extend(files.iter().map(String::as_str));
    let output = gapless(&arguments);
    let of = |expected: &dyn Fn(&Value) -> bool| -> Vec<String> {
        let found = results(&output).into_iter().filter(|result| expected(&result["oom"]));
        found.map(|result| result["trace"].as_str().unwrap().trim_start_matches("oom_").to_owned()).collect()
    };
    assert_eq!(of(&|oom| oom.is_null()), ["01", "02", "03", "05", "10"]);
    assert_eq!(of(&|oom| oom["satisfiable"] == false), ["04", "06", "08", "09"]);
    assert_eq!(of(&|oom| oom["satisfiable"] == true), ["07"]);
    assert_eq!(output.status.code(), Some(3));
}
