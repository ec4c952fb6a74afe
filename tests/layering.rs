//! A file imports only from its own part and from parts below it: the order is the table of parts in ARCHITECTURE.md, and the
//! imports are read from the sources.

use std::path::{Path, PathBuf};

/// The parts from the bottom up: each row of the table has the module paths of one rank, such as `allocator::streams`.
fn parts(root: &Path) -> Vec<Vec<Vec<String>>> {
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let table = text.split("## Parts").nth(1).expect("a section on parts").split("On top of the core crate").next();
    let rows = table.expect("a table").lines().filter(|line| line.starts_with("| `src/"));
    let first_cell = |row: &str| row.split('|').nth(1).unwrap_or_default().to_owned();
    rows.map(|row| first_cell(row).split('`').filter(|piece| piece.starts_with("src/")).map(module_of).collect())
        .collect()
}

/// The module that a path below the root stands for: `src/allocator/kind.rs` is `allocator::kind`.
fn module_of(path: &str) -> Vec<String> {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').map(ToOwned::to_owned).collect()
}

/// The rank of a module: that of the longest part that it begins with.
fn rank(parts: &[Vec<Vec<String>>], module: &[String]) -> Option<usize> {
    let all = parts.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |part| (part.len(), part, rank)));
    all.filter(|(_, part, _)| module.starts_with(part)).max_by_key(|(length, ..)| *length).map(|(.., rank)| rank)
}

/// The paths that a line of a module names, as far as they start in this crate: `use super::shared::Shared` and the like.
fn paths_in(line: &str, module: &[String]) -> Vec<Vec<String>> {
    let starts = ["crate::", "super::"].iter().flat_map(|start| line.match_indices(start).map(|(at, _)| at));
    let first_of_path = |at: &usize| !line[..*at].ends_with("::") && !line[..*at].ends_with(char::is_alphanumeric);
    let mut found = Vec::new();
    for at in starts.filter(first_of_path) {
        let mut base = module.to_vec();
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let path: String = line[at..].chars().take_while(|c| is_path(*c)).collect();
        for segment in path.split("::").filter(|segment| !segment.is_empty()) {
            match segment {
                "crate" => base.clear(),
                "super" => drop(base.pop()),
                name => base.push(name.to_owned()),
            }
        }
        found.push(base);
    }
    found
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Every import of a higher part: file, line, and what is wrong.
fn violations(root: &Path) -> Vec<String> {
    let parts = parts(root);
    assert!(parts.len() >= 12, "the table of parts has {} rows", parts.len());
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let below = file.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        if ["src/lib.rs", "src/testing.rs"].contains(&below.as_str()) || below.ends_with("/tests.rs") {
            continue;
        }
        let module = module_of(&below);
        let own = rank(&parts, &module).unwrap_or_else(|| panic!("{below} is in no part of ARCHITECTURE.md"));
        let text = std::fs::read_to_string(&file).expect("readable");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for used in paths_in(line, &module) {
                if rank(&parts, &used).is_some_and(|other| other > own) {
                    wrong.push(format!("{below}:{}: uses {}, which is above it", number + 1, used.join("::")));
                }
            }
        }
    }
    wrong
}

#[test]
fn parts_use_only_parts_below_them() {
    let wrong = violations(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn paths_are_resolved_from_the_module_they_stand_in() {
    let module = module_of("src/allocator/slow_path/plan/fill.rs");
    let resolve = |line| paths_in(line, &module).into_iter().map(|path| path.join("::")).collect::<Vec<_>>();
    assert_eq!(resolve("use super::super::super::kind::RegionKind;"), ["allocator::kind::RegionKind"]);
    assert_eq!(resolve("use super::{Backing, Fill};"), ["allocator::slow_path::plan"]);
    assert_eq!(resolve("let x: crate::heap::Heap = other::super_thing();"), ["heap::Heap"]);
    assert_eq!(module_of("src/allocator/streams/mod.rs"), ["allocator", "streams"]);
}

#[test]
fn only_the_slow_path_takes_the_mapper() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    for file in files.iter().filter(|file| !file.starts_with(root.join("src/allocator/slow_path"))) {
        let text = std::fs::read_to_string(file).expect("readable");
        assert!(!text.contains("Mapper"), "{} names the mapper", file.display());
    }
}

/// Every path that maps or unmaps tells the listeners, since it goes through the driver sequences that do.
#[test]
fn mappings_are_made_and_removed_in_one_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src/allocator", "src/segment", "src/physical"] {
        sources(&root.join(folder), &mut files);
    }
    let mut callers = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let call = ["driver.map(", "driver().map(", "driver.unmap(", "driver().unmap(", ".inner().unmap("];
            if call.iter().any(|call| line.contains(call)) {
                callers.push(file.strip_prefix(root).expect("below the root").to_string_lossy().into_owned());
            }
        }
    }
    assert_eq!(callers, ["src/segment/transaction.rs"; 3], "a map, an unmap, and the undoing of a sequence");
}
