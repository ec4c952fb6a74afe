//! Lines are at most 132 columns, in sources and in prose, and none are left by a merge. `rustfmt` leaves comments and texts alone,
//! and nothing else looks at documents.

mod texts;

use texts::{root, texts};

const MOST_COLUMNS: usize = 132;
/// Endings of files that are looked at.
const READ: [&str; 8] = ["md", "rs", "h", "hpp", "c", "cpp", "cu", "cuh"];
/// A part of the repository that is not looked at.
const NOT_READ: &str = "python";

/// The numbers of the lines of a text that are too long. In a document, tables and code do not count: neither can be broken.
fn too_long(text: &str, is_document: bool) -> Vec<usize> {
    let mut inside_code = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        inside_code ^= is_document && line.trim_start().starts_with("```");
        let is_fixed = is_document && (inside_code || line.starts_with('|'));
        !is_fixed && line.chars().count() > MOST_COLUMNS
    });
    lines.map(|(index, _)| index + 1).collect()
}

#[test]
fn lines_are_not_too_long() {
    let files = texts(&READ);
    assert!(files.len() > 300, "only {} files were found", files.len());
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !file.starts_with(root().join(NOT_READ))) {
        let text = std::fs::read_to_string(file).expect("text");
        let is_document = file.extension().is_some_and(|ending| ending == "md");
        wrong.extend(too_long(&text, is_document).iter().map(|line| format!("{}:{line}", file.display())));
    }
    assert!(wrong.is_empty(), "lines of more than {MOST_COLUMNS} columns:\n{}", wrong.join("\n"));
}

#[test]
fn tables_and_code_of_documents_do_not_count() {
    let long = "é".repeat(MOST_COLUMNS + 1);
    let text = format!("{long}\n| {long} |\n```text\n{long}\n```\n{long}\n{}", &long[2..]);
    assert_eq!(too_long(&text, true), [1, 6]);
    assert_eq!(too_long(&text, false), [1, 2, 4, 6]);
}

#[test]
fn merges_have_left_nothing() {
    let files = texts(&["md", "rs", "h", "hpp", "c", "cpp", "toml", "py", "yml", "sh"]);
    let is_mark = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    for file in files {
        let text = std::fs::read_to_string(&file).expect("text");
        assert!(!text.lines().any(is_mark), "{} has marks of a merge", file.display());
    }
}
