//! The list of a release, walked from its first step to its last, whatever becomes of those before. Each step is what the command
//! of its own does. What needs another machine, a GPU or an account is named at the end.

use super::build_capi::BuildCapiArguments;
use super::build_sim::BuildSimArguments;
use super::build_torch_objects::TorchObjectsArguments;
use super::build_wheel::WheelArguments;
use super::check_interface::CheckInterfaceArguments;
use super::gpu_bundle::GpuBundleArguments;
use super::{
    build_capi, build_sdist, build_sim, build_torch_objects, build_wheel, check_interface, ci, generate_header,
    gpu_bundle, package_crates, scripts,
};
use crate::failure::Failure;
use crate::old_systems::OLDEST_GLIBC;
use crate::workspace::Workspace;
use crate::{files, process, python, versions};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code 1 where a step is not done, also one that was not asked for.\n\
                        PYTHON names an interpreter with what python/release-requirements.txt lists.")]
pub struct ReleaseArguments {
    /// Print the steps, and run none
    #[arg(long)]
    list: bool,
    /// Write this version into every file that says one, and into the C header; the changelog is left
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["list", "steps"])]
    set_version: Option<String>,
    /// Names of steps to run (default: all)
    #[arg(value_name = "STEP")]
    steps: Vec<String>,
}

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn(&Workspace) -> Result<(), Failure>,
}

const STEPS: [Step; 15] = [
    Step { name: "versions", about: "every file says the version of Cargo.toml", run: versions::check },
    Step { name: "changelog", about: "it begins with a dated section for the version", run: versions::check_changelog },
    Step { name: "sources", about: "all is committed", run: committed },
    Step { name: "checks", about: "what every change has to pass (cargo xtask ci)", run: ci::short },
    Step { name: "dependencies", about: "their licences and sources (cargo-deny)", run: dependencies },
    Step { name: "advisories", about: "what is known against them (cargo-deny, RustSec's database)", run: advisories },
    Step {
        name: "interface",
        about: "what the public interface has lost (cargo xtask check-interface)",
        run: interface,
    },
    Step { name: "crates", about: "what they carry, and that they can be published", run: package_crates::run },
    Step { name: "objects", about: "PyTorch's allocator objects, all that a wheel carries", run: objects },
    Step { name: "wheel", about: "with all objects, for the oldest C library", run: wheel },
    Step { name: "sim-wheel", about: "gapless-sim, for the oldest C library", run: sim_wheel },
    Step { name: "sdist", about: "the source distribution", run: sdist },
    Step { name: "metadata", about: "what PyPI asks of packages (twine)", run: metadata },
    Step { name: "capi", about: "the C library, built with in each way that users have", run: capi },
    Step { name: "bundle", about: "the GPU bundle, run over the simulated driver", run: bundle },
];

/// What no machine does by itself, and where it is done.
const ELSEWHERE: [(&str, &str); 5] = [
    ("on aarch64", "the wheels: .github/workflows/wheels.yml"),
    ("beside each PyTorch", "the wheel: cargo xtask test-releases (3 to 6 GB for each version, one after the other)"),
    ("on a GPU", "the bundle: gpu-bundle/run results, then cargo xtask gpu-compare with what is stored"),
    ("with rights to the repository", "the tag v*, whose workflow builds, attests and lists what is released"),
    ("with accounts", "cargo publish, in the order of `crates`; twine upload, of what the workflow built"),
];

pub fn run(workspace: &Workspace, arguments: &ReleaseArguments) -> Result<(), Failure> {
    if arguments.list {
        print!("{}", listed(&STEPS));
        return Ok(());
    }
    if let Some(version) = &arguments.set_version {
        versions::set(workspace, version)?;
        return generate_header::run(workspace);
    }
    let ended = walk(workspace, &STEPS, &arguments.steps)?;
    println!("\nversion {}", versions::of_workspace(workspace)?);
    print!("{}{}", told(&ended), elsewhere());
    let left = ended.iter().filter(|(_, ended)| !matches!(ended, Ended::Done)).count();
    if left == 0 { Ok(()) } else { Err(Failure::new(format!("{left} of {} steps are not done", ended.len()))) }
}

