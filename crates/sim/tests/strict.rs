//! Calls that break a rule are told with their stacks, and what is no such call is not.

mod world;

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use world::python::interpreters;
use world::{Ended, World};

fn read(report: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap()
}

/// Runs the program of the rules so that it breaks one. Returns how it ended and its report.
fn broken(world: &World, rule: &str, report: &str) -> (Ended, Value) {
    let (program, report) = (world.compile("rules", &["-g"]), world.path(report));
    let ended = world.run(&["--strict", "--report", report.to_str().unwrap()], &[&program, Path::new(rule)]);
    (ended, read(&report))
}

#[test]
fn a_correct_program_breaks_no_rule() {
    let world = World::new();
    let (program, report) = (world.compile("maps", &[]), world.path("report.json"));
    let ended = world.run(&["--strict", "--report", report.to_str().unwrap()], &[&program]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert_eq!(read(&report)["broken"], Value::Array(vec![]));
    // A call that fails by plan is no fault of the program's.
    let ended = world.run(&["--strict", "--fail", "cuMemMap:2"], &[&program]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(4), ""), "{ended:?}");
}

#[test]
fn nothing_is_told_where_nobody_asks() {
    let world = World::new();
    let program = world.compile("rules", &[]);
    let ended = world.run(&[], &[&program, Path::new("unmap_part")]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
}

#[test]
fn without_the_command_it_is_told_on_stderr() {
    let world = World::new();
    let program = world.compile("rules", &[]);
    let mut command = Command::new(program);
    command.arg("unmap_part").env("LD_LIBRARY_PATH", world.path("lib")).env("GAPLESS_SIM_STRICT", "1");
    let ended = Ended::of(command.output().unwrap());
    assert!(ended.stderr.starts_with("gapless-sim: broken rule unmap_part: "), "{ended:?}");
    assert_eq!(ended.code, Some(0), "the program's own");
}

#[test]
fn work_is_told_with_the_call_that_unmapped_its_memory() {
    let world = World::new();
    let (ended, report) = broken(&world, "wait_after_unmap", "report.json");
    let found = &report["broken"][0];
    assert_eq!(found["call"]["function"], "cuMemsetD8Async");
    assert_eq!(found["other"]["function"], "cuMemUnmap");
    assert_eq!(found["other"]["number"], 1);
    for call in ["call", "other"] {
        assert_eq!(found[call]["stack"][0]["function"], "unmap_under_work", "{found}");
    }
    assert!(ended.stderr.contains("cuMemUnmap, call 1 in process"), "{ended:?}");
    // What was unmapped before the work was queued is another rule.
    let (_, report) = broken(&world, "work_unmapped", "report.json");
    assert_eq!(report["broken"][0]["other"]["function"], "cuMemUnmap");
}

#[test]
fn sarif_has_the_place_in_the_program() {
    let world = World::new();
    let (_, log) = broken(&world, "map_over", "report.sarif");
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    assert_eq!(run["tool"]["driver"]["rules"][0]["id"], "map_over");
    let [result] = &run["results"].as_array().unwrap()[..] else { panic!("{run}") };
    assert_eq!((&result["ruleId"], &result["level"]), (&Value::from("map_over"), &Value::from("error")));
    let place = &result["locations"][0]["physicalLocation"];
    assert!(place["artifactLocation"]["uri"].as_str().unwrap().ends_with("rules.c"), "{result}");
    let source = include_str!("programs/rules.c");
    let line = source.lines().position(|line| line.starts_with("static int map_over(")).unwrap() + 1;
    assert_eq!(place["region"]["startLine"], line);
    assert_eq!(result["stacks"][0]["frames"][0]["location"]["logicalLocations"][0]["name"], "map_over");
    // What a GPU allows, or nobody knows, is a warning.
    let (_, log) = broken(&world, "unmap_again", "report.sarif");
    assert_eq!(log["runs"][0]["results"][0]["level"], "warning");
    let text = ["--report", "report.sarif"];
    world.run(&text, &[Path::new("/bin/true")]).expect_refused(&["--strict"]);
}

#[test]
fn a_sweep_has_rules_that_are_broken_after_a_fault_alone() {
    let world = World::new();
    let program = world.compile("maps", &["-g", "-DFORGETS"]);
    let report = world.path("sweep.json");
    let ended = world.run(&["--sweep", "--strict", "--report", report.to_str().unwrap()], &[&program]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let rows = ended.rows();
    let broke: Vec<_> = rows.iter().filter(|row| !["", "(held)"].contains(&row[5].as_str())).collect();
    // After an unmapping that fails, it frees the addresses all the same.
    let unmapping = ["cuMemUnmap", "1 to 2", "999", "exit status 0", "2 MiB", "(held), free_mapped"];
    assert_eq!(broke, [&["cuMemMap", "1 to 2", "2", "exit status 4", "", "unmap_again"], &unmapping], "{ended:?}");
    assert!(ended.stdout.contains("4 broke a rule"), "{ended:?}");
    let report = read(&report);
    let runs = report["runs"].as_array().unwrap();
    let broke: Vec<_> = runs.iter().filter(|run| run.get("broken").is_some()).collect();
    let broke: Vec<_> = broke.iter().map(|run| (&run["function"], &run["call"], &run["broken"][0]["rule"])).collect();
    assert_eq!(broke.len(), 4);
    assert_eq!(broke[1], (&"cuMemMap".into(), &2.into(), &"unmap_again".into()));
    // Without it, the same program has no finding.
    assert_eq!(world.run(&["--sweep"], &[&program]).code, Some(0));
}

/// The names of the functions of C and C++ in the stack of a call.
fn native(found: &Value) -> Vec<&str> {
    let frames = found["call"]["stack"].as_array().unwrap();
    frames.iter().map(|frame| frame["function"].as_str().unwrap()).collect()
}

/// Some functions of the driver call others.
#[test]
fn no_stack_begins_inside_of_the_driver() {
    let Some(python) = interpreters().into_iter().next() else { return eprintln!("no Python: nothing is tested") };
    let world = World::new();
    let (report, script) = (world.path("report.json"), world.path("script.py"));
    let text =
        "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1')\ncuda.cuInit(0)\ncuda.cuModuleLoadDataEx(0, 0, 0, 0, 0)\n";
    std::fs::write(&script, text).unwrap();
    let ended = world.run(&["--strict", "--report", report.to_str().unwrap()], &[&python, &script]);
    let report = read(&report);
    let found = &report["broken"][0];
    assert_eq!(
        (&found["rule"], &found["call"]["function"]),
        (&"info_without_context".into(), &"cuModuleLoadData".into())
    );
    let functions = native(found);
    let is_inside =
        |function: &&str| function.starts_with("std::") || ["force_capture", "load_module"].contains(function);
    assert!(!functions.is_empty() && !functions.iter().any(is_inside), "{ended:?}");
    assert!(!functions[0].starts_with("cuModuleLoad"), "{functions:?}");
}
