//! `--html` as another program sees it. What the page looks like is tested in a browser: `cargo xtask test-page`.

#[path = "../../trace/tests/foreign/pickle.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod pickle;

use pickle::Py::{Dict, Int, List, Text};
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

/// The text of a table's cells, row by row.
fn table(page: &str, id: &str) -> Vec<Vec<String>> {
    let body = page.split_once(&format!("<table id=\"{id}\">")).unwrap().1.split_once("</table>").unwrap().0;
    let rows = body.split_once("<tbody>").unwrap().1.split("<tr").skip(1);
    let text = |cell: &str| {
        let html = cell.split_once("<span>").unwrap().1.split_once("</span>").unwrap().0;
        html.replace("<wbr>", "").replace("&gt;", ">").replace("&lt;", "<").replace("&#39;", "'").replace("&amp;", "&")
    };
    rows.map(|row| row.split("<td").skip(1).map(text).collect()).collect()
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
    for key in ["device_bytes", "failed_op"] {
        assert_eq!(data[key], advice[key], "{key}");
    }
    let settings = names(&advice["policies"], "setting");
    assert_eq!(names(&data["timeline"]["policies"], "name"), settings);
    let rows = table(&page, "policies");
    assert_eq!(rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>(), settings);
    assert_eq!(rows[0][1..], ["fails at op 1,347", "12.65 GiB", "110", "0"]);
    assert_eq!((table(&page, "holders").len(), table(&page, "rest").len()), (10, 5));
    for (drawn, listed) in
        data["timeline"]["policies"].as_array().unwrap().iter().zip(advice["policies"].as_array().unwrap())
    {
        assert_eq!(drawn["oom_op"], listed["oom_op"], "{}", listed["setting"]);
    }
    assert!(data["timeline"]["moments"].as_array().unwrap().contains(&1347.into()));
    assert!(page.contains("python -m gapless.torch"));
}

/// Each sentence of the text is on the page, and each row of its tables.
#[test]
fn the_page_says_what_the_text_says() {
    let folder = tempfile::tempdir().unwrap();
    let (log, path) = (folder.path().join("log.csv"), folder.path().join("page.html"));
    let rows = "Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x100,1048576,0x0\n\
                1,2,allocate failure,(nil),2097152,0x0\n1,3,free,0x100,1048576,0x0\n1,4,allocate failure,(nil),104857600,0x0\n";
    std::fs::write(&log, rows).unwrap();
    for trace in [TRACE, "traces/oom/oom_04.trace.gz", log.to_str().unwrap()] {
        let output = gapless(&["advise", trace, "--html", path.to_str().unwrap()]);
        let page = std::fs::read_to_string(&path).unwrap().replace("<wbr>", "").replace("&#39;", "'").to_lowercase();
        let text = String::from_utf8(output.stdout).unwrap().to_lowercase();
        let sentences = text.lines().filter(|line| !line.contains(['┆', '═']) && line.len() > 30);
        let sentences: Vec<&str> = sentences.filter(|line| !line.starts_with("    ") && !line.ends_with(':')).collect();
        assert!(sentences.len() > 5, "{text}");
        for sentence in sentences.iter().filter(|line| !line.starts_with("what ")) {
            assert!(page.contains(sentence.trim()), "{sentence}");
        }
    }
}

