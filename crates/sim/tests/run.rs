//! A program that is run once: what it is told, how it ends, and what is refused.

mod world;

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use world::{Ended, World};

#[test]
fn the_device_is_as_it_was_asked_for() {
    let world = World::new();
    let program = world.compile("asks", &[]);
    let said = |arguments: &[&str]| world.run(arguments, &[&program]).stdout;
    assert_eq!(said(&[]), "version 13000, 1 devices of 1024 MiB\n");
    assert_eq!(said(&["--device", "h100", "--devices", "2"]), "version 13000, 2 devices of 81079 MiB\n");
    assert_eq!(said(&["--capacity", "1.5GiB", "--driver", "550"]), "version 12040, 1 devices of 1536 MiB\n");
}

#[test]
fn a_driver_lacks_the_functions_that_came_after_it() {
    let world = World::new();
    let program = world.compile("asks", &[]);
    let names = ["cuMemMap", "cuStreamGetId", "cuGreenCtxCreate", "cuStreamGetCtx_v2"].map(Path::new);
    let answers = |driver: &str| {
        let ended = world.run(&["--driver", driver], &[&[program.as_path()], &names[..]].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout.lines().skip(1).map(|line| line.split_once(": ").unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    let (yes, no) = ("there, 0", "not there, 500");
    assert_eq!(answers("580"), [yes; 4]);
    assert_eq!(answers("550"), [yes, yes, yes, no]);
    assert_eq!(answers("535"), [yes, yes, no, no]);
    assert_eq!(answers("470"), [yes, no, no, no]);
}

#[test]
fn what_is_not_there_is_named_once() {
    let world = World::new();
    let program = world.compile("asks", &[]);
    let names = ["cuNothing", "cuModuleLoad", "cuNothing", "cuModuleLoad"].map(Path::new);
    let program = [&[program.as_path()], &names[..]].concat();
    let ended = world.run(&["--missing"], &program);
    assert!(
        ended.stdout.contains("cuNothing: not there, 500\n") && ended.stdout.contains("called: 801\n"),
        "{ended:?}"
    );
    let named: Vec<_> = ended.stderr.lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(named, ["gapless-sim: cuNothing was looked up", "gapless-sim: cuModuleLoad was called"]);
    // The runtime looks up hundreds: these are named on demand only.
    let ended = world.run(&[], &program);
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
}

#[test]
fn a_copy_from_pageable_memory_has_the_bytes_of_its_call() {
    let world = World::new();
    let program = world.compile("copies", &[]);
    assert_eq!(world.run(&[], &[&program]).stdout, "pageable 1, pinned 2\n");
}

#[test]
fn the_program_ends_the_command() {
    let world = World::new();
    let program = world.compile("maps", &["-DCRASHES"]);
    assert_eq!(world.run(&[], &[&program]).stdout, "mapped 2, code 0\n");
    let ended = world.run(&["--fail", "cuMemMap:2"], &[&program]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), "mapped 1, code 2\n"));
    let ended = world.run(&["--fail", "cuMemMap:2:719", "--fail", "cuMemRelease:*"], &[&program]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), "mapped 1, code 719\n"));
    assert_eq!(world.run(&["--fail", "cuMemSetAccess:1"], &[&program]).code, Some(128 + 11));
}

#[test]
fn the_report_says_what_the_program_did() {
    let world = World::new();
    let report = world.path("run.json");
    let program = world.compile("maps", &["-DLEAKS"]);
    world.run(&["--fail", "cuMemMap:1", "--report", report.to_str().unwrap()], &[&program]);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((&report["ended"]["exit"], &report["held_bytes"]), (&Value::from(4), &Value::from(2 << 20)));
    assert_eq!((&report["calls"]["cuInit"], &report["calls"]["cuMemMap"]), (&Value::from(1), &Value::from(1)));
    assert_eq!(report["settings"]["GAPLESS_SIM_FAIL"], "cuMemMap:1:2");
}

#[test]
fn mistyped_options_are_refused() {
    let world = World::new();
    let program = world.compile("asks", &[]);
    let refused = |arguments: &[&str], words: &[&str]| world.run(arguments, &[&program]).expect_refused(words);
    refused(&["--capacities", "1GiB"], &["--capacities", "--capacity"]);
    refused(&["--capacity", "1Gib2"], &["--capacity", "1Gib2"]);
    refused(&["--capacity", "lots"], &["lots"]);
    refused(&["--devices", "65"], &["GAPLESS_SIM_DEVICES=65", "up to 64"]);
    refused(&["--device", "H1000"], &["H1000", "Known are", "H100 80GiB"]);
    refused(&["--device", "A100"], &["A100 80GiB, A100 40GiB"]);
    refused(&["--device", "H100", "--capacity", "1GiB"], &["cannot be used with"]);
    refused(&["--driver", "555"], &["555", "470, 535, 550, 580"]);
    refused(&["--fail", "cuMemMaps:1"], &["cuMemMaps", "the nearest is cuMemMap"]);
    refused(&["--fail", "cuMemMap"], &["FUNCTION:CALL"]);
    refused(&["--fail", "cuMemMap:0"], &["count from 1"]);
    refused(&["--fail", "cuMemMap:1:0"], &["no code of an error"]);
    refused(&["--every", "2"], &["--sweep"]);
    refused(&["--sweep", "--only", "cuMemMaps"], &["the nearest is cuMemMap"]);
    refused(&["--sweep", "--fail", "cuMemMap:1"], &["cannot be used with"]);
    refused(&["--report", "/no/such/folder/report.json"], &["there is no folder /no/such/folder"]);
    refused(&["--runtime"], &["libcudart-standin.so", "build-sim"]);
    world.run(&[], &[Path::new("/no/such/program")]).expect_refused(&["/no/such/program cannot be started"]);
    let mut elsewhere = world.command(&[], &[&program]);
    elsewhere.args(["--libraries", "/tmp"]);
    assert_eq!(Ended::of(elsewhere.output().unwrap()).code, Some(0), "what follows -- is the program's");
}

