//! The links of the documents: each leads to a file of the repository, and to a heading that is there.

use crate::workspace::Workspace;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The targets of inline links and images, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in outside_of_code(text) {
        let mut rest = line.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let (target, after) = after.split_once(')').unwrap_or((after, ""));
            found.push(target.to_owned());
            rest = after;
        }
    }
    found
}

/// Lines without blocks of code, and without what stands between backquotes in them. A link may be broken over two lines.
fn outside_of_code(text: &str) -> Vec<String> {
    let mut in_block = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            lines.push(line.split('`').step_by(2).collect::<Vec<_>>().join(""));
        }
    }
    lines
}

/// The anchors of a document, as its headings have them on the usual sites.
fn anchors(text: &str) -> HashSet<String> {
    let mut in_block = false;
    let mut found = HashSet::new();
    for line in text.lines() {
        in_block ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if !in_block && heading.len() < line.len() && heading.starts_with(' ') {
            let kept = heading.trim().chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
            found.insert(kept.map(|char| if char == ' ' { '-' } else { char.to_ascii_lowercase() }).collect());
        }
    }
    found
}

fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            documents(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let root = Workspace::find().expect("a workspace").path("");
    let mut all = Vec::new();
    documents(&root.join("docs"), &mut all);
    all.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)));
    let mut checked = 0;
    for document in &all {
        let text = std::fs::read_to_string(document).expect("a document");
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { document.clone() } else { document.with_file_name("").join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", document.display());
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(&target).expect("a document");
                assert!(anchors(&text).contains(anchor), "{}: {link} leads to no heading", document.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked} links");
}
