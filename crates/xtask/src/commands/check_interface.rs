//! Reports the parts that the public interface has lost since the last release, by `cargo semver-checks`.

use super::package_crates::CRATES;
use crate::failure::Failure;
use crate::process;
use crate::workspace::Workspace;

/// The features that add to the interface of the first crate. The tool would take all of them, with `internals`, which promises
/// nothing. The other crates have no features.
const FEATURES: &str = "cust,cuda-driver-sys";

/// One more of them. What it has was public without it once: a version that lacks the feature is compared as it is.
const TESTING: &str = "testing";

#[derive(Debug, Default, clap::Args)]
pub struct CheckInterfaceArguments {
    /// The commit to compare with; the last release's if it is left out
    #[arg(long, value_name = "REV")]
    baseline: Option<String>,
}

pub fn run(workspace: &Workspace, arguments: &CheckInterfaceArguments) -> Result<(), Failure> {
    process::require(&["cargo-semver-checks"])?;
    let baseline = match &arguments.baseline {
        Some(baseline) => Some(baseline.clone()),
        None => last_release(workspace)?,
    };
    let Some(baseline) = baseline else {
        println!("no release before this commit has a tag v*: nothing to compare with");
        return Ok(());
    };
    let root = workspace.install_simulated_to_link()?;
    let [first, others @ ..] = CRATES;
    let testing = if has_testing(workspace, &baseline)? { "--features" } else { "--current-features" };
    let of_first = ["--only-explicit-features", "--features", FEATURES, testing, TESTING, "--package", first];
    let of_others = others.iter().flat_map(|name| ["--package", *name]).chain(["--default-features"]).collect();
    for crates in [of_first.to_vec(), of_others] {
        let mut checks = workspace.cargo(["semver-checks", "--baseline-rev", &baseline]);
        process::run(checks.args(crates).env("CUDA_LIBRARY_PATH", &root))?;
    }
    Ok(())
}

fn has_testing(workspace: &Workspace, commit: &str) -> Result<bool, Failure> {
    let manifest = process::output(workspace.command("git").args(["show", &format!("{commit}:Cargo.toml")]))?;
    Ok(manifest.lines().any(|line| line.starts_with(TESTING)))
}

/// The tag of the newest version that this commit comes after. Before its release comes what precedes it, such as `v1.0.0-rc1`.
fn last_release(workspace: &Workspace) -> Result<Option<String>, Failure> {
    let mut list = workspace.command("git");
    list.args(["-c", "versionsort.suffix=-", "tag", "--list", "v*", "--merged", "HEAD", "--sort=-version:refname"]);
    Ok(process::output(&mut list)?.lines().next().map(str::to_owned))
}
