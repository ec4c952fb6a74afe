//! `gapless advise NEW --against OLD`: what has changed, and whether that is too much.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn advise(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gapless")).current_dir(folder).arg("advise").args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

const MIB: u64 = 1 << 20;

/// A folder with the recordings of a program before and after a change: 100 MiB in blocks of 10 MiB, then `more` of them.
fn recordings(more: &[(&str, u64, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, blocks, end) in [("old.trace", 10, "")].iter().chain(more) {
        let text: String = (0..*blocks).map(|id| format!("a {id} {} 0\n", 10 * MIB)).collect();
        std::fs::write(folder.path().join(name), format!("{text}{end}")).unwrap();
    }
    folder
}

#[test]
fn the_exit_code_says_whether_the_peak_grew_by_too_much() {
    let small = format!("a 100 {} 0\n", 2 * MIB);
    let above = format!("a 100 {} 0\n", 2 * MIB + 1);
    let folder = recordings(&[
        ("same.trace", 10, ""),
        ("less.trace", 9, ""),
        ("just.trace", 10, &small),
        ("above.trace", 10, &above),
        ("more.trace", 11, ""),
    ]);
    let code = |arguments: &[&str]| {
        let output = advise(folder.path(), &[arguments, &["--against", "old.trace"]].concat());
        assert!(stderr(&output).is_empty(), "{}", stderr(&output));
        output.status.code()
    };
    // 2 % are tolerated unless said otherwise.
    for (new, expected) in [("same", 0), ("less", 0), ("just", 0), ("above", 3), ("more", 3)] {
        assert_eq!(code(&[&format!("{new}.trace")]), Some(expected), "{new}");
    }
    for (new, tolerance, expected) in [
        ("more", "10", 0),
        ("more", "9.99", 3),
        ("more", "10%", 0),
        ("same", "0", 0),
        ("just", "0", 3),
        ("less", "0", 0),
    ] {
        assert_eq!(code(&[&format!("{new}.trace"), "--tolerance", tolerance]), Some(expected), "{new} {tolerance}");
    }
}

#[test]
fn the_text_says_what_has_changed_and_what_holds_more() {
    let folder = recordings(&[("new.trace", 9, &format!("a 50 {} 0\n", 32 * MIB))]);
    let output = advise(folder.path(), &["new.trace", "--against", "old.trace"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let text = stdout(&output);
    let line = |begin: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(begin));
        line.unwrap_or_else(|| panic!("{begin}: {text}"))
            .split('┆')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(text.starts_with("new.trace against old.trace\n"), "{text}");
    assert_eq!(line("most asked for at once")[1..], ["100 MiB", "122 MiB", "+22.00 %"]);
    assert_eq!(line("reserved")[1..], ["100 MiB", "122 MiB", "+22.00 %"]);
    assert_eq!(line("+"), ["+32 MiB", "0 B", "32 MiB", "blocks of 32 MiB"]);
    assert_eq!(line("-10"), ["-10 MiB", "100 MiB", "90 MiB", "blocks of 10 MiB"]);
    assert!(text.contains("The peak grew by 22.00 %, more than the 2 % that are tolerated."), "{text}");
    let text = stdout(&advise(folder.path(), &["old.trace", "--against", "new.trace"]));
    assert!(text.contains("The peak did not grow by more than the 2 % that are tolerated."), "{text}");
}

#[test]
fn json_is_one_object() {
    let folder = recordings(&[("new.trace", 11, "")]);
    let output = advise(folder.path(), &["--json", "new.trace", "--against", "old.trace", "--tolerance", "0.5"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let compared: Value = serde_json::from_slice(&output.stdout).unwrap();
    let change = |old: u64, new: u64| serde_json::json!({"old_bytes": old * MIB, "new_bytes": new * MIB});
    assert_eq!(
        compared,
        serde_json::json!({
            "version": 1, "old": "old.trace", "new": "new.trace", "tolerance_percent": 0.5, "regression": true,
            "peak": change(100, 110), "reserved": change(100, 110), "fails_now": false,
            "holders": [{"origin": null, "block_bytes": 10 * MIB, "old_bytes": 100 * MIB, "new_bytes": 110 * MIB,
                         "growth_bytes": 10 * MIB}],
        })
    );
}

/// A baseline need not be a recording: what `--json` printed for it will do, and says the same.
#[test]
fn a_result_stands_for_its_recording() {
    let folder = recordings(&[("new.trace", 11, "")]);
    for name in ["old", "new"] {
        let result = advise(folder.path(), &["--json", &format!("{name}.trace")]).stdout;
        std::fs::write(folder.path().join(format!("{name}.json")), result).unwrap();
    }
    let expected = stdout(&advise(folder.path(), &["new.trace", "--against", "old.trace"]));
    for (new, old) in [("new.trace", "old.json"), ("new.json", "old.trace"), ("new.json", "old.json")] {
        let output = advise(folder.path(), &[new, "--against", old]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(3), expected.clone()), "{new} {old}");
    }
}

/// A run that dies early has a small peak, and is no improvement.
#[test]
fn a_run_that_fails_now_is_a_regression() {
    let refused = format!("r {} 0\n", 5 * MIB);
    let folder = recordings(&[("fails.trace", 5, &refused), ("large.trace", 10, &format!("r {} 0\n", 90 * MIB))]);
    let output = advise(folder.path(), &["fails.trace", "--against", "old.trace"]);
    assert_eq!(output.status.code(), Some(3), "{}", stdout(&output));
    assert!(stdout(&output).contains("The new run ends with a request that was refused, and the old one did not."));
    // The request that was refused was asked for.
    let output = advise(folder.path(), &["--json", "large.trace", "--against", "fails.trace"]);
    let compared: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(compared["peak"], serde_json::json!({"old_bytes": 55 * MIB, "new_bytes": 190 * MIB}));
    assert_eq!(compared["fails_now"], false);
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let folder = recordings(&[("new.trace", 11, ""), ("third.trace", 11, "")]);
    let write = |name: &str, content: &[u8]| std::fs::write(folder.path().join(name), content).unwrap();
    write("broken.trace", b"f 1\n");
    write(
        "unknown.csv",
        b"Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x1,1048576,0x0\n1,2,free,0x9,4096,0x0\n",
    );
    write("two.json", &advise(folder.path(), &["--json", "new.trace", "third.trace"]).stdout);
    write("error.json", &advise(folder.path(), &["--json", "broken.trace"]).stdout);
    let other = stdout(&advise(folder.path(), &["--json", "new.trace"])).replacen("\"version\":1", "\"version\":7", 1);
    write("other.json", other.as_bytes());
    for (arguments, hint) in [
        (&["new.trace", "third.trace", "--against", "old.trace"][..], "compares one FILE with an older one"),
        (&["new.trace", "--against", "old.trace", "--against", "third.trace"], "--against"),
        (&["new.trace", "--against", "new.trace"], "is given twice"),
        (&["--against", "old.trace"], "FILE"),
        (&["new.trace", "--tolerance", "2"], "--against"),
        (&["new.trace", "--against", "old.trace", "--tolerance", "much"], "a number such as 2 or 0.5"),
        (&["new.trace", "--against", "old.trace", "--tolerance=-1"], "a number such as 2 or 0.5"),
        (&["new.trace", "--against", "old.trace", "--tolerance", "NaN"], "a number such as 2 or 0.5"),
        (&["new.trace", "--against", "old.trace", "--html", "x.html"], "--html"),
        (&["new.trace", "--against", "old.trace", "--setting", "native"], "--setting"),
        (&["new.trace", "--against", "none.trace"], "none.trace: cannot be read: No such file"),
        (&["new.trace", "--against", "."], "is a folder"),
        (&["broken.trace", "--against", "old.trace"], "broken.trace: line 1: free of id 1"),
        (&["new.trace", "--against", "unknown.csv"], "unknown.csv: No verdict"),
        (&["new.trace", "--against", "two.json"], "has results for several files"),
        (&["new.trace", "--against", "error.json"], "broken.trace: line 1: free of id 1"),
        (&["new.trace", "--against", "other.json"], "has results of version 7"),
    ] {
        let output = advise(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(hint), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
