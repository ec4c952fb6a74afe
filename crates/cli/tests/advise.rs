//! `gapless advise` as another program sees it: exit codes, JSON keys, messages.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn advise(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gapless"))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .arg("advise")
        .args(arguments)
        .output()
        .unwrap()
}

fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).unwrap_or_else(|error| panic!("{error}: {}", stderr(output)))
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

const AVOIDABLE: &str = "traces/oom/oom_10.trace.gz";
const UNAVOIDABLE: &str = "traces/oom/oom_04.trace.gz";

#[test]
fn json_has_the_keys_that_tools_rely_on() {
    let output = advise(&["--json", AVOIDABLE]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let advice = json(&output);
    assert_eq!(
        keys(&advice),
        [
            "device_bytes",
            "failed_op",
            "history_complete",
            "holders",
            "peak_live_bytes",
            "policies",
            "stranded",
            "trace"
        ]
    );
    assert_eq!(
        (&advice["trace"], &advice["failed_op"], &advice["history_complete"], &advice["device_bytes"]),
        (&"oom_10".into(), &1347.into(), &true.into(), &12_188_848_750_u64.into())
    );
    assert_eq!(advice["holders"].as_array().unwrap().len(), 10);
    let policies = advice["policies"].as_array().unwrap();
    for policy in policies {
        assert_eq!(keys(policy), ["driver_calls", "host_waits", "oom_op", "setting", "smallest_device_bytes"]);
    }
    let of = |setting: &str| policies.iter().find(|policy| policy["setting"] == setting).unwrap();
    assert_eq!(of("native")["oom_op"], 1347);
    assert_eq!(of("expandable_segments:True")["oom_op"], 1347);
    assert!(of("gapless")["oom_op"].is_null());
    assert!(of("gapless")["smallest_device_bytes"].as_u64().unwrap() <= 12_188_848_750);
}

/// The device is what is live and what is not.
#[test]
fn the_gap_adds_up_to_the_device() {
    let advice = json(&advise(&["--json", "--setting", "native", AVOIDABLE]));
    let stranded = |key: &str| advice["stranded"][key].as_u64().unwrap();
    let rest = stranded("unreserved_bytes")
        + stranded("rounding_bytes")
        + stranded("free_in_whole_pages_bytes")
        + stranded("free_in_partly_used_pages_bytes");
    // The header of the scenario says what was live when the request failed.
    assert_eq!(rest + 9_513_352_192, advice["device_bytes"].as_u64().unwrap());
    let listed = |list: &str| -> u64 {
        advice["stranded"][list].as_array().unwrap().iter().map(|free| free["bytes"].as_u64().unwrap()).sum()
    };
    let free = stranded("free_in_whole_pages_bytes") + stranded("free_in_partly_used_pages_bytes");
    assert_eq!((listed("by_stream"), listed("by_size")), (free, free));
}

#[test]
fn exit_codes_say_whether_anything_helps() {
    let output = advise(&[UNAVOIDABLE]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stdout(&output).contains("Nothing that was tried helps"), "{}", stdout(&output));
    assert_eq!(advise(&["--device", "1GiB", UNAVOIDABLE]).status.code(), Some(0));
    assert_eq!(advise(&["--setting", "native", AVOIDABLE]).status.code(), Some(3));
    assert_eq!(advise(&["--setting", "native", "--setting", "gapless", AVOIDABLE]).status.code(), Some(0));
    assert_eq!(advise(&["--setting", "native", "--gpu", "h100", AVOIDABLE]).status.code(), Some(0));
    assert_eq!(advise(&[UNAVOIDABLE, "no/such.trace", AVOIDABLE]).status.code(), Some(2));
}

#[test]
fn bad_arguments_are_two_and_say_what_to_do() {
    for (arguments, hint) in [
        (&[][..], "FILE"),
        (&["--device", "0", AVOIDABLE], "24GiB"),
        (&["--device", "lots", AVOIDABLE], "24GiB"),
        (&["--device", "1", AVOIDABLE], "page"),
        (&["--device", "5TiB", AVOIDABLE], "no device"),
        (&["--gpu", "Voodoo 2", AVOIDABLE], "RTX 4090"),
        (&["--gpu", "T4", "--device", "1GiB", AVOIDABLE], "--gpu"),
        (&["--setting", "max_split_size_mb:4", AVOIDABLE], "above 20"),
        (&["--setting", "magic", AVOIDABLE], "expandable_segments:True"),
        (&["--snapshot-device", "x", AVOIDABLE], "--snapshot-device"),
    ] {
        let output = advise(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(hint), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn bad_files_are_named_and_the_others_are_advised_on() {
    let folder = tempfile::tempdir().unwrap();
    let bad = file(&folder, "\u{1b}[2Jbad.trace", "a 1 100 0\nf 2\n");
    let empty = file(&folder, "empty.trace", "");
    let good = file(&folder, "good.trace", "a 1 100 0\nf 1\n");
    let output = advise(&["--json", "--setting", "native", text(&bad), text(&empty), text(&good)]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = stderr(&output);
    for part in ["[2Jbad.trace: line 2: free of id 2", "empty.trace: holds no ops"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert!(!stderr.contains('\u{1b}'), "{stderr:?}");
    let advice = json(&output);
    assert_eq!((&advice["trace"], &advice["failed_op"]), (&"good".into(), &Value::Null));
}

/// Sizes far beyond any device cost neither time nor memory.
#[test]
fn absurd_sizes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("request", "a 1 4611686018427387904 0\n"),
        ("device", "# capacity_bytes 9223372036854775807\na 1 1 0\n"),
        ("sum", "a 1 18446744073709551615 0\n"),
    ] {
        let path = file(&folder, name, content);
        let output = advise(&[text(&path)]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stderr(&output));
        assert!(stderr(&output).contains("no device"), "{name}: {}", stderr(&output));
    }
    // A request that was refused may be of any size.
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x100,1048576,0x0\n\
               1,3,allocate failure,(nil),9223372036854775807,0x0\n";
    let output = advise(&["--device", "64MiB", text(&file(&folder, "log.csv", log))]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn settings_are_replayed_in_their_order_as_given() {
    let settings = ["gapless", "max_split_size_mb:64,expandable_segments:True", "torch.cuda.empty_cache()"];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--setting", setting]).collect();
    let advice = json(&advise(&[&["--json", AVOIDABLE][..], &arguments].concat()));
    let found: Vec<_> =
        advice["policies"].as_array().unwrap().iter().map(|policy| policy["setting"].as_str().unwrap()).collect();
    assert_eq!(found, ["gapless", "expandable_segments:True,max_split_size_mb:64", "torch.cuda.empty_cache()"]);
}

#[test]
fn a_log_that_begins_in_the_middle_gets_no_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let head = "Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x100,1048576,0x0\n";
    let failure = "1,3,allocate failure,(nil),1099511627776,0x0\n";
    let whole = file(&folder, "whole.csv", &format!("{head}{failure}"));
    let advice = json(&advise(&["--json", "--device", "64MiB", text(&whole)]));
    assert_eq!(
        (&advice["peak_live_bytes"], &advice["failed_op"], &advice["history_complete"]),
        (&1_048_576.into(), &2.into(), &true.into()),
        "a request that failed was not live"
    );
    let middle = file(&folder, "middle.csv", &format!("{head}1,2,free,0x900,4096,0x0\n{failure}"));
    let output = advise(&["--json", "--device", "64MiB", text(&middle)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no verdict"), "{}", stderr(&output));
    let advice = json(&output);
    assert_eq!((&advice["history_complete"], &advice["policies"]), (&false.into(), &Value::Array(vec![])));
}

#[test]
fn the_text_is_for_people() {
    let output = advise(&[AVOIDABLE]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for part in [
        "PyTorch refused a request of 1.93 GiB at op 1,347, when 8.86 GiB were live",
        "in whole pages of 2 MiB",
        "held by others",
        "What would have helped",
        "fails at op 1,347",
        "survives",
        "python -m gapless.torch",
        "No setting of PyTorch's own allocator that was tried survives",
        "What fits",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(stderr(&output).is_empty(), "{}", stderr(&output));
}
