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
            "causes",
            "device_bytes",
            "device_is_assumed",
            "failed",
            "failed_op",
            "failure_is_recorded",
            "file",
            "growth",
            "history",
            "history_complete",
            "holders",
            "live_bytes",
            "moment_op",
            "native_fails",
            "peak_holders",
            "peak_live_bytes",
            "peak_reserved_bytes",
            "policies",
            "recorder",
            "reproduced",
            "steps",
            "stranded",
            "stranded_is_recorded",
            "survived_refusals",
            "survivors",
            "trace",
            "version"
        ]
    );
    assert_eq!(
        (&advice["trace"], &advice["failed_op"], &advice["history_complete"], &advice["device_bytes"]),
        (&"oom_10".into(), &1347.into(), &true.into(), &12_188_848_750_u64.into())
    );
    assert_eq!((&advice["version"], &advice["file"]), (&1.into(), &AVOIDABLE.into()));
    assert_eq!(advice["survivors"], serde_json::json!(["gapless"]));
    assert_eq!(advice["holders"].as_array().unwrap().len(), 10);
    assert_eq!(advice["peak_holders"].as_array().unwrap().len(), 50);
    let policies = advice["policies"].as_array().unwrap();
    for policy in policies {
        assert_eq!(
            keys(policy),
            ["as_recorded", "driver_calls", "host_waits", "not_replayed", "oom_op", "setting", "smallest_device_bytes"]
        );
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
        (&["--setting", "max_split_size_mb:4", AVOIDABLE], "at least 20"),
        (&["--setting", "magic", AVOIDABLE], "expandable_segments:True"),
        (&["--setting", "gapless,slack:0.5", AVOIDABLE], "at least 1"),
        (&["--setting", "gapless,magic:1", AVOIDABLE], "there is no key 'magic'"),
        (&["--setting", "roundup_power2_divisions:[256:3]", AVOIDABLE], "[256:1,512:2,>:4]"),
        (&["--snapshot-device", "x", AVOIDABLE], "--snapshot-device"),
        (&["--snapshot-device", "1", AVOIDABLE], "has one device only"),
        (&["--gpu", "A100", AVOIDABLE], "did you mean A100 40GB or A100 80GB?"),
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
    let files = [text(&bad), text(&empty), text(&good)];
    let output = advise(&[&["--setting", "native"][..], &files].concat());
    assert_eq!(output.status.code(), Some(2));
    // The table breaks lines.
    let table = stdout(&output).replace('\n', " ").split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["[2Jbad.trace", "line 2: free of id 2", "holds no ops", "2 files could not be advised on"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(!table.contains('\u{1b}'), "{table:?}");
    let output = advise(&[&["--json", "--setting", "native"][..], &files].concat());
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[2]["trace"], &lines[2]["failed_op"]), (&"good".into(), &Value::Null));
    assert_eq!((&lines[1]["file"], &lines[1]["error"].is_string()), (&text(&empty).into(), &true));
    for file in [&bad, &empty] {
        let output = advise(&["--setting", "native", text(file)]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(".trace: ") && output.stdout.is_empty(), "{}", stderr(&output));
        assert!(!stderr(&output).contains('\u{1b}'), "{}", stderr(&output));
    }
}

#[test]
fn files_of_other_kinds_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (content, kind) in [
        ("PK\u{3}\u{4}rest", "zip archive"),
        ("{\"segments\": []}", "JSON"),
        ("(dp0\nVsegments\n", "protocol 0"),
        ("}q\0(U\u{8}segments", "protocol 1"),
    ] {
        let output = advise(&[text(&file(&folder, "other", content))]);
        assert_eq!(output.status.code(), Some(2), "{kind}");
        assert!(stderr(&output).contains(kind), "{kind}: {}", stderr(&output));
    }
}

/// A setting is taken as PyTorch takes it, and what changes nothing is said to.
#[test]
fn settings_that_change_nothing_are_said_to() {
    let setting = "backend:native,pinned_num_register_threads:8,expandable_segments:True,";
    let output = advise(&["--json", "--setting", setting, UNAVOIDABLE]);
    assert_eq!(json(&output)["policies"][0]["setting"], "expandable_segments:True");
    for part in ["'backend:native' changes nothing", "'pinned_num_register_threads:8' changes nothing"] {
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    }
}

