//! Sweeps: the table has what is wrong with a program, and nothing else.

mod world;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use world::{Ended, World};

/// Of each row of the table the function, the calls and what was found, where something was.
fn found(rows: &[Vec<String>]) -> Vec<[&str; 3]> {
    let named = rows.iter().filter(|row| !row[5].is_empty() && !row[5].starts_with('('));
    named.map(|row| [row[0].as_str(), row[1].as_str(), row[5].as_str()]).collect()
}

#[test]
fn a_correct_program_has_no_finding() {
    let world = World::new();
    let ended = world.run(&["--sweep"], &[&world.compile("maps", &[])]);
    assert_eq!((ended.code, found(&ended.rows())), (Some(0), vec![]), "{ended:?}");
    // cuInit, the context twice, a reservation and its end, and for each of two chunks five calls.
    assert!(ended.stdout.contains("15 runs: 0 crashed, 0 ran into the time limit, 0 held memory"), "{ended:?}");
    let of = |name: &str| ended.rows().into_iter().filter(|row| row[0] == name).collect::<Vec<_>>();
    assert_eq!(of("cuMemCreate"), [["cuMemCreate", "1 to 2", "2", "exit status 4", "", ""]]);
    assert_eq!(of("cuMemAddressFree"), [["cuMemAddressFree", "1", "999", "exit status 0", "", ""]]);
    // The program can do nothing about that.
    assert_eq!(of("cuMemUnmap"), [["cuMemUnmap", "1 to 2", "999", "exit status 0", "2 MiB", "(held)"]]);
}

#[test]
fn a_leak_is_found_where_it_is_and_nowhere_else() {
    let world = World::new();
    let ended = world.run(&["--sweep"], &[&world.compile("maps", &["-DLEAKS"])]);
    assert_eq!((ended.code, found(&ended.rows())), (Some(1), vec![["cuMemMap", "1 to 2", "held memory"]]), "{ended:?}");
    let row = ended.rows().into_iter().find(|row| row[0] == "cuMemMap").unwrap();
    assert_eq!(row[2..5], ["2", "exit status 4", "2 MiB"]);
    assert!(ended.stdout.contains("--fail cuMemMap:1:2 in the place of --sweep"), "{ended:?}");
}

#[test]
fn a_program_may_give_up_with_what_it_has() {
    let world = World::new();
    let ended = world.run(&["--sweep", "--may-give-up"], &[&world.compile("maps", &["-DLEAKS"])]);
    assert_eq!((ended.code, found(&ended.rows())), (Some(0), vec![]), "{ended:?}");
    let row = ended.rows().into_iter().find(|row| row[0] == "cuMemMap").unwrap();
    assert_eq!(row[3..], ["exit status 4", "2 MiB", "(held)"]);
}

#[test]
fn a_crash_is_found_where_it_is_and_nowhere_else() {
    let world = World::new();
    let ended = world.run(&["--sweep"], &[&world.compile("maps", &["-DCRASHES"])]);
    let expected = vec![["cuMemSetAccess", "1 to 2", "crashed"]];
    assert_eq!((ended.code, found(&ended.rows())), (Some(1), expected), "{ended:?}");
    let row = ended.rows().into_iter().find(|row| row[0] == "cuMemSetAccess").unwrap();
    assert_eq!(row[3..5], ["signal 11 (SIGSEGV)", "-"]);
}

#[test]
fn a_program_that_hangs_is_killed_at_the_time_limit() {
    let world = World::new();
    let start = Instant::now();
    let arguments = ["--sweep", "--limit", "1", "--only", "cuMemSetAccess,cuMemMap"];
    let ended = world.run(&arguments, &[&world.compile("maps", &["-DHANGS"])]);
    let expected = vec![["cuMemSetAccess", "1 to 2", "time limit"]];
    assert_eq!((ended.code, found(&ended.rows())), (Some(1), expected), "{ended:?}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn a_sweep_that_is_stopped_leaves_no_program() {
    let world = World::new();
    let program = world.compile("maps", &["-DHANGS"]);
    let mut command = world.command(&["--sweep", "--limit", "600", "--only", "cuMemSetAccess"], &[&program]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let is_running = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(|process| process.path().join("exe").read_link().ok()).any(|exe| exe == program)
    };
    let start = Instant::now();
    // Both hang, while the runs without a fault are over at once.
    while start.elapsed() < Duration::from_secs(2) || !is_running() {
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    Ended::of(child.wait_with_output().unwrap()).expect_refused(&["interrupted"]);
    assert!(!is_running() && start.elapsed() < Duration::from_secs(60));
}

#[test]
fn calls_and_codes_can_be_chosen() {
    let world = World::new();
    let program = world.compile("maps", &["-DCHUNKS=5"]);
    let arguments = ["--sweep", "--every", "2", "--only", "cuMemMap,cuMemAddressFree", "--code", "719"];
    let ended = world.run(&arguments, &[&program]);
    let rows: Vec<_> = ended.rows().into_iter().map(|row| row[..3].to_vec()).collect();
    assert_eq!(rows, [["cuMemAddressFree", "1", "719"], ["cuMemMap", "1 to 5 by 2", "719"]], "{ended:?}");
}

#[test]
fn the_report_has_every_run() {
    let world = World::new();
    let report = world.path("sweep.json");
    let ended = world.run(&["--sweep", "--report", report.to_str().unwrap()], &[&world.compile("maps", &["-DLEAKS"])]);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((ended.code, report["runs"].as_array().unwrap().len()), (Some(1), 15));
    assert_eq!(report["without_fault"]["calls"]["cuMemMap"], 2);
    assert_eq!(report["without_fault"]["held_bytes"], 0);
    assert_eq!(report["without_fault"]["differing"], Value::Array(vec![]));
    let leak = report["runs"].as_array().unwrap().iter().find(|run| run["finding"] == "held_memory").unwrap();
    assert_eq!((&leak["function"], &leak["call"]), (&Value::from("cuMemMap"), &Value::from(1)));
    assert_eq!((&leak["held_bytes"], &leak["ended"]["exit"]), (&Value::from(2 << 20), &Value::from(4)));
    assert_eq!(leak["reached"], true);
}

/// A shell that runs the program more often the second time.
#[test]
fn runs_without_a_fault_that_differ_are_named() {
    let world = World::new();
    let program = world.compile("maps", &[]);
    let script = world.path("script");
    let text = "#!/bin/sh\ncd \"$(dirname \"$0\")\"\nif [ -e once ]; then exec ./maps; fi\ntouch once\nexec ./asks\n";
    std::fs::write(&script, text).unwrap();
    world.compile("asks", &[]);
    assert!(program.exists());
    let ended = world.run(&["--sweep", "--only", "cuMemMap"], &[Path::new("/bin/sh"), &script]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("cuMemMap was called 0 and 2 times in two runs without a fault"), "{ended:?}");
}

#[test]
fn what_cannot_be_swept_is_refused() {
    let world = World::new();
    let program = world.compile("maps", &[]);
    world.run(&["--sweep"], &[&program, Path::new("--ends-badly")]).expect_refused(&["exit status 9 without a fault"]);
    world.run(&["--sweep"], &[Path::new("/bin/true")]).expect_refused(&["called no function of the simulated driver"]);
    world.run(&["--sweep", "--only", "cuGraphLaunch"], &[&program]).expect_refused(&["does not call cuGraphLaunch"]);
    let set = world.command(&["--sweep"], &[&program]).env("GAPLESS_SIM_FAIL", "cuMemMap:1:2").output().unwrap();
    Ended::of(set).expect_refused(&["GAPLESS_SIM_FAIL is set"]);
}
