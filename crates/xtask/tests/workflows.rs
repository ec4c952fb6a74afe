//! What the jobs of runners run is what it was when somebody looked at it: actions are named by their commits, since a tag can be
//! moved, and a release is built from the lock file as it is in the repository. What is installed is in `installs.rs`.

use std::path::{Path, PathBuf};

fn workflows() -> Vec<(PathBuf, String)> {
    let files =
        std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.github/workflows")).expect("a folder");
    let files =
        files.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ending| ending == "yml"));
    files.map(|path| (path.clone(), std::fs::read_to_string(path).expect("text"))).collect()
}

/// Whether an action is named as `NAME@COMMIT # vVERSION`.
fn is_pinned(action: &str) -> bool {
    let Some((name, version)) = action.split_once(" # v") else { return false };
    let commit = name.split_once('@').map_or("", |(_, commit)| commit);
    commit.len() == 40 && commit.bytes().all(|digit| digit.is_ascii_hexdigit()) && !version.is_empty()
}

#[test]
fn actions_are_named_by_their_commits() {
    let mut seen = 0;
    for (path, text) in workflows() {
        for action in text.lines().filter_map(|line| line.split_once("uses: ")).map(|(_, action)| action.trim()) {
            assert!(is_pinned(action), "{}: {action}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "only {seen} actions were found");
}

#[test]
fn tags_and_short_commits_do_not_count() {
    let commit = "11bd71901bbe5b1630ceea73d27597364c9af683";
    assert!(is_pinned(&format!("actions/checkout@{commit} # v4.2.2")));
    for other in [format!("actions/checkout@{commit}"), "a/b@v4 # v4.2.2".into(), format!("a/b@{} # v4", &commit[..39])]
    {
        assert!(!is_pinned(&other), "{other}");
    }
}

/// Each job of a release begins with a command that fails where the lock file would have to be changed.
#[test]
fn releases_are_built_from_the_lock_file() {
    let (_, text) = workflows().into_iter().find(|(path, _)| path.ends_with("wheels.yml")).expect("the release");
    let jobs: Vec<&str> = text.split("    steps:\n").skip(1).collect();
    assert!(jobs.len() >= 4, "{} jobs", jobs.len());
    for job in jobs {
        let first = job.find("run: cargo ").map(|at| &job[at..]).expect("a command of cargo");
        assert!(first.starts_with("run: cargo metadata --locked "), "{}", first.lines().next().unwrap_or_default());
    }
}

/// What a release is built and checked with comes from PyPI by hash; what was built is tried in an environment of its own.
#[test]
fn tools_of_a_release_are_named_by_their_hashes() {
    let (_, text) = workflows().into_iter().find(|(path, _)| path.ends_with("wheels.yml")).expect("the release");
    let installs: Vec<&str> = text.lines().filter(|line| line.contains("pip install")).map(str::trim).collect();
    assert!(installs.len() >= 4, "{installs:?}");
    for install in installs {
        let by_hash = install.ends_with("pip install --require-hashes -r python/release-requirements.txt");
        assert!(by_hash || install.starts_with("clean/bin/pip install dist/"), "{install}");
    }
    let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/release-requirements.txt");
    let requirements = std::fs::read_to_string(requirements).expect("text");
    let named = requirements.lines().filter(|line| line.contains("==")).count();
    // Some of PyPI's packages have wheels alone, most have a source distribution, too.
    let hashes = requirements.lines().filter(|line| line.trim_start().starts_with("--hash=sha256:")).count();
    assert!(named > 20 && hashes >= named, "{named} packages, {hashes} hashes");
}

/// The fuzz targets have a workspace and a lock file of their own.
#[test]
fn dependencies_of_fuzz_targets_are_checked_too() {
    let denies = |text: &str| text.contains("cargo deny --manifest-path fuzz/Cargo.toml --config deny.toml check");
    assert!(workflows().iter().any(|(_, text)| denies(text)));
}

/// The machine of a job is named with its version, too. One with a GPU is whoever's it is.
#[test]
fn runners_have_versions() {
    for (path, text) in workflows() {
        for line in text.lines().filter(|line| line.contains("runs-on: ") || line.contains("runner: ")) {
            assert!(!line.contains("-latest"), "{}: {}", path.display(), line.trim());
        }
    }
}

/// The runner has a browser, so that the tests of the page cannot skip unseen.
#[test]
fn the_page_is_tested_on_the_runner() {
    let (_, text) = workflows().into_iter().find(|(path, _)| path.ends_with("ci.yml")).expect("the workflow");
    assert!(text.contains("- run: .ci/run\n        env:\n          GAPLESS_REQUIRE_BROWSER: \"1\"\n"), "{text}");
}
