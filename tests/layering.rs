//! A file imports only from its own part and from parts below it, and a crate only from crates below it: the order is that of
//! the tables of parts in ARCHITECTURE.md, and the imports are read from the sources. No files of a crate import each other in a
//! circle; in the core crate, what a `mod.rs` imports from the files of its own folder does not count.

use std::collections::{BTreeMap, BTreeSet};
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

/// The crates on top of the core crate, from the bottom up, as the table has them.
fn crates(root: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let table = text.split("On top of the core crate").nth(1).expect("a table of crates");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `crates/"));
    let names: Vec<String> = rows.map(|row| row.split('`').next().unwrap_or_default().to_owned()).collect();
    assert!(names.len() >= 9, "the table of crates has {} rows", names.len());
    names
}

/// The crates of this repository that one depends on, but for its tests.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section == "[dependencies]"
            && let Some(path) = line.split("path = \"../").nth(1)
        {
            found.push(path.split('"').next().unwrap_or_default().to_owned());
        }
    }
    found.retain(|name| name != "..");
    found
}

#[test]
fn crates_use_only_crates_below_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = crates(root);
    for entry in std::fs::read_dir(root.join("crates")).expect("crates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rank = |name: &str| crates.iter().position(|other| other == name);
        let own = rank(&name).unwrap_or_else(|| panic!("crates/{name} is not in ARCHITECTURE.md"));
        let manifest = std::fs::read_to_string(entry.path().join("Cargo.toml")).expect("readable");
        for used in dependencies(&manifest) {
            assert!(rank(&used) < Some(own), "crates/{name} depends on crates/{used}, which is above it");
        }
    }
}

/// The sources of a crate, to resolve paths in.
struct Crate {
    /// The name of the file of each module, below `src`.
    files: BTreeMap<Vec<String>, String>,
    /// The code of each module, without comments and tests.
    code: BTreeMap<Vec<String>, String>,
    /// The items that a module passes on from another one, by `pub use`: each path of its own with that which it stands for.
    passed_on: BTreeMap<Vec<String>, Vec<String>>,
}

impl Crate {
    fn read(folder: &Path) -> Self {
        let mut found = Vec::new();
        sources(folder, &mut found);
        let (mut files, mut code) = (BTreeMap::new(), BTreeMap::new());
        for file in found {
            let name = file.strip_prefix(folder).expect("below").to_string_lossy().into_owned();
            let mut module = module_of(&name);
            module.retain(|segment| !["lib", "main", "mod"].contains(&segment.as_str()));
            let text = std::fs::read_to_string(&file).expect("readable");
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            code.insert(module.clone(), lines.collect::<Vec<_>>().join("\n"));
            files.insert(module, name);
        }
        let mut read = Self { files, code, passed_on: BTreeMap::new() };
        for module in read.files.keys() {
            for (is_public, path) in read.uses(module) {
                let own = module.iter().cloned().chain(path.last().cloned()).collect();
                if is_public && own != path && !read.files.contains_key(&own) {
                    read.passed_on.insert(own, path);
                }
            }
        }
        read
    }

    /// The paths of a module's `use` items from the root of the crate, those of other crates left out, and whether they are public.
    fn uses(&self, module: &[String]) -> Vec<(bool, Vec<String>)> {
        let mut found = Vec::new();
        for item in self.code[module].split(';').filter_map(|text| text.lines().find_map(|line| after_use(text, line)))
        {
            for path in expanded(item.1) {
                let mut base = module.to_vec();
                for (at, segment) in path.iter().enumerate() {
                    match segment.as_str() {
                        "crate" => base.clear(),
                        "super" => drop(base.pop()),
                        "self" => {}
                        name => {
                            base.push(name.to_owned());
                            if at == 0 && !self.files.contains_key(&base) {
                                base.clear();
                                break;
                            }
                        }
                    }
                }
                if !base.is_empty() {
                    found.push((item.0, base));
                }
            }
        }
        found
    }

    /// The file that a path leads to.
    fn file_of(&self, path: &[String]) -> Option<&String> {
        let whole = (1..=path.len()).find_map(|at| self.passed_on.get(&path[..at]).map(|other| (other, at)));
        if let Some((other, at)) = whole {
            return self.file_of(&[other, &path[at..]].concat());
        }
        (0..=path.len()).rev().find_map(|at| self.files.get(&path[..at]))
    }

    /// The files that each file imports.
    fn imports(&self) -> BTreeMap<String, BTreeSet<String>> {
        let used = |module: &Vec<String>, name: &String| {
            let items = self.uses(module).into_iter().filter(|(is_public, _)| !is_public).map(|(_, path)| path);
            let inline =
                self.code[module].lines().filter(|line| !line.contains("::{")).flat_map(|line| paths_in(line, module));
            let paths: Vec<_> = items.chain(inline.filter(|path| !path.is_empty())).collect();
            paths.iter().filter_map(|path| self.file_of(path)).filter(|other| *other != name).cloned().collect()
        };
        self.files.iter().map(|(module, name)| (name.clone(), used(module, name))).collect()
    }
}

