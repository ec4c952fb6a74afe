//! `--html` as another program sees it. What the page looks like is tested in a browser: `cargo xtask test-page`.

use serde_json::Value;
use std::process::{Command, Output};

fn gapless(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gapless"))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .args(arguments)
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The object in a page.
fn data(page: &str) -> Value {
    let json = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    serde_json::from_str(json).unwrap()
}

fn names(list: &Value, key: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect()
}

const TRACE: &str = "traces/oom/oom_10.trace.gz";

#[test]
fn the_page_of_advise_has_every_setting_and_draws_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    let output = gapless(&["advise", "--json", TRACE, "--html", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = std::fs::read_to_string(&path).unwrap();
    let data = data(&page);
    let advice: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["policies", "holders", "stranded", "device_bytes", "failed_op", "peak_live_bytes"] {
        assert_eq!(data[key], advice[key], "{key}");
    }
    assert_eq!(names(&data["timeline"]["policies"], "name"), names(&advice["policies"], "setting"));
    for (drawn, listed) in
        data["timeline"]["policies"].as_array().unwrap().iter().zip(advice["policies"].as_array().unwrap())
    {
        assert_eq!(drawn["oom_op"], listed["oom_op"], "{}", listed["setting"]);
    }
    assert!(data["timeline"]["moments"].as_array().unwrap().contains(&1347.into()));
    assert!(data["verdict"].as_str().unwrap().contains("python -m gapless.torch"));
}

#[test]
fn the_page_of_a_replay_has_its_policies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    let output = gapless(&["replay", "--json", "--slack", "1.5", TRACE, "--html", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let data = data(&std::fs::read_to_string(&path).unwrap());
    assert_eq!(names(&data["timeline"]["policies"], "name"), ["gapless", "caching"]);
    assert_eq!(names(&data["policies"], "setting"), ["gapless", "caching"]);
    assert_eq!(data["policies"][1]["oom_op"], 1347);
}

#[test]
fn a_history_without_a_verdict_has_a_page_without_policies() {
    let folder = tempfile::tempdir().unwrap();
    let (log, path) = (folder.path().join("log.csv"), folder.path().join("page.html"));
    let head = "Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x100,1048576,0x0\n1,2,free,0x900,4096,0x0\n";
    std::fs::write(&log, head).unwrap();
    let output = gapless(&["advise", log.to_str().unwrap(), "--html", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let data = data(&std::fs::read_to_string(&path).unwrap());
    assert_eq!(data["timeline"]["policies"], Value::Array(Vec::new()));
    assert!(data["verdict"].as_str().unwrap().starts_with("No verdict"));
}

#[test]
fn pages_that_cannot_be_written_are_two_and_say_so() {
    for command in ["advise", "replay"] {
        let output = gapless(&[command, TRACE, "--json", "--html", "/no/such/folder/page.html"]);
        assert_eq!(output.status.code(), Some(2), "{command}: {}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("cannot write the page to /no/such/folder/page.html"), "{command}: {said}");
        assert!(!output.stdout.is_empty(), "{command}: the result is not lost");
    }
    let output = gapless(&["replay", TRACE, TRACE, "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("one at a time"), "{}", stderr(&output));
}
