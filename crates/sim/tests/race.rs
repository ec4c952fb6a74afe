//! A race: what is right whatever the order ends alike every time, and what is right on most days does not.

mod world;

use serde_json::Value;
use world::World;

#[test]
fn a_program_that_waits_ends_alike_every_time() {
    let world = World::new();
    let program = world.compile("races", &["-DWAITS"]);
    let ended = world.run(&["--strict", "--race", "10"], &[&program]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.ends_with("10 runs: 0 ended otherwise than without pauses\n"), "{ended:?}");
}

#[test]
fn one_that_relies_on_time_is_found() {
    let world = World::new();
    let program = world.compile("races", &["-g"]);
    let report = world.path("report.json");
    let arguments = ["--strict", "--race", "20", "--report", report.to_str().unwrap()];
    let ended = world.run(&arguments, &[&program]);
    assert!(ended.code == Some(1) && ended.stdout.contains("rule wait_after_unmap"), "{ended:?}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let found = runs.iter().find(|run| run["broken"][0]["rule"] == "wait_after_unmap").expect("one of them");
    assert_eq!((runs.len(), &found["broken"][0]["other"]["function"]), (20, &Value::from("cuMemUnmap")), "{found}");
    assert!(report["without_pauses"].get("broken").is_none(), "{report}");
}

#[test]
fn a_race_has_seeds_of_its_own() {
    let world = World::new();
    let program = world.compile("races", &["-DWAITS"]);
    let with = |arguments: &[&str]| world.run(arguments, &[&program]);
    assert_eq!(with(&["--race", "0"]).code, Some(2));
    assert!(with(&["--race", "2", "--sweep"]).stderr.contains("cannot be used with"));
    assert_eq!(with(&["--jobs", "2"]).code, Some(2));
    let output = world.command(&["--race", "2"], &[&program]).env("GAPLESS_SIM_RACE", "3").output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("a race has seeds of its own"));
    let output = world.command(&[], &[&program]).env("GAPLESS_SIM_RACE", "0").output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("GAPLESS_SIM_RACE=0: this is not a number from 1 on"));
}
