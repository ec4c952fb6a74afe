//! A part imports only parts below it: the table of ARCHITECTURE.md, held by reading the sources.

use std::path::{Path, PathBuf};

/// Parts from the bottom up. A part may use those before it, and itself.
const PARTS: [&str; 8] = ["units", "sync", "driver", "stream", "physical", "segment", "heap", "allocator"];

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

fn rank(part: &str) -> Option<usize> {
    PARTS.iter().position(|other| *other == part)
}

#[test]
fn parts_use_only_parts_below_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let inside = file.strip_prefix(&root).expect("below src");
        let first = inside.components().next().expect("a name").as_os_str().to_string_lossy();
        let part = first.trim_end_matches(".rs").to_owned();
        let Some(own) = rank(&part) else { continue };
        let text = std::fs::read_to_string(&file).expect("readable");
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for used in line.split("crate::").skip(1) {
                let name: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if rank(&name).is_some_and(|other| other > own) {
                    wrong.push(format!("{}:{}: {part} uses {name}", inside.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_heap_knows_no_driver() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/heap");
    let mut files = Vec::new();
    sources(&root, &mut files);
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        assert!(!text.contains("crate::driver") && !text.contains("crate::stream"), "{}", file.display());
    }
}
