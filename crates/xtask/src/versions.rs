//! Where the version of a release is said: manifests, lock files, Python packages, documents and the changelog.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};
use std::path::{Path, PathBuf};

/// Each of these says the version once.
const MODULES: [&str; 2] = ["python/gapless/__init__.py", "python/sim/gapless_sim/__init__.py"];
const LOCKS: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];

/// The version of the workspace, which its crates share.
pub fn of_workspace(workspace: &Workspace) -> Result<String, Failure> {
    let described = workspace.described()?;
    let version = described["packages"][0]["version"].as_str().map(str::to_owned);
    version.ok_or_else(|| Failure::new("cargo metadata names no version"))
}

/// Fails where a file says another version than the workspace.
pub fn check(workspace: &Workspace) -> Result<(), Failure> {
    let version = of_workspace(workspace)?;
    let mut said = of_manifests(&workspace.described()?);
    for (file, reader) in readers(workspace)? {
        let text = files::read(&workspace.path(&file))?;
        said.extend(reader(&text).into_iter().map(|found| (file.display().to_string(), found.to_owned())));
    }
    let others = said.iter().filter(|(_, found)| *found != version);
    let wrong: Vec<String> = others.map(|(place, other)| format!("{place} says {other}")).collect();
    if wrong.is_empty() {
        println!("{version}, {} times", said.len());
        return Ok(());
    }
    Err(Failure::new(format!("Cargo.toml says {version}, but {}", wrong.join(", "))))
}

/// Writes a version wherever [`check`] looks for one.
pub fn set(workspace: &Workspace, version: &str) -> Result<(), Failure> {
    if !is_version(version) {
        return Err(Failure::new(format!("{version:?} is no version of three numbers")));
    }
    let manifest = workspace.path("Cargo.toml");
    files::write(&manifest, &with(&files::read(&manifest)?, in_root_manifest, version))?;
    for (file, reader) in readers(workspace)?.into_iter().filter(|(file, _)| !LOCKS.map(Path::new).contains(&&**file)) {
        let file = workspace.path(file);
        files::write(&file, &with(&files::read(&file)?, reader, version))?;
    }
    for lock in LOCKS {
        let manifest = Path::new(lock).with_extension("toml");
        let mut update = workspace.cargo(["update", "--quiet", "--offline", "--workspace", "--manifest-path"]);
        process::run(update.arg(manifest))?;
    }
    check(workspace)
}

fn is_version(text: &str) -> bool {
    let numbers: Vec<&str> = text.split('.').collect();
    numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
}

/// A text in which what `reader` finds is another version.
fn with(text: &str, reader: Reader, version: &str) -> String {
    let mut places: Vec<_> =
        reader(text).iter().map(|found| (found.as_ptr().addr() - text.as_ptr().addr(), found.len())).collect();
    places.sort_unstable();
    let mut written = text.to_owned();
    for (start, length) in places.into_iter().rev() {
        written.replace_range(start..start + length, version);
    }
    written
}

/// Returns the versions in a text, as parts of it.
type Reader = fn(&str) -> Vec<&str>;

/// The files that say versions, apart from manifests, and how each is read.
fn readers(workspace: &Workspace) -> Result<Vec<(PathBuf, Reader)>, Failure> {
    let root = workspace.path("");
    let inside = |path: PathBuf| path.strip_prefix(&root).unwrap_or(&path).to_owned();
    let mut readers: Vec<(PathBuf, Reader)> = vec![("README.md".into(), of_wheels)];
    readers.extend(LOCKS.map(|lock| (Path::new(lock).to_owned(), of_lock as Reader)));
    readers.extend(MODULES.map(|module| (Path::new(module).to_owned(), of_module as Reader)));
    let documents = files::with_ending(&workspace.path("docs/using"), "md")?;
    readers.extend(documents.into_iter().map(|document| (inside(document), of_wheels as Reader)));
    Ok(readers)
}

/// The versions of the crates, and those that they demand of each other, by the name of the crate that says them.
fn of_manifests(described: &serde_json::Value) -> Vec<(String, String)> {
    let mut said = Vec::new();
    for package in described["packages"].as_array().into_iter().flatten() {
        let demanded = package["dependencies"].as_array().into_iter().flatten();
        let demanded =
            demanded.filter(|dependency| dependency["path"].is_string()).map(|dependency| &dependency["req"]);
        let versions = demanded.chain([&package["version"]]).filter_map(|version| version.as_str());
        let name = package["name"].as_str().unwrap_or_default();
        let named = versions.filter(|version| *version != "*");
        said.extend(named.map(|version| (name.to_owned(), version.trim_start_matches('^').to_owned())));
    }
    said
}

/// What the root's manifest says of the workspace, and of the core as the crates that are published depend on it.
fn in_root_manifest(text: &str) -> Vec<&str> {
    let own = text.lines().filter_map(|line| line.strip_prefix("version = "));
    let demanded = text
        .lines()
        .filter(|line| line.starts_with("gapless = "))
        .filter_map(|line| Some(line.split_once("version = ")?.1));
    own.chain(demanded).filter_map(quoted).collect()
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
        let described = serde_json::json!({"packages": [
            {"name": "gapless", "version": "1.2.3", "dependencies": [{"name": "serde", "req": "^1", "path": null}]},
            {"name": "gapless-share", "version": "1.2.3", "dependencies": [
                {"name": "gapless", "req": "^1.2.4", "path": "/"}, {"name": "gapless-trace", "req": "*", "path": "/trace"},
            ]},
        ]});
        let said = [("gapless", "1.2.3"), ("gapless-share", "1.2.4"), ("gapless-share", "1.2.3")];
        assert_eq!(of_manifests(&described), said.map(|(name, version)| (name.to_owned(), version.to_owned())));
    }

    #[test]
    fn a_version_is_written_where_ours_is_said_and_nowhere_else() {
        let text = "[workspace.package]\nversion = \"1.2.3\"\nrust-version = \"1.2.3\"\n[workspace.dependencies]\n\
                    gapless = { path = \".\", version = \"1.2.3\" }\n[dependencies]\nserde = { version = \"1.2.3\" }\n";
        let expected = "[workspace.package]\nversion = \"1.10.0\"\nrust-version = \"1.2.3\"\n[workspace.dependencies]\n\
                    gapless = { path = \".\", version = \"1.10.0\" }\n[dependencies]\nserde = { version = \"1.2.3\" }\n";
        assert_eq!(with(text, in_root_manifest, "1.10.0"), expected);
        let wheels = "gapless_sim-1.2.3-py3.whl, gapless-1.2.3.tar.gz 1.2.3";
        assert_eq!(with(wheels, of_wheels, "2.0.0"), "gapless_sim-2.0.0-py3.whl, gapless-2.0.0.tar.gz 1.2.3");
        assert!(is_version("0.3.0") && !is_version("0.3") && !is_version("v0.3.0") && !is_version(""));
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
