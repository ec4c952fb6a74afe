//! Frames of Python are told with each CPython that this machine has, wherever in a program a rule is broken.

mod world;

use serde_json::Value;
use std::path::{Path, PathBuf};
use world::World;
use world::python::interpreters;

fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/frames.py")
}

/// The functions of the program that have a line which is looked for, with its number.
fn looked_for() -> Vec<(String, u64)> {
    let (mut function, mut found) = ("", Vec::new());
    let text = include_str!("programs/frames.py");
    for (line, number) in text.lines().zip(1..) {
        if let Some(rest) = line.trim_start().strip_prefix("def ") {
            function = rest.split('(').next().unwrap();
        } else if line.ends_with("# here") {
            found.push((function.to_owned(), number));
        }
    }
    found
}

/// The functions and lines of a stack, the innermost first.
type Frames = Vec<(String, u64)>;

/// The rules that a run of the program breaks, each with the frames of the call.
fn told(python: &Path, arguments: &[&Path]) -> Vec<(String, Frames)> {
    let world = World::new();
    let report = world.path("report.json");
    let program = program();
    let command = [&[python, &program], arguments].concat();
    let ended = world.run(&["--strict", "--report", report.to_str().unwrap()], &command);
    let is_well = ended.code == Some(1) && !ended.stderr.contains("Traceback");
    assert!(is_well, "{}: {ended:?}", python.display());
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    let frame = |frame: &Value| (frame["function"].as_str().unwrap().to_owned(), frame["line"].as_u64().unwrap());
    let frames = |broken: &Value| broken["call"]["python"].as_array().unwrap().iter().map(frame).collect();
    let broken = report["broken"].as_array().unwrap();
    broken.iter().map(|broken| (broken["rule"].as_str().unwrap().to_owned(), frames(broken))).collect()
}

/// Their frames alone.
fn frames_told(python: &Path, arguments: &[&Path]) -> Vec<Frames> {
    told(python, arguments).into_iter().map(|(_, frames)| frames).collect()
}

fn names(frames: &[(String, u64)]) -> Vec<&str> {
    frames.iter().map(|(function, _)| function.as_str()).collect()
}

#[test]
fn they_are_told_with_every_interpreter() {
    let interpreters = interpreters();
    println!("with {interpreters:?}");
    for python in interpreters {
        let folder = tempfile::tempdir().unwrap();
        let rules = told(&python, &[Path::new("everywhere"), &folder.path().join("own")]);
        let all: Vec<&Frames> = rules.iter().map(|(_, frames)| frames).collect();
        for (function, line) in looked_for() {
            let found: Vec<_> = all.iter().filter(|frames| names(frames).contains(&function.as_str())).collect();
            let [frames] = found[..] else { panic!("{}: {function}: {all:?}", python.display()) };
            assert_eq!(frames[0], (function, line), "{}", python.display());
        }
        let main = all.iter().find(|frames| frames[0].0 == "in_the_main_thread").unwrap();
        assert_eq!(names(main), ["in_the_main_thread", "everywhere", "<module>"]);
        let second = all.iter().find(|frames| frames[0].0 == "in_a_second_thread").unwrap();
        assert!(!names(second).contains(&"<module>"), "{second:?}");
        // Of those that ran at once, each tells its own.
        let depth = |frames: &Frames| names(frames).iter().filter(|name| **name == "deep").count();
        let deep =
            |(rule, frames): &(String, Frames)| Some((depth(frames), rule.clone())).filter(|(depth, _)| *depth > 0);
        let mut at_once: Vec<_> = rules.iter().filter_map(deep).collect();
        at_once.sort_unstable();
        let expected = (61..=68).map(|depth| (depth, ["map_offset", "map_released"][depth % 2].to_owned()));
        assert_eq!(at_once, expected.collect::<Vec<_>>(), "{}", python.display());
        // While its descriptor is closed there is nothing to be told, and then there is again.
        let closed: Vec<_> = all.iter().filter(|frames| frames.is_empty()).collect();
        assert_eq!(closed.len(), 1, "{}: {all:?}", python.display());
        assert!(all.iter().any(|frames| !frames.is_empty() && frames[0].0 == "after_descriptors_were_closed"));
    }
}

/// Where the first calls have the interpreter's lock, theirs are not there, and nothing waits.
#[test]
fn they_are_told_where_every_call_keeps_the_lock() {
    for python in interpreters() {
        let all = frames_told(&python, &[Path::new("locked")]);
        let last = all.iter().find(|frames| !frames.is_empty() && frames[0].0 == "with_the_lock");
        assert!(last.is_some(), "{}: {all:?}", python.display());
        let first = all.iter().filter(|frames| frames.is_empty()).count();
        assert!(first <= 1, "{}: {all:?}", python.display());
    }
}

/// When the interpreter has given its signals back, there is nothing to call.
#[test]
fn none_are_told_when_the_interpreter_is_all_but_gone() {
    for python in interpreters() {
        let all = frames_told(&python, &[Path::new("late")]);
        let [first, last] = &all[..] else { panic!("{}: {all:?}", python.display()) };
        assert_eq!(names(first), ["in_the_main_thread", "late", "<module>"], "{}", python.display());
        assert!(last.is_empty(), "{}: {last:?}", python.display());
    }
}
