//! Every link in a document leads somewhere: to a file of the repository, and to a heading of it. Addresses of the web are not
//! looked up.

use std::fs;
use std::path::{Path, PathBuf};

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = root.join("docs");
    let folders = [root.clone(), root.join("python"), docs.clone()].into_iter().chain(folders_in(&docs));
    let entries = folders.flat_map(|folder| fs::read_dir(folder).expect("a folder").flatten());
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    found.sort();
    found
}

fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}

/// The text outside code, in which headings and links are.
fn prose(document: &str) -> String {
    let mut inside_code = false;
    let lines = document.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        inside_code ^= fence;
        !fence && !inside_code
    });
    // Of `a` b `c`, b.
    let lines = lines.map(|line| line.split('`').step_by(2).collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Where the links of a text lead.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The names by which a document's headings are linked.
fn anchors(document: &str) -> Vec<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            title.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
        })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let documents = documents();
    assert!(documents.len() > 10, "few documents: {documents:?}");
    let mut broken = Vec::new();
    let mut links = 0;
    for document in &documents {
        let text = fs::read_to_string(document).expect("a document");
        for target in targets(&prose(&text)).filter(|target| !target.contains("://")) {
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { document.clone() } else { document.with_file_name("").join(file) };
            let anchored =
                || fs::read_to_string(&file).is_ok_and(|text| anchors(&text).iter().any(|name| name == anchor));
            if !file.exists() || !(anchor.is_empty() || anchored()) {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(links > 20, "few links: {links}");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn code_holds_no_links() {
    let text = "a [b](c.md) `[d](e.md)`\n```\n[f](g.md)\n```\n[h](i.md#j)";
    let text = prose(text);
    assert_eq!(targets(&text).collect::<Vec<_>>(), ["c.md", "i.md#j"]);
    assert_eq!(anchors("# `a_b`, and: C d\ntext"), ["a_b-and-c-d"]);
}
