//! The GPU bundle: everything that a machine with a GPU, a driver, and nothing else needs to prove gapless.

use super::{build_torch_objects, python_package};
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug, Default, clap::Args)]
#[command(
    after_help = "Copy the folder to the machine and run `./run RESULTS` there; `./run --simulated RESULTS` shows \
                        on any machine that the bundle is whole."
)]
pub struct GpuBundleArguments {
    /// Folder to build the bundle in; an older bundle there is removed [default: gpu-bundle in the target folder]
    folder: Option<PathBuf>,
    /// Build it without PyTorch's allocator object: the stage `python` needs the machine's `run` to be told --plug-in then
    #[arg(long)]
    without_object: bool,
}

const MOST_BYTES: u64 = 48 << 20;
const PROFILE: &str = "bundle";
/// The first file of a bundle, by which it is known.
const VERSION: &str = "VERSION";

pub fn run(workspace: &Workspace, arguments: &GpuBundleArguments) -> Result<(), Failure> {
    let out = match &arguments.folder {
        Some(folder) => files::given(folder)?,
        None => workspace.target("gpu-bundle"),
    };
    process::require(&["cc", "strip", "tar"])?;
    python_package::require_tools()?;
    if !arguments.without_object {
        require_object(&build_torch_objects::objects(workspace))?;
    }
    empty(&out)?;
    write_version(workspace, &out)?;

    let bin = out.join("bin");
    files::create_folder(&bin)?;
    let packages = ["gapless-cli", "gapless-sim-libcuda", "gapless-capi"].map(|package| ["--package", package]);
    // In one go: what they share is built once, with the features of all.
    process::run(workspace.cargo(["build", "--profile", PROFILE]).args(packages.concat()))?;
    let built = workspace.target(PROFILE);
    for name in ["gapless", "libgapless_sim_libcuda.so"] {
        files::copy(&built.join(name), &bin.join(name))?;
    }
    copy_python(workspace, &out, &built.join("libgapless_capi.so"))?;
    if !arguments.without_object {
        python_package::add_torch_objects(workspace, &out.join("python/gapless"))?;
    }
    copy_tests(workspace, &bin)?;
    compile_rules(workspace, &bin)?;
    strip(workspace, &bin)?;

    let traces = out.join("traces");
    files::create_folder(&traces)?;
    for trace in ["vit_l_multiscale.trace.gz", "oom/oom_01.trace.gz"] {
        let trace = workspace.path("traces").join(trace);
        files::copy(&trace, &traces.join(files::name(&trace)))?;
    }
    files::install(&workspace.path("scripts/gpu-run"), &out.join("run"), 0o755)?;
    copy_fuzz_targets(workspace, &out)?;
    say_size(&out)
}

/// PyTorch would run on the plug-in without one, which is not what users get.
fn require_object(objects: &Path) -> Result<(), Failure> {
    if objects.is_dir() && !files::with_ending(objects, "so")?.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        "there is no allocator object of PyTorch: cargo xtask build-torch-objects VERSION builds that of the machine's PyTorch \
         first; --without-object builds a bundle that tests the plug-in",
    ))
}

/// Removes the bundle that was there. Anything else is left alone.
fn empty(out: &Path) -> Result<(), Failure> {
    if out.exists() && !files::entries(out)?.is_empty() {
        if !out.join(VERSION).exists() {
            return Err(Failure::new(format!("{} is not empty and holds no bundle", files::shown(out))));
        }
        files::remove_folder(out)?;
    }
    files::create_folder(out)
}

fn write_version(workspace: &Workspace, out: &Path) -> Result<(), Failure> {
    let commit = process::output(workspace.command("git").args(["rev-parse", "HEAD"]));
    let commit = commit.unwrap_or_else(|_| "unknown\n".to_owned());
    let rustc = process::output(workspace.command("rustc").arg("--version"))?;
    files::write(&out.join(VERSION), &format!("gapless {}\ncommit {commit}{rustc}", env!("CARGO_PKG_VERSION")))
}

/// The Python package as the wheel has it, and the scripts that run over it.
fn copy_python(workspace: &Workspace, out: &Path, library: &Path) -> Result<(), Failure> {
    python_package::assemble(workspace, &out.join("python/gapless"), library)?;
    let scripts = out.join("python/gpu");
    files::create_folder(&scripts)?;
    for script in files::with_ending(&workspace.path("python/gpu"), "py")? {
        files::copy(&script, &scripts.join(files::name(&script)))?;
    }
    Ok(())
}