#[test]
fn the_page_of_a_replay_has_its_policies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    let output = gapless(&["replay", "--json", "--slack", "1.5", TRACE, "--html", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = std::fs::read_to_string(&path).unwrap();
    assert_eq!(names(&data(&page)["timeline"]["policies"], "name"), ["gapless", "caching"]);
    let rows: Vec<String> = table(&page, "policies").into_iter().map(|row| row[..2].join(": ")).collect();
    assert_eq!(rows, ["gapless: survives", "caching: fails at op 1,347"]);
}

#[test]
fn a_history_without_a_verdict_has_a_page_without_policies() {
    let folder = tempfile::tempdir().unwrap();
    let (log, path) = (folder.path().join("log.csv"), folder.path().join("page.html"));
    let head = "Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x100,1048576,0x0\n1,2,free,0x900,4096,0x0\n";
    std::fs::write(&log, head).unwrap();
    let output = gapless(&["advise", log.to_str().unwrap(), "--html", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let page = std::fs::read_to_string(&path).unwrap();
    assert_eq!(data(&page)["timeline"]["policies"], Value::Array(Vec::new()));
    assert!(page.contains("No verdict") && table(&page, "policies").is_empty());
}

/// Policies that were not replayed have no figures, on the page as in the text.
#[test]
fn rows_that_were_not_replayed_are_empty() {
    let folder = tempfile::tempdir().unwrap();
    let (late, path) = (folder.path().join("late.pickle"), folder.path().join("page.html"));
    // 100 MiB were held when the history begins, and 10 of them were live.
    const MIB: u64 = 1 << 20;
    let block =
        |address, size, state| Dict(vec![("address", Int(address)), ("size", Int(size)), ("state", Text(state))]);
    let blocks = vec![block(0, 10 * MIB, "active_allocated"), block(10 * MIB, 90 * MIB, "inactive")];
    let segment = Dict(vec![("address", Int(0)), ("total_size", Int(100 * MIB)), ("blocks", List(blocks))]);
    let event =
        |action| Dict(vec![("action", Text(action)), ("addr", Int(20 * MIB)), ("size", Int(MIB)), ("stream", Int(0))]);
    let history = ["alloc", "free_requested", "free_completed"].map(event).into();
    let traces = List(vec![List(history)]);
    let snapshot = Dict(vec![("segments", List(vec![segment])), ("device_traces", traces)]);
    std::fs::write(&late, pickle::dump(&snapshot)).unwrap();
    let output = gapless(&["advise", late.to_str().unwrap(), "--device", "64MiB", "--html", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = std::fs::read_to_string(&path).unwrap();
    let rows = table(&page, "policies");
    assert_eq!(rows[0], ["native", "not replayed", "-", "-", "-"]);
    assert!(page.contains("Not replayed:") && rows.last().unwrap()[1] == "survives", "{rows:?}");
}

/// Folders of the program's source files are on no page that was made without them.
#[test]
fn a_page_may_be_without_paths() {
    let folder = tempfile::tempdir().unwrap();
    let (recording, path) = (folder.path().join("one.pickle"), folder.path().join("page.html"));
    let frame = |name, file| Dict(vec![("name", Text(name)), ("filename", Text(file)), ("line", Int(7))]);
    let frames = vec![
        frame("linear", "/home/me/venv/site-packages/torch/nn/functional.py"),
        frame("step", "/home/me/secret/train.py"),
    ];
    let event = Dict(vec![
        ("action", Text("alloc")),
        ("addr", Int(1 << 21)),
        ("size", Int(1 << 21)),
        ("stream", Int(0)),
        ("frames", List(frames)),
    ]);
    let snapshot = Dict(vec![("segments", List(vec![])), ("device_traces", List(vec![List(vec![event])]))]);
    std::fs::write(&recording, pickle::dump(&snapshot)).unwrap();
    let [recording, out] = [&recording, &path].map(|path| path.to_str().unwrap());
    let note = "note: the page has the folders of the program's source files";
    for (option, shows) in [(None, true), (Some("--strip-paths"), false)] {
        let mut arguments = vec!["advise", "--device", "64MiB", recording, "--html", out];
        arguments.extend(option);
        let output = gapless(&arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains(note), shows, "{}", stderr(&output));
        let page = std::fs::read_to_string(&path).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(page.contains("train.py:7") && text.contains("train.py:7"), "{text}");
        assert_eq!((page.contains("secret"), text.contains("secret")), (shows, shows));
        let json = gapless(&[&["advise", "--json", "--device", "64MiB", recording][..], option.as_slice()].concat());
        assert_eq!(String::from_utf8(json.stdout).unwrap().contains("secret"), shows);
    }
}

/// The page takes the place of the text.
#[test]
fn a_page_may_go_to_standard_output() {
    for command in ["advise", "replay"] {
        let output = gapless(&[command, TRACE, "--html", "-"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let page = String::from_utf8(output.stdout).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"), "{command}");
        assert_eq!(gapless(&[command, TRACE, "--json", "--html", "-"]).status.code(), Some(2), "{command}");
    }
}

/// A page that cannot be written whole leaves the one that was there.
#[test]
fn a_full_disk_destroys_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    std::fs::write(&path, "the page of yesterday").unwrap();
    // The largest file is 8 KiB, as if the disk were full.
    let shell = format!(
        "trap '' XFSZ; ulimit -f 8; exec '{}' advise {TRACE} --setting native --html '{}'",
        env!("CARGO_BIN_EXE_gapless"),
        path.display()
    );
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let output = Command::new("bash").args(["-c", &shell]).current_dir(root).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("the content cannot be written") && said.contains("File too large"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "the page of yesterday");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
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
