//! `docs/internals/driver-facts.md` says of every question of the probe what is assumed until a device has answered it.

use std::fs;
use std::path::{Path, PathBuf};

use gapless_probe::Question;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The sections about questions: id and text.
fn sections() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("docs/internals/driver-facts.md")).unwrap();
    let sections = text.split("\n### ").skip(1).map(|section| {
        let (heading, rest) = section.split_once('\n').unwrap();
        let id = heading.strip_prefix('`').and_then(|id| id.strip_suffix('`')).expect("an id as the heading");
        // A section ends where the next group of questions begins.
        (id.to_owned(), rest.split("\n## ").next().unwrap_or_default().to_owned())
    });
    sections.collect()
}

#[test]
fn every_question_is_in_the_document_and_the_reverse() {
    let written: Vec<String> = sections().into_iter().map(|(id, _)| id).collect();
    let asked: Vec<&str> = Question::ALL.iter().map(|question| question.id).collect();
    assert_eq!(written, asked, "docs/internals/driver-facts.md, in the order of the probe");
}

#[test]
fn every_section_says_what_is_known_and_what_depends_on_it() {
    for (question, (id, section)) in Question::ALL.iter().zip(sections()) {
        assert!(section.trim_start().starts_with(question.text), "{id}: its sentence is not the probe's");
        let said = ["- **Answer**: ", "- **Assumed**: ", "- **Depends on it**: "].map(|start| section.find(start));
        let [Some(answer), Some(assumed), Some(depends)] = said else { panic!("{id}: {said:?}") };
        assert!(answer < assumed && assumed < depends, "{id}");
        // An answer of a device comes with its name and its driver.
        let answer = &section[answer..assumed];
        let sources = ["not yet asked", "by documents", "by others' use", "H100, driver 580"];
        assert!(sources.iter().any(|source| answer.contains(source)), "{id}: {answer}");
    }
}

#[test]
fn the_files_that_are_named_exist() {
    let text = fs::read_to_string(root().join("docs/internals/driver-facts.md")).unwrap();
    let named =
        text.split('`').skip(1).step_by(2).filter(|name| name.starts_with("src/") || name.starts_with("crates/"));
    let mut count = 0;
    for name in named {
        assert!(root().join(name).exists(), "{name}");
        count += 1;
    }
    assert!(count > 30, "{count}");
}