fn copy_tests(workspace: &Workspace, bin: &Path) -> Result<(), Failure> {
    for (package, test) in [("gapless", "conformance"), ("gapless-testkit", "cuda_properties")] {
        let program = executable(workspace, &["test", "--package", package, "--test", test], test)?;
        files::copy(&program, &bin.join(test))?;
    }
    let program = executable(workspace, &["bench", "--package", "gapless-probe", "--bench", "device"], "device")?;
    files::copy(&program, &bin.join("bench-device"))
}

/// The program that asks a driver for what the simulated library's rules speak of: linked with that library, it asks the one that
/// it finds.
fn compile_rules(workspace: &Workspace, bin: &Path) -> Result<(), Failure> {
    let source = workspace.path("crates/sim/tests/programs/rules.c");
    let mut compiler = workspace.command("cc");
    compiler.args(["-std=gnu11", "-O1", "-o"]).arg(bin.join("rules")).arg(source);
    process::run(compiler.arg(bin.join("libgapless_sim_libcuda.so")))
}

/// Builds a test or bench and returns where cargo put it.
fn executable(workspace: &Workspace, arguments: &[&str], name: &str) -> Result<PathBuf, Failure> {
    let mut command = workspace.cargo(arguments.iter().copied());
    command.args(["--profile", PROFILE, "--no-run", "--message-format=json-render-diagnostics"]);
    let messages = process::output(&mut command)?;
    let found = executable_in(&messages, name);
    found.ok_or_else(|| Failure::new(format!("cargo built no executable for {name}")))
}

/// The executable of the target `name` among cargo's messages.
fn executable_in(messages: &str, name: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let of_target = messages.filter(|message| message["target"]["name"] == name);
    of_target.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back()
}

fn strip(workspace: &Workspace, folder: &Path) -> Result<(), Failure> {
    process::run(workspace.command("strip").arg("--strip-unneeded").args(files::below(folder)?))
}

/// Fuzz targets need their own compiler flags: they come along where they have been built (fuzz-campaign does).
fn copy_fuzz_targets(workspace: &Workspace, out: &Path) -> Result<(), Failure> {
    let folder = out.join("fuzz");
    let targets = folder.join("targets");
    for source in files::with_ending(&workspace.path("fuzz/fuzz_targets"), "rs")? {
        let name = files::name(&source.with_extension(""));
        let built = workspace.target("fuzz/x86_64-unknown-linux-gnu/release").join(&name);
        if built.exists() {
            files::create_folder(&targets)?;
            files::copy(&built, &targets.join(&name))?;
        }
    }
    if !targets.exists() {
        return Ok(());
    }
    strip(workspace, &targets)?;
    // Instrumented code is large, and much of it is in several targets: with a dictionary larger than a target, a tenth is left.
    let packed = folder.join("targets.tar.xz");
    process::run(workspace.command("tar").env("XZ_OPT", "-9").arg("cJf").arg(packed).arg("-C").arg(&targets).arg("."))?;
    files::remove_folder(&targets)?;
    process::run(workspace.command("cp").args(["-r", "fuzz/corpus"]).arg(&folder))?;
    files::create_folder(&out.join("scripts"))?;
    for script in ["scripts/fuzz-campaign", "scripts/shards.py"] {
        files::copy(&workspace.path(script), &out.join(script))?;
    }
    Ok(())
}

fn say_size(out: &Path) -> Result<(), Failure> {
    let found = files::below(out)?;
    let bytes: u64 = found.iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.len()).sum();
    let mib = bytes.div_ceil(1 << 20);
    if bytes > MOST_BYTES {
        return Err(Failure::new(format!("the bundle has {mib} MiB, more than {}", MOST_BYTES >> 20)));
    }
    eprintln!("{}: {mib} MiB, {} files", files::shown(out), found.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_the_one_of_the_target() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"device"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/other"}
not json
{"reason":"compiler-artifact","target":{"name":"device"},"executable":"/device-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable_in(messages, "device"), Some("/device-1".into()));
        assert_eq!(executable_in(messages, "conformance"), None);
    }

    #[test]
    fn a_bundle_without_an_object_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let objects = folder.path().join("objects");
        assert!(require_object(&objects).unwrap_err().to_string().contains("cargo xtask build-torch-objects"));
        fs::create_dir(&objects).unwrap();
        assert!(require_object(&objects).is_err());
        fs::write(objects.join("_torch_object_2_15.so"), "").unwrap();
        require_object(&objects).unwrap();
    }

    #[test]
    fn only_a_bundle_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("bundle");
        empty(&out).unwrap();
        fs::write(out.join("precious"), "").unwrap();
        assert!(empty(&out).is_err() && out.join("precious").exists());
        fs::write(out.join(VERSION), "").unwrap();
        empty(&out).unwrap();
        assert!(files::entries(&out).unwrap().is_empty());
    }
}
