//! Where the version of a release is said: manifests, lock files, Python packages, documents and the changelog.

use crate::failure::Failure;
use crate::files;
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};

/// Each of these says the version once.
const MODULES: [&str; 2] = ["python/gapless/__init__.py", "python/sim/gapless_sim/__init__.py"];
const LOCKS: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];

/// The version of the workspace, which its crates share.
pub fn of_workspace(workspace: &Workspace) -> Result<String, Failure> {
    let manifest = files::read(&workspace.path("Cargo.toml"))?;
    let version = of_manifest(&manifest).first().copied().map(str::to_owned);
    version.ok_or_else(|| Failure::new("Cargo.toml names no version"))
}

/// Fails where a file says another version than the workspace.
pub fn check(workspace: &Workspace) -> Result<(), Failure> {
    let version = of_workspace(workspace)?;
    let mut wrong = Vec::new();
    let mut said = 0;
    for (file, reader) in readers(workspace)? {
        let text = files::read(&workspace.path(&file))?;
        let found = reader(&text);
        said += found.len();
        let others = found.iter().filter(|found| **found != version);
        wrong.extend(others.map(|other| format!("{} says {other}", file.display())));
    }
    if wrong.is_empty() {
        println!("{version}, {said} times");
        return Ok(());
    }
    Err(Failure::new(format!("Cargo.toml says {version}, but {}", wrong.join(", "))))
}

type Reader = fn(&str) -> Vec<&str>;

/// The files that say versions, and how each is read.
fn readers(workspace: &Workspace) -> Result<Vec<(PathBuf, Reader)>, Failure> {
    let root = workspace.path("");
    let inside = |path: PathBuf| path.strip_prefix(&root).unwrap_or(&path).to_owned();
    let mut readers: Vec<(PathBuf, Reader)> = vec![("Cargo.toml".into(), of_manifest), ("README.md".into(), of_wheels)];
    for folder in files::entries(&workspace.path("crates"))? {
        let manifest = folder.join("Cargo.toml");
        if manifest.is_file() {
            readers.push((inside(manifest), of_manifest));
        }
    }
    readers.extend(LOCKS.map(|lock| (Path::new(lock).to_owned(), of_lock as Reader)));
    readers.extend(MODULES.map(|module| (Path::new(module).to_owned(), of_module as Reader)));
    let documents = files::with_ending(&workspace.path("docs/using"), "md")?;
    readers.extend(documents.into_iter().map(|document| (inside(document), of_wheels as Reader)));
    Ok(readers)
}

/// What a manifest says of its own version, and of those of the workspace's crates that it depends on.
fn of_manifest(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| {
        let is_dependency = line.starts_with("gapless") && line.contains("path = ");
        let own = line.strip_prefix("version = ");
        let said = own.or_else(|| line.split_once(" version = ").map(|(_, said)| said).filter(|_| is_dependency))?;
        quoted(said)
    });
    lines.collect()
}

/// The versions of the workspace's crates in a lock file: those without a source. The fuzz targets have none of their own.
fn of_lock(text: &str) -> Vec<&str> {
    let packages = text.split("[[package]]\n").skip(1).filter(|package| !package.contains("\nsource = "));
    let ours = packages.filter(|package| !package.starts_with("name = \"gapless-fuzz\""));
    ours.filter_map(|package| quoted(package.split_once("\nversion = ")?.1)).collect()
}

fn of_module(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| quoted(line.strip_prefix("__version__ = ")?)).collect()
}

/// The versions in the names of wheels and source distributions that a document shows.
fn of_wheels(text: &str) -> Vec<&str> {
    let names = ["gapless-", "gapless_sim-"].into_iter().flat_map(|name| text.split(name).skip(1));
    let versions =
        names.map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len())]);
    versions.map(|version| version.trim_end_matches('.')).filter(|version| version.contains('.')).collect()
}

/// What is between the first two quotation marks.
fn quoted(text: &str) -> Option<&str> {
    text.split('"').nth(1)
}

/// Fails unless the changelog begins with a dated section for the version.
pub fn check_changelog(workspace: &Workspace) -> Result<(), Failure> {
    let version = of_workspace(workspace)?;
    let text = files::read(&workspace.path("CHANGELOG.md"))?;
    let heading = text.lines().find_map(|line| line.strip_prefix("## ")).unwrap_or_default();
    let date = heading.strip_prefix(&format!("{version} - ")).unwrap_or_default();
    if date.len() == "2026-01-31".len() && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
        return Ok(());
    }
    Err(Failure::new(format!("CHANGELOG.md begins with {heading:?}, not with \"{version} - \" and a date")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_say_the_version_of_the_workspace() {
        check(&Workspace::find().expect("a workspace")).unwrap();
    }

    #[test]
    fn manifests_say_their_own_version_and_those_of_our_crates() {
        let text = "[package]\nname = \"gapless\"\nversion = \"1.2.3\"\nrust-version = \"1.88\"\n[dependencies]\n\
                    gapless-share = { path = \"../share\", version = \"1.2.4\" }\ngapless-trace = { path = \"../trace\" }\n\
                    serde = { version = \"1\" }\n";
        assert_eq!(of_manifest(text), ["1.2.3", "1.2.4"]);
        assert!(of_manifest("version.workspace = true\n").is_empty());
    }

    #[test]
    fn lock_files_say_the_versions_of_packages_without_a_source() {
        let text = "version = 4\n\n[[package]]\nname = \"flate2\"\nversion = \"1.1.2\"\nsource = \"registry\"\n\n\
                    [[package]]\nname = \"gapless\"\nversion = \"1.2.3\"\ndependencies = [\n \"flate2\",\n]\n\n\
                    [[package]]\nname = \"gapless-fuzz\"\nversion = \"0.0.0\"\n";
        assert_eq!(of_lock(text), ["1.2.3"]);
    }

    #[test]
    fn documents_say_versions_in_names_of_packages() {
        let text =
            "gapless-1.2.3-py3-none-any.whl, gapless_sim-1.2.4-py3.whl, gapless-1.2.5.tar.gz, gapless-*.whl, gapless-2";
        assert_eq!(of_wheels(text), ["1.2.3", "1.2.5", "1.2.4"]);
    }

    #[test]
    fn modules_say_one_version() {
        assert_eq!(of_module("import os\n__version__ = \"1.2.3\"\nversion = \"4\"\n"), ["1.2.3"]);
    }
}