/// How a step ended.
#[derive(Debug)]
enum Ended {
    Done,
    Failed(Failure),
    NotAsked,
}

/// Runs the steps that were asked for by name, or all.
fn walk(workspace: &Workspace, steps: &[Step], asked: &[String]) -> Result<Vec<(&'static str, Ended)>, Failure> {
    if let Some(unknown) = asked.iter().find(|name| steps.iter().all(|step| step.name != **name)) {
        return Err(Failure::new(format!("there is no step {unknown}; --list has all")));
    }
    let start = Instant::now();
    let walked = steps.iter().map(|step| {
        if !asked.is_empty() && !asked.iter().any(|name| name == step.name) {
            return (step.name, Ended::NotAsked);
        }
        println!("\n== {}: {} ({} s so far)", step.name, step.about, start.elapsed().as_secs());
        let ended = match (step.run)(workspace) {
            Ok(()) => Ended::Done,
            Err(failure) => {
                eprintln!("error: {failure}");
                Ended::Failed(failure)
            }
        };
        (step.name, ended)
    });
    Ok(walked.collect())
}

fn listed(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        let _ = writeln!(text, "{:<14}{}", step.name, step.about);
    }
    text + &elsewhere()
}

fn told(ended: &[(&str, Ended)]) -> String {
    let mut text = String::new();
    for (name, ended) in ended {
        let _ = match ended {
            Ended::Done => writeln!(text, "  done       {name}"),
            Ended::Failed(failure) => writeln!(text, "  not done   {name}: {failure}"),
            Ended::NotAsked => writeln!(text, "  not done   {name}: not asked for"),
        };
    }
    text
}

fn elsewhere() -> String {
    let mut text = String::from("\nNot done here:\n");
    for (place, what) in ELSEWHERE {
        let _ = writeln!(text, "  {place}: {what}");
    }
    text
}

fn committed(workspace: &Workspace) -> Result<(), Failure> {
    let changed = process::output(workspace.command("git").args(["status", "--porcelain"]))?;
    match changed.lines().count() {
        0 => Ok(()),
        files => Err(Failure::new(format!("{files} files are not committed"))),
    }
}

fn dependencies(workspace: &Workspace) -> Result<(), Failure> {
    cargo_deny(workspace, &["bans", "licenses", "sources"])
}

/// Apart from [`dependencies`], which needs no network.
fn advisories(workspace: &Workspace) -> Result<(), Failure> {
    cargo_deny(workspace, &["advisories"])
}

/// Makes these checks of cargo-deny, as the nightly workflow makes all: the fuzz targets have a lock file of their own.
fn cargo_deny(workspace: &Workspace, checks: &[&str]) -> Result<(), Failure> {
    process::require(&["cargo-deny"])?;
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let command = ["deny", "--manifest-path", manifest, "--config", "deny.toml", "check"];
        process::run(workspace.cargo(command).args(checks))?;
    }
    Ok(())
}

fn interface(workspace: &Workspace) -> Result<(), Failure> {
    check_interface::run(workspace, &CheckInterfaceArguments::default())
}

fn objects(workspace: &Workspace) -> Result<(), Failure> {
    build_torch_objects::run(workspace, &TorchObjectsArguments::default())
}

fn wheel(workspace: &Workspace) -> Result<(), Failure> {
    build_wheel::run(workspace, &WheelArguments::default())?;
    require_wheel(workspace, "gapless")
}

fn sim_wheel(workspace: &Workspace) -> Result<(), Failure> {
    build_sim::run(workspace, &BuildSimArguments { wheel: true, ..BuildSimArguments::default() })?;
    require_wheel(workspace, "gapless_sim")
}

fn sdist(workspace: &Workspace) -> Result<(), Failure> {
    build_sdist::run(workspace)
}

fn capi(workspace: &Workspace) -> Result<(), Failure> {
    build_capi::run(workspace, &BuildCapiArguments { check: true, ..BuildCapiArguments::default() })
}

fn bundle(workspace: &Workspace) -> Result<(), Failure> {
    // It takes the fuzz targets along that are built.
    scripts::run(workspace, "fuzz-campaign", &["--minutes", "0"])?;
    gpu_bundle::run(workspace, &GpuBundleArguments::default())?;
    let results = workspace.target("gpu-bundle-simulated");
    process::run(workspace.command(workspace.target("gpu-bundle/run")).arg("--simulated").arg(results))
}