#[test]
fn a_folder_without_the_driver_is_refused() {
    let world = World::new();
    std::fs::remove_file(world.path("lib").join("libcuda.so.1")).unwrap();
    let ended = world.run(&[], &[Path::new("/bin/true")]);
    ended.expect_refused(&["lib has no libcuda.so.1", "build-sim"]);
}

/// Each setting, with a value that it cannot have.
const WRONG: [(&str, &str); 14] = [
    ("GAPLESS_SIM_CAPACITY", "lots"),
    ("GAPLESS_SIM_DEVICES", "two"),
    ("GAPLESS_SIM_VISIBLE", "0,1"),
    ("GAPLESS_SIM_PEERS", "some"),
    ("GAPLESS_SIM_VERSION", "twelve"),
    ("GAPLESS_SIM_NO_VMM", "0"),
    ("GAPLESS_SIM_NO_EXPORT", "no"),
    ("GAPLESS_SIM_SOFT", "1XiB"),
    ("GAPLESS_SIM_RDMA", "maybe"),
    ("GAPLESS_SIM_LAX_CAPTURES", "off"),
    ("GAPLESS_SIM_FAIL", "cuMemMaps:1:2"),
    ("GAPLESS_SIM_MISSING", "all"),
    // Alone.
    ("GAPLESS_SIM_LEAKS", "1"),
    ("GAPLESS_SIM_CAPACITIES", "1GiB"),
];

#[test]
fn wrong_variables_are_refused_by_the_command() {
    let world = World::new();
    for (name, value) in WRONG {
        let output = world.command(&[], &[Path::new("/bin/true")]).env(name, value).output().unwrap();
        Ended::of(output).expect_refused(&[&format!("{name}={value}: ")]);
    }
    let mut two = world.command(&[], &[Path::new("/bin/true")]);
    two.envs([WRONG[0], WRONG[1]]);
    Ended::of(two.output().unwrap()).expect_refused(&[WRONG[0].0, WRONG[1].0]);
}

/// Where a program is started without the command.
#[test]
fn wrong_variables_are_named_by_the_library_and_stop_the_program() {
    let world = World::new();
    let program = world.compile("asks", &[]);
    for (name, value) in WRONG {
        let mut command = std::process::Command::new(&program);
        command.env("LD_LIBRARY_PATH", world.path("lib")).env(name, value);
        let ended = Ended::of(command.output().unwrap());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), "cuInit: 1\n"), "{name}: {ended:?}");
        assert!(ended.stderr.starts_with(&format!("gapless-sim: {name}={value}: ")), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
}

/// The variables that a text names.
fn variables(text: &str) -> BTreeSet<&str> {
    let names = text.match_indices("GAPLESS_SIM_").map(|(at, _)| &text[at..]);
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    names.map(|rest| &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]).collect()
}

#[test]
fn the_document_has_every_variable() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let (source, document) = (read("crates/sim-libcuda/src/settings.rs"), read("docs/using/sim.md"));
    // Those of tests are not for users, and what all begin with is no name.
    let own = |name: &&str| !["GAPLESS_SIM_LIBCUDA", "GAPLESS_SIM_PYTHONS", "GAPLESS_SIM_"].contains(name);
    let [source, document] =
        [&source, &document].map(|text| variables(text).into_iter().filter(own).collect::<BTreeSet<_>>());
    assert!(source.len() > 15, "{source:?}");
    assert_eq!(source, document);
}

/// The names after `begin!` and its like in the sources of the simulation.
#[test]
fn every_function_that_counts_its_calls_can_be_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim-libcuda/src");
    let mut counted = BTreeSet::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(path).unwrap();
            for start in ["begin!(\"", "begin_current!(\"", "begin_vmm!(\"", "faults::planned(\""] {
                counted.extend(text.split(start).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()));
            }
        }
    }
    counted.retain(|name| name.starts_with("cu"));
    let known: BTreeSet<String> =
        gapless_sim_libcuda::functions::all().map(|function| function.name.to_owned()).collect();
    assert!(counted.len() > 80, "{}", counted.len());
    assert_eq!(counted, known);
}
