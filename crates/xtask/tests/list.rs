//! The list is complete, and nobody points at a command that is not in it.

mod texts;

use std::collections::BTreeSet;
use std::process::Command;
use texts::{root, texts};

/// Prefixes after which a name is that of a command or of a file in `scripts/`.
const COMMAND: &str = "cargo xtask ";
const SCRIPT: &str = "scripts/";
const READ: [&str; 9] = ["md", "rs", "py", "toml", "h", "c", "cpp", "cu", "cuh"];

/// The names that `cargo xtask --all` lists.
fn listed() -> BTreeSet<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("--all").output().expect("xtask runs");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    let names = text.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next().map(str::to_owned));
    names.collect()
}

fn scripts() -> BTreeSet<String> {
    let entries = std::fs::read_dir(root().join("scripts")).expect("a folder of scripts");
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The names that follow `prefix` in a text. What is not a name, such as `<COMMAND>` or an option, does not count.
fn names_after<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let rests = text.split(prefix).skip(1);
    let names = rests.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(rest.len());
        rest[..end].trim_end_matches('.')
    });
    names.filter(|name| !name.is_empty() && !name.starts_with('-')).collect()
}

#[test]
fn every_program_in_scripts_is_listed() {
    // Folders hold parts of them.
    let is_program = |name: &String| !name.contains('.') && root().join("scripts").join(name).is_file();
    let programs = scripts().into_iter().filter(is_program).collect::<BTreeSet<_>>();
    let missing: Vec<_> = programs.difference(&listed()).cloned().collect();
    assert!(missing.is_empty(), "scripts that cargo xtask does not list: {missing:?}");
}

#[test]
fn nothing_mentions_a_command_or_script_that_does_not_exist() {
    let (listed, scripts) = (listed(), scripts());
    let files = texts(&READ);
    let (mut wrong, mut mentions) = (Vec::new(), 0);
    for file in files.iter().filter(|file| !file.ends_with("tests/list.rs")) {
        let text = std::fs::read_to_string(file).expect("text");
        for (prefix, known) in [(COMMAND, &listed), (SCRIPT, &scripts)] {
            for name in names_after(&text, prefix) {
                mentions += 1;
                if !known.contains(name) {
                    wrong.push(format!("{}: {prefix}{name}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(mentions > 30, "only {mentions} mentions were found");
}

#[test]
fn names_end_where_they_should() {
    let text = "`cargo xtask check`, then cargo xtask build-capi. Not cargo xtask <COMMAND>, not cargo xtask [NAME].";
    assert_eq!(names_after(text, COMMAND), ["check", "build-capi"]);
}