/// The packages of this version in `dist`, as PyPI would take them.
fn metadata(workspace: &Workspace) -> Result<(), Failure> {
    let python = python::interpreter()?;
    if !python::can_run(workspace, &python, "import twine") {
        return Err(Failure::new(format!("{python} has no twine: python/release-requirements.txt names it")));
    }
    let packages = packages(workspace)?;
    if packages.len() < 3 {
        return Err(Failure::new("dist/ has not all of the two wheels and the source distribution"));
    }
    process::run(workspace.command(&python).args(["-m", "twine", "check", "--strict"]).args(packages))
}

/// The packages in `dist` that have this version.
fn packages(workspace: &Workspace) -> Result<Vec<PathBuf>, Failure> {
    let version = versions::of_workspace(workspace)?;
    let dist = workspace.path("dist");
    let mut found = if dist.is_dir() { files::entries(&dist)? } else { Vec::new() };
    found.retain(|path| is_package(&files::name(path), &version));
    Ok(found)
}

fn is_package(file: &str, version: &str) -> bool {
    let rest = ["gapless-", "gapless_sim-"].iter().find_map(|name| file.strip_prefix(name)?.strip_prefix(version));
    rest.is_some_and(|rest| rest == ".tar.gz" || (rest.starts_with('-') && rest.ends_with(".whl")))
}

/// Fails unless `dist` has a wheel of this version that runs wherever a release has to run.
fn require_wheel(workspace: &Workspace, package: &str) -> Result<(), Failure> {
    let system = format!("manylinux_{}_", OLDEST_GLIBC.replace('.', "_"));
    let names = packages(workspace)?.iter().map(|path| files::name(path)).collect::<Vec<_>>();
    if names.iter().any(|name| name.starts_with(&format!("{package}-")) && name.contains(&system)) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the wheel is not for glibc {OLDEST_GLIBC}: python/release-requirements.txt names ziglang"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_THREE: [Step; 3] = [
        Step { name: "first", about: "", run: |_| Ok(()) },
        Step { name: "second", about: "", run: |_| Err(Failure::new("no compiler")) },
        Step { name: "third", about: "", run: |_| Ok(()) },
    ];

    #[test]
    fn it_goes_on_after_a_step_that_fails() {
        let workspace = Workspace::find().expect("a workspace");
        let ended = walk(&workspace, &OF_THREE, &[]).unwrap();
        assert_eq!(told(&ended), "  done       first\n  not done   second: no compiler\n  done       third\n");
        let ended = walk(&workspace, &OF_THREE, &["third".into()]).unwrap();
        let not_asked = "  not done   first: not asked for\n  not done   second: not asked for\n  done       third\n";
        assert_eq!(told(&ended), not_asked);
    }

    #[test]
    fn a_step_that_does_not_exist_is_an_error() {
        let workspace = Workspace::find().expect("a workspace");
        let failure = walk(&workspace, &OF_THREE, &["fourth".into()]).unwrap_err();
        assert_eq!(failure.to_string(), "there is no step fourth; --list has all");
    }

    #[test]
    fn each_step_and_what_is_left_is_listed() {
        let text = listed(&STEPS);
        assert!(STEPS.iter().all(|step| text.contains(step.about)), "{text}");
        assert!(text.contains("on a GPU") && text.contains("aarch64") && text.contains("accounts"), "{text}");
    }

    #[test]
    fn packages_of_other_versions_do_not_count() {
        for file in ["gapless-0.3.0.tar.gz", "gapless-0.3.0-py3-none-any.whl", "gapless_sim-0.3.0-py3-none-any.whl"] {
            assert!(is_package(file, "0.3.0"), "{file}");
        }
        for file in
            ["gapless-0.2.0.tar.gz", "gapless-0.3.01-py3.whl", "gapless-capi-x86_64.tar.gz", "gapless-0.3.0.zip"]
        {
            assert!(!is_package(file, "0.3.0"), "{file}");
        }
    }
}