/// Settings of gapless's own are those of its variable, and lists of divisions are taken as PyTorch takes them.
#[test]
fn settings_of_gapless_and_lists_are_rows() {
    let own = "gapless,slack:1.02,chunk:2MiB,log:on";
    let list = "roundup_power2_divisions:[256:1,512:2,>:4]";
    let output = advise(&["--setting", own, "--setting", list, "--json", AVOIDABLE]);
    let advice = json(&output);
    let settings: Vec<&str> =
        advice["policies"].as_array().unwrap().iter().map(|policy| policy["setting"].as_str().unwrap()).collect();
    assert_eq!(settings, ["gapless,slack:1.02,chunk:2MiB", list]);
    assert!(stderr(&output).contains("note: 'log:on' changes nothing here"), "{}", stderr(&output));
    let output = stdout(&advise(&["--setting", own, AVOIDABLE]));
    assert!(output.contains("Simplest: GAPLESS_CONF=slack:1.02,chunk:2MiB python -m gapless.torch SCRIPT"), "{output}");
    let output = advise(&["--setting", "gapless,budget:0.5", AVOIDABLE]);
    assert_eq!(output.status.code(), Some(3), "half of the device is not enough: {}", stderr(&output));
}

/// An environment variable comes before another allocator, and what is simplest before what needs least.
#[test]
fn the_simplest_survivor_is_recommended() {
    let output =
        stdout(&advise(&["--device", "13GiB", AVOIDABLE, "--setting", "max_split_size_mb:64", "--setting", "gapless"]));
    assert!(output.contains("Simplest: PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64, with "), "{output}");
    assert!(output.contains("Needs least: python -m gapless.torch SCRIPT, with "), "{output}");
}

/// The cause that keeps memory from a request is named, with what would help.
#[test]
fn nothing_helps_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let short = file(&folder, "short.trace", "# capacity_bytes 104857600\na 1 83886080 0\nr 41943040 0\n");
    let output = stdout(&advise(&[text(&short)]));
    assert!(output.contains("It takes 20 MiB less, such as a batch that is 17 % smaller"), "{output}");
    // Each step leaves 10 MiB behind: a smaller batch or a larger device only lasts longer.
    let steps: String = (0..8).map(|id| format!("a {id} 10485760 0\nm step\n")).collect();
    let path = file(&folder, "leak.trace", &format!("# capacity_bytes 94371840\n{steps}r 20971520 0\n"));
    let output = stdout(&advise(&[text(&path)]));
    for part in ["Nothing helps for long", "no device in the end", "10 MiB  every step, 8 times, never freed"] {
        assert!(output.contains(part) && !output.contains("smallest GPU"), "{part}: {output}");
    }
    // Every stream has 18 MiB that no other can use.
    let streams: String = (0..8).map(|id| format!("a {id} 2097152 {id}\n")).collect();
    let device = 8 * 20 * 1024 * 1024;
    let path = file(&folder, "streams.trace", &format!("# capacity_bytes {device}\n{streams}r 41943040 0\n"));
    let output = stdout(&advise(&["--setting", "native", text(&path)]));
    assert!(output.contains("are free on 8 streams, each of which can use only its own"), "{output}");
}

#[test]
fn a_log_of_rmm_gets_rows_and_words_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x100,1048576,0x0\n1,3,allocate failure,(nil),104857600,0x0\n";
    let path = file(&folder, "log.csv", log);
    let output = stdout(&advise(&["--device", "200MiB", text(&path)]));
    assert!(output.contains("RMM refused a request of 100 MiB") && !output.contains("max_split_size_mb"), "{output}");
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

