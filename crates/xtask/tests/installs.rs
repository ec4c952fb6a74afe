//! Nothing is installed without a version: what a check says of the same sources is then the same on the next day.

mod texts;

use std::path::PathBuf;
use texts::{root, texts};

/// Where requirements with hashes and the list of cargo's tools are.
const REQUIREMENTS: [&str; 2] = [".ci/requirements.txt", "python/release-requirements.txt"];
const CARGO_TOOLS: &str = ".ci/cargo-tools.txt";

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("text")
}

/// What runners, the gate and the programs in `scripts` start, and what names their commands.
fn programs() -> Vec<PathBuf> {
    let workflows = std::fs::read_dir(root().join(".github/workflows")).expect("a folder").flatten();
    let mut found: Vec<PathBuf> = workflows.map(|entry| entry.path()).collect();
    found.extend(texts(&[]));
    assert!(found.len() > 10, "{found:?}");
    found
}

type IsPinned = fn(&str) -> bool;

/// The words of a line of a script that install something without a version.
fn unpinned(line: &str) -> Vec<String> {
    let installs: [(&str, IsPinned); 3] =
        [("pip\" install ", is_package), ("pip install ", is_package), ("cargo install ", is_cargo_tool)];
    let installed =
        installs.into_iter().filter_map(|(command, is_pinned)| Some((line.split_once(command)?.1, is_pinned)));
    installed.flat_map(|(rest, is_pinned)| words(rest).into_iter().filter(move |word| !is_pinned(word))).collect()
}

/// The words after a command, up to the next one. What is in `$()` is a word, and an option with its file is one.
fn words(rest: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in rest.split_whitespace().take_while(|word| !["&&", "||", ";", "--root"].contains(word)) {
        match words.last_mut() {
            Some(last) if last == "-r" || (last.starts_with("$(") && !last.ends_with(')')) => {
                *last = format!("{last} {word}");
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

fn is_package(word: &str) -> bool {
    let is_list = word.strip_prefix("-r ").is_some_and(|list| REQUIREMENTS.contains(&list));
    is_list
        || word.starts_with("--")
        || word.starts_with("dist/")
        || word.split_once("==").is_some_and(|(_, v)| !v.is_empty())
}

fn is_cargo_tool(word: &str) -> bool {
    let listed = |name: &str| read(CARGO_TOOLS).lines().any(|line| line.starts_with(&format!("{name}@")));
    let name = word.strip_prefix("$(grep ^").and_then(|rest| rest.strip_suffix(&format!("@ {CARGO_TOOLS})")));
    word.starts_with("--") || name.is_some_and(listed)
}

#[test]
fn programs_install_nothing_without_a_version() {
    let mut seen = 0;
    for path in programs() {
        let text = std::fs::read_to_string(&path).expect("text");
        // In Python, a command is a text in quotes.
        for line in text.lines().map(|line| line.trim_end_matches([' ', '"'])) {
            seen += usize::from(line.contains("pip install ") || line.contains("cargo install "));
            let wrong = unpinned(line);
            assert!(wrong.is_empty(), "{}: {wrong:?} in {}", path.display(), line.trim());
        }
    }
    assert!(seen > 15, "only {seen} lines install something");
}

/// `python::install` refuses what has no version. What else a command installs is in a list, or has a version in its place.
#[test]
fn commands_install_nothing_in_another_way() {
    let mut seen = 0;
    for path in texts(&["rs"]).into_iter().filter(|path| path.starts_with(root().join("crates/xtask/src"))) {
        let text = std::fs::read_to_string(&path).expect("text");
        for line in text.lines().filter(|line| line.contains("\"install\"")) {
            seen += 1;
            let is_pinned = match line {
                _ if line.contains("\"pip\"") => path.ends_with("src/python.rs"),
                _ if line.contains("npm.args(") => line.contains("\"d3@5."),
                _ => line.contains(".cargo(") && line.contains(", &") && text.contains("tools::of_cargo(workspace, "),
            };
            assert!(is_pinned, "{}: {}", path.display(), line.trim());
        }
    }
    assert!(seen >= 4, "only {seen} lines install something");
}

#[test]
fn lists_have_versions() {
    for list in REQUIREMENTS {
        let text = read(list);
        let mut packages = text.lines().filter(|line| !line.starts_with([' ', '#']) && !line.is_empty()).peekable();
        assert!(packages.peek().is_some(), "{list} is empty");
        // A line goes on with the hashes of the package.
        assert!(packages.all(|line| line.contains("==") && line.ends_with(" \\")), "{list}");
    }
    for line in read(CARGO_TOOLS).lines() {
        assert!(line.split_once('@').is_some_and(|(_, version)| version.split('.').count() == 3), "{line}");
    }
}

#[test]
fn a_name_alone_is_no_version() {
    for line in [
        "pip install pytest",
        "pip install ray==2.60.0 pytest",
        "pip install 'setuptools>=77'",
        "pip install -r other.txt",
        "\"$target/bin/pip\" install --quiet mypy",
        "cargo install --quiet --locked cargo-deny",
        "cargo install --locked $(grep ^cargo-none@ .ci/cargo-tools.txt)",
    ] {
        assert_eq!(unpinned(line).len(), 1, "{line}: {:?}", unpinned(line));
    }
    for line in [
        "pip install --require-hashes -r .ci/requirements.txt",
        "pip install ray==2.60.0 && pytest",
        "clean/bin/pip install dist/*.whl",
        "cargo install --quiet --locked $(grep ^cargo-deny@ .ci/cargo-tools.txt) --root tools",
    ] {
        assert!(unpinned(line).is_empty(), "{line}: {:?}", unpinned(line));
    }
}
