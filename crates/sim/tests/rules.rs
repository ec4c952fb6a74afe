//! The rules of the simulation: it keeps them, and the document has them. `UPDATE_EXPECT=1 cargo test -p gapless-sim --test rules`
//! writes the table after an intended change.

mod world;

use gapless_sim_libcuda::rules::{Answer, Known, NO_FAULTS, RULES, table};
use serde_json::Value;
use std::path::{Path, PathBuf};
use world::World;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

#[test]
fn the_simulation_answers_as_the_rules_say() {
    let world = World::new();
    let program = world.compile("rules", &[]);
    let names = world.run(&[], &[&program]).stdout;
    assert_eq!(names.lines().collect::<Vec<_>>(), RULES.map(|rule| rule.name));
    for rule in RULES {
        let ended = world.run(&[], &[&program, Path::new(rule.name)]);
        match rule.answer {
            Answer::Code(code) => assert_eq!(ended.stdout, format!("{code}\n"), "{}: {ended:?}", rule.name),
            Answer::Ends => assert!(ended.code.is_some_and(|code| code > 128), "{}: {ended:?}", rule.name),
        }
    }
}

/// Who breaks a rule is told which one it was, by which call, and from where.
#[test]
fn broken_rules_are_told_by_name() {
    let world = World::new();
    let program = world.compile("rules", &["-g"]);
    for rule in RULES {
        let report = world.path("report.json");
        let arguments = ["--strict", "--report", report.to_str().unwrap()];
        let ended = world.run(&arguments, &[&program, Path::new(rule.name)]);
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
        let broken = report["broken"].as_array().unwrap();
        if rule.answer == Answer::Code(0) || NO_FAULTS.contains(&rule.name) {
            let others = broken.iter().filter(|broken| broken["rule"] == rule.name);
            assert_eq!(others.count(), 0, "{}: {ended:?}", rule.name);
            continue;
        }
        let [broken] = &broken[..] else { panic!("{}: {ended:?}", rule.name) };
        assert_eq!(broken["rule"], rule.name, "{ended:?}");
        assert_eq!(broken["known"], rule.known.to_string());
        assert!(ended.stderr.contains(&format!("broken rule {}: {}", rule.name, rule.what)), "{ended:?}");
        let expected = match rule.answer {
            Answer::Code(_) => ended.code == Some(1),
            Answer::Ends => ended.code.is_some_and(|code| code > 128),
        };
        assert!(expected, "{}: {ended:?}", rule.name);
        let stack = broken["call"]["stack"].as_array().unwrap();
        let asks = |frame: &&Value| frame["file"].as_str().is_some_and(|file| file.ends_with("rules.c"));
        assert!(stack.iter().any(|frame| asks(&frame)), "{}: {stack:?}", rule.name);
    }
}

#[test]
fn each_answer_of_a_gpu_is_one_that_is_written_down() {
    let facts = std::fs::read_to_string(file("docs/internals/driver-facts.md")).unwrap();
    for rule in RULES {
        let (Known::Answered(id) | Known::Stricter(id)) = rule.known else { continue };
        let section = facts.split(&format!("\n### `{id}`\n")).nth(1);
        let section = section.unwrap_or_else(|| panic!("{}: {id} is no question", rule.name));
        assert!(
            section.split("\n### ").next().unwrap().contains("**Answer**: H100"),
            "{}: {id} was not asked",
            rule.name
        );
    }
}

#[test]
fn the_document_has_the_table_of_the_rules() {
    const BEGIN: &str = "<!-- The rules. Written by UPDATE_EXPECT=1 cargo test -p gapless-sim --test rules. -->\n";
    const END: &str = "<!-- End of the rules. -->\n";
    let document = file("docs/using/sim.md");
    let text = std::fs::read_to_string(&document).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("where the table begins");
    let (found, after) = rest.split_once(END).expect("where it ends");
    let expected = format!("\n{}\n", table());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&document, [before, BEGIN, &expected, END, after].concat()).unwrap();
    } else {
        assert!(found == expected, "the table is not that of the rules: see the top of this file");
    }
}