/// A request that a program survived may fail again in a replay, whatever its size. The verdict is about the one that nothing
/// follows.
#[test]
fn refusals_that_were_survived_are_facts_not_demands() {
    let folder = tempfile::tempdir().unwrap();
    // 1 GiB, of which 600 MiB are free in pieces when 400 MiB are refused: gapless would have served them.
    let end: String = (0..10).map(|id| format!("a {id} 104857600 0\n")).collect::<String>()
        + &(0..10).step_by(2).map(|id| format!("f {id}\n")).collect::<String>();
    let device = "# capacity_bytes 1073741824\n";
    let control = file(&folder, "control.trace", &format!("{device}{end}r 419430400 0\n"));
    let survived = file(&folder, "survived.trace", &format!("{device}r 68719476736 0\n{end}r 419430400 0\n"));
    let outcomes = |path: &Path| {
        let output = advise(&["--json", text(path)]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let advice = json(&output);
        let outcome = |policy: &Value| (policy["oom_op"].is_null(), policy["smallest_device_bytes"].clone());
        (advice["policies"].as_array().unwrap().iter().map(outcome).collect::<Vec<_>>(), advice)
    };
    let ((without, _), (with, advice)) = (outcomes(&control), outcomes(&survived));
    assert_eq!(without, with, "what was survived changes no verdict");
    assert_eq!(
        (&advice["failed_op"], &advice["survived_refusals"][0]["bytes"]),
        (&16.into(), &68_719_476_736_u64.into())
    );
    let output = stdout(&advise(&[text(&survived)]));
    for part in ["refused a request of 400 MiB at op 16, when 500 MiB were live", "64 GiB at op 0"] {
        assert!(output.contains(part), "{part}: {output}");
    }
    // The program went on: there is no failure to avoid.
    let went_on = file(&folder, "went_on.trace", &format!("{device}r 68719476736 0\n{end}"));
    let output = advise(&[text(&went_on)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("nothing failed at the end"), "{}", stdout(&output));
}

/// Figures and holders are those of the recorded failure, also where PyTorch's defaults would have failed before.
#[test]
fn what_happened_is_one_moment() {
    let folder = tempfile::tempdir().unwrap();
    // 60 of 64 MiB are live when one more is asked for, for which PyTorch's allocator takes 20 from the device.
    let pieces: String = (0..4).map(|id| format!("a {id} 15728640 0\n")).collect();
    let path =
        file(&folder, "early.trace", &format!("# capacity_bytes 67108864\n{pieces}a 9 1048577 0\nr 33554432 0\n"));
    let output = stdout(&advise(&[text(&path)]));
    for part in [
        "refused a request of 32 MiB at op 5, when 61.00 MiB were live",
        "Replayed with PyTorch's defaults, it fails earlier: at op 4, with a request of 1.00 MiB",
        "60 MiB  4 blocks of 15 MiB, from ops 0 to 3",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
}

/// The search for a device begins with what was asked for, not only with what was live.
#[test]
fn a_device_is_found_for_a_request_far_larger_than_the_peak() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "large.trace", "# capacity_bytes 2147483648\na 1 67108864 0\nr 4294967296 0\n");
    let advice = json(&advise(&["--json", text(&path)]));
    for policy in advice["policies"].as_array().unwrap() {
        let bytes = policy["smallest_device_bytes"].as_u64().unwrap();
        assert!((4_362_076_160..5 << 30).contains(&bytes), "{policy}");
    }
    let absurd = file(&folder, "absurd.trace", "a 1 67108864 0\nr 18446744073709551615 0\nf 1\n");
    let output = advise(&[text(&absurd)]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.contains("No device has 18,446,744,073,709,551,615 bytes"), "{said}");
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
        (&1_048_576.into(), &1.into(), &true.into()),
        "a request that failed was not live"
    );
    let middle = file(&folder, "middle.csv", &format!("{head}1,2,free,0x900,4096,0x0\n{failure}"));
    let output = advise(&["--json", "--device", "64MiB", text(&middle)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no verdict"), "{}", stderr(&output));
    let advice = json(&output);
    assert_eq!((&advice["history_complete"], &advice["policies"]), (&false.into(), &Value::Array(vec![])));
}

/// A terminal of 80 columns shows the table as it is.
#[test]
fn the_table_fits_80_columns() {
    let output = stdout(&advise(&[AVOIDABLE]));
    let table: Vec<&str> = output.lines().filter(|line| line.contains(['┆', '═'])).collect();
    assert!(table.len() > 11, "{output}");
    for line in table {
        assert!(line.chars().count() <= 80, "{line}");
    }
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
        "Simplest: python -m gapless.torch SCRIPT, with 258.19 MiB to spare",
        "gapless has run on one GPU so far, an NVIDIA H100",
        "No setting of PyTorch's own allocator that was tried survives",
        "What fits",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(stderr(&output).is_empty(), "{}", stderr(&output));
}