/// Returns the text after `use` up to a semicolon, from the line that begins with it; and whether it is public.
fn after_use<'a>(text: &'a str, line: &str) -> Option<(bool, &'a str)> {
    let trimmed = line.trim_start();
    let is_public = trimmed.starts_with("pub");
    let starts = trimmed.starts_with("use ") || (is_public && trimmed.contains(" use "));
    let at = text.find(line)?;
    starts.then(|| (is_public, text[at..].split_once("use ").map_or("", |(_, rest)| rest)))
}

/// The paths of a `use` item: `a::{b, c::D}` has two.
fn expanded(item: &str) -> Vec<Vec<String>> {
    let segments = |text: &str| {
        let text = text.split(" as ").next().unwrap_or_default();
        text.split("::")
            .map(|segment| segment.trim().to_owned())
            .filter(|segment| !segment.is_empty())
            .collect::<Vec<_>>()
    };
    let Some((before, rest)) = item.split_once('{') else { return vec![segments(item)] };
    let inside = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for char in inside.chars() {
        depth += i32::from(char == '{') - i32::from(char == '}');
        match char {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("one at least").push(char),
        }
    }
    let inner = parts.iter().filter(|part| !part.trim().is_empty()).flat_map(|part| expanded(part));
    inner.map(|path| [segments(before), path].concat()).collect()
}

/// The sets of files that import each other, directly or by way of others.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reached = |from: &String| {
        let mut found = BTreeSet::new();
        let mut left: Vec<&String> = imports[from].iter().collect();
        while let Some(file) = left.pop() {
            if found.insert(file.clone()) {
                left.extend(&imports[file]);
            }
        }
        found
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = imports.keys().map(|file| (file, reached(file))).collect();
    let of = |file: &String| reached[file].iter().filter(|other| reached[*other].contains(file)).cloned().collect();
    imports.keys().map(of).filter(|circle: &Vec<String>| !circle.is_empty()).collect()
}

/// The imports of the core crate, without those by which a module is made of its own files: a `mod.rs` may name what is in the
/// files of its folder, which name what is in it. The root, which names everything, and the code of tests are left out.
fn imports_of_the_core(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let is_left_out = |file: &str| ["lib.rs", "testing.rs"].contains(&file) || file.ends_with("/tests.rs");
    let mut imports = Crate::read(&root.join("src")).imports();
    imports.retain(|file, _| !is_left_out(file));
    for (file, used) in &mut imports {
        let is_own = |other: &String| file.strip_suffix("mod.rs").is_some_and(|folder| other.starts_with(folder));
        used.retain(|other| !is_left_out(other) && !is_own(other));
    }
    imports
}

#[test]
fn no_files_of_a_crate_import_each_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let imports = |name: &String| Crate::read(&root.join("crates").join(name).join("src")).imports();
    let on_top = crates(root).into_iter().map(|name| (imports(&name), name));
    for (imports, name) in on_top.chain([(imports_of_the_core(root), "src".to_owned())]) {
        let found = circles(&imports);
        assert!(found.is_empty(), "{name}: files that import each other in a circle: {found:#?}");
    }
}

#[test]
fn a_circle_is_found() {
    let files = |list: &[(&str, &[&str])]| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        list.iter().map(|(name, used)| ((*name).to_owned(), owned(used))).collect::<BTreeMap<_, _>>()
    };
    let tree = files(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]);
    assert!(circles(&tree).is_empty());
    let ring = files(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"]), ("d", &["a"])]);
    assert_eq!(circles(&ring).into_iter().collect::<Vec<_>>(), [["b", "c"]]);
    let process = Crate::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/process/src")).imports();
    assert!(process["pools/mod.rs"].contains("pools/open.rs"), "an import from a module of its own");
    assert!(process["pools/open.rs"].contains("recorded.rs"), "an import from the root");
    assert!(process["memory.rs"].contains("pools/pool.rs"), "what `pools` passes on is that of another file");
    let core = imports_of_the_core(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(core["heap/index.rs"].contains("heap/bins.rs"), "an import from the file beside it");
    assert!(core["allocator/mappings/stale.rs"].contains("allocator/mappings/mod.rs"), "a part names the module");
    assert!(
        !core["allocator/mappings/mod.rs"].contains("allocator/mappings/stale.rs"),
        "a module is made of its parts"
    );
    assert!(core["allocator/mappings/mod.rs"].contains("segment/mod.rs"), "another module's folder is not its own");
    let paths: Vec<_> = expanded("a::{b, c::{D, self}}").iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["a::b", "a::c::D", "a::c::self"]);
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

/// Every path that maps or unmaps notifies the listeners, since it goes through the driver sequences that do.
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
