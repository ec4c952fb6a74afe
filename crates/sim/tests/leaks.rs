//! What a program has not given back at its end is told with the calls that made it, where somebody asks for it.

mod world;

use serde_json::Value;
use std::path::{Path, PathBuf};
use world::{Ended, World};

fn read(report: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap()
}

/// Runs a program with a report. Returns how it ended and the report.
fn run(world: &World, arguments: &[&str], program: &Path, report: &str) -> (Ended, Value) {
    let report = world.path(report);
    let ended = world.run(&[arguments, &["--report", report.to_str().unwrap()]].concat(), &[program]);
    (ended, read(&report))
}

fn forgetful(world: &World) -> PathBuf {
    world.compile("forgets", &["-g", "-DFORGETS"])
}

/// What is held, a line for each place: `2 chunk, 4 MiB: cuMemCreate:1, inner < outer`, with the first call.
fn told(held: &Value) -> Vec<String> {
    let line = |held: &Value| {
        let (count, what, mib) =
            (&held["count"], held["what"].as_str().unwrap(), held["bytes"].as_u64().unwrap() >> 20);
        let call = &held["call"];
        let stack = call["stack"].as_array().unwrap();
        let functions: Vec<&str> = stack.iter().map(|frame| frame["function"].as_str().unwrap()).collect();
        let function = call["function"].as_str().unwrap();
        format!("{count} {what}, {mib} MiB: {function}:{}, {}", call["number"], functions.join(" < "))
    };
    held.as_array().unwrap().iter().map(line).collect()
}

#[test]
fn what_is_forgotten_is_told_with_the_calls_that_made_it() {
    let world = World::new();
    let program = forgetful(&world);
    let (ended, report) = run(&world, &["--strict", "--leaks"], &program, "report.json");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let mut all = told(&report["held"]);
    // The largest come first; those that are as large are in no order.
    assert_eq!(all.pop().as_deref(), Some("3 stream, 0 MiB: cuStreamCreate:1, forget_a_stream < main"));
    all.sort_unstable();
    let expected = [
        "1 chunk, 2 MiB: cuMemCreate:1, create < forget_memory < main",
        "1 mapping, 2 MiB: cuMemMap:1, forget_memory < main",
        "1 reservation, 2 MiB: cuMemAddressReserve:1, main",
    ];
    assert_eq!(all, expected);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines[0], "gapless-sim: held at the end");
    let at = lines.iter().position(|line| *line == "  3 streams").unwrap_or_else(|| panic!("{ended:?}"));
    assert!(lines[at + 1].starts_with("  cuStreamCreate, call 1 in process "), "{ended:?}");
    assert!(lines[at + 2].starts_with("    at forget_a_stream ("), "{ended:?}");
    assert!(lines.contains(&"  1 mapping, 2 MiB"), "{ended:?}");
    assert_eq!(report["broken"], Value::Array(vec![]));
}

#[test]
fn what_is_given_back_is_not_told() {
    let world = World::new();
    let program = world.compile("forgets", &[]);
    let (ended, report) = run(&world, &["--strict", "--leaks"], &program, "report.json");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert_eq!(report["held"], Value::Array(vec![]));
}

#[test]
fn what_is_held_is_told_only_where_somebody_asks() {
    let world = World::new();
    let program = forgetful(&world);
    let (ended, report) = run(&world, &["--strict"], &program, "report.json");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert_eq!(report.get("held"), None);
    world.run(&["--leaks"], &[&program]).expect_refused(&["--strict"]);
}

#[test]
fn of_many_places_the_largest_are_told() {
    let world = World::new();
    let program = world.compile("forgets", &["-g", "-DPLACES"]);
    let (ended, report) = run(&world, &["--strict", "--leaks"], &program, "report.json");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let all = told(&report["held"]);
    let largest_first = (1..=12).rev().map(|mib| format!("1 allocation, {} MiB: ", 2 * mib));
    assert_eq!(all.len(), 12, "{all:?}");
    assert!(all.iter().zip(largest_first).all(|(found, expected)| found.starts_with(&expected)), "{all:?}");
    let allocations = ended.stderr.lines().filter(|line| line.starts_with("  1 allocation, "));
    assert_eq!(allocations.count(), 10, "{ended:?}");
    assert!(ended.stderr.ends_with("  and 2 of 2 other places, 6 MiB\n"), "{ended:?}");
}

#[test]
fn sarif_has_it_as_notes() {
    let world = World::new();
    let (_, log) = run(&world, &["--strict", "--leaks"], &forgetful(&world), "report.sarif");
    let run = &log["runs"][0];
    assert_eq!(run["tool"]["driver"]["rules"][0]["id"], "held");
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), 4, "{run}");
    assert!(results.iter().all(|result| result["level"] == "note" && result["ruleId"] == "held"), "{run}");
    let mapping =
        results.iter().find(|result| result["message"]["text"].as_str().unwrap().contains("1 mapping, 2 MiB"));
    let place = &mapping.unwrap()["locations"][0]["physicalLocation"];
    assert!(place["artifactLocation"]["uri"].as_str().unwrap().ends_with("forgets.c"), "{run}");
    let line = include_str!("programs/forgets.c").lines().position(|line| line.contains("check(cuMemMap(")).unwrap();
    assert_eq!(place["region"]["startLine"], line + 1);
}

#[test]
fn a_sweep_says_what_was_held_after_a_fault_and_not_without_one() {
    let world = World::new();
    let program = world.compile("maps", &["-g", "-DLEAKS"]);
    let (ended, report) = run(&world, &["--sweep", "--strict", "--leaks"], &program, "report.json");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let runs = report["runs"].as_array().unwrap();
    let held: Vec<_> = runs.iter().filter_map(|run| Some((run["function"].as_str()?, run.get("held")?))).collect();
    assert_eq!(held.iter().map(|(function, _)| *function).collect::<Vec<_>>(), ["cuMemMap"; 2]);
    assert_eq!(told(held[0].1), ["1 chunk, 2 MiB: cuMemCreate:1, map < main"]);
    assert_eq!(told(held[1].1), ["1 chunk, 2 MiB: cuMemCreate:2, map < main"]);
    // Of a program that holds something without a fault, that is told once.
    let program = forgetful(&world);
    let arguments = ["--sweep", "--strict", "--leaks", "--only", "cuStreamCreate"];
    let (ended, report) = run(&world, &arguments, &program, "report.json");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("Without a fault, the program held "), "{ended:?}");
    assert_eq!(told(&report["without_fault"]["held"]).len(), 4);
    let more = told(&report["runs"][0]["held"]);
    assert_eq!(more, ["1 allocation, 2 MiB: cuMemAlloc_v2:1, main", "1 event, 0 MiB: cuEventCreate:1, main"]);
}
