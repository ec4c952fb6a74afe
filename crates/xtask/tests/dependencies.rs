//! CONTRIBUTING.md says of each dependency what it is kept for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The crates of the workspace that depend on each crate from outside of it, apart from tests.
type Dependencies = BTreeMap<String, BTreeSet<String>>;

fn of_manifests() -> Dependencies {
    let mut metadata = Command::new("cargo");
    metadata.args(["metadata", "--no-deps", "--format-version=1"]).current_dir(root());
    let described = metadata.output().expect("cargo runs").stdout;
    let described: serde_json::Value = serde_json::from_slice(&described).expect("cargo describes the workspace");
    let mut found = Dependencies::new();
    for package in described["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let short = name.strip_prefix("gapless-").unwrap_or(name);
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            if dependency["kind"] != "dev" && dependency["path"].is_null() {
                let name = dependency["name"].as_str().expect("a name").to_owned();
                found.entry(name).or_default().insert(short.to_owned());
            }
        }
    }
    found
}

/// The rows of the table below the heading: their first two cells. What follows a comma in the second, such as "optional", is no
/// crate unless it is the name of one.
fn of_table(document: &str, crates: &BTreeSet<String>) -> Dependencies {
    let section = document.split("\n## Dependencies\n").nth(1).expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert!(cells.len() == 5 && !cells[3].is_empty(), "{row}");
        let named = cells[2].split([' ', ',']).filter(|word| crates.contains(*word)).map(str::to_owned);
        (cells[1].trim_matches('`').to_owned(), named.collect())
    })
    .collect()
}

#[test]
fn each_dependency_has_its_reason() {
    let manifests = of_manifests();
    assert!(manifests.len() > 15, "{manifests:?}");
    let crates = manifests.values().flatten().cloned().collect();
    let document = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("text");
    let table = of_table(&document, &crates);
    let names: BTreeSet<&String> = manifests.keys().chain(table.keys()).collect();
    let differ = names.into_iter().filter(|name| manifests.get(*name) != table.get(*name));
    let told: Vec<String> = differ
        .map(|name| {
            format!("{name}: of {:?} by the manifests, of {:?} by the table", manifests.get(name), table.get(name))
        })
        .collect();
    assert!(told.is_empty(), "CONTRIBUTING.md is not true:\n{}", told.join("\n"));
}
